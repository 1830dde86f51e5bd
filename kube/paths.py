"""The type of an API object, and the paths and selectors under which the API server serves objects. Pure."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import quote

Object = dict[str, Any]
"""An API object as JSON decodes it."""
MALFORMED = (ValueError, KeyError, TypeError, AttributeError, OverflowError)
"""What rules raise of an object in which something is not as any schema has it."""
NAMESPACE = "node-maintenance"
"""Where the product is, unless an overlay puts it elsewhere."""
LEASE_NAMESPACE = os.environ.get("LEASE_NAMESPACE") or "medik8s-leases"
"""Where leases are. The setting is the remediators' own: whoever moves their leases moves ours."""
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{LEASE_NAMESPACE}/leases"
PODS = "/api/v1/pods"
"""Path of all pods of all namespaces."""


def segment(name: str) -> str:
    """A name as one segment of a path. Free text may stand where a name should; it must not lead to another resource:
    what no object's name can hold becomes a name that no object has."""
    harmless = name.replace("/", ":").replace("%", ":") if name.strip(".") else ":"
    return quote(harmless, safe="")


def events_path(namespace: str) -> str:
    """Path of the Events in a namespace."""
    return f"/api/v1/namespaces/{segment(namespace)}/events"


def _selector_value(value: str) -> str:
    """A value for a field selector: nodeName is free text, and one with a comma must not spoil the whole request."""
    return value.replace("\\", "\\\\").replace(",", "\\,").replace("=", "\\=")


def on_node(node: str) -> str:
    """Field selector of what names `node` in `spec.nodeName`: pods, and NodeMaintenance objects."""
    return f"spec.nodeName={_selector_value(node)}"


def pods_on(node: str) -> tuple[str, str]:
    """Path and field selector of the pods on a node."""
    return PODS, on_node(node)
