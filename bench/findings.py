"""Figures of an observation with their limits, and the analysis of what happens between ticks. Pure functions."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.api_requests import WATCH, Request
from kube.maintenance import leases

SLACK_SECONDS = 0.1
"""Tolerance between the clocks of the journal and the audit log when a request is attributed to a tick."""
LISTED = 3
"""Number of request kinds to list if there were requests where none are expected."""
POD_LISTS = 20
"""Limit of pod lists per tick, however many maintenances exist."""


@dataclass(frozen=True)
class Finding:
    """One figure.

    Attributes:
        case: The name of the case.
        what: A label with the unit.
        value: The measured value.
        limit: The maximum, or None if there is none.
    """

    engine: str
    case: str
    what: str
    value: float
    limit: float | None = None

    @property
    def holds(self) -> bool:
        """Return whether the value is within its limit."""
        return self.limit is None or self.value <= self.limit

    @property
    def row(self) -> list[str]:
        """Return a table row: engine, case, label, value, limit. A value over the limit is bold."""
        limit = "" if self.limit is None else f"{self.limit:g}"
        value = f"{self.value:g}"
        return [self.engine, self.case, self.what, value if self.holds else f"**{value}**", limit]

    @property
    def line(self) -> str:
        """Return the progress line that is printed at once."""
        limit = "" if self.limit is None else f" (at most {self.limit:g}{'' if self.holds else ': does not hold'})"
        return f"{self.engine}: {self.case}: {self.what}: {self.value:g}{limit}"


@dataclass(frozen=True)
class Tick:
    """One tick: when `resync` first handled it, in seconds since 1970, and how long that took, including retries."""

    at: float
    seconds: float


@dataclass(frozen=True)
class Quiet:
    """Measurements of a product that has nothing to do.

    Attributes:
        ticks: The ticks in the period.
        requests: All API requests of its accounts, including watches.
        events: The number of the product's own events.
        rows: The number of journal rows for these.
        updates: The number of events for objects that another client wrote. A kubelet's status write causes one if its
            node is under maintenance (rule 10: other nodes cause none). Answering them takes no request.
    """

    ticks: Sequence[Tick]
    requests: Sequence[Request]
    events: int
    rows: int
    updates: int

    def figures(self) -> list[tuple[str, float, float | None]]:
        """Return the label, value and limit of each figure."""
        usual = self._usual
        of_ticks = [[request for request in usual if _within(request, tick)] for tick in self.ticks]
        asked = sum(map(len, of_ticks))
        found: list[tuple[str, float, float | None]] = [
            ("requests between ticks", len(usual) - asked, 0),
            *((f"of these, {what}", count, None) for what, count in self.between()),
            ("events between ticks", self.events, 0),
            ("journal rows between ticks", self.rows, 0),
            ("events of others' writes, meanwhile", self.updates, None),
            ("requests for leases, meanwhile", sum(map(is_renewal, self.requests)), None),
            ("watches begun or renewed, meanwhile", sum(request.verb == WATCH for request in self.requests), None),
            ("looks for a kind that is not served, meanwhile", sum(map(is_look, self.requests)), None),
            ("ticks, meanwhile", len(self.ticks), None),
        ]
        if self.ticks:
            seconds = [tick.seconds for tick in self.ticks]
            found += [
                ("seconds of a tick, median", statistics.median(seconds), 1.0),
                ("seconds of a tick, the longest", max(seconds), None),
                ("requests of a tick, median", statistics.median(map(len, of_ticks)), None),
                ("lists of pods in a tick, the most", max(map(_pod_lists, of_ticks)), POD_LISTS),
            ]
        return found

    def between(self) -> list[tuple[str, int]]:
        """Return the most frequent requests between ticks, to diagnose requests where none are expected."""
        outside = [request for request in self._usual if not any(_within(request, tick) for tick in self.ticks)]
        return Counter(request.what for request in outside).most_common(LISTED)

    @property
    def _usual(self) -> list[Request]:
        return [each for each in self.requests if each.verb != WATCH and not (is_renewal(each) or is_look(each))]


def is_renewal(request: Request) -> bool:
    """Return whether the request is about a single node lease; a tick's list of all leases does not count."""
    return request.resource == "leases" and request.namespace == leases.NAMESPACE and request.verb != "list"


def is_look(request: Request) -> bool:
    """Return whether the request asked for a kind that is not served; its watch starts once the kind is installed."""
    return request.is_missing and not request.name


def _within(request: Request, tick: Tick) -> bool:
    return tick.at - SLACK_SECONDS <= request.at <= tick.at + tick.seconds + SLACK_SECONDS


def _pod_lists(found: Iterable[Request]) -> int:
    return sum(request.what == "list pods" for request in found)
