"""Metrics of drains and of all maintenances, exposed at `/metrics` and listed in docs/reference.md.

To limit the cardinality on large clusters, only two kinds of gauges have labels for single objects. The gauges for
blocked pods have the labels `node` and `budget`; the gauge for drain deadlines has the label `node`.
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
from kube.maintenance.blocked_groups import group_blocked_pods
from kube.maintenance.blocked_pods import get_blocking_key
from kube.maintenance.escalation import compute_drain_deadline, get_drain_start_time
from kube.times import parse_time, parse_time_or_none

DURATION_BUCKETS = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)
"""Histogram buckets in seconds; a drain takes as long as its pods and budgets require."""

EVICTIONS = Counter(
    "nodemaintenance_evictions_total",
    "Pods by outcome of the eviction: evicted, gone before the request, or blocked",
    ["outcome"],
)
DRAIN_SECONDS = Histogram(
    "nodemaintenance_drain_seconds",
    "Duration of drains, by outcome: Succeeded or Failed",
    ["phase"],
    buckets=DURATION_BUCKETS,
)
BLOCKED_SECONDS = Histogram(
    "nodemaintenance_blocked_seconds",
    "Time for which a pod was blocked, observed when the pod is no longer blocked",
    ["reason"],
    buckets=DURATION_BUCKETS,
)
ESCALATION_STEPS = Counter(
    "nodemaintenance_escalation_steps_total",
    "Steps of the escalations of drains that have begun, by action",
    ["action"],
)
RESYNC_EVENTS = Counter(
    "nodemaintenance_resync_events_total",
    "Events that resync emitted so that maintenances continue: after lost events, and to retry or escalate drains",
    ["type"],
)
SNAPSHOT_TTL_SECONDS = 60.0
"""Seconds for which a snapshot is exposed: four intervals of the PingSource.

Each replica receives only some of the PingSource's events. A replica must not expose an outdated snapshot while another
replica exposes a newer one.
"""
PHASES = ("Pending", m.RUNNING, m.SUCCEEDED, m.FAILED, "Ending")
"""Values of the label `phase`: the phases of a maintenance, and two further states.

