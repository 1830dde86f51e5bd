"""Reads what the labels of nodes stand on. A kind that is not served has no objects."""

from __future__ import annotations

from typing import NamedTuple

from kube.cpu import capabilities, hyperconverged
from kube.cpu.node_patch import MARK
from kube.door.api import METADATA, Api
from kube.door.api_errors import NotFound, Rejected
from kube.door.paging import listed, pages
from kube.nodes import NODES
from kube.paths import Object, segment

PAGE = 100
"""Nodes that one event looks at: so many patches take a second at most."""


class Page(NamedTuple):
    """Some nodes, their metadata alone, and what brings the next ones; "" after the last."""

    nodes: list[Object]
    after: str


async def capability_maps(api: Api, namespace: str) -> list[Object]:
    """The ConfigMaps that say what nodes offer."""
    return (await pages(api, f"/api/v1/namespaces/{segment(namespace)}/configmaps", labels=capabilities.LABEL)).items


async def hyperconvergeds(api: Api) -> list[Object]:
    """All HyperConverged objects."""
    return await listed(api, hyperconverged.PATH)


async def node_names(api: Api) -> set[str]:
    """The names of all nodes."""
    return {node["metadata"]["name"] for node in (await pages(api, NODES, accept=METADATA)).items}


async def nodes(api: Api, after: str, *, marked: bool = False) -> Page:
    """A page of all nodes, or of those that carry labels of ours.

    `after` is what the page before it gave; where the server has forgotten that, the first page is given.
    """
    labels = MARK if marked else ""
    try:
        found = await api.list(NODES, labels=labels, limit=PAGE, token=after, accept=METADATA)
    except (NotFound, Rejected):
        if not after:
            raise
        found = await api.list(NODES, labels=labels, limit=PAGE, accept=METADATA)
    return Page(found["items"] or [], found["metadata"].get("continue") or "")
