"""Tests for the metrics that `status` and `resync` update, and that replays leave unchanged."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone

import pytest
from cloudevents.core.v1.event import CloudEvent
from prometheus_client import REGISTRY

from eventing import events, extensions
from functions.maintenance import metrics
from functions.maintenance.eviction_reports import report_outcome
from functions.maintenance.metrics import SNAPSHOT_TTL_SECONDS, MaintenanceCollector
from kube.budgets import BlockedPod
from kube.evictions.executor import EvictionOutcome
from kube.paths import Object
from kube.times import format_time
from tests.functions.conftest import Functions
from tests.functions.event_builders import build_product_event, build_tick
from tests.functions.maintenance.test_status import run_steps_with_status
from tests.kube.samples import make_maintenance
from tests.workload import Workload

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
BLOCKED_POD = {"namespace": "shop", "name": "web-1", "reason": "DisruptionBudget", "budget": "web"}
ReadValue = Callable[[], float]


def read_metric(name: str, **labels: str) -> float:
    """Return a metric's value, or 0 if it has no sample yet."""
    return REGISTRY.get_sample_value(name, labels) or 0.0


def format_seconds_ago(seconds: float) -> str:
    return format_time(NOW - timedelta(seconds=seconds))


def build_maintenance_with_status(**status: object) -> Object:
    return {**make_maintenance(), "status": status}


def collect_samples(collector: MaintenanceCollector) -> dict[tuple[str, ...], float]:
    """Map from return the samples of a collector as (metric, label values...) to value."""
    return {
        (sample.name.removeprefix("nodemaintenance_"), *sample.labels.values()): sample.value
        for metric in collector.collect()
        for sample in metric.samples
    }


def test_drain_time_starts_at_first_status() -> None:
    """Check that the drain time starts when the condition Drained becomes False, or else at the object's creation."""
    draining = build_maintenance_with_status(
        conditions=[{"type": "Drained", "status": "False", "lastTransitionTime": format_seconds_ago(90)}]
    )
    before = read_metric("nodemaintenance_drain_seconds_sum", phase="Succeeded")

    metrics.observe_status_write(draining, {"phase": "Succeeded"}, NOW)
    metrics.observe_status_write(draining, {"drainProgress": 50}, NOW)
    without_status = {
        **make_maintenance(),
        "metadata": {**make_maintenance()["metadata"], "creationTimestamp": format_seconds_ago(7)},
    }
    metrics.observe_status_write(without_status, {"phase": "Succeeded"}, NOW)

    assert read_metric("nodemaintenance_drain_seconds_sum", phase="Succeeded") - before == pytest.approx(97)


def test_blocked_time_is_observed_when_pod_is_unblocked() -> None:
    """Check that a pod's blocked time is observed by reason when the pod is no longer blocked, and not before."""
    still_blocked = {**BLOCKED_POD, "name": "web-2", "since": format_seconds_ago(500)}
    before = read_metric("nodemaintenance_blocked_seconds_sum", reason="DisruptionBudget")

    metrics.observe_status_write(
        build_maintenance_with_status(blockedPods=[{**BLOCKED_POD, "since": format_seconds_ago(120)}, still_blocked]),
        {"blockedPods": [still_blocked]},
        NOW,
    )

    assert read_metric("nodemaintenance_blocked_seconds_sum", reason="DisruptionBudget") - before == pytest.approx(120)


def test_duration_with_future_start_time_is_zero() -> None:
    """Check that a duration is observed as zero if its start time is in the future because of clock skew."""
    blocked = "nodemaintenance_blocked_seconds"
    drains = "nodemaintenance_drain_seconds"
    histograms = [(drains, {"phase": "Succeeded"}), (blocked, {"reason": "DisruptionBudget"})]
    future_maintenance = build_maintenance_with_status(blockedPods=[{**BLOCKED_POD, "since": format_seconds_ago(-60)}])
    future_maintenance["metadata"] = {**future_maintenance["metadata"], "creationTimestamp": format_seconds_ago(-60)}
    before = [read_metric(f"{name}_{part}", **labels) for name, labels in histograms for part in ("sum", "count")]

    metrics.observe_status_write(future_maintenance, {"phase": "Succeeded", "blockedPods": []}, NOW)

    after = [read_metric(f"{name}_{part}", **labels) for name, labels in histograms for part in ("sum", "count")]
    assert [new_value - old_value for new_value, old_value in zip(after, before, strict=True)] == [0, 1, 0, 1]


