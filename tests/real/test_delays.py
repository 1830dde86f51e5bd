"""Tests of what delays a drain of real containers: a budget with real probes, and a kubelet that crashed."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kube.maintenance import objects as m
from kube.paths import Object
from kube.pods import is_ready
from tests.proofs import proves
from tests.real import maintenances
from tests.real.environment import APPS, DEAF, GRACE, PODS, Real, owner, preferring, ready_and_whole, template
from tests.waiting import until

pytestmark = pytest.mark.real
NODE = "real-1"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


def test_a_budget_keeps_as_many_ready_as_it_says(real: Real) -> None:
    """Budgets keep two of three pods ready during the drain, with readiness from a probe after two seconds."""
    replicas, wanted = 3, 2
    probe = {"exec": {"command": ["ls", "ready"]}, "periodSeconds": 1}
    script = "sleep 2; touch ready; exec sleep 1000"
    pods = template(script, terminationGracePeriodSeconds=1, readinessProbe=probe, **preferring(NODE))
    budget = {"minAvailable": wanted, "selector": {"matchLabels": {"app": "counted"}}}
    real.door.create(BUDGETS, {"metadata": {"name": "counted"}, "spec": budget})
    real.door.create(f"{APPS}/deployments", owner("counted", {"replicas": replicas}, pods))
    before = {pod["metadata"]["name"] for pod in real.until_pods("counted", ready_and_whole(replicas))}
    counts: list[int] = []

    def all_are_new(found: Mapping[str, Object]) -> bool:
        ready = {name for name, pod in found.items() if is_ready(pod) and "deletionTimestamp" not in pod["metadata"]}
        counts.append(len(ready))
        return len(ready) == replicas and not ready & before

    maintenances.begin(real, "budgeted", NODE)
    until(real.door, PODS, all_are_new, 120, labels="app=counted")
    maintenances.until_succeeded(real, "budgeted")
    maintenances.end(real, "budgeted", NODE)

    print(f"ready in turn: {counts}")
    assert min(counts) == wanted
    real.delete(f"{APPS}/deployments/counted")


@proves("OSV-15")
def test_a_kubelet_that_dies_amid_a_drain_holds_it_until_it_is_back(real: Real) -> None:
    """Drains wait for a crashed kubelet: its terminating pods stay pending until the kubelet runs again."""
    deaf = template(DEAF, terminationGracePeriodSeconds=GRACE, **preferring(NODE))
    real.door.create(f"{APPS}/deployments", owner("lost", {"replicas": 1}, deaf))
    (lost,) = real.until_pods("lost", ready_and_whole(1))
    name = lost["metadata"]["name"]
    real.node(NODE).kubelet.kill()

    maintenances.begin(real, "lost", NODE)
    until(real.door, "/api/v1/nodes", lambda nodes: not is_ready(nodes[NODE]), 90, fields=f"metadata.name={NODE}")
    stuck = maintenances.until_maintenance(real, "lost", lambda found: name in found["status"].get("pendingPods", ()))
    there = maintenances.running(real, NODE, lost)
    real.node(NODE).kubelet.start()
    done = maintenances.until_succeeded(real, "lost")

    assert m.phase(stuck) == "Running"
    assert there == {name}
    assert maintenances.running(real, NODE, lost) == set()
    assert done["status"]["pendingPods"] == []
    maintenances.end(real, "lost", NODE)
    real.delete(f"{APPS}/deployments/lost")
