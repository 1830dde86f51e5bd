"""Reads the inputs of the CPU labels: ConfigMaps, HyperConverged objects and nodes.

If the API server does not serve HyperConverged, there are no such objects.
"""

from __future__ import annotations

from typing import NamedTuple

from kube.client.api import METADATA_ONLY, Api
from kube.client.api_errors import NotFound, Rejected
from kube.client.paging import list_all, list_or_empty
from kube.cpu_labels import capabilities, hyperconverged
from kube.cpu_labels.node_patch import MANAGED_LABEL
from kube.nodes import NODES_PATH
from kube.paths import Object, encode_path_segment

PAGE_SIZE = 100
"""Number of nodes to patch per event, which takes at most a second."""


class Page(NamedTuple):
    """One page of the nodes' metadata, and the token of the next page, "" for the last page.

    Attributes:
        is_outdated: Whether the nodes may be older than the request. The API server returns all pages of a list in the
            state of the first page (Kubernetes API concepts, "retrieving large results sets in chunks").
    """

    nodes: list[Object]
    continue_token: str
    is_outdated: bool


async def list_capability_configmaps(api: Api, namespace: str) -> list[Object]:
    """Return the ConfigMaps that describe the nodes' CPU capabilities."""
    path = f"/api/v1/namespaces/{encode_path_segment(namespace)}/configmaps"
    return (await list_all(api, path, label_selector=capabilities.CAPABILITIES_LABEL)).items


async def list_hyperconvergeds(api: Api) -> list[Object]:
    """Return all HyperConverged objects."""
    return await list_or_empty(api, hyperconverged.HYPERCONVERGEDS_PATH)


async def list_node_names(api: Api) -> set[str]:
    """Return the names of all nodes."""
    return {node["metadata"]["name"] for node in (await list_all(api, NODES_PATH, accept=METADATA_ONLY)).items}


async def list_node_page(api: Api, continue_token: str, *, managed_only: bool = False) -> Page:
    """Return a page of all nodes, or with `managed_only` of the nodes with this project's CPU labels.

    `continue_token` comes from the previous page. If it has expired, the API server may return a new one, which
    continues at the same position in the current state. If it returns none, the result is the first page (Kubernetes
    API concepts, "retrieving large results sets in chunks").
    """
    selector = MANAGED_LABEL if managed_only else ""

    async def request_page(token: str) -> Page:
        node_list = await api.list(
            NODES_PATH, label_selector=selector, limit=PAGE_SIZE, continue_token=token, accept=METADATA_ONLY
        )
        return Page(node_list["items"] or [], node_list["metadata"].get("continue") or "", bool(token))

    try:
        return await request_page(continue_token)
    except (NotFound, Rejected) as error:
        if not continue_token:
            raise
        return await request_page((error.body.get("metadata") or {}).get("continue") or "")


async def read_node(api: Api, name: str) -> Object | None:
    """Return a node's current metadata, None if the node does not exist."""
    found = await api.list(NODES_PATH, field_selector=f"metadata.name={name}", accept=METADATA_ONLY)
    return next(iter(found["items"] or []), None)
