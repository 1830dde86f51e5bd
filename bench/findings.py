"""Figures of an observation with their limits, and the analysis of requests between ticks. Pure functions."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.api_requests import WATCH, Request
from kube.maintenance import leases

Figure = tuple[str, float, float | None]
"""A measured figure: its label, its value, and its upper limit or None."""
SLACK_SECONDS = 0.1
"""Tolerance for the difference between the journal's and the audit log's clocks when requests are matched to ticks."""
MAX_LISTED_REQUESTS = 3
"""Maximum number of request kinds to list if the idle product sends requests between ticks."""
MAX_POD_LISTS = 20
"""Maximum number of requests per tick that list pods, for any number of maintenances."""


@dataclass(frozen=True)
class Finding:
    """One measured figure of a case, with its engine.

    Attributes:
        engine: The name of the engine.
        case: The name of the case.
        metric: The figure's label, with its unit.
        value: The measured value.
        limit: The maximum value, or None if there is no limit.
    """

    engine: str
    case: str
    metric: str
    value: float
    limit: float | None = None

    @property
    def is_within_limit(self) -> bool:
        """Return whether the value does not exceed the limit."""
        return self.limit is None or self.value <= self.limit

    @property
    def row(self) -> list[str]:
        """Return a Markdown table row: engine, case, label, value and limit. A value over the limit is bold."""
        limit = "" if self.limit is None else f"{self.limit:g}"
        value = f"{self.value:g}"
        return [self.engine, self.case, self.metric, value if self.is_within_limit else f"**{value}**", limit]

    @property
    def line(self) -> str:
        """Return the progress line that is printed when the figure has been measured."""
        limit = "" if self.limit is None else f" (limit {self.limit:g}{'' if self.is_within_limit else ', exceeded'})"
        return f"{self.engine}: {self.case}: {self.metric}: {self.value:g}{limit}"


@dataclass(frozen=True)
class Tick:
    """One tick: when `resync` first handled it, in seconds since the epoch, and its duration with all retries."""

    started_at: float
    seconds: float


@dataclass(frozen=True)
class IdlePeriod:
    """Measurements of the product during a period in which it has nothing to do.

    Attributes:
        ticks: The ticks in the period.
        requests: All API requests of the product's ServiceAccounts, including watches.
        events: The number of events that the product emitted.
        journal_rows: The number of journal rows for these events.
        foreign_updates: The number of events about objects that another client wrote. A kubelet's status write causes
            one if its node is under maintenance (rule 10: other nodes cause none). Its handling takes no request.
    """

    ticks: Sequence[Tick]
    requests: Sequence[Request]
    events: int
    journal_rows: int
    foreign_updates: int

    def build_figures(self) -> list[tuple[str, float, float | None]]:
        """Return each figure's label, value and limit."""
        regular = self._counted_requests
        requests_by_tick = [[request for request in regular if _is_during_tick(request, tick)] for tick in self.ticks]
        tick_request_count = sum(map(len, requests_by_tick))
        figures: list[tuple[str, float, float | None]] = [
            ("requests between ticks", len(regular) - tick_request_count, 0),
            *((f"of these, {operation}", count, None) for operation, count in self.count_request_kinds_between_ticks()),
            ("events between ticks", self.events, 0),
            ("journal rows between ticks", self.journal_rows, 0),
            ("events of other clients' writes", self.foreign_updates, None),
            ("requests for node leases", sum(map(is_lease_request, self.requests)), None),
            ("watches started or renewed", sum(request.verb == WATCH for request in self.requests), None),
            ("requests for a kind that is not served", sum(map(is_unserved_kind_request, self.requests)), None),
            ("ticks", len(self.ticks), None),
        ]
        if self.ticks:
            seconds = [tick.seconds for tick in self.ticks]
            figures += [
                ("seconds of a tick, median", statistics.median(seconds), 1.0),
                ("seconds of a tick, maximum", max(seconds), None),
                ("requests of a tick, median", statistics.median(map(len, requests_by_tick)), None),
                ("lists of pods in a tick, maximum", max(map(_count_pod_lists, requests_by_tick)), MAX_POD_LISTS),
            ]
        return figures

    def count_request_kinds_between_ticks(self) -> list[tuple[str, int]]:
        """Return the most frequent kinds of requests between ticks, with their numbers; ideally, there are none."""
        between_ticks = [
            request
            for request in self._counted_requests
            if not any(_is_during_tick(request, tick) for tick in self.ticks)
        ]
        return Counter(request.operation for request in between_ticks).most_common(MAX_LISTED_REQUESTS)

    @property
    def _counted_requests(self) -> list[Request]:
        return [
            request
            for request in self.requests
            if request.verb != WATCH and not (is_lease_request(request) or is_unserved_kind_request(request))
        ]


def is_lease_request(request: Request) -> bool:
    """Return whether the request reads or writes one node's Lease; a tick's list of all Leases does not count."""
    return request.resource == "leases" and request.namespace == leases.NAMESPACE and request.verb != "list"


def is_unserved_kind_request(request: Request) -> bool:
    """Return whether the API server responded to a collection's URL with 404, because it does not serve the kind."""
    return request.is_not_found and not request.name


def _is_during_tick(request: Request, tick: Tick) -> bool:
    return tick.started_at - SLACK_SECONDS <= request.received_at <= tick.started_at + tick.seconds + SLACK_SECONDS


def _count_pod_lists(requests: Iterable[Request]) -> int:
    return sum(request.operation == "list pods" for request in requests)