Pending: the maintenance has no status yet. Ending: the maintenance is being deleted, and its node is not restored yet.
"""


def observe_status_write(before: m.Maintenance, status: Mapping[str, Any], now: datetime) -> None:
    """Update the metrics for a status write: the duration of an ended drain or blockage, and a new escalation step.

    `before` is the maintenance before the write, and `status` contains the changed status fields.
    """
    phase = status.get("phase")
    if step := status.get("escalation"):  # The value None removes an ended escalation step from the status.
        ESCALATION_STEPS.labels(step["action"]).inc()
    if phase in (m.SUCCEEDED, m.FAILED):
        _observe_drain(before, phase, now)
    if "blockedPods" in status:
        _observe_unblocked_pods(before, status["blockedPods"], now)


def _observe_drain(before: m.Maintenance, phase: str, now: datetime) -> None:
    """Observe the duration of an ended drain, measured from the time when the status first reported the drain."""
    condition = m.get_condition(before, "Drained")
    reported_at = condition.get("status") == "False" and parse_time_or_none(condition.get("lastTransitionTime"))
    began = reported_at or parse_time(before["metadata"]["creationTimestamp"])
    DRAIN_SECONDS.labels(phase).observe(max(0.0, (now - began).total_seconds()))


def _observe_unblocked_pods(before: m.Maintenance, blocked: Iterable[Mapping[str, Any]], now: datetime) -> None:
    """Observe how long each pod was blocked that is not in `blocked` any longer."""
    still_blocked = {get_blocking_key(item) for item in blocked}
    for item in m.get_blocked_pods(before):
        since = parse_time_or_none(item.get("since"))
        if get_blocking_key(item) not in still_blocked and since:
            seconds = (now - since).total_seconds()
            BLOCKED_SECONDS.labels(item["reason"]).observe(max(0.0, seconds))


BlockedLabels = tuple[str, str, str]


@dataclass(frozen=True)
class MaintenanceSnapshot:
    """The maintenances and their blocked pods, as `resync` read them.

    Attributes:
        taken_at: time of the snapshot, in Unix seconds.
        phases: number of maintenances in each phase.
        blocked: number of blocked pods and earliest start of their blockage, by node, budget and reason; the budget is
            formatted as namespace/name.
        deadlines: deadline of the drain, by node.
    """

    taken_at: float
    phases: Tally[str]
    blocked: dict[BlockedLabels, tuple[int, datetime]]
    deadlines: dict[str, datetime]


class MaintenanceCollector(Collector):
    """Collector that exposes the latest snapshot of all maintenances, which `resync` passes to `update`."""

    def __init__(self) -> None:
        self._snapshot: MaintenanceSnapshot | None = None

    def update(self, maintenances: Iterable[m.Maintenance]) -> None:
        """Replace the snapshot with one of these maintenances."""
        maintenances = list(maintenances)
        phases = Tally("Ending" if m.is_deleting(item) else m.get_phase(item) or "Pending" for item in maintenances)
        blocked: dict[BlockedLabels, tuple[int, datetime]] = {}
        for item in maintenances:
            for labels, count, since in _list_blocked_groups(item):
                earlier_count, earlier_since = blocked.get(labels, (0, since))
                blocked[labels] = earlier_count + count, min(earlier_since, since)
        deadlines = {m.get_node_name(item): deadline for item in maintenances if (deadline := _find_deadline(item))}
        self._snapshot = MaintenanceSnapshot(time.time(), phases, blocked, deadlines)

    def describe(self) -> tuple[GaugeMetricFamily, ...]:
        """Return the gauges without samples."""
        pod_labels = ["node", "budget", "reason"]
        return (
            GaugeMetricFamily(
                "nodemaintenance_maintenances",
                "Number of maintenances by phase: Pending (no status yet), Running, Succeeded, Failed, "
                "Ending (deleted, node not restored yet)",
                labels=["phase"],
            ),
            GaugeMetricFamily(
                "nodemaintenance_blocked_pods",
                "Number of pods that cannot be evicted now; absent if there are none",
                labels=pod_labels,
            ),
            GaugeMetricFamily(
                "nodemaintenance_blocked_since_timestamp_seconds",
                "Time at which the first pod with these labels became blocked",
                labels=pod_labels,
            ),
            GaugeMetricFamily(
                "nodemaintenance_deadline_timestamp_seconds",
                "Time of the deadline of the node's drain; absent without a deadline, and after the drain",
                labels=["node"],
            ),
            GaugeMetricFamily("nodemaintenance_resync_timestamp_seconds", "Time of the last run of resync"),
        )

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges with samples; if the snapshot is outdated, yield only the gauge with the snapshot's time."""
        snapshot = self._snapshot
        if snapshot is None:
            return
        maintenances, blocked_pods, blocked_since, deadline_at, resynced_at = self.describe()
        resynced_at.add_metric((), snapshot.taken_at)
        yield resynced_at
        if time.time() - snapshot.taken_at > SNAPSHOT_TTL_SECONDS:
            return
        for phase in PHASES:
            maintenances.add_metric([phase], snapshot.phases[phase])
        for labels, (count, since) in snapshot.blocked.items():
            blocked_pods.add_metric(labels, count)
            blocked_since.add_metric(labels, since.timestamp())
        for node, deadline in snapshot.deadlines.items():
            deadline_at.add_metric([node], deadline.timestamp())
        yield from (maintenances, blocked_pods, blocked_since, deadline_at)


def _list_blocked_groups(maintenance: m.Maintenance) -> Iterator[tuple[BlockedLabels, int, datetime]]:
    """Yield, for each group of the maintenance's blocked pods, its labels, size and earliest start of a blockage.

    Yields nothing if the maintenance is being deleted or has lost its Lease.
    """
    if m.is_deleting(maintenance) or m.has_lost_lease(maintenance):
        return
    for group in group_blocked_pods(m.get_blocked_pods(maintenance)):
        if since := parse_time_or_none(group.since):
            yield (m.get_node_name(maintenance), group.budget_key, group.reason), len(group.pods), since


def _find_deadline(maintenance: m.Maintenance) -> datetime | None:
    """Return the deadline of the maintenance's running drain; None if no drain is running or it has no deadline."""
    is_running = m.get_phase(maintenance) == m.RUNNING and not m.is_deleting(maintenance)
    return compute_drain_deadline(maintenance, get_drain_start_time(maintenance)) if is_running else None


MAINTENANCE_COLLECTOR = MaintenanceCollector()
REGISTRY.register(MAINTENANCE_COLLECTOR)
