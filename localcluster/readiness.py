"""Readiness checks: of a server by its health endpoint, of a node and of a CRD by their conditions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import requests

from kube import pods
from kube.client.api_errors import NotFound, Unavailable
from kube.client.sync_client import Cluster
from kube.maintenance.objects import condition, is_deleting
from kube.paths import Object

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NOT_READY = "node.kubernetes.io/not-ready"
READY = "/health/readiness"
"""The readiness endpoint of all the product's programs."""
SECONDS = 5.0


def answers(url: str, certificate: Path | None = None, headers: Mapping[str, str] | None = None) -> bool:
    """Return whether a GET succeeds; `certificate` is the one to trust if the server uses TLS."""
    with requests.Session() as session:
        session.trust_env = False  # a proxy in the environment is for external hosts only
        session.verify = str(certificate) if certificate else True
        try:
            return session.get(url, headers=headers, timeout=SECONDS).ok
        except requests.RequestException:
            return False


def is_ready(url: str) -> bool:
    """Return whether the product's program at this address is ready."""
    return answers(url.rstrip("/") + READY)


def is_ready_node(node: Object) -> bool:
    """Return whether a node is Ready and no longer has the not-ready taint of a new node.

    The controller manager removes that taint only after it has observed that the node is Ready.
    """
    return pods.is_ready(node) and all(taint["key"] != NOT_READY for taint in node["spec"].get("taints", []))


def unestablished(door: Cluster, crds: Collection[str]) -> list[str]:
    """Describe each of these CustomResourceDefinitions, by default of all, that is not Established, with the reason."""
    try:
        items = [door.get(f"{CRDS}/{name}") for name in crds] if crds else door.list(CRDS)["items"]
    except (NotFound, Unavailable) as error:
        return [error.message]
    return [f"{item['metadata']['name']} is not Established{_why(item)}" for item in items if not _is_established(item)]


def _is_established(crd: Object) -> bool:
    return condition(crd, "Established").get("status") == "True" and not is_deleting(crd)


def _why(crd: Object) -> str:
    conditions = crd.get("status", {}).get("conditions") or []
    return "".join(f": {each['message']}" for each in conditions if each["status"] == "False" and each.get("message"))
