"""Observations of a cluster: objects in watches, evictions in the audit log, and gaps of the watches."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus

from kube.paths import Object
from localcluster.access import service_account

NODES, PODS, MAINTENANCES = "nodes", "pods", "nodemaintenances"
OURS = service_account("")
LINE = re.compile(r'(?=\{"kind":"Event","apiVersion":"audit\.k8s\.io/)')
"""Start of an audit log entry: a killed API server leaves a partial line, and the next entry continues that line."""


@dataclass(frozen=True)
class Sighting:
    """An object as a watch showed it.

    Attributes:
        at: The time of the observation, in seconds since 1970.
        room: The collection of the object.
        gone: Whether it was deleted; `item` is then its last version.
    """

    at: float
    room: str
    item: Object
    gone: bool = False

    @property
    def version(self) -> int:
        """Return the resourceVersion, which orders the changes of all objects."""
        return int(self.item["metadata"]["resourceVersion"])


@dataclass(frozen=True)
class Blind:
    """A gap of a watch: it broke and resumed from a list, which shows only the latest versions.

    Attributes:
        after, until: The resourceVersions between which changes were missed.
        since, till: The times of the gap, in seconds since 1970; objects created and deleted in it are not in the list.
    """

    room: str
    after: int
    until: int
    since: float = 0.0
    till: float = 0.0


@dataclass(frozen=True)
class Eviction:
    """A request of the product to evict a pod, with its arrival time; it was granted, or else refused by a budget."""

    at: float
    pod: str
    uid: str
    granted: bool


Observation = Sighting | Blind | Eviction


def evictions(text: str) -> Iterator[Eviction]:
    """Yield the product's evictions of existing pods in the entries of an audit log, without dry runs."""
    for entry in LINE.split(text):
        if '"subresource":"eviction"' in entry and OURS in entry and "dryRun" not in entry:
            try:
                found = json.loads(entry)
            except ValueError:  # a partial line
                continue
            code = (found.get("responseStatus") or {}).get("code")
            if code in (HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.TOO_MANY_REQUESTS):
                yield _eviction(found, granted=code != HTTPStatus.TOO_MANY_REQUESTS)


def _eviction(entry: Object, *, granted: bool) -> Eviction:
    about = entry["objectRef"]
    options = (entry.get("requestObject") or {}).get("deleteOptions") or {}
    uid = (options.get("preconditions") or {}).get("uid", "")
    moment = datetime.fromisoformat(entry["requestReceivedTimestamp"].replace("Z", "+00:00"))
    return Eviction(moment.timestamp(), f"{about['namespace']}/{about['name']}", uid, granted)
