"""Patches the labels of one page of nodes, several nodes concurrently, until the deadline."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kube.cpu.node_patch import Node, patch
from kube.client.api import JSON_PATCH, Api
from kube.client.api_errors import ApiError, Conflict, NotFound, Unavailable
from kube.client.deadline import has_time
from kube.nodes import node_path
from kube.paths import Object

Due = Callable[[Node], Mapping[str, str] | None]
"""Returns the labels that a node should carry, or None to leave the node unchanged."""
TOGETHER, SECONDS = 25, 0.5
"""Nodes patched concurrently, and the seconds that must remain before the next group starts."""
log = logging.getLogger("functions")


class Relabelled(NamedTuple):
    """Result of one page: nodes patched, nodes that need another pass, and the last error among the latter."""

    patched: int
    left: int
    error: str


async def relabelled(api: Api, nodes: Sequence[Object], due: Due) -> Relabelled:
    """Patch the nodes whose labels differ.

    A rejected patch is logged. It does not stop the other patches, and it does not trigger another pass.
    """
    differing = [(node, operations) for node in nodes if (operations := _operations(node, due))]
    done: list[bool | BaseException] = []
    for start in range(0, len(differing), TOGETHER):
        if start and not has_time(SECONDS):
            break
        some = differing[start : start + TOGETHER]
        done += await asyncio.gather(*(_relabel(api, *one) for one in some), return_exceptions=True)
    for (node, _), outcome in zip(differing, done, strict=False):
        if isinstance(outcome, ApiError):
            named = {"reconciler kind": "Node", "name": node["metadata"]["name"]}
            log.error("a node was not labelled: %s", outcome.message, extra={"fields": named})
        elif isinstance(outcome, BaseException):
            raise outcome
    passing = [outcome.message for outcome in done if isinstance(outcome, Unavailable)]
    left = len(differing) - len(done) + len(passing)
    return Relabelled(done.count(True), left, passing[-1] if passing else "no time was left for all nodes")


async def _relabel(api: Api, node: Object, operations: list[Object]) -> bool:
    """Patch one node and return whether the node exists.

    Raises `ApiError`; `Unavailable` if a retry may succeed. A conflict counts as `Unavailable`: the other writer may
    have used a newer ConfigMap, so only a pass that reads all inputs again can compute the labels.
    """
    try:
        await api.patch(node_path(node["metadata"]["name"]), operations, JSON_PATCH)
    except Conflict as error:
        raise Unavailable(error.status, "somebody else wrote it meanwhile") from error
    except NotFound:
        return False
    return True


def _operations(node: Node, due: Due) -> list[Object]:
    wanted = due(node)
    return [] if wanted is None else patch(node, wanted)
