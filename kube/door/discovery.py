"""Finds out which kinds the API server serves, and under which paths, for sources; and whether KubeVirt is there."""

from __future__ import annotations

from dataclasses import dataclass

from kube.door.api import Api
from kube.door.api_errors import NotFound
from kube.door.paging import listed
from kube.paths import Object

KUBEVIRTS = "/apis/kubevirt.io/v1/kubevirts"
"""An object there says that KubeVirt itself is installed."""


@dataclass(frozen=True)
class Resource:
    """A kind as the server serves it."""

    api_version: str
    plural: str
    namespaced: bool

    def path(self, namespace: str = "") -> str:
        """The path of the collection, of one namespace where there are namespaces."""
        inside = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{root(self.api_version)}{inside}/{self.plural}"


def root(api_version: str) -> str:
    """The path under which a group and version is found; the core group has its own."""
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


async def resource(api: Api, api_version: str, kind: str) -> Resource:
    """How `kind` is served. Raises `NotFound` when it is not."""
    answer = await api.get(root(api_version))
    for served in answer.get("resources") or []:
        if served["kind"] == kind and "/" not in served["name"]:
            return Resource(api_version, served["name"], served["namespaced"])
    raise NotFound(404, f"the server does not serve {kind} of {api_version}")


async def kubevirts(api: Api) -> list[Object]:
    """The objects that say that KubeVirt is installed, whose own controllers migrate, protect and label then (DRN-10):
    none, or one."""
    return await listed(api, KUBEVIRTS)


async def has_kubevirt(api: Api) -> bool:
    """Whether there is one."""
    return bool(await kubevirts(api))


def server(api: Api) -> str:
    """The URL of the API server."""
    return str(api._configuration.host)
