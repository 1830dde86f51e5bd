"""Discovers which kinds the API server serves, under which paths, and whether KubeVirt is installed."""

from __future__ import annotations

from dataclasses import dataclass

from kube.client.api import Api
from kube.client.api_errors import NotFound
from kube.client.paging import listed
from kube.paths import Object

KUBEVIRTS = "/apis/kubevirt.io/v1/kubevirts"
"""Path of the KubeVirt objects; one exists if KubeVirt itself is installed."""


@dataclass(frozen=True)
class Resource:
    """A kind as the API server serves it."""

    api_version: str
    plural: str
    namespaced: bool

    def path(self, namespace: str = "") -> str:
        """Return the path of the collection, limited to `namespace` if the kind is namespaced."""
        inside = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{root(self.api_version)}{inside}/{self.plural}"


def root(api_version: str) -> str:
    """Return the path of a group and version; the core group has a different prefix."""
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


async def resource(api: Api, api_version: str, kind: str) -> Resource:
    """Return how the API server serves `kind`. Raises `NotFound` if it does not."""
    answer = await api.get(root(api_version))
    for served in answer.get("resources") or []:
        if served["kind"] == kind and "/" not in served["name"]:
            return Resource(api_version, served["name"], served["namespaced"])
    raise NotFound(404, f"the server does not serve {kind} of {api_version}")


async def kubevirts(api: Api) -> list[Object]:
    """Return the KubeVirt objects, of which there is at most one.

    If there is one, KubeVirt's own controllers migrate, protect and label (DRN-10).
    """
    return await listed(api, KUBEVIRTS)


async def has_kubevirt(api: Api) -> bool:
    """Return whether KubeVirt is installed."""
    return bool(await kubevirts(api))


def server(api: Api) -> str:
    """Return the URL of the API server."""
    return str(api._configuration.host)
