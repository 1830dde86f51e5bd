"""Patches the nodes of a page, some side by side, for as long as there is time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kube.cpu.node_patch import Node, patch
from kube.door.api import JSON_PATCH, Api, absent_ok
from kube.door.api_errors import ApiError, Conflict, NotFound, Unavailable
from kube.door.deadline import has_time
from kube.nodes import node_path
from kube.paths import Object

Due = Callable[[Node], Mapping[str, str] | None]
"""The labels that a node should carry; None for one that is left as it is."""
TOGETHER, SECONDS = 25, 0.5
"""So many nodes at once, while there is so much time left for the next ones."""
ATTEMPTS = 5
"""Readings of one node: so often may somebody else write it first."""
log = logging.getLogger("functions")


class Relabelled(NamedTuple):
    """What became of a page: so many nodes patched, not come to, and failed for now; the last failure's words."""

    patched: int
    left: int
    failed: int
    error: str


async def relabelled(api: Api, nodes: Sequence[Object], due: Due) -> Relabelled:
    """Patch those that differ. What one of them is refused stops no other."""
    differing = [node for node in nodes if _operations(node, due)]
    done: list[bool | BaseException] = []
    for start in range(0, len(differing), TOGETHER):
        if start and not has_time(SECONDS):
            break
        some = differing[start : start + TOGETHER]
        done += await asyncio.gather(*(_relabel(api, node, due) for node in some), return_exceptions=True)
    for node, outcome in zip(differing, done, strict=False):
        if isinstance(outcome, ApiError):
            named = {"reconciler kind": "Node", "name": node["metadata"]["name"]}
            log.error("a node was not labelled: %s", outcome.message, extra={"fields": named})
        elif isinstance(outcome, BaseException):
            raise outcome
    failures = [outcome.message for outcome in done if isinstance(outcome, Unavailable)]
    return Relabelled(done.count(True), len(differing) - len(done), len(failures), "".join(failures[-1:]))


async def _relabel(api: Api, node: Object, due: Due) -> bool:
    """Patch one node, after a conflict as it is by then; whether that was to be done. Raises an `ApiError`."""
    path, found = node_path(node["metadata"]["name"]), node
    for _ in range(ATTEMPTS):
        operations = _operations(found, due)
        if not operations:
            return False
        try:
            await api.patch(path, operations, JSON_PATCH)
        except Conflict:
            again = await absent_ok(api.get(path))
            if again is None:
                return False
            found = again
        except NotFound:
            return False
        else:
            return True
    raise Unavailable(0, f"it changed {ATTEMPTS} times while it was patched")


def _operations(node: Node, due: Due) -> list[Object]:
    wanted = due(node)
    return [] if wanted is None else patch(node, wanted)