def test_begun_escalation_steps_are_counted_by_action() -> None:
    """docs/reference.md: the beginning of an escalation step is counted by action, and its end is not."""
    before = read_metric("nodemaintenance_escalation_steps_total", action="Delete")
    step = {"action": "Delete", "after": "30m", "time": format_seconds_ago(0)}

    metrics.observe_status_write(make_maintenance(), {"escalation": step}, NOW)
    metrics.observe_status_write(build_maintenance_with_status(escalation=step), {"drainProgress": 50}, NOW)
    metrics.observe_status_write(build_maintenance_with_status(escalation=step), {"escalation": None}, NOW)

    assert read_metric("nodemaintenance_escalation_steps_total", action="Delete") - before == 1


def build_maintenance_with_deadline(node: str, **status: object) -> Object:
    """Build a maintenance whose drain began a minute ago with a deadline of one hour."""
    maintenance = build_maintenance_with_status(**{"phase": "Running", "startTime": format_seconds_ago(60), **status})
    return {**maintenance, "spec": {"nodeName": node, "drain": {"deadline": "1h"}}}


def test_only_deadlines_of_unfinished_drains_are_exported() -> None:
    """docs/reference.md: a drain's deadline is exported with the node as a label until the drain has ended."""
    deleted = build_maintenance_with_deadline("deleted")
    deleted["metadata"] = {**deleted["metadata"], "deletionTimestamp": format_seconds_ago(1)}
    collector = MaintenanceCollector()

    collector.update(
        [
            build_maintenance_with_deadline("running"),
            build_maintenance_with_deadline("drained", phase="Succeeded"),
            build_maintenance_with_deadline("not-started", startTime=None),
            build_maintenance_with_deadline("malformed", startTime="9999-12-31T23:59:59Z"),
            deleted,
            build_maintenance_with_status(phase="Running", startTime=format_seconds_ago(60)),
        ]
    )

    samples = collect_samples(collector)
    deadlines = {labels[1]: value for labels, value in samples.items() if labels[0] == "deadline_timestamp_seconds"}
    assert deadlines == {"running": NOW.timestamp() + 3540}


def test_budget_label_of_metric_is_empty_without_pdb() -> None:
    """docs/observability.md: the metric's `budget` label is empty for a pod that no PDB blocks."""
    collector = MaintenanceCollector()
    blocked_pod = {"namespace": "shop", "name": "web-1", "reason": "Forbidden", "since": format_seconds_ago(30)}

    collector.update(
        [
            build_maintenance_with_status(
                phase="Running", blockedPods=[blocked_pod, {**blocked_pod, "name": "web-2", "budget": ""}]
            )
        ]
    )

    assert collect_samples(collector)["blocked_pods", make_maintenance()["spec"]["nodeName"], "", "Forbidden"] == 2


def test_tick_replaces_metrics_of_earlier_ticks() -> None:
    """Check that a tick exports the current phases and blocked pods, and no values of earlier ticks.

    The tick exports no pods of a maintenance that lost its lease.
    """
    collector = MaintenanceCollector()
    assert collect_samples(collector) == {}

    blocked = [
        {**BLOCKED_POD, "since": format_seconds_ago(30)},
        {**BLOCKED_POD, "name": "web-2", "since": format_seconds_ago(90)},
    ]
    collector.update(
        [
            build_maintenance_with_status(phase="Running", blockedPods=blocked),
            build_maintenance_with_status(phase="Succeeded"),
            make_maintenance(),
        ]
    )

    node = make_maintenance()["spec"]["nodeName"]
    samples = collect_samples(collector)
    assert samples["blocked_pods", node, "shop/web", "DisruptionBudget"] == 2
    assert samples["blocked_since_timestamp_seconds", node, "shop/web", "DisruptionBudget"] == NOW.timestamp() - 90
    assert {key[1]: count for key, count in samples.items() if key[0] == "maintenances"} == {
        **{"Pending": 1, "Running": 1, "Succeeded": 1},
        **{"Failed": 0, "Ending": 0},
    }

    lease_lost = build_maintenance_with_status(phase="Failed", errorOnLeaseCount=4, blockedPods=blocked)
    collector.update([build_maintenance_with_status(phase="Succeeded"), lease_lost])

    assert not [key for key in collect_samples(collector) if key[0].startswith("blocked")]


