"""Tests of drains that PodDisruptionBudgets delay."""

from __future__ import annotations

from datetime import datetime

import pytest

from kube.paths import Object
from tests.chain.environment import Scene, finished
from tests.machine_speed import is_below
from tests.proofs import proves


@proves("NMO-6", "NMO-10", "NMO-12", "NMO-13", "C21")
def test_a_budget_of_one_lets_pods_go_one_by_one(scene: Scene) -> None:
    """NMO-10, 12, 13, C21: a budget of one disruption serializes the drain.

    Progress never decreases, `pendingPods` only shrinks, and `evictionPods` keeps its initial value. The status reports
    the budget, and `lastError` is removed in the end.
    """
    node, other, namespace = scene.node(), scene.node(), scene.namespace()
    scene.deployment(namespace, node, 5, ready="300ms")
    scene.allow(namespace, other)
    scene.budget(namespace, {"app": "web"}, allowed=1, maxUnavailable=1)
    path = scene.maintain(node)

    items = [item for item in scene.history(path, finished) if "status" in item]
    states = [item["status"] for item in items]

    progress = [status["drainProgress"] for status in states]
    pending = [len(status["pendingPods"]) for status in states]
    blocked = [entry for status in states for entry in status["blockedPods"]]
    assert progress == sorted(progress)
    assert pending == sorted(pending, reverse=True)
    assert len(set(pending)) >= 4
    assert {status["evictionPods"] for status in states} == {5}
    assert {(entry["budget"], entry["reason"], entry["needed"]) for entry in blocked} == {
        ("budget", "DisruptionBudget", 4)
    }
    assert {entry["healthy"] for entry in blocked} <= {4, 5}
    assert any("budget budget needs 4 healthy pods" in status.get("lastError", "") for status in states)
    assert "lastError" not in states[-1]
    assert states[-1]["blockedPods"] == []
    assert all(abs(_seconds(item["status"]["lastUpdate"], _status_written(item))) <= 1 for item in items)
    scene.delete(path)
    scene.gone(path)


@pytest.fixture
def forbidden(scene: Scene) -> list[Object]:
    """Return three pods on one node whose budget allows no disruption."""
    namespace = scene.namespace()
    pods = scene.pods(scene.node(), 3, namespace=namespace, labels={"app": "x"})
    scene.budget(namespace, {"app": "x"}, allowed=0, minAvailable=3)
    return pods


@proves("X-6")
def test_an_eviction_follows_the_deletion_of_the_budget_that_forbade_it(scene: Scene, forbidden: list[Object]) -> None:
    """NMO-13, X-6: the first eviction follows within 0.5 s of the deletion of the budget that forbade it.

    Before that, the status reports the budget, and no eviction is requested.
    """
    pods, node, namespace = forbidden, forbidden[0]["spec"]["nodeName"], forbidden[0]["metadata"]["namespace"]
    path = scene.maintain(node)
    status = scene.reaches(path, lambda item: len((item.get("status") or {}).get("blockedPods") or []) == 3)["status"]
    assert {(entry["budget"], entry["healthy"], entry["needed"]) for entry in status["blockedPods"]} == {
        ("budget", 3, 3)
    }
    assert status["phase"] == "Running"
    assert scene.evictions(pods) == []

    scene.cluster.kubectl("delete", "pdb", "budget", "-n", namespace)
    done = scene.reaches(path)["status"]

    (deleted,) = [entry for entry in scene.audit() if _is_deletion(entry, namespace)]
    evicted = min(_time(entry["requestReceivedTimestamp"]) for entry in scene.evictions(pods))
    assert is_below((evicted - _time(deleted["stageTimestamp"])).total_seconds(), 0.5)
    assert "lastError" not in done
    scene.delete(path)
    scene.gone(path)


def test_a_pod_behind_two_budgets_is_said_and_the_others_go(scene: Scene) -> None:
    """NMO-6: a pod that two budgets cover is reported as blocked, while the other pods are evicted."""
    node, namespace = scene.node(), scene.namespace()
    scene.pods(node, 1, namespace=namespace, labels={"app": "x", "twice": "yes"})
    scene.pods(node, 3, namespace=namespace, labels={"app": "y"})
    scene.budget(namespace, {"app": "x"}, name="one", allowed=1, minAvailable=0)
    scene.budget(namespace, {"twice": "yes"}, name="two", allowed=1, minAvailable=0)
    path = scene.maintain(node)

    status = scene.reaches(path, lambda item: (item.get("status") or {}).get("pendingCount") == 1)["status"]
    assert [entry["reason"] for entry in status["blockedPods"]] == ["MultipleBudgets"]
    assert "one, two" in status["lastError"]

    scene.cluster.kubectl("delete", "pdb", "two", "-n", namespace)
    assert "lastError" not in scene.reaches(path)["status"]
    scene.delete(path)
    scene.gone(path)


def _is_deletion(entry: Object, namespace: str) -> bool:
    reference = entry["objectRef"]
    wanted = ("delete", "poddisruptionbudgets", namespace)
    return (entry["verb"], reference["resource"], reference.get("namespace")) == wanted


def _status_written(item: Object) -> str:
    """Return the time of the last status write in `metadata.managedFields`."""
    times = [entry["time"] for entry in item["metadata"]["managedFields"] if entry.get("subresource") == "status"]
    return str(max(times))


def _seconds(one: str, other: str) -> float:
    return (_time(one) - _time(other)).total_seconds()


def _time(said: str) -> datetime:
    return datetime.fromisoformat(said.replace("Z", "+00:00"))
