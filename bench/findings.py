"""What an observation found: figures beside the limits that they must hold; and what happened between ticks. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.api_requests import WATCH, Request
from kube.maintenance import leases

SLACK_SECONDS = 0.1
"""Clocks and the log agree no better: a request belongs to a tick that came so much later, or ended so much before."""
LISTED = 3
"""Kinds of requests that are told where there should be none."""
POD_LISTS = 20
"""Lists of pods that a tick may cost, however many maintenances there are."""


@dataclass(frozen=True)
class Finding:
    """One figure.

    Attributes:
        what: it says, with its unit.
        limit: what it must not exceed, None where there is none.
    """

    engine: str
    case: str
    what: str
    value: float
    limit: float | None = None

    @property
    def holds(self) -> bool:
        """Whether it is within its limit."""
        return self.limit is None or self.value <= self.limit

    @property
    def row(self) -> list[str]:
        """Of a table: engine, case, what, measured, at most. What does not hold is bold."""
        limit = "" if self.limit is None else f"{self.limit:g}"
        value = f"{self.value:g}"
        return [self.engine, self.case, self.what, value if self.holds else f"**{value}**", limit]

    @property
    def line(self) -> str:
        """What is said of it at once."""
        limit = "" if self.limit is None else f" (at most {self.limit:g}{'' if self.holds else ': does not hold'})"
        return f"{self.engine}: {self.case}: {self.what}: {self.value:g}{limit}"


@dataclass(frozen=True)
class Tick:
    """One tick: when `resync` began with it, in seconds since 1970, and how long that took, retries and all."""

    at: float
    seconds: float


@dataclass(frozen=True)
class Quiet:
    """What was seen of a product that has nothing to do.

    Attributes:
        requests: all of its accounts, watches too.
        events: of ours.
        rows: of the journal, about these.
        updates: events of objects that somebody else wrote, one for each time that a kubelet writes the status of a
            node under maintenance (rule 10: of other nodes there are none). They are answered without a request.
    """

    ticks: Sequence[Tick]
    requests: Sequence[Request]
    events: int
    rows: int
    updates: int

    def figures(self) -> list[tuple[str, float, float | None]]:
        """What, value and limit of each figure."""
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
        """The most frequent requests between ticks: what to look at where there should be none."""
        outside = [request for request in self._usual if not any(_within(request, tick) for tick in self.ticks)]
        return Counter(request.what for request in outside).most_common(LISTED)

    @property
    def _usual(self) -> list[Request]:
        return [each for each in self.requests if each.verb != WATCH and not (is_renewal(each) or is_look(each))]


def is_renewal(request: Request) -> bool:
    """Whether it is about one lease of a node; a tick's list of all leases is not."""
    return request.resource == "leases" and request.namespace == leases.NAMESPACE and request.verb != "list"


def is_look(request: Request) -> bool:
    """Whether it asked for a kind that the server does not serve: the watch of it begins when that is installed."""
    return request.is_missing and not request.name


def _within(request: Request, tick: Tick) -> bool:
    return tick.at - SLACK_SECONDS <= request.at <= tick.at + tick.seconds + SLACK_SECONDS


def _pod_lists(found: Iterable[Request]) -> int:
    return sum(request.what == "list pods" for request in found)