def test_metrics_of_expired_snapshot_are_not_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a replica of `resync` exports only the time of its last tick after its snapshot has expired.

    Another replica may receive the ticks, so this replica's snapshot may be outdated.
    """
    collector = MaintenanceCollector()
    collector.update([make_maintenance()])
    monkeypatch.setattr(metrics, "SNAPSHOT_TTL_SECONDS", -1.0)

    assert [key[0] for key in collect_samples(collector)] == ["resync_timestamp_seconds"]
    assert SNAPSHOT_TTL_SECONDS == 60


def test_replays_are_not_counted_in_metrics(functions: Functions, workload: Workload) -> None:
    """Check that drains, resync events, redelivered events and dead letters are counted, and that replays are not."""

    def read_metrics() -> list[float]:
        return [
            read_metric("nodemaintenance_drain_seconds_count", phase="Succeeded"),
            read_metric("nodemaintenance_resync_events_total", type=events.MAINTENANCE_PENDING),
            read_metric("nodemaintenance_events_redelivered_total"),
            read_metric("nodemaintenance_events_dead_total"),
        ]

    before = read_metrics()
    new_maintenance = workload.create_maintenance(workload.take_node())
    functions.post("resync", build_tick())
    maintenance = run_steps_with_status(functions, workload, new_maintenance)
    event = build_tick()
    dead_letter = CloudEvent({**event.get_attributes(), "knativeerrordest": "http://cordon/"}, event.get_data())
    for recorded_event in (event, event, dead_letter):
        functions.post("record", recorded_event)
    after = read_metrics()

    drains, resync_events, redelivered, dead_letters = (
        new_value - old_value for new_value, old_value in zip(after, before, strict=True)
    )
    assert (drains, redelivered, dead_letters) == (1, 1, 1)
    assert resync_events >= 1  # Events for the maintenances of other tests may also be due.

    functions.post("resync", extensions.add_replay_extensions(build_tick(), "r", dry_run=True))
    functions.post(
        "status",
        extensions.add_replay_extensions(build_product_event(events.NODE_DRAINED, maintenance), "r", dry_run=False),
    )

    assert read_metrics() == after


def test_deleted_maintenance_counts_as_ending() -> None:
    """docs/reference.md: a deleted maintenance counts as Ending, and not under its phase."""
    maintenance = build_maintenance_with_status(phase="Succeeded")
    deleted_maintenance = {
        **maintenance,
        "metadata": {**maintenance["metadata"], "deletionTimestamp": format_seconds_ago(1)},
    }
    collector = MaintenanceCollector()

    collector.update([maintenance, deleted_maintenance])

    phases = {labels[1]: count for labels, count in collect_samples(collector).items() if labels[0] == "maintenances"}
    assert (phases["Succeeded"], phases["Ending"]) == (1, 1)


def test_evictions_are_counted_by_outcome() -> None:
    """docs/reference.md: evictions are counted by outcome: evicted, gone or blocked."""
    outcomes = ("evicted", "gone", "blocked")
    before = [read_metric("nodemaintenance_evictions_total", outcome=outcome) for outcome in outcomes]
    pod, maintenance = {"namespace": "ns", "name": "a", "uid": "a"}, make_maintenance()
    outcome = EvictionOutcome(evicted=[pod], already_gone=[pod] * 2, blocked=[BlockedPod(pod, "Forbidden", "why")] * 3)

    report_outcome(maintenance, outcome, build_product_event(events.PODS_GONE, maintenance))

    after = [read_metric("nodemaintenance_evictions_total", outcome=outcome) for outcome in outcomes]
    assert [new_value - old_value for new_value, old_value in zip(after, before, strict=True)] == [1, 2, 3]


def test_gauges_have_labels_that_alerts_use() -> None:
    """docs/reference.md: the gauges have the labels that alerts use."""
    collector = MaintenanceCollector()
    blocked_pods = [{**BLOCKED_POD, "since": format_seconds_ago(60)}]
    collector.update([build_maintenance_with_deadline("node-1", blockedPods=blocked_pods)])

    labels = {sample.name: set(sample.labels) for metric in collector.collect() for sample in metric.samples}

    pod_labels = {"node", "budget", "reason"}
    assert labels == {
        "nodemaintenance_resync_timestamp_seconds": set(),
        "nodemaintenance_maintenances": {"phase"},
        "nodemaintenance_blocked_pods": pod_labels,
        "nodemaintenance_blocked_since_timestamp_seconds": pod_labels,
        "nodemaintenance_deadline_timestamp_seconds": {"node"},
    }
