"""Observations of a cluster: objects in watches, evictions in the audit log, and gaps in the watches."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus

from kube.paths import Object
from localcluster.access import make_username

NODES, PODS, MAINTENANCES = "nodes", "pods", "nodemaintenances"
ACCOUNT_PREFIX = make_username("")
ENTRY_START = re.compile(r'(?=\{"kind":"Event","apiVersion":"audit\.k8s\.io/)')
"""Start of an audit log entry: a killed API server leaves a partial line, and the next entry continues that line."""


@dataclass(frozen=True)
class ObjectObservation:
    """One version of an object, as observed in a watch.

    Attributes:
        seen_at: The time of the observation, in seconds since 1970.
        collection: The collection of the object.
        is_deleted: Whether the object was deleted; `object` is then its last version.
    """

    seen_at: float
    collection: str
    object: Object
    is_deleted: bool = False

    @property
    def version(self) -> int:
        """Return the resourceVersion, which orders the changes of all objects."""
        return int(self.object["metadata"]["resourceVersion"])


@dataclass(frozen=True)
class WatchGap:
    """A gap in a watch: the watch broke and resumed from a list, which shows only the latest versions.

    Attributes:
        after_version, until_version: The resourceVersions between which changes were missed.
        started_at, ended_at: The start and end of the gap, in seconds since 1970. Objects that were created and deleted
            during the gap are not in the list.
    """

    collection: str
    after_version: int
    until_version: int
    started_at: float = 0.0
    ended_at: float = 0.0


@dataclass(frozen=True)
class EvictionRequest:
    """A request by the product to evict a pod, with its arrival time, and whether it was granted."""

    requested_at: float
    pod: str
    uid: str
    is_granted: bool


Observation = ObjectObservation | WatchGap | EvictionRequest


def parse_evictions(text: str) -> Iterator[EvictionRequest]:
    """Yield the product's evictions of existing pods from an audit log, without dry runs."""
    for entry in ENTRY_START.split(text):
        if '"subresource":"eviction"' in entry and ACCOUNT_PREFIX in entry and "dryRun" not in entry:
            try:
                parsed = json.loads(entry)
            except ValueError:  # The entry is incomplete.
                continue
            code = (parsed.get("responseStatus") or {}).get("code")
            if code in (HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.TOO_MANY_REQUESTS):
                yield _parse_eviction(parsed, is_granted=code != HTTPStatus.TOO_MANY_REQUESTS)


def _parse_eviction(audit_entry: Object, *, is_granted: bool) -> EvictionRequest:
    object_ref = audit_entry["objectRef"]
    options = (audit_entry.get("requestObject") or {}).get("deleteOptions") or {}
    uid = (options.get("preconditions") or {}).get("uid", "")
    received_at = datetime.fromisoformat(audit_entry["requestReceivedTimestamp"].replace("Z", "+00:00"))
    return EvictionRequest(received_at.timestamp(), f"{object_ref['namespace']}/{object_ref['name']}", uid, is_granted)
