"""Tests for drains that are delayed by PodDisruptionBudgets."""

from __future__ import annotations

from datetime import datetime

import pytest

from kube.paths import Object
from tests.chain.environment import EventChainEnvironment, has_succeeded
from tests.machine_speed import is_below_scaled_limit
from tests.proofs import proves


@proves("NMO-6", "NMO-10", "NMO-12", "NMO-13", "C21")
def test_budget_that_allows_one_disruption_serializes_evictions(environment: EventChainEnvironment) -> None:
    """NMO-10, 12, 13, C21: a PodDisruptionBudget that allows one disruption serializes the evictions.

    Progress never decreases, `pendingPods` only shrinks, and `evictionPods` keeps its initial value. The status reports
    the PDB, and `lastError` is removed at the end.
    """
    node, other_node, namespace = environment.create_node(), environment.create_node(), environment.create_namespace()
    environment.create_deployment(namespace, node, 5, ready="300ms")
    environment.allow_deployment_on_node(namespace, other_node)
    environment.create_budget(namespace, {"app": "web"}, disruptions_allowed=1, maxUnavailable=1)
    path = environment.create_maintenance(node)

    states = [state for state in environment.record_states_until(path, has_succeeded) if "status" in state]
    statuses = [state["status"] for state in states]

    progress_values = [status["drainProgress"] for status in statuses]
    pending_counts = [len(status["pendingPods"]) for status in statuses]
    blocked = [entry for status in statuses for entry in status["blockedPods"]]
    assert progress_values == sorted(progress_values)
    assert pending_counts == sorted(pending_counts, reverse=True)
    assert len(set(pending_counts)) >= 4
    assert {status["evictionPods"] for status in statuses} == {5}
    assert {(entry["budget"], entry["reason"], entry["needed"]) for entry in blocked} == {
        ("budget", "DisruptionBudget", 4)
    }
    assert {entry["healthy"] for entry in blocked} <= {4, 5}
    assert any("budget budget needs 4 healthy pods" in status.get("lastError", "") for status in statuses)
    assert "lastError" not in statuses[-1]
    assert statuses[-1]["blockedPods"] == []
    assert all(
        abs(_compute_seconds_between(_get_status_write_time(state), state["status"]["lastUpdate"])) <= 1
        for state in states
    )
    environment.request_deletion(path)
    environment.wait_for_deletion(path)


@pytest.fixture
def unevictable_pods(environment: EventChainEnvironment) -> list[Object]:
    """Return three pods on one node whose PodDisruptionBudget allows no disruptions."""
    namespace = environment.create_namespace()
    pods = environment.create_pods(environment.create_node(), 3, namespace=namespace, labels={"app": "x"})
    environment.create_budget(namespace, {"app": "x"}, disruptions_allowed=0, minAvailable=3)
    return pods


@proves("X-6")
def test_pods_are_evicted_soon_after_budget_is_deleted(
    environment: EventChainEnvironment, unevictable_pods: list[Object]
) -> None:
    """NMO-13, X-6: pods are evicted within 0.5 s after the PodDisruptionBudget that blocked them is deleted.

    Before that, the status reports the PDB, and no eviction is requested.
    """
    pods, node, namespace = (
        unevictable_pods,
        unevictable_pods[0]["spec"]["nodeName"],
        unevictable_pods[0]["metadata"]["namespace"],
    )
    path = environment.create_maintenance(node)
    status = environment.wait_for_state(
        path, lambda maintenance: len((maintenance.get("status") or {}).get("blockedPods") or []) == 3
    )["status"]
    assert {(entry["budget"], entry["healthy"], entry["needed"]) for entry in status["blockedPods"]} == {
        ("budget", 3, 3)
    }
    assert status["phase"] == "Running"
    assert environment.list_evictions(pods) == []

    environment.cluster.kubectl("delete", "pdb", "budget", "-n", namespace)
    final_status = environment.wait_for_state(path)["status"]

    (budget_deletion,) = [entry for entry in environment.read_audit_log() if _is_budget_deletion(entry, namespace)]
    first_eviction_time = min(
        _parse_time(entry["requestReceivedTimestamp"]) for entry in environment.list_evictions(pods)
    )
    assert is_below_scaled_limit(
        (first_eviction_time - _parse_time(budget_deletion["stageTimestamp"])).total_seconds(), 0.5
    )
    assert "lastError" not in final_status
    environment.request_deletion(path)
    environment.wait_for_deletion(path)


def test_pod_with_two_budgets_is_blocked_and_other_pods_are_evicted(environment: EventChainEnvironment) -> None:
    """NMO-6: a pod with two PodDisruptionBudgets is reported as blocked, while the other pods are evicted."""
    node, namespace = environment.create_node(), environment.create_namespace()
    environment.create_pods(node, 1, namespace=namespace, labels={"app": "x", "twice": "yes"})
    environment.create_pods(node, 3, namespace=namespace, labels={"app": "y"})
    environment.create_budget(namespace, {"app": "x"}, name="one", disruptions_allowed=1, minAvailable=0)
    environment.create_budget(namespace, {"twice": "yes"}, name="two", disruptions_allowed=1, minAvailable=0)
    path = environment.create_maintenance(node)

    status = environment.wait_for_state(
        path, lambda maintenance: (maintenance.get("status") or {}).get("pendingCount") == 1
    )["status"]
    assert [entry["reason"] for entry in status["blockedPods"]] == ["MultipleBudgets"]
    assert "one, two" in status["lastError"]

    environment.cluster.kubectl("delete", "pdb", "two", "-n", namespace)
    assert "lastError" not in environment.wait_for_state(path)["status"]
    environment.request_deletion(path)
    environment.wait_for_deletion(path)


def _is_budget_deletion(audit_entry: Object, namespace: str) -> bool:
    reference = audit_entry["objectRef"]
    expected = ("delete", "poddisruptionbudgets", namespace)
    return (audit_entry["verb"], reference["resource"], reference.get("namespace")) == expected


def _get_status_write_time(maintenance: Object) -> str:
    """Return the time of the last status write according to `metadata.managedFields`."""
    times = [
        entry["time"] for entry in maintenance["metadata"]["managedFields"] if entry.get("subresource") == "status"
    ]
    return str(max(times))


def _compute_seconds_between(start: str, end: str) -> float:
    return (_parse_time(end) - _parse_time(start)).total_seconds()


def _parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
