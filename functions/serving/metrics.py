"""All figures that the functions show at `/metrics`; docs/observability.md names each. A replay is in none of them.

Few labels, so that they stay small on a large fleet: only what is blocked now is told by node and budget.
"""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from prometheus_client import REGISTRY, Counter, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kube.maintenance import objects as m
from kube.maintenance.progress import why_blocked

SHORT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Seconds; no function should ever take longer than 2."""
LONG = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)
"""Seconds; a drain takes as long as its pods and budgets let it."""

SECONDS = Histogram(
    "nodemaintenance_function_seconds", "Time one event took in a function", ["function"], buckets=SHORT
)
RESULTS = Counter("nodemaintenance_function_events_total", "Events by function and answer", ["function", "status"])
EVICTIONS = Counter("nodemaintenance_evictions_total", "Pods by what came of their eviction", ["outcome"])
DRAINS = Histogram(
    "nodemaintenance_drain_seconds",
    "Time that a drain took, by how it ended",
    ["phase"],
    buckets=LONG,
)
BLOCKED = Histogram(
    "nodemaintenance_blocked_seconds",
    "Time that a pod was blocked, told at its end",
    ["reason"],
    buckets=LONG,
)
SAID_AGAIN = Counter(
    "nodemaintenance_resync_events_total", "Events that resync had to say, since nobody had acted on one", ["type"]
)
REDELIVERED = Counter("nodemaintenance_events_redelivered_total", "Events that came once more to record")
DEAD = Counter("nodemaintenance_events_dead_total", "Events that could not be delivered")
ATTEMPTS_LOST = Counter(
    "nodemaintenance_attempts_lost_total", "Runs that the journal does not know of: it was away too long"
)

FRESH_SECONDS = 60.0
"""Four ticks. Of several pods each hears some ticks only, and an old picture must not stay beside the new one."""
PHASES = ("Pending", m.RUNNING, m.SUCCEEDED, m.FAILED, "Ending")
"""Pending: without a status yet. Ending: deleted, its node not given back yet."""


def written(before: m.Maintenance, status: Mapping[str, Any], now: datetime) -> None:
    """Measure what a status write tells; `status` is what changed against `before`."""
    phase = status.get("phase")
    if phase in (m.SUCCEEDED, m.FAILED):
        _drained(before, phase, now)
    if "blockedPods" in status:
        _unblocked(before, status["blockedPods"], now)


def _drained(before: m.Maintenance, phase: str, now: datetime) -> None:
    """A drain has ended: measured from when it was first known to be under way."""
    condition = m.condition(before, "Drained")
    known = condition.get("status") == "False" and condition.get("lastTransitionTime")
    began = m.moment(known or before["metadata"]["creationTimestamp"])
    DRAINS.labels(phase).observe(max(0.0, (now - began).total_seconds()))


def _unblocked(before: m.Maintenance, still: Iterable[Mapping[str, Any]], now: datetime) -> None:
    """Those that were blocked before and are not among `still` are measured."""
    waiting = {why_blocked(item) for item in still}
    for item in (before.get("status") or {}).get("blockedPods") or []:
        if why_blocked(item) not in waiting and item.get("since"):
            seconds = (now - m.moment(item["since"])).total_seconds()
            BLOCKED.labels(item["reason"]).observe(max(0.0, seconds))


Waiting = tuple[str, str, str]


@dataclass(frozen=True)
class Picture:
    """What one tick showed.

    Attributes:
        at: when, in seconds since the epoch.
        phases: how many maintenances are in each phase.
        blocked: since when each blocked pod is, by (node, budget as namespace/name, reason).
    """

    at: float
    phases: Tally[str]
    blocked: dict[Waiting, list[datetime]]


class Fleet(Collector):
    """The newest picture of all maintenances, from what `resync` lists at each tick anyway."""

    def __init__(self) -> None:
        self._picture: Picture | None = None

    def saw(self, items: Iterable[m.Maintenance]) -> None:
        """Take a new picture; what is not blocked any more is not in it."""
        items = list(items)
        phases = Tally("Ending" if m.is_deleting(item) else m.phase(item) or "Pending" for item in items)
        blocked: dict[Waiting, list[datetime]] = {}
        for item in items:
            for waiting, since in _blocked(item):
                blocked.setdefault(waiting, []).append(since)
        self._picture = Picture(time.time(), phases, blocked)

    def collect(self) -> Iterator[Metric]:
        """The gauges; when the picture is old, only how old."""
        picture = self._picture
        if picture is None:
            return
        yield GaugeMetricFamily("nodemaintenance_resync_timestamp_seconds", "When resync last ran", value=picture.at)
        if time.time() - picture.at > FRESH_SECONDS:
            return
        phases = {(phase,): picture.phases[phase] for phase in PHASES}
        yield _gauge("nodemaintenance_maintenances", "Maintenances", ["phase"], phases)
        labels, blocked = ["node", "budget", "reason"], picture.blocked
        pods = {waiting: len(since) for waiting, since in blocked.items()}
        yield _gauge("nodemaintenance_blocked_pods", "Pods that may not be evicted now", labels, pods)
        oldest = {waiting: min(since).timestamp() for waiting, since in blocked.items()}
        name = "nodemaintenance_blocked_since_timestamp_seconds"
        yield _gauge(name, "Since when the first of them is blocked", labels, oldest)


def _gauge(name: str, says: str, labels: list[str], values: Mapping[Any, float]) -> Metric:
    family = GaugeMetricFamily(name, says, labels=labels)
    for of, value in values.items():
        family.add_metric(of, value)
    return family


def _blocked(item: m.Maintenance) -> Iterator[tuple[Waiting, datetime]]:
    """The blocked pods of one maintenance; of one that is ending, nobody waits for them."""
    if m.is_deleting(item):
        return
    for pod in (item.get("status") or {}).get("blockedPods") or []:
        budget = f"{pod['namespace']}/{pod['budget']}" if pod.get("budget") else ""
        yield (m.node_name(item), budget, pod["reason"]), m.moment(pod["since"])


FLEET = Fleet()
REGISTRY.register(FLEET)
