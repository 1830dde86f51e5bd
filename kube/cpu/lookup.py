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

    `after` is what the page before it gave. A server that has forgotten the state of that page names what goes on there
    in the state as it is (API concepts, "retrieving large results sets in chunks"); else the first page is given.
    """
    try:
        return await _page(api, after, marked=marked)
    except (NotFound, Rejected) as error:
        if not after:
            raise
        return await _page(api, (error.body.get("metadata") or {}).get("continue") or "", marked=marked)


async def _page(api: Api, after: str, *, marked: bool) -> Page:
    found = await api.list(NODES, labels=MARK if marked else "", limit=PAGE, token=after, accept=METADATA)
    return Page(found["items"] or [], found["metadata"].get("continue") or "")
