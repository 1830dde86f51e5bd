"""Tests for PodSource on a real API server: its hint events about PDBs and pods, and its errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from eventing.podsource.sender import HintSender
from eventing.podsource.watcher import PodSource
from eventing.task_supervisor import TaskSupervisor
from kube.client.api import Api
from kube.maintenance import objects as m
from kube.maintenance.groups import MEDIK8S
from kube.paths import Object
from localcluster.http_receiver import ReceivedRequest
from tests.chain.test_observability import parse_documented_metrics, read_served_metrics
from tests.eventing.podsource.environment import BUDGET_OPENED, PODS_ADDED, PODS_GONE, PodSourceEnvironment
from tests.proofs import proves
from tests.workload import build_pod

X_LABELS, FREE_LABELS = {"app": "x"}, {"app": "free"}
NODE_COUNT = 120
"""Number of nodes that exceeds the default connection limit of the API client."""
CLUSTER_ROLE_BINDING = "nodemaintenance-podsource"


def get_node(hint: ReceivedRequest) -> str:
    return hint.headers["ce-node"]


def list_budget_hints(environment: PodSourceEnvironment, node: str, budget: str) -> list[ReceivedRequest]:
    """Return the hints to a node about a PodDisruptionBudget in the test's namespace."""
    name = f"{environment.workload.namespace}/{budget}"
    return [hint for hint in environment.list_hints(BUDGET_OPENED, node) if json.loads(hint.body)["budget"] == name]


def begin_drain_once_budgets_are_watched(environment: PodSourceEnvironment, node: str) -> None:
    """Start PodSource and begin a drain; return once a hint shows that PodSource watches all PDBs.

    PodSource sends no hints about changes before its start, because the next tick handles such changes.
    """
    environment.workload.create_bare_pods(node, "free", labels=FREE_LABELS)
    environment.workload.create_budget("open", FREE_LABELS, 0, expected_healthy=1)
    environment.start()
    environment.begin_drains(node)
    environment.wait_for_hints(BUDGET_OPENED, node)


@pytest.mark.slow
def test_hints_without_effect_are_repeated_with_exponential_backoff(environment: PodSourceEnvironment) -> None:
    """Design rule 9: hints about an open PDB are sent at once, after 1 s and after 2 s if no pod is evicted."""
    node = environment.workload.take_node()
    environment.workload.create_bare_pods(node, "one", "two", labels=X_LABELS)
    environment.workload.create_budget("b", X_LABELS, 1, expected_healthy=2)
    environment.start()

    environment.begin_drains(node)
    first, second, third = environment.wait_for_hints(BUDGET_OPENED, node, count=3)[:3]

    # Two arrivals may be slightly closer to each other than the sent hints.
    assert second.received_at - first.received_at > 0.5
    assert third.received_at - second.received_at > 1.5
    assert len({first.id, second.id, third.id}) == 3


@proves("NMO-6")
def test_one_hint_is_sent_per_opening_of_budget_that_admits_one_pod(environment: PodSourceEnvironment) -> None:
    """Check that each opening of a PDB that allows one eviction causes one hint, to three waiting nodes in turn."""
    nodes = [environment.workload.take_node() for _ in range(3)]
    pods = {node: environment.workload.create_bare_pods(node, node, labels=X_LABELS)[0] for node in nodes}
    environment.workload.create_bare_pods(environment.workload.take_node(), "spare", labels=X_LABELS)
    budget = environment.workload.create_budget("b", X_LABELS, 4, expected_healthy=4)
    environment.start()
    environment.begin_drains(*nodes)

    order: list[str] = []
    for minimum in (3, 2, 1):
        environment.change_budget(budget, minAvailable=minimum)
        hints = environment.wait_for_hints(BUDGET_OPENED, *nodes, count=len(order) + 1)
        order.append(get_node(hints[-1]))
        environment.evict_pod(pods[order[-1]])
        environment.wait_for_hints(PODS_GONE, order[-1])

    assert sorted(order) == sorted(nodes)
    assert len(environment.list_hints(BUDGET_OPENED, *nodes)) == 3


