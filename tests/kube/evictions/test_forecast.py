"""Tests for the forecast of evictions when several nodes are drained together, on plain dicts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from kube.evictions.forecast import (
    ADMITS,
    BLOCKS,
    IN_TURN,
    NEVER,
    RUNS_OUT,
    DurationEstimate,
    EvictionForecast,
    estimate_duration,
    forecast_evictions,
    get_grace_seconds,
)
from kube.paths import Object
from kube.pods import DrainOptions, classify_pods, format_key, get_uid, is_terminating
from tests.kube import samples
from tests.kube.samples import make_budget, make_pod


def make_db_pods(count: int, **fields: Any) -> list[Object]:
    return [make_pod(f"db-{index}", labels={"app": "db"}, owner="ReplicaSet", **fields) for index in range(count)]


def make_pdb_with_counts(*, expected: int = 8, spec: Object | None = None, **fields: Any) -> Object:
    budget = make_budget(**fields)
    budget["status"]["expectedPods"] = expected
    return {**budget, "spec": {**budget["spec"], **(spec or {})}}


def get_forecast_pod_counts(forecast: EvictionForecast) -> tuple[int, int, int]:
    return len(forecast.now), len(forecast.later), len(forecast.blocked)


def get_only_effect(forecast: EvictionForecast) -> str:
    (budget_forecast,) = forecast.budgets
    return budget_forecast.effect


def test_pods_of_two_nodes_share_disruptions_that_pdb_allows() -> None:
    """NMO-6: of eight pods on two nodes, four can be evicted at once if their PDB allows four disruptions."""
    forecast = forecast_evictions(make_db_pods(8), [make_pdb_with_counts(allowed=4, healthy=8, needed=4)])

    assert get_forecast_pod_counts(forecast) == (4, 4, 0)
    assert (get_only_effect(forecast), forecast.budgets[0].rounds) == (IN_TURN, 2)


def test_pdb_that_allows_all_evictions_blocks_no_pod() -> None:
    forecast = forecast_evictions(make_db_pods(2), [make_pdb_with_counts(allowed=4, healthy=8, needed=4)])

    assert (get_forecast_pod_counts(forecast), get_only_effect(forecast)) == ((2, 0, 0), ADMITS)


def test_pdb_blocks_pods_if_evicted_pods_get_no_replacement() -> None:
    """Check that pods are forecast as blocked if evicted pods without replacement may use up the PDB's disruptions."""
    pods, budget = make_db_pods(4), make_pdb_with_counts(allowed=2, healthy=4, needed=2)

    one_lost = forecast_evictions(pods, [budget], lost_uids={get_uid(pods[3])})
    two_lost = forecast_evictions(pods, [budget], lost_uids=set(map(get_uid, pods[2:])))

    assert (get_forecast_pod_counts(one_lost), get_only_effect(one_lost)) == ((2, 2, 0), IN_TURN)
    assert one_lost.budgets[0].rounds == 3, "the lost pod may be evicted first, so that one disruption remains"
    assert (get_forecast_pod_counts(two_lost), get_only_effect(two_lost)) == ((2, 0, 2), RUNS_OUT)


@pytest.mark.parametrize(
    ("spec", "expected_pods", "effect"),
    [
        ({"maxUnavailable": 0}, 4, NEVER),
        ({"minAvailable": "100%"}, 4, NEVER),
        ({"minAvailable": 4}, 4, NEVER),
        ({"minAvailable": 4}, 3, NEVER),
        ({"minAvailable": 4}, 5, BLOCKS),
        ({"maxUnavailable": 1}, 5, BLOCKS),
    ],
    ids=str,
)
def test_pdb_that_allows_no_disruption_blocks_now_or_never_opens(spec: Object, expected_pods: int, effect: str) -> None:
    """OSV-13: A PDB never opens if it requires as many healthy pods as it expects."""
    budget = make_pdb_with_counts(allowed=0, healthy=4, needed=4, expected=expected_pods, spec=spec)

    forecast = forecast_evictions(make_db_pods(2), [budget])

    assert (get_forecast_pod_counts(forecast), get_only_effect(forecast)) == ((0, 0, 2), effect)


def test_eviction_of_unready_pod_uses_no_allowed_disruption() -> None:
    """Check that only ready pods are blocked by a PDB that always allows evictions of unready pods (KEP-3017)."""
    unready = make_pod("unready", labels={"app": "db"}, ready=False)
    budget = make_pdb_with_counts(allowed=0, healthy=3, needed=3, policy="AlwaysAllow", expected=5)

    forecast = forecast_evictions([unready, *make_db_pods(2)], [budget])

    assert (get_forecast_pod_counts(forecast), get_only_effect(forecast)) == ((1, 0, 2), BLOCKS)
    assert forecast.budgets[0].now == 1


def test_pod_with_two_pdbs_is_blocked_and_counts_for_neither() -> None:
    budgets = [make_budget("one", allowed=1), make_budget("two", allowed=1)]

    forecast = forecast_evictions(make_db_pods(1), budgets)

    assert [blocked.reason for blocked in forecast.blocked] == ["MultipleBudgets"]
    assert forecast.budgets == []


def test_forecast_of_deletions_ignores_pdbs() -> None:
    """DRN-1a: with `disableEviction`, all pods are forecast to be deleted immediately."""
    forecast = forecast_evictions(make_db_pods(3), [make_budget()], DrainOptions(disable_eviction=True))

    assert (get_forecast_pod_counts(forecast), forecast.budgets) == ((3, 0, 0), [])


@given(samples.pod_lists, samples.budget_lists)
def test_every_running_pod_is_forecast_once(pods: list[Object], budgets: list[Object]) -> None:
    leaving = [pod for pod in classify_pods(pods).leaving if not is_terminating(pod)]

    forecast = forecast_evictions(leaving, budgets)

    keys = [*map(format_key, (*forecast.now, *forecast.later)), *(blocked.key for blocked in forecast.blocked)]
    assert sorted(keys) == sorted(map(format_key, leaving))


def copy_with_grace_period(pod: Object, seconds: int) -> Object:
    return {**pod, "spec": {**pod["spec"], "terminationGracePeriodSeconds": seconds}}


def test_grace_period_of_pod_applies_unless_option_overrides_it() -> None:
    pod = copy_with_grace_period(make_pod(), 60)

    assert get_grace_seconds(pod) == 60
    assert get_grace_seconds(make_pod()) == 30
    assert get_grace_seconds(pod, DrainOptions(grace_period_seconds=5)) == 5
    assert get_grace_seconds(copy_with_grace_period(make_pod(phase="Succeeded"), 60)) == 0


def test_duration_depends_on_slowest_pod_and_on_pdb() -> None:
    """Check that pods terminate concurrently, except that a PDB allows only so many pods at a time."""
    slow, pods = copy_with_grace_period(make_pod("slow"), 100), make_db_pods(4)
    budget = make_pdb_with_counts(allowed=1, healthy=4, needed=3)

    without_budget = forecast_evictions([slow, *pods], [])
    with_budget = forecast_evictions([slow, *pods], [budget])

    assert estimate_duration(without_budget) == DurationEstimate(100, "pod ns/slow")
    assert estimate_duration(with_budget) == DurationEstimate(120, "budget ns/budget, which admits 4 pods in 4 rounds")
    assert estimate_duration(forecast_evictions([], [])) == DurationEstimate(0, "")
