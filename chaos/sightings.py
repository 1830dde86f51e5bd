"""What is observed of a cluster: objects in watches, evictions in the audit log, and what the watches missed."""

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
"""Where an entry begins: an API server that is killed leaves half a line, and the next one goes on behind it."""


@dataclass(frozen=True)
class Sighting:
    """An object as a watch showed it.

    Attributes:
        at: seconds since 1970, when it came.
        room: which collection it is of.
        gone: it is deleted; `item` is what it was last.
    """

    at: float
    room: str
    item: Object
    gone: bool = False

    @property
    def version(self) -> int:
        """By which all changes of all objects are in one order."""
        return int(self.item["metadata"]["resourceVersion"])


@dataclass(frozen=True)
class Blind:
    """A watch broke, and was begun anew from a list: of what came between these versions only the end was seen.

    Attributes:
        since, till: the same in seconds since 1970. What came and went between these has no version in the list.
    """

    room: str
    after: int
    until: int
    since: float = 0.0
    till: float = 0.0


@dataclass(frozen=True)
class Eviction:
    """A request of ours to evict a pod, when it arrived, and whether it was granted; refused by a budget, if not."""

    at: float
    pod: str
    uid: str
    granted: bool


Observation = Sighting | Blind | Eviction


def evictions(text: str) -> Iterator[Eviction]:
    """Ours among the entries of an audit log, of pods that were there, but for dry runs."""
    for entry in LINE.split(text):
        if '"subresource":"eviction"' in entry and OURS in entry and "dryRun" not in entry:
            try:
                found = json.loads(entry)
            except ValueError:  # half a line
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
