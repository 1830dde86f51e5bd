"""Defines the type of API objects, and builds API paths and field selectors. Pure functions."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import quote

Object = dict[str, Any]
"""An API object, decoded from JSON."""
MALFORMED_OBJECT_ERRORS = (ValueError, KeyError, TypeError, AttributeError, OverflowError)
"""Exceptions that the functions in `kube` raise for an object that violates its schema."""
DEFAULT_NAMESPACE = "node-maintenance"
"""Default namespace of an install of this project; a Kustomize overlay may use a different one."""
LEASE_NAMESPACE = os.environ.get("LEASE_NAMESPACE") or "medik8s-leases"
"""Namespace of the nodes' Leases.

The medik8s remediators read the same environment variable, so that one setting moves their Leases and this project's.
"""
LEASES_PATH = f"/apis/coordination.k8s.io/v1/namespaces/{LEASE_NAMESPACE}/leases"
PODS_PATH = "/api/v1/pods"
"""API path of the pods in all namespaces."""


def encode_path_segment(name: str) -> str:
    """Encode a name as one path segment of a URL.

    The name may be arbitrary text and must not address a different resource. Text that could do so is therefore
    replaced by characters that no object's name contains.
    """
    harmless = name.replace("/", ":").replace("%", ":") if name.strip(".") else ":"
    return quote(harmless, safe="")


def build_events_path(namespace: str) -> str:
    """Return the API path of the Kubernetes Events in a namespace."""
    return f"/api/v1/namespaces/{encode_path_segment(namespace)}/events"


def _escape_selector_value(value: str) -> str:
    """Escape a value in a field selector, because a comma in a free-text `nodeName` would break the request."""
    return value.replace("\\", "\\\\").replace(",", "\\,").replace("=", "\\=")


def build_node_name_selector(node_name: str) -> str:
    """Return the field selector for pods or NodeMaintenances whose `spec.nodeName` is `node_name`."""
    return f"spec.nodeName={_escape_selector_value(node_name)}"


def build_pods_on_node_query(node_name: str) -> tuple[str, str]:
    """Return the API path and the field selector that list the pods on a node."""
    return PODS_PATH, build_node_name_selector(node_name)
