"""Metrics of drains and of all maintenances, shown at `/metrics`; docs/observability.md names each.

Few labels, so that they stay small on a large fleet: only what is blocked now is shown by node and budget.
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
from kube.maintenance.blocked_pods import why_blocked
from kube.times import moment, moment_or_none

LONG = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)
"""Seconds; a drain takes as long as its pods and budgets let it."""

EVICTIONS = Counter("nodemaintenance_evictions_total", "Pods by what came of their eviction", ["outcome"])
DRAINS = Histogram(
    "nodemaintenance_drain_seconds",
    "Time that a drain took, by how it ended",
    ["phase"],
    buckets=LONG,
)
BLOCKED = Histogram(
    "nodemaintenance_blocked_seconds",
    "Time that a pod was blocked, observed at its end",
    ["reason"],
    buckets=LONG,
)
RESYNCED = Counter(
    "nodemaintenance_resync_events_total", "Events that resync emitted again, since nobody had acted on one", ["type"]
)
FRESH_SECONDS = 60.0
"""Four ticks. Of several pods each hears some ticks only, and an old picture must not stay beside the new one."""
PHASES = ("Pending", m.RUNNING, m.SUCCEEDED, m.FAILED, "Ending")
"""Pending: without a status yet. Ending: deleted, its node not given back yet."""


def written(before: m.Maintenance, status: Mapping[str, Any], now: datetime) -> None:
    """Observe what a status write ends; `status` is what changed against `before`."""
    phase = status.get("phase")
    if phase in (m.SUCCEEDED, m.FAILED):
        _drained(before, phase, now)
    if "blockedPods" in status:
        _unblocked(before, status["blockedPods"], now)


def _drained(before: m.Maintenance, phase: str, now: datetime) -> None:
    """A drain has ended: measured from when it was first known to be under way."""
    condition = m.condition(before, "Drained")
    known = condition.get("status") == "False" and moment_or_none(condition.get("lastTransitionTime"))
    began = known or moment(before["metadata"]["creationTimestamp"])
    DRAINS.labels(phase).observe(max(0.0, (now - began).total_seconds()))


def _unblocked(before: m.Maintenance, blocked: Iterable[Mapping[str, Any]], now: datetime) -> None:
    """Those that were blocked before and are not any more are observed."""
    waiting = {why_blocked(item) for item in blocked}
    for item in m.blocked_pods(before):
        since = moment_or_none(item.get("since"))
        if why_blocked(item) not in waiting and since:
            seconds = (now - since).total_seconds()
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

    def update(self, items: Iterable[m.Maintenance]) -> None:
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


def _gauge(name: str, help: str, labels: list[str], values: Mapping[Any, float]) -> Metric:
    family = GaugeMetricFamily(name, help, labels=labels)
    for of, value in values.items():
        family.add_metric(of, value)
    return family


def _blocked(item: m.Maintenance) -> Iterator[tuple[Waiting, datetime]]:
    """The blocked pods of one maintenance; of one that is ending or has given up, nobody waits for them."""
    if m.is_deleting(item) or m.has_given_up(item):
        return
    for pod in m.blocked_pods(item):
        budget, since = f"{pod['namespace']}/{pod['budget']}" if pod.get("budget") else "", pod.get("since")
        if began := moment_or_none(since):
            yield (m.node_name(item), budget, pod["reason"]), began


FLEET = Fleet()
REGISTRY.register(FLEET)
