"""Parses the product's evictions and deletions of pods from the API server's audit log. Pure functions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus

from kube.paths import Object
from localcluster.access import make_username

ACCOUNT_PREFIX = make_username("")
ENTRY_START = re.compile(r'(?=\{"kind":"Event","apiVersion":"audit\.k8s\.io/)')
"""Start of an audit log entry: a killed API server leaves a partial line, and the next entry continues that line."""
GRANTED_STATUSES = (HTTPStatus.OK, HTTPStatus.CREATED)


@dataclass(frozen=True)
class EvictionRequest:
    """A request by the product to evict a pod, with its arrival time, and whether it was granted."""

    requested_at: float
    pod: str
    uid: str
    is_granted: bool


@dataclass(frozen=True)
class DeletionRequest:
    """A granted request by the product to delete a pod, with its arrival time.

    Attributes:
        version: The resourceVersion that the pod had to have, 0 if the request named none.
    """

    requested_at: float
    pod: str
    uid: str
    version: int


def parse_requests(text: str) -> Iterator[EvictionRequest | DeletionRequest]:
    """Yield the product's evictions of existing pods, and its granted deletions of pods, without dry runs."""
    for entry in ENTRY_START.split(text):
        is_removal = '"subresource":"eviction"' in entry or ('"verb":"delete"' in entry and '"pods"' in entry)
        if is_removal and ACCOUNT_PREFIX in entry and "dryRun" not in entry:
            try:
                parsed = json.loads(entry)
            except ValueError:  # The entry is incomplete.
                continue
            yield from _parse_entry(parsed)


def _parse_entry(audit_entry: Object) -> Iterator[EvictionRequest | DeletionRequest]:
    reference, code = audit_entry["objectRef"], (audit_entry.get("responseStatus") or {}).get("code")
    request, pod = audit_entry.get("requestObject") or {}, f"{reference.get('namespace')}/{reference.get('name')}"
    received_at = datetime.fromisoformat(audit_entry["requestReceivedTimestamp"].replace("Z", "+00:00")).timestamp()
    if reference.get("subresource") == "eviction":
        preconditions = (request.get("deleteOptions") or {}).get("preconditions") or {}
        if code in (*GRANTED_STATUSES, HTTPStatus.TOO_MANY_REQUESTS):
            yield EvictionRequest(received_at, pod, preconditions.get("uid", ""), code in GRANTED_STATUSES)
    elif reference["resource"] == "pods" and code in GRANTED_STATUSES:
        preconditions = request.get("preconditions") or {}
        version = int(preconditions.get("resourceVersion") or 0)
        yield DeletionRequest(received_at, pod, preconditions.get("uid", ""), version)
