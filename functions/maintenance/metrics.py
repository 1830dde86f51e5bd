"""Metrics of drains and of all maintenances, exposed at `/metrics` and listed in docs/observability.md.

They have few labels, to stay small on large clusters: only pods that are blocked now are labelled by node and budget.
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
"""Histogram buckets in seconds; a drain takes as long as its pods and budgets require."""

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
"""Seconds for which a snapshot is exposed: four ticks.

Each replica receives only some of the ticks, and an outdated snapshot must not be exposed next to a newer one.
"""
PHASES = ("Pending", m.RUNNING, m.SUCCEEDED, m.FAILED, "Ending")
"""Pending: without a status yet. Ending: deleted, but its node is not restored yet."""


def written(before: m.Maintenance, status: Mapping[str, Any], now: datetime) -> None:
    """Observe the durations of the drain and blocked pods that a status write ends; `status` has the changes."""
    phase = status.get("phase")
    if phase in (m.SUCCEEDED, m.FAILED):
        _drained(before, phase, now)
    if "blockedPods" in status:
        _unblocked(before, status["blockedPods"], now)


def _drained(before: m.Maintenance, phase: str, now: datetime) -> None:
    """Observe the duration of a drain that has ended, from the time when the status first reported it."""
    condition = m.condition(before, "Drained")
    known = condition.get("status") == "False" and moment_or_none(condition.get("lastTransitionTime"))
    began = known or moment(before["metadata"]["creationTimestamp"])
    DRAINS.labels(phase).observe(max(0.0, (now - began).total_seconds()))


def _unblocked(before: m.Maintenance, blocked: Iterable[Mapping[str, Any]], now: datetime) -> None:
    """Observe how long pods were blocked that are not blocked any more."""
    waiting = {why_blocked(item) for item in blocked}
    for item in m.blocked_pods(before):
        since = moment_or_none(item.get("since"))
        if why_blocked(item) not in waiting and since:
            seconds = (now - since).total_seconds()
            BLOCKED.labels(item["reason"]).observe(max(0.0, seconds))


Waiting = tuple[str, str, str]


@dataclass(frozen=True)
class Picture:
    """The maintenances as one tick listed them.

    Attributes:
        at: time of the tick, in Unix seconds.
        phases: number of maintenances in each phase.
        blocked: start times of the blocked pods, by (node, budget as namespace/name, reason).
    """

    at: float
    phases: Tally[str]
    blocked: dict[Waiting, list[datetime]]


class Fleet(Collector):
    """Collector that exposes the newest snapshot of all maintenances, which `resync` lists at each tick anyway."""

    def __init__(self) -> None:
        self._picture: Picture | None = None

    def update(self, items: Iterable[m.Maintenance]) -> None:
        """Replace the snapshot; pods that are not blocked any more are not in the new one."""
        items = list(items)
        phases = Tally("Ending" if m.is_deleting(item) else m.phase(item) or "Pending" for item in items)
        blocked: dict[Waiting, list[datetime]] = {}
        for item in items:
            for waiting, since in _blocked(item):
                blocked.setdefault(waiting, []).append(since)
        self._picture = Picture(time.time(), phases, blocked)

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges; for an outdated snapshot, only the time when it was taken."""
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
    """Yield the blocked pods of one maintenance, or none if it is being deleted or has lost its lease."""
    if m.is_deleting(item) or m.has_given_up(item):
        return
    for pod in m.blocked_pods(item):
        budget, since = f"{pod['namespace']}/{pod['budget']}" if pod.get("budget") else "", pod.get("since")
        if began := moment_or_none(since):
            yield (m.node_name(item), budget, pod["reason"]), began


FLEET = Fleet()
REGISTRY.register(FLEET)