@pytest.mark.slow
@proves("DRN-1a")
def test_no_hint_is_sent_about_open_budget_of_excluded_pods(environment: PodSourceEnvironment) -> None:
    """DRN-1a, design rule 8: while a spec excludes pods, no hint reports that their PDB allows an eviction."""
    node, other = environment.workload.take_node(), environment.workload.take_node()
    environment.workload.create_bare_pods(node, "one", labels=X_LABELS, empty_dir=True)
    environment.workload.create_bare_pods(other, "two", labels=X_LABELS)
    environment.workload.create_budget("b", X_LABELS, 0, expected_healthy=2)
    environment.start()

    environment.begin_drains(node, other, drain={"deleteEmptyDirData": False})
    environment.wait_for_hints(BUDGET_OPENED, other, count=2)
    assert environment.list_hints(BUDGET_OPENED, node) == []
    maintenances = environment.client.list(MEDIK8S.path)["items"]
    (maintenance,) = [maintenance for maintenance in maintenances if m.get_node_name(maintenance) == node]
    environment.client.patch(m.build_path(maintenance), {"spec": {"drain": None}})

    assert environment.wait_for_hints(BUDGET_OPENED, node)


@proves("NMO-6")
def test_hint_is_sent_immediately_if_budget_is_deleted(environment: PodSourceEnvironment) -> None:
    """X-6: the deletion of a PDB that allowed no evictions causes one hint to the node of its pods."""
    node = environment.workload.take_node()
    pods = environment.workload.create_bare_pods(node, "one", "two", labels=X_LABELS)
    budget = environment.workload.create_budget("b", X_LABELS, 2, expected_healthy=2)
    begin_drain_once_budgets_are_watched(environment, node)

    assert list_budget_hints(environment, node, "b") == []
    environment.workload.delete(environment.build_budget_path(budget))
    environment.sink.wait_until(lambda: bool(list_budget_hints(environment, node, "b")))
    for pod in pods:
        environment.evict_pod(pod)
    environment.sink.wait_until(lambda: environment.list_hints(PODS_GONE, node)[-1:] != [])

    assert len(list_budget_hints(environment, node, "b")) == 1


@pytest.mark.slow
def test_hint_is_sent_if_budget_selector_changes(environment: PodSourceEnvironment) -> None:
    """Check that changing a PDB's selector causes one hint to the node whose pods the PDB no longer covers."""
    node = environment.workload.take_node()
    environment.workload.create_bare_pods(node, "one", labels=X_LABELS)
    budget = environment.workload.create_budget("b", X_LABELS, 1, expected_healthy=1)
    begin_drain_once_budgets_are_watched(environment, node)

    environment.change_budget(budget, selector={"matchLabels": {"app": "another"}})

    environment.sink.wait_until(lambda: bool(list_budget_hints(environment, node, "b")))
    assert len(list_budget_hints(environment, node, "b")) == 1


@pytest.mark.slow
def test_hint_is_sent_about_budget_opened_during_restart(environment: PodSourceEnvironment) -> None:
    """Check that a restarted PodSource sends hints about open PDBs, which may have opened before the restart."""
    node = environment.workload.take_node()
    environment.workload.create_bare_pods(node, "one", labels=X_LABELS)
    budget = environment.workload.create_budget("b", X_LABELS, 1, expected_healthy=1)
    environment.start()
    environment.begin_drains(node)
    environment.source.kill()
    environment.change_budget(budget, minAvailable=0)
    assert environment.list_hints(BUDGET_OPENED, node) == []

    environment.start()

    assert get_node(environment.wait_for_hints(BUDGET_OPENED, node)[0]) == node


