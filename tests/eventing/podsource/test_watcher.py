"""Tests of PodSource on a real API server: which hints about budgets and pods it sends, how often, and its errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from eventing.podsource.sender import Sender
from eventing.podsource.task_supervisor import Tasks
from eventing.podsource.watcher import PodSource
from kube.client.api import Api
from kube.maintenance import objects as m
from kube.maintenance.groups import MEDIK8S
from kube.paths import Object
from tests.chain.test_observability import PAGE, PODSOURCE, documented, offered
from tests.eventing.podsource.environment import CAME, GONE, OPENED, Bench
from tests.proofs import proves
from tests.receiver import Received
from tests.workload import pod_on

X, FREE = {"app": "x"}, {"app": "free"}
MANY = 120
"""Number of nodes that exceeds the default connection limit of our API client."""
BINDING = "nodemaintenance-podsource"


def node_of(hint: Received) -> str:
    return hint.headers["ce-node"]


def hints_of(bench: Bench, node: str, budget: str) -> list[Received]:
    """Return the node's hints about a budget in the test's namespace."""
    name = f"{bench.work.namespace}/{budget}"
    return [hint for hint in bench.hints(OPENED, node) if json.loads(hint.body)["budget"] == name]


def begin_with_budgets_known(bench: Bench, node: str) -> None:
    """Start PodSource and begin a drain; return once a hint shows that PodSource knows all budgets.

    PodSource sends no hints about earlier changes; the next tick handles those.
    """
    bench.work.pods(node, "free", labels=FREE)
    bench.work.budget("open", FREE, 0, counted=1)
    bench.start()
    bench.begin(node)
    bench.wait(OPENED, node)


@pytest.mark.slow
def test_a_beginning_tells_nothing_for_a_second(bench: Bench) -> None:
    """Check that a new drain gets no hint for a second, since its first pass is about to run, and then hints."""
    node = bench.work.node()
    bench.work.pods(node, "one", "two", labels=X)
    bench.work.budget("b", X, 1, counted=2)
    bench.start()

    begun = bench.begin(node)
    first, second = bench.wait(OPENED, node, count=2)[:2]

    assert first.at - begun >= 1.0
    assert second.at - first.at > 1.5  # the pause doubles; two arrivals may be slightly less than 2 s apart
    assert first.id != second.id


@proves("NMO-6")
def test_a_budget_of_one_is_told_to_one_node_an_opening(bench: Bench) -> None:
    """Check that a budget that admits one pod gives one hint per opening, in turn to three waiting nodes."""
    nodes = [bench.work.node() for _ in range(3)]
    pods = {node: bench.work.pods(node, node, labels=X)[0] for node in nodes}
    bench.work.pods(bench.work.node(), "spare", labels=X)
    budget = bench.work.budget("b", X, 4, counted=4)
    bench.start()
    bench.begin(*nodes)

    order: list[str] = []
    for minimum in (3, 2, 1):
        bench.change(budget, minAvailable=minimum)
        hints = bench.wait(OPENED, *nodes, count=len(order) + 1)
        order.append(node_of(hints[-1]))
        bench.evict(pods[order[-1]])
        bench.wait(GONE, order[-1])

    assert sorted(order) == sorted(nodes)
    assert len(bench.hints(OPENED, *nodes)) == 3


@pytest.mark.slow
@proves("DRN-1a")
def test_of_a_budget_over_refused_pods_nothing_is_told(bench: Bench) -> None:
    """DRN-1a, rule 8: An open budget over excluded pods gives no hint, until a changed spec includes the pods."""
    node, other = bench.work.node(), bench.work.node()
    bench.work.pods(node, "one", labels=X, empty_dir=True)
    bench.work.pods(other, "two", labels=X)
    bench.work.budget("b", X, 0, counted=2)
    bench.start()

    bench.begin(node, other, drain={"deleteEmptyDirData": False})
    bench.wait(OPENED, other, count=2)
    assert bench.hints(OPENED, node) == []
    (item,) = [item for item in bench.admin.list(MEDIK8S.path)["items"] if m.node_name(item) == node]
    bench.admin.patch(m.path(item), {"spec": {"drain": None}})

    assert bench.wait(OPENED, node)


@proves("NMO-6")
def test_a_deleted_budget_is_told_at_once(bench: Bench) -> None:
    """X-6: A deleted budget gives one hint for its pods, although its counts admitted no eviction."""
    node = bench.work.node()
    pods = bench.work.pods(node, "one", "two", labels=X)
    budget = bench.work.budget("b", X, 2, counted=2)
    begin_with_budgets_known(bench, node)

    assert hints_of(bench, node, "b") == []
    bench.work.delete(bench.path(budget))
    bench.sink.wait(lambda: bool(hints_of(bench, node, "b")))
    for pod in pods:
        bench.evict(pod)
    bench.sink.wait(lambda: bench.hints(GONE, node)[-1:] != [])

    assert len(hints_of(bench, node, "b")) == 1


@pytest.mark.slow
def test_pods_that_a_budget_selects_no_more_may_go(bench: Bench) -> None:
    """Check that a budget with a changed selector gives one hint to the node of the pods that it covered before."""
    node = bench.work.node()
    bench.work.pods(node, "one", labels=X)
    budget = bench.work.budget("b", X, 1, counted=1)
    begin_with_budgets_known(bench, node)

    bench.change(budget, selector={"matchLabels": {"app": "another"}})

    bench.sink.wait(lambda: bool(hints_of(bench, node, "b")))
    assert len(hints_of(bench, node, "b")) == 1


@pytest.mark.slow
def test_what_opened_during_a_restart_is_told(bench: Bench) -> None:
    """Check that a restarted PodSource sends hints about open budgets, which may have opened while it did not run."""
    node = bench.work.node()
    bench.work.pods(node, "one", labels=X)
    budget = bench.work.budget("b", X, 1, counted=1)
    bench.start()
    bench.begin(node)
    bench.source.kill()
    bench.change(budget, minAvailable=0)
    assert bench.hints(OPENED, node) == []

    bench.start()

    assert node_of(bench.wait(OPENED, node)[0]) == node


@pytest.mark.slow
def test_a_node_whose_maintenance_has_not_begun_is_told_nothing(bench: Bench) -> None:
    """Check that a node whose drain has not begun gets no hints, while another node gets them."""
    waiting, begun = bench.work.node(), bench.work.node()
    for node in (waiting, begun):
        bench.work.pods(node, node, labels=X)
    bench.work.budget("b", X, 0, counted=2)
    bench.start()
    bench.maintain(waiting)
    bench.begin(begun)

    bench.wait(OPENED, begun, count=2)

    assert bench.hints(OPENED, waiting) == []


def test_pods_that_come_are_told_together_and_those_that_were_there_or_stay_are_not(bench: Bench) -> None:
    """Check that added pods give one hint, and that existing and DaemonSet pods give none.

    Without the hint, a status computed before a controller created the new pods would stay wrong until these pods
    leave.
    """
    node = bench.work.node()
    old, _ = bench.work.pods(node, "old", "older", labels=X)
    bench.start()
    bench.begin(node)

    bench.work.pods(node, "one", "two", labels=X)
    (came,) = bench.wait(CAME, node)
    bench.work.daemonset("agent", node)
    bench.evict(old)
    bench.wait(GONE, node)

    assert came.headers["ce-more"] == "true"
    assert len(bench.hints(CAME, node)) == 1


@pytest.mark.slow
@proves("NMO-7")
def test_a_daemon_sets_pod_counts_when_nothing_else_is_left(bench: Bench) -> None:
    """Check that a DaemonSet pod gives hints if no other pods are left, since its DaemonSet may be deleted."""
    node = bench.work.node()
    daemon = bench.work.daemonset("agent", node)
    budget = bench.work.budget("b", {"app": "agent"}, 1, counted=1)
    bench.start()
    bench.begin(node)

    bench.change(budget, minAvailable=0)
    bench.wait(OPENED, node)
    bench.evict(daemon)

    (gone,) = bench.wait(GONE, node)[-1:]
    assert gone.headers["ce-more"] == "true"


def test_unready_pods_go_beside_the_count(bench: Bench) -> None:
    """KEP-3017: A budget that is met admits an unready pod, even if it allows no disruptions."""
    node = bench.work.node()
    (one,) = bench.work.pods(node, "one", labels=X)
    budget = bench.work.budget("b", X, 1, counted=1)
    bench.start()
    bench.begin(node)
    conditions = [{"type": "Ready", "status": "False"}]
    path = f"/api/v1/namespaces/{bench.work.namespace}/pods/{one['metadata']['name']}/status"
    bench.admin.patch(path, {"status": {"conditions": conditions}})
    bench.work.wait_for(bench.path(budget), lambda item: bool(item and item["status"]["currentHealthy"] == 0))
    assert bench.hints(OPENED, node) == []

    bench.change(budget, unhealthyPodEvictionPolicy="AlwaysAllow")

    assert len(bench.wait(OPENED, node)) == 1


@pytest.mark.slow
def test_every_node_is_watched_however_many_there_are(bench: Bench) -> None:
    """Check that the pods of every node are watched, beyond the default limit of connections of an API client."""
    nodes = [f"many-{number}" for number in range(MANY)]
    bench.cluster.add_named(*nodes)
    pods = bench.work.put(bench.work.namespace, [pod_on(node, node) for node in nodes], ready=False)
    bench.start()
    bench.begin(*nodes)
    assert bench.figure("nodes") == MANY

    bench.admin.together(*(bench.admin.api.request("DELETE", _path(pod), body=AT_ONCE) for pod in pods))

    bench.sink.wait(lambda: {node_of(hint) for hint in bench.hints(GONE, *nodes)} == set(nodes))


AT_ONCE = {"gracePeriodSeconds": 0}


def _path(pod: Object) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


@pytest.mark.slow
def test_a_refused_watch_is_tried_again_and_counted(bench: Bench) -> None:
    """Check that PodSource without RBAC is alive and not ready, logs each failure once, and recovers."""
    node = bench.work.node()
    (pod,) = bench.work.pods(node, "one")
    path = f"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{BINDING}"
    bound = bench.admin.get(path)
    bench.work.delete(path)
    try:
        bench.source.start()
        bench.cluster.kubectl("wait", "--for=delete", f"clusterrolebinding/{BINDING}")
        bench.await_page("/healthz")
        bench.await_figure('watch_failures_total{resource="nodemaintenances"}', 8)
        assert bench.answers("/readyz") == 503
    finally:
        bound["metadata"] = {"name": BINDING}
        bench.admin.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", bound)

    bench.await_page("/readyz")
    bench.begin(node)
    bench.evict(pod)

    bench.wait(GONE, node)
    said = [json.loads(line)["msg"] for line in bench.log.read_text().splitlines() if "forbidden" in line]
    assert len(said) == len(set(said))


@pytest.mark.slow
def test_what_cannot_serve_its_pages_ends(bench: Bench) -> None:
    """Check that a PodSource whose HTTP port is in use ends with an error, so that it is restarted."""
    bench.start()

    second = bench.ends()

    assert second.returncode != 0
    assert "address already in use" in second.stderr


class Worn(Api):
    """An API client that raises an unexpected error when pods are watched."""

    def watch(self, path: str, **options: Any) -> AsyncIterator[tuple[str, Object]]:
        if path.endswith("/pods"):
            raise ZeroDivisionError
        return super().watch(path, **options)


def test_a_fault_in_one_of_its_tasks_is_raised(bench: Bench) -> None:
    """Check that an unexpected error in one task ends PodSource, so that no node's watch fails unnoticed."""
    bench.maintain(bench.work.node())

    async def run() -> None:
        async with Tasks() as tasks, Sender(bench.sink.url, tasks) as sender:
            api = await Worn.connect(bench.environment["KUBECONFIG"])
            try:
                await asyncio.wait_for(PodSource(api, sender, tasks).run(), 30)
            finally:
                await api.close()

    with pytest.raises(ZeroDivisionError):
        asyncio.run(run())


def test_the_page_names_every_metric_and_its_labels(bench: Bench) -> None:
    """Check that /metrics has exactly the metrics and labels in docs/observability.md, after a drain with hints."""
    node = bench.work.node()
    (pod,) = bench.work.pods(node, "one")
    bench.start()
    bench.begin(node)
    bench.evict(pod)
    bench.wait(GONE, node)
    bench.await_figure(f'hints_total{{type="{GONE}"}}', 1)
    bench.await_figure('watches{resource="poddisruptionbudgets"}', 1)

    assert offered(bench.url) == {name: labels for name, labels in documented(PAGE).items() if PODSOURCE in name}
    assert bench.figure('watches{resource="nodemaintenances"}') == 2
