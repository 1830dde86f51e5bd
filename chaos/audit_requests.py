"""Parses the product's requests to evict or delete pods from the API server's audit log. Pure functions."""

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
"""Matches the start of an audit log entry, which may follow a partial line that a killed API server has written."""
GRANTED_STATUSES = (HTTPStatus.OK, HTTPStatus.CREATED)


@dataclass(frozen=True)
class EvictionRequest:
    """An eviction that the product requested, with the time of the request, and whether it was granted."""

    requested_at: float
    pod: str
    uid: str
    is_granted: bool


@dataclass(frozen=True)
class DeletionRequest:
    """A pod's deletion that the product requested and the API server granted, with the time of the request.

    Attributes:
        version: The resourceVersion in the request's preconditions, 0 if the request has none.
    """

    requested_at: float
    pod: str
    uid: str
    version: int


def parse_requests(text: str) -> Iterator[EvictionRequest | DeletionRequest]:
    """Yield the product's evictions of existing pods and its granted deletions of pods, except for dry runs."""
    for entry in ENTRY_START.split(text):
        is_removal = '"subresource":"eviction"' in entry or ('"verb":"delete"' in entry and '"pods"' in entry)
        if is_removal and ACCOUNT_PREFIX in entry and "dryRun" not in entry:
            try:
                parsed = json.loads(entry)
            except ValueError:  # The entry is incomplete, because the API server was killed.
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