@pytest.mark.slow
def test_node_whose_drain_has_not_begun_gets_no_hint(environment: PodSourceEnvironment) -> None:
    """Check that a node whose drain has not begun gets no hints, while a draining node gets hints."""
    pending_node, draining_node = environment.workload.take_node(), environment.workload.take_node()
    for node in (pending_node, draining_node):
        environment.workload.create_bare_pods(node, node, labels=X_LABELS)
    environment.workload.create_budget("b", X_LABELS, 0, expected_healthy=2)
    environment.start()
    environment.create_maintenance(pending_node)
    environment.begin_drains(draining_node)

    environment.wait_for_hints(BUDGET_OPENED, draining_node, count=2)

    assert environment.list_hints(BUDGET_OPENED, pending_node) == []


def test_one_hint_is_sent_about_added_pods(environment: PodSourceEnvironment) -> None:
    """Check that pods added to a draining node cause one hint, and that existing pods and DaemonSet pods cause none.

    Without the hint, a status written before a controller created the new pods would stay wrong until these pods leave.
    """
    node = environment.workload.take_node()
    old, _ = environment.workload.create_bare_pods(node, "old", "older", labels=X_LABELS)
    environment.start()
    environment.begin_drains(node)

    environment.workload.create_bare_pods(node, "one", "two", labels=X_LABELS)
    (hint,) = environment.wait_for_hints(PODS_ADDED, node)
    environment.workload.create_daemonset("agent", node)
    environment.evict_pod(old)
    environment.wait_for_hints(PODS_GONE, node)

    assert hint.headers["ce-more"] == "true"
    assert len(environment.list_hints(PODS_ADDED, node)) == 1


@pytest.mark.slow
@proves("NMO-7")
def test_hints_are_sent_about_daemon_set_pod_if_no_other_pods_remain(environment: PodSourceEnvironment) -> None:
    """Check that hints are sent about a DaemonSet pod if no other pods remain, because its DaemonSet may be deleted."""
    node = environment.workload.take_node()
    daemon = environment.workload.create_daemonset("agent", node)
    budget = environment.workload.create_budget("b", {"app": "agent"}, 1, expected_healthy=1)
    environment.start()
    environment.begin_drains(node)

    environment.change_budget(budget, minAvailable=0)
    environment.wait_for_hints(BUDGET_OPENED, node)
    environment.evict_pod(daemon)

    (hint,) = environment.wait_for_hints(PODS_GONE, node)[-1:]
    assert hint.headers["ce-more"] == "true"


def test_hint_is_sent_if_budget_admits_unready_pod(environment: PodSourceEnvironment) -> None:
    """KEP-3017: a PDB with enough healthy pods allows evictions of unready pods, even if it allows no disruptions."""
    node = environment.workload.take_node()
    (pod,) = environment.workload.create_bare_pods(node, "one", labels=X_LABELS)
    budget = environment.workload.create_budget("b", X_LABELS, 1, expected_healthy=1)
    conditions = [{"type": "Ready", "status": "False"}]
    path = f"/api/v1/namespaces/{environment.workload.namespace}/pods/{pod['metadata']['name']}/status"
    environment.client.patch(path, {"status": {"conditions": conditions}})
    environment.workload.wait_for_object(
        environment.build_budget_path(budget), lambda budget: bool(budget and budget["status"]["currentHealthy"] == 0)
    )
    environment.start()
    environment.begin_drains(node)
    assert environment.list_hints(BUDGET_OPENED, node) == []

    environment.change_budget(budget, unhealthyPodEvictionPolicy="AlwaysAllow")

    assert len(environment.wait_for_hints(BUDGET_OPENED, node)) == 1


@pytest.mark.slow
def test_pods_on_many_nodes_are_watched(environment: PodSourceEnvironment) -> None:
    """Check that PodSource watches the pods on every node, even beyond the API client's default connection limit."""
    nodes = [f"many-{number}" for number in range(NODE_COUNT)]
    environment.cluster.create_nodes(*nodes)
    pods = environment.workload.create_pods(
        environment.workload.namespace, [build_pod(node, node) for node in nodes], ready=False
    )
    environment.start()
    environment.begin_drains(*nodes)
    assert environment.get_metric("nodes") == NODE_COUNT

    environment.client.gather_all(
        *(environment.client.api.request("DELETE", _build_pod_path(pod), body=IMMEDIATE_DELETION) for pod in pods)
    )

    environment.sink.wait_until(
        lambda: {get_node(hint) for hint in environment.list_hints(PODS_GONE, *nodes)} == set(nodes)
    )


