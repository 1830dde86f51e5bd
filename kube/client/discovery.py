"""Discovers the API path of a kind, and whether KubeVirt is installed."""

from __future__ import annotations

from dataclasses import dataclass

from kube.client.api import Api
from kube.client.api_errors import NotFound
from kube.client.paging import list_or_empty
from kube.paths import Object

KUBEVIRTS_PATH = "/apis/kubevirt.io/v1/kubevirts"
"""API path of the KubeVirt objects; such an object exists only if KubeVirt is installed."""


@dataclass(frozen=True)
class ApiResource:
    """A kind that the API server serves, with the parts of its API path."""

    api_version: str
    plural: str
    namespaced: bool

    def build_path(self, namespace: str = "") -> str:
        """Return the path of the collection, limited to `namespace` if that is set and the kind is namespaced."""
        namespace_segment = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{build_group_path(self.api_version)}{namespace_segment}/{self.plural}"


def build_group_path(api_version: str) -> str:
    """Return the API path of a group and version; the core group's path has a different prefix."""
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


async def discover_resource(api: Api, api_version: str, kind: str) -> ApiResource:
    """Return the API resource of `kind`. Raises `NotFound` if the API server does not serve that kind."""
    resource_list = await api.get(build_group_path(api_version))
    for resource in resource_list.get("resources") or []:
        if resource["kind"] == kind and "/" not in resource["name"]:
            return ApiResource(api_version, resource["name"], resource["namespaced"])
    raise NotFound(404, f"the API server does not serve {kind} of {api_version}")


async def list_kubevirts(api: Api) -> list[Object]:
    """Return the KubeVirt objects; a cluster has at most one.

    If there is one, KubeVirt itself migrates VMIs, protects them with PodDisruptionBudgets, and labels nodes (DRN-10).
    """
    return await list_or_empty(api, KUBEVIRTS_PATH)


async def has_kubevirt(api: Api) -> bool:
    """Return whether KubeVirt is installed."""
    return bool(await list_kubevirts(api))


def get_server_url(api: Api) -> str:
    """Return the URL of the API server."""
    return str(api._configuration.host)
