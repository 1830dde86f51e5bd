"""Tests of the metrics that status writes and ticks update; a replay updates none."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone

import pytest
from cloudevents.core.v1.event import CloudEvent
from prometheus_client import REGISTRY

from eventing import events, replay_extensions
from functions.maintenance import metrics as metrics
from functions.maintenance.eviction_reports import _count
from functions.maintenance.metrics import FRESH_SECONDS, Fleet
from kube.budgets import Blocked
from kube.evictions import Batch
from kube.paths import Object
from kube.times import timestamp
from tests.functions.conftest import Functions
from tests.functions.event_builders import said, tick
from tests.functions.maintenance.test_status import drain
from tests.kube.samples import maintenance
from tests.workload import Workload

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
WEB = {"namespace": "shop", "name": "web-1", "reason": "DisruptionBudget", "budget": "web"}
Value = Callable[[], float]


def value(name: str, **labels: str) -> float:
    """Return a metric's value, 0 if it has no sample yet."""
    return REGISTRY.get_sample_value(name, labels) or 0.0


def ago(seconds: float) -> str:
    return timestamp(NOW - timedelta(seconds=seconds))


def with_status(**status: object) -> Object:
    return {**maintenance(), "status": status}


def shown(fleet: Fleet) -> dict[tuple[str, ...], float]:
    """Return the samples of a collector as (metric, label values...) → value."""
    return {
        (sample.name.removeprefix("nodemaintenance_"), *sample.labels.values()): sample.value
        for metric in fleet.collect()
        for sample in metric.samples
    }


def test_a_drain_is_measured_from_its_first_status_and_a_late_pod_is_another_one() -> None:
    """Drain time is measured from the first Drained=False condition, or from the creation if the status is empty."""
    under_way = with_status(conditions=[{"type": "Drained", "status": "False", "lastTransitionTime": ago(90)}])
    before = value("nodemaintenance_drain_seconds_sum", phase="Succeeded")

    metrics.written(under_way, {"phase": "Succeeded"}, NOW)
    metrics.written(under_way, {"drainProgress": 50}, NOW)
    fresh = {**maintenance(), "metadata": {**maintenance()["metadata"], "creationTimestamp": ago(7)}}
    metrics.written(fresh, {"phase": "Succeeded"}, NOW)

    assert value("nodemaintenance_drain_seconds_sum", phase="Succeeded") - before == 97


def test_the_time_that_a_pod_was_blocked_is_told_when_it_no_longer_is() -> None:
    """Blocked time is observed by reason as soon as a pod is unblocked, and not earlier."""
    still = {**WEB, "name": "web-2", "since": ago(500)}
    before = value("nodemaintenance_blocked_seconds_sum", reason="DisruptionBudget")

    metrics.written(with_status(blockedPods=[{**WEB, "since": ago(120)}, still]), {"blockedPods": [still]}, NOW)

    assert value("nodemaintenance_blocked_seconds_sum", reason="DisruptionBudget") - before == 120


def test_what_a_clock_that_is_ahead_wrote_lasts_no_time() -> None:
    """Durations with a start time in the future, from a clock that is ahead, are observed as zero."""
    blocked = "nodemaintenance_blocked_seconds"
    drains = "nodemaintenance_drain_seconds"
    figures = [(drains, {"phase": "Succeeded"}), (blocked, {"reason": "DisruptionBudget"})]
    ahead = with_status(blockedPods=[{**WEB, "since": ago(-60)}])
    ahead["metadata"] = {**ahead["metadata"], "creationTimestamp": ago(-60)}
    before = [value(f"{name}_{part}", **labels) for name, labels in figures for part in ("sum", "count")]

    metrics.written(ahead, {"phase": "Succeeded", "blockedPods": []}, NOW)

    after = [value(f"{name}_{part}", **labels) for name, labels in figures for part in ("sum", "count")]
    assert [now - then for now, then in zip(after, before, strict=True)] == [0, 1, 0, 1]


def test_a_pod_that_no_budget_blocks_is_shown_without_one() -> None:
    """docs/observability.md: the budget label is empty for a pod that no budget blocks."""
    fleet = Fleet()
    refused = {"namespace": "shop", "name": "web-1", "reason": "Forbidden", "since": ago(30)}

    fleet.update([with_status(phase="Running", blockedPods=[refused, {**refused, "name": "web-2", "budget": ""}])])

    assert shown(fleet)["blocked_pods", maintenance()["spec"]["nodeName"], "", "Forbidden"] == 2