IMMEDIATE_DELETION = {"gracePeriodSeconds": 0}


def _build_pod_path(pod: Object) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


@pytest.mark.slow
def test_failed_watch_is_retried_and_counted(environment: PodSourceEnvironment) -> None:
    """Check that PodSource without RBAC permissions is alive but not ready, logs each failure once, and recovers."""
    node = environment.workload.take_node()
    (pod,) = environment.workload.create_bare_pods(node, "one")
    path = f"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{CLUSTER_ROLE_BINDING}"
    binding = environment.client.get(path)
    environment.workload.delete(path)
    try:
        environment.source.start()
        environment.cluster.kubectl("wait", "--for=delete", f"clusterrolebinding/{CLUSTER_ROLE_BINDING}")
        environment.wait_for_endpoint("/healthz")
        environment.wait_for_metric('watch_failures_total{resource="nodemaintenances"}', 8)
        assert environment.get_status("/readyz") == 503
    finally:
        binding["metadata"] = {"name": CLUSTER_ROLE_BINDING}
        environment.client.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)

    environment.wait_for_endpoint("/readyz")
    environment.begin_drains(node)
    environment.evict_pod(pod)

    environment.wait_for_hints(PODS_GONE, node)
    messages = [json.loads(line)["msg"] for line in environment.log.read_text().splitlines() if "forbidden" in line]
    assert len(messages) == len(set(messages))


@pytest.mark.slow
def test_podsource_exits_if_port_is_in_use(environment: PodSourceEnvironment) -> None:
    """Check that PodSource exits with an error if its HTTP port is in use, so that it is restarted."""
    environment.start()

    second = environment.run_until_exit()

    assert second.returncode != 0
    assert "address already in use" in second.stderr


class FailingApi(Api):
    """An API client whose watch of pods raises an unexpected error."""

    def watch(self, path: str, **options: Any) -> AsyncIterator[tuple[str, Object]]:
        if path.endswith("/pods"):
            raise ZeroDivisionError
        return super().watch(path, **options)


def test_unexpected_error_in_one_task_stops_podsource(environment: PodSourceEnvironment) -> None:
    """Check that an unexpected error in one task stops PodSource, so that no node's watch fails unnoticed."""
    environment.create_maintenance(environment.workload.take_node())

    async def run_podsource() -> None:
        tasks = TaskSupervisor()
        async with HintSender(environment.sink.url, tasks) as sender, tasks:
            api = await FailingApi.connect(environment.environment["KUBECONFIG"])
            try:
                PodSource(api, sender, tasks).start()
                await asyncio.wait_for(tasks.failure, 30)
            finally:
                await api.close()

    with pytest.raises(ZeroDivisionError):
        asyncio.run(run_podsource())


def test_served_metrics_match_documentation(environment: PodSourceEnvironment) -> None:
    """Check that after a drain with hints, /metrics has exactly the metrics and labels in docs/reference.md."""
    node = environment.workload.take_node()
    (pod,) = environment.workload.create_bare_pods(node, "one")
    environment.start()
    environment.begin_drains(node)
    environment.evict_pod(pod)
    environment.wait_for_hints(PODS_GONE, node)
    environment.wait_for_metric(f'hints_total{{type="{PODS_GONE}"}}', 1)
    environment.wait_for_metric('watches{resource="poddisruptionbudgets"}', 1)

    assert read_served_metrics(environment.url) == parse_documented_metrics("PodSource")
    assert environment.get_metric('watches{resource="nodemaintenances"}') == 2
