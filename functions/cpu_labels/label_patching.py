"""Patches the labels of one page of nodes, several nodes concurrently, until the deadline."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

from kube.client.api import JSON_PATCH, Api
from kube.client.api_errors import ApiError, Conflict, NotFound, Unavailable
from kube.client.deadline import has_seconds_left
from kube.cpu.lookup import Page, read_node
from kube.cpu.node_patch import Node, build_labels_patch
from kube.nodes import build_node_path
from kube.paths import Object

DesiredLabels = Callable[[Node], Mapping[str, str] | None]
"""Returns the labels that a node should carry, or None to leave the node unchanged."""
BATCH_SIZE, MIN_BATCH_SECONDS = 25, 0.5
"""Number of nodes patched concurrently, and the seconds that must remain to start the next batch."""
log = logging.getLogger("functions")


class LabelResult(NamedTuple):
    """Result of one page.

    Attributes:
        patched_count: Number of patched nodes.
        next_node: Name of the node at which another pass must begin: the first node for which no time was left, or
            else the first node whose patch may succeed later; "" if all nodes are done.
        error: Why another pass is needed: the last error of such a patch, or that the time ran out.
    """

    patched_count: int
    next_node: str
    error: str


async def patch_labels(api: Api, page: Page, desired_labels: DesiredLabels, first_node: str = "") -> LabelResult:
    """Patch the nodes of a page whose labels differ; if the page is outdated, read each node again first.

    A rejected patch is logged; it neither stops the other patches nor triggers another pass. The nodes of a page are
    ordered by name; those before `first_node` were patched by an earlier pass over the same page.
    """
    differing = [
        node for node in page.nodes if node["metadata"]["name"] >= first_node and _build_patch(node, desired_labels)
    ]
    outcomes: list[bool | BaseException] = []
    for start in range(0, len(differing), BATCH_SIZE):
        if start and not has_seconds_left(MIN_BATCH_SECONDS):
            break
        batch = differing[start : start + BATCH_SIZE]
        patches = (_patch_node(api, node, desired_labels, is_outdated=page.is_outdated) for node in batch)
        outcomes += await asyncio.gather(*patches, return_exceptions=True)
    failed: list[tuple[Node, Unavailable]] = []
    for node, outcome in zip(differing, outcomes, strict=False):
        if isinstance(outcome, Unavailable):
            failed.append((node, outcome))
        if isinstance(outcome, ApiError):
            fields = {"reconciler kind": "Node", "name": node["metadata"]["name"]}
            log.error("cannot label a node: %s", outcome.message, extra={"fields": fields})
        elif isinstance(outcome, BaseException):
            raise outcome
    remaining = [*differing[len(outcomes) :], *(node for node, _error in failed)]
    return LabelResult(
        outcomes.count(True),
        remaining[0]["metadata"]["name"] if remaining else "",
        failed[-1][1].message if failed else "ran out of time before all nodes were labelled",
    )


async def _patch_node(api: Api, node: Object, desired_labels: DesiredLabels, *, is_outdated: bool) -> bool:
    """Patch one node; return False if the node no longer exists or its labels no longer differ.

    Raises `Unavailable` if a retry may succeed, else another `ApiError`. A conflict counts as `Unavailable`: the other
    writer may have used a newer ConfigMap, so only a pass that reads all inputs again can compute the labels.
    """
    name = node["metadata"]["name"]
    current_node = await read_node(api, name) if is_outdated else node
    operations = _build_patch(current_node, desired_labels) if current_node else []
    if not operations:
        return False
    try:
        await api.patch(build_node_path(name), operations, JSON_PATCH)
    except Conflict as error:
        raise Unavailable(error.status, "another client changed the node at the same time") from error
    except NotFound:
        return False
    return True


def _build_patch(node: Node, desired_labels: DesiredLabels) -> list[Object]:
    labels = desired_labels(node)
    return [] if labels is None else build_labels_patch(node, labels)