def test_a_tick_shows_phases_and_what_is_blocked_and_nothing_of_before() -> None:
    """Metrics of a tick show phases and blocked pods, without those of earlier ticks.

    Pods of a maintenance that lost its lease are not shown either.
    """
    fleet = Fleet()
    assert shown(fleet) == {}

    blocked = [{**WEB, "since": ago(30)}, {**WEB, "name": "web-2", "since": ago(90)}]
    fleet.update([with_status(phase="Running", blockedPods=blocked), with_status(phase="Succeeded"), maintenance()])

    node = maintenance()["spec"]["nodeName"]
    first = shown(fleet)
    assert first["blocked_pods", node, "shop/web", "DisruptionBudget"] == 2
    assert first["blocked_since_timestamp_seconds", node, "shop/web", "DisruptionBudget"] == NOW.timestamp() - 90
    assert {key[1]: count for key, count in first.items() if key[0] == "maintenances"} == {
        **{"Pending": 1, "Running": 1, "Succeeded": 1},
        **{"Failed": 0, "Ending": 0},
    }

    given_up = with_status(phase="Failed", errorOnLeaseCount=4, blockedPods=blocked)
    fleet.update([with_status(phase="Succeeded"), given_up])

    assert not [key for key in shown(fleet) if key[0].startswith("blocked")]


def test_an_old_picture_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots that are too old show only the time of the last tick, since another replica may receive the ticks."""
    fleet = Fleet()
    fleet.update([maintenance()])
    monkeypatch.setattr(metrics, "FRESH_SECONDS", -1.0)

    assert [key[0] for key in shown(fleet)] == ["resync_timestamp_seconds"]
    assert FRESH_SECONDS == 60


def test_a_real_drain_is_in_the_figures_and_a_replay_of_it_is_not(functions: Functions, work: Workload) -> None:
    """Drains, resync events, redelivered events and dead letters are counted; replays are not."""

    def figures() -> list[float]:
        return [
            value("nodemaintenance_drain_seconds_count", phase="Succeeded"),
            value("nodemaintenance_resync_events_total", type=events.MAINTENANCE_FOUND),
            value("nodemaintenance_events_redelivered_total"),
            value("nodemaintenance_events_dead_total"),
        ]

    before = figures()
    item = work.maintenance(work.node())
    functions.post("resync", tick())
    drained = drain(functions, work, item)
    event = tick()
    dead = CloudEvent({**event.get_attributes(), "knativeerrordest": "http://cordon/"}, event.get_data())
    for one in (event, event, dead):
        functions.post("record", one)
    after = figures()

    drains, found, redelivered, dead_letters = (now - then for now, then in zip(after, before, strict=True))
    assert (drains, redelivered, dead_letters) == (1, 1, 1)
    assert found >= 1  # other tests' maintenances may wait, too

    functions.post("resync", replay_extensions.marked(tick(), "r", dry_run=True))
    functions.post("status", replay_extensions.marked(said(events.NODE_DRAINED, drained), "r", dry_run=False))

    assert figures() == after


def test_one_that_is_deleted_is_ending_whatever_its_phase() -> None:
    """docs/observability.md: a deleted maintenance counts as Ending, and not under its phase."""
    item = with_status(phase="Succeeded")
    ending = {**item, "metadata": {**item["metadata"], "deletionTimestamp": ago(1)}}
    fleet = Fleet()

    fleet.update([item, ending])

    phases = {labels[1]: count for labels, count in shown(fleet).items() if labels[0] == "maintenances"}
    assert (phases["Succeeded"], phases["Ending"]) == (1, 1)


def test_evictions_are_counted_by_what_came_of_them() -> None:
    """docs/observability.md: evictions are counted by outcome: evicted, gone or blocked."""
    outcomes = ("evicted", "gone", "blocked")
    before = [value("nodemaintenance_evictions_total", outcome=outcome) for outcome in outcomes]
    pod, blocked = {"uid": "a"}, Blocked({"namespace": "ns", "name": "a", "uid": "a"}, "Forbidden", "why")

    _count(Batch(evicted=[pod], gone=[pod] * 2, blocked=[blocked] * 3))

    after = [value("nodemaintenance_evictions_total", outcome=outcome) for outcome in outcomes]
    assert [now - then for now, then in zip(after, before, strict=True)] == [1, 2, 3]


def test_the_gauges_have_the_labels_that_alerts_ask_for() -> None:
    """docs/observability.md: the gauges have the labels that alerts use."""
    fleet = Fleet()
    fleet.update([with_status(phase="Running", blockedPods=[{**WEB, "since": ago(60)}])])

    labels = {sample.name: set(sample.labels) for metric in fleet.collect() for sample in metric.samples}

    who = {"node", "budget", "reason"}
    assert labels == {
        "nodemaintenance_resync_timestamp_seconds": set(),
        "nodemaintenance_maintenances": {"phase"},
        "nodemaintenance_blocked_pods": who,
        "nodemaintenance_blocked_since_timestamp_seconds": who,
    }
