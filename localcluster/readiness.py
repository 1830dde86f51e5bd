"""Checks whether a server is ready by its health endpoint, and whether a node or a CRD is ready by its conditions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import requests

from kube import pods
from kube.client.api_errors import NotFound, Unavailable
from kube.client.sync_client import SyncClient
from kube.maintenance.objects import get_condition, is_deleting
from kube.paths import Object

CRDS_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NOT_READY_TAINT = "node.kubernetes.io/not-ready"
READINESS_PATH = "/health/readiness"
"""The readiness endpoint, which is the same for all servers of the product."""
REQUEST_TIMEOUT_SECONDS = 5.0


def is_responding(url: str, certificate: Path | None = None, headers: Mapping[str, str] | None = None) -> bool:
    """Return whether a GET of `url` succeeds; for TLS, `certificate` is the CA bundle or certificate to trust."""
    with requests.Session() as session:
        session.trust_env = False  # A proxy in the environment is for external hosts only.
        session.verify = str(certificate) if certificate else True
        try:
            return session.get(url, headers=headers, timeout=REQUEST_TIMEOUT_SECONDS).ok
        except requests.RequestException:
            return False


def is_ready(url: str) -> bool:
    """Return whether the product's server with this base URL is ready."""
    return is_responding(url.rstrip("/") + READINESS_PATH)


def is_node_ready(node: Object) -> bool:
    """Return whether a node is Ready and does not have a new node's not-ready taint.

    The controller manager removes this taint only after it has observed that the node is Ready.
    """
    return pods.is_ready(node) and all(taint["key"] != NOT_READY_TAINT for taint in node["spec"].get("taints", []))


def list_unestablished_crds(client: SyncClient, crds: Collection[str]) -> list[str]:
    """Return a line for each of these CRDs that is not Established; without `crds`, check all CRDs."""
    try:
        items = [client.get(f"{CRDS_PATH}/{name}") for name in crds] if crds else client.list(CRDS_PATH)["items"]
    except (NotFound, Unavailable) as error:
        return [error.message]
    return [
        f"{item['metadata']['name']} is not Established{_format_false_conditions(item)}"
        for item in items
        if not _is_crd_established(item)
    ]


def _is_crd_established(crd: Object) -> bool:
    return get_condition(crd, "Established").get("status") == "True" and not is_deleting(crd)


def _format_false_conditions(crd: Object) -> str:
    conditions = crd.get("status", {}).get("conditions") or []
    return "".join(
        f": {condition['message']}"
        for condition in conditions
        if condition["status"] == "False" and condition.get("message")
    )
