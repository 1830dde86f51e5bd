"""Tests for delays in the drain of real containers: a PodDisruptionBudget with real probes, and a crashed kubelet."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kube.maintenance import objects as m
from kube.paths import Object
from kube.pods import is_ready
from localcluster.waiting import wait_for_collection
from tests.proofs import proves
from tests.real import maintenances
from tests.real.environment import (
    APPS_PATH,
    GRACE_SECONDS,
    IGNORE_SIGTERM_SCRIPT,
    PODS_PATH,
    RealNodesEnvironment,
    build_pod_spec,
    build_pods_ready_predicate,
    build_preferred_node_affinity,
    build_workload,
)

pytestmark = pytest.mark.real
NODE_NAME = "real-1"
BUDGETS_PATH = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


def test_budget_keeps_minimum_number_of_pods_ready(environment: RealNodesEnvironment) -> None:
    """Check that a PDB keeps two of three pods ready during a drain; the readiness probe succeeds after 2 s."""
    replicas, min_ready = 3, 2
    readiness_probe = {"exec": {"command": ["ls", "ready"]}, "periodSeconds": 1}
    script = "sleep 2; touch ready; exec sleep 1000"
    pods = build_pod_spec(
        script,
        terminationGracePeriodSeconds=1,
        readinessProbe=readiness_probe,
        **build_preferred_node_affinity(NODE_NAME),
    )
    budget = {"minAvailable": min_ready, "selector": {"matchLabels": {"app": "counted"}}}
    environment.client.create(BUDGETS_PATH, {"metadata": {"name": "counted"}, "spec": budget})
    environment.client.create(f"{APPS_PATH}/deployments", build_workload("counted", {"replicas": replicas}, pods))
    old_names = {
        pod["metadata"]["name"] for pod in environment.wait_for_pods("counted", build_pods_ready_predicate(replicas))
    }
    ready_counts: list[int] = []

    def are_all_pods_replaced(pods: Mapping[str, Object]) -> bool:
        ready = {name for name, pod in pods.items() if is_ready(pod) and "deletionTimestamp" not in pod["metadata"]}
        ready_counts.append(len(ready))
        return len(ready) == replicas and not ready & old_names

    maintenances.create_maintenance(environment, "budgeted", NODE_NAME)
    wait_for_collection(environment.client, PODS_PATH, are_all_pods_replaced, 120, labels="app=counted")
    maintenances.wait_until_succeeded(environment, "budgeted")
    maintenances.end_maintenance(environment, "budgeted", NODE_NAME)

    print(f"ready pods over time: {ready_counts}")
    assert min(ready_counts) == min_ready
    environment.delete(f"{APPS_PATH}/deployments/counted")


@proves("OSV-15")
def test_crashed_kubelet_delays_drain(environment: RealNodesEnvironment) -> None:
    """Check that a drain waits for a crashed kubelet: terminating pods stay pending until the kubelet runs again."""
    pod_spec = build_pod_spec(
        IGNORE_SIGTERM_SCRIPT, terminationGracePeriodSeconds=GRACE_SECONDS, **build_preferred_node_affinity(NODE_NAME)
    )
    environment.client.create(f"{APPS_PATH}/deployments", build_workload("lost", {"replicas": 1}, pod_spec))
    (pod,) = environment.wait_for_pods("lost", build_pods_ready_predicate(1))
    name = pod["metadata"]["name"]
    environment.get_node(NODE_NAME).kubelet.kill()

    maintenances.create_maintenance(environment, "lost", NODE_NAME)
    wait_for_collection(
        environment.client,
        "/api/v1/nodes",
        lambda nodes: not is_ready(nodes[NODE_NAME]),
        90,
        fields=f"metadata.name={NODE_NAME}",
    )
    blocked = maintenances.wait_for_maintenance(
        environment, "lost", lambda maintenance: name in maintenance["status"].get("pendingPods", ())
    )
    running = maintenances.list_running_pods(environment, NODE_NAME, pod)
    environment.get_node(NODE_NAME).kubelet.start()
    succeeded = maintenances.wait_until_succeeded(environment, "lost")

    assert m.get_phase(blocked) == "Running"
    assert running == {name}
    assert maintenances.list_running_pods(environment, NODE_NAME, pod) == set()
    assert succeeded["status"]["pendingPods"] == []
    maintenances.end_maintenance(environment, "lost", NODE_NAME)
    environment.delete(f"{APPS_PATH}/deployments/lost")
