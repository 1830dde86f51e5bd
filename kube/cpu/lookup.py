"""Reads the inputs of the CPU labels: ConfigMaps, HyperConverged objects and nodes.

If the API server does not serve HyperConverged, the list of these objects is empty.
"""

from __future__ import annotations

from typing import NamedTuple

from kube.cpu import capabilities, hyperconverged
from kube.cpu.node_patch import MARK
from kube.client.api import METADATA, Api
from kube.client.api_errors import NotFound, Rejected
from kube.client.paging import listed, pages
from kube.nodes import NODES
from kube.paths import Object, segment

PAGE = 100
"""Number of nodes that one event processes; patching them takes at most a second."""


class Page(NamedTuple):
    """Some nodes (metadata only), and the token of the next page, "" after the last page."""

    nodes: list[Object]
    after: str


async def capability_maps(api: Api, namespace: str) -> list[Object]:
    """Return the ConfigMaps that describe the CPU capabilities of nodes."""
    return (await pages(api, f"/api/v1/namespaces/{segment(namespace)}/configmaps", labels=capabilities.LABEL)).items


async def hyperconvergeds(api: Api) -> list[Object]:
    """Return all HyperConverged objects."""
    return await listed(api, hyperconverged.PATH)


async def node_names(api: Api) -> set[str]:
    """Return the names of all nodes."""
    return {node["metadata"]["name"] for node in (await pages(api, NODES, accept=METADATA)).items}


async def nodes(api: Api, after: str, *, marked: bool = False) -> Page:
    """Return a page of all nodes, or with `marked` of the nodes that carry this project's CPU labels.

    `after` is the token from the previous page. If the token has expired, the API server may return one that continues
    at the same place in the current state (API concepts, "retrieving large results sets in chunks"). If it returns
    none, the result is the first page.
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
