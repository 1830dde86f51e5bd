"""Tests for executing eviction plans on a real API server, including evictions that it rejects."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Mapping
from typing import Any

import pytest

from kube.budgets import BlockedPod, build_object_reference
from kube.client.sync_client import SyncClient
from kube.evictions import executor, tracker
from kube.evictions.executor import EvictionOutcome, ExecutionOptions, execute_eviction_plan
from kube.evictions.limiters import MAX_UNANSWERED
from kube.evictions.planner import BudgetQueue, EvictionPlan
from kube.evictions.requests import Removal
from kube.evictions.tracker import EvictionTracker
from kube.paths import Object
from kube.pods import Pod
from localcluster.audit_log import AuditLog
from localcluster.cluster import LocalCluster
from tests.kube import samples
from tests.workload import Workload


@pytest.fixture
def workload(installed_cluster: LocalCluster, admin_client: SyncClient) -> Workload:
    """Return a `Workload` with a new namespace, and with pods on node-1 or on a node without other pods.

    Some tests need a node without other pods, because a batch also reports evictions of the
    previous test whose response arrived after the test's batches.
    """
    return Workload(installed_cluster, admin_client)


def run_batch(client: SyncClient, *pods: Object) -> EvictionOutcome:
    return client.run(execute_eviction_plan(client.api, EvictionPlan(unbudgeted=list(pods))))


def test_pod_whose_eviction_gets_429_is_blocked(workload: Workload, admin_client: SyncClient) -> None:
    """NMO-6, X-6: a pod whose eviction gets a 429 is blocked, with the PDB's name and the API server's message."""
    (pod,) = workload.create_bare_pods("node-1", "a", labels={"app": "db"})
    workload.create_budget("keep-all", {"app": "db"}, 1, expected_healthy=1)

    (blocked,) = run_batch(admin_client, pod).blocked

    assert (blocked.reason, blocked.budget) == ("DisruptionBudget", "keep-all")
    assert blocked.message == "The disruption budget keep-all needs 1 healthy pods and has 1 currently"


def test_pod_with_two_pdbs_whose_eviction_gets_500_is_blocked(workload: Workload, admin_client: SyncClient) -> None:
    """NMO-6: a pod that two PDBs select, whose eviction gets a 500, is blocked; another pod is evicted."""
    budgeted_pod, unbudgeted_pod = (
        workload.create_bare_pods("node-1", "twice", labels={"app": "db"})[0],
        workload.create_bare_pods("node-1", "free")[0],
    )
    for name in ("one", "two"):
        workload.create_budget(name, {"app": "db"}, 0, expected_healthy=1)

    result = run_batch(admin_client, budgeted_pod, unbudgeted_pod)

    assert [blocked_pod.reason for blocked_pod in result.blocked] == ["MultipleBudgets"]
    assert [evicted_pod["name"] for evicted_pod in result.evicted] == ["free"]


def test_rejection_of_single_pod_does_not_block_queued_pods_of_pdb(
    workload: Workload, admin_client: SyncClient
) -> None:
    """NMO-6: after the rejection of a single pod's eviction, the batch still evicts the other pods of the same PDB."""
    (refused_pod,) = workload.create_bare_pods("node-1", "refused", labels={"app": "db", "also": "yes"})
    other_pods = workload.create_bare_pods("node-1", "b", "c", labels={"app": "db"})
    budget = workload.create_budget("one", {"app": "db"}, 0, expected_healthy=3)
    workload.create_budget("two", {"also": "yes"}, 0, expected_healthy=1)
    plan = EvictionPlan(queues=[BudgetQueue(budget, [refused_pod, *other_pods])])

    result = admin_client.run(execute_eviction_plan(admin_client.api, plan))

    assert [(blocked_pod.pod["name"], blocked_pod.reason) for blocked_pod in result.blocked] == [
        ("refused", "MultipleBudgets")
    ]
    assert {evicted_pod["name"] for evicted_pod in [*result.evicted, *result.in_flight]} == {"b", "c"}


def test_429_response_blocks_queued_pods_of_pdb(workload: Workload, admin_client: SyncClient) -> None:
    """NMO-6, X-6: after a PDB blocks an eviction, the PDB's queued pods are blocked without further requests."""
    audit = AuditLog(workload.local_cluster.audit_log)
    pods: list[Mapping[str, Any]] = [*workload.create_bare_pods("node-1", *"abcdefghij", labels={"app": "db"})]
    budget = workload.create_budget("keep-all", {"app": "db"}, 10, expected_healthy=10)
    plan = EvictionPlan(queues=[BudgetQueue(budget, pods)])

    result = admin_client.run(execute_eviction_plan(admin_client.api, plan))

    assert {blocked_pod.pod["name"] for blocked_pod in result.blocked} == set("abcdefghij")
    assert {blocked_pod.reason for blocked_pod in result.blocked} == {"DisruptionBudget"}
    assert len(audit.list_evictions()) < 10


def test_batch_that_cannot_send_evictions_defers_no_pod(workload: Workload, admin_client: SyncClient) -> None:
    """Design rule 9: a batch that cannot send evictions reports no deferred pods, so that no pass follows at once."""
    audit = AuditLog(workload.local_cluster.audit_log)
    pods: list[Mapping[str, Any]] = [*workload.create_bare_pods("node-1", *"abc", labels={"app": "db"})]
    queue = BudgetQueue(workload.create_budget("some", {"app": "db"}, 0, expected_healthy=3), pods)
    plan = EvictionPlan(queues=[queue])

    async def evict_while_evictions_are_in_flight() -> EvictionOutcome:
        pacer = EvictionTracker.for_client(admin_client.api).limiter.get_pacer(queue.key)
        unanswered_tasks = [asyncio.create_task(asyncio.sleep(60)) for _ in range(MAX_UNANSWERED)]
        for task in unanswered_tasks:
            pacer.track(task)
        batch = await execute_eviction_plan(admin_client.api, plan)
        for task in unanswered_tasks:
            task.cancel()
        return batch

    first_result = admin_client.run(evict_while_evictions_are_in_flight())
    evictions = audit.list_evictions()
    second_result = admin_client.run(execute_eviction_plan(admin_client.api, plan))

    assert (first_result, evictions) == (EvictionOutcome(), [])
    assert second_result.evicted


def test_expected_reason_is_reported_instead_of_429_response(workload: Workload, admin_client: SyncClient) -> None:
    """DRN-10: the 429 response to an evacuation request does not replace the expected reason why the pod is blocked."""
    (pod,) = workload.create_bare_pods("node-1", "launcher", labels={"app": "vm"})
    budget = workload.create_budget("vm", {"app": "vm"}, 1, expected_healthy=1)
    expected = BlockedPod(build_object_reference(pod), "WaitsForKubeVirt", "waits", "vm")
    plan = EvictionPlan(queues=[BudgetQueue(budget, [pod])], expected_refusals={expected.pod["uid"]: expected})

    assert admin_client.run(execute_eviction_plan(admin_client.api, plan)) == EvictionOutcome(blocked=[expected])


@pytest.mark.parametrize("pod_name", ["missing", "replaced"])
def test_missing_or_replaced_pod_counts_as_gone(workload: Workload, admin_client: SyncClient, pod_name: str) -> None:
    """NMO-6: a pod whose eviction gets a 404 counts as gone; the uid precondition protects a new pod of that name."""
    pod = samples.make_pod(pod_name, namespace=workload.namespace)
    if pod_name == "replaced":
        workload.create_bare_pods("node-1", pod_name)

    result = run_batch(admin_client, pod)

    assert [evicted_pod["name"] for evicted_pod in result.already_gone] == [pod_name]
    assert result.blocked == []
    if pod_name == "replaced":
        new_pod = admin_client.get(f"/api/v1/namespaces/{workload.namespace}/pods/{pod_name}")
        assert "deletionTimestamp" not in new_pod["metadata"]


def test_batch_defers_pods_after_deadline(
    workload: Workload, admin_client: SyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NMO-6: after its deadline, a batch sends no eviction and reports the remaining pods as deferred."""
    monkeypatch.setattr(executor, "PASS_SECONDS", -1.0)
    pods = workload.create_bare_pods("node-1", "a", "b")

    result = run_batch(admin_client, *pods)

    assert (result.evicted, result.deferred) == ([], pods)


def test_pods_in_outdated_list_are_not_evicted_again(
    workload: Workload, admin_client: SyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X-2: pods that are evicted but still in an outdated cached list are not evicted again."""
    # The batches of this test take less than a minute, even on a slow machine.
    monkeypatch.setattr(tracker, "GRANTED_TTL_SECONDS", 60.0)
    audit = AuditLog(workload.local_cluster.audit_log)
    bare_pods = workload.create_bare_pods("node-1", "bare")
    db_pods: list[Mapping[str, Any]] = [*workload.create_bare_pods("node-1", "a", "b", labels={"app": "db"})]
    budget = workload.create_budget("some", {"app": "db"}, 0, expected_healthy=2)
    plan = EvictionPlan(unbudgeted=[*bare_pods], queues=[BudgetQueue(budget, db_pods)])

    evicted: list[str] = []
    while len(evicted) < 3:  # A slow API server may respond during a later batch.
        evicted += [
            evicted_pod["name"]
            for evicted_pod in admin_client.run(execute_eviction_plan(admin_client.api, plan)).evicted
        ]
    last_result = admin_client.run(execute_eviction_plan(admin_client.api, plan))

    assert sorted(evicted) == ["a", "b", "bare"]
    assert (last_result.evicted, last_result.deferred) == ([], [])
    assert {evicted_pod["name"] for evicted_pod in last_result.in_flight} == {"bare", "a", "b"}
    assert [entry["responseStatus"]["code"] for entry in audit.list_evictions()].count(201) == 3


@pytest.mark.slow
def test_eviction_granted_after_batch_is_reported_by_next_batch(workload: Workload, admin_client: SyncClient) -> None:
    """NMO-17: an eviction that succeeds after the end of its batch is reported once, by the node's next batch.

    At that time the pod is terminating, so no plan contains it.
    """
    node = workload.take_node()
    (pod,) = workload.create_bare_pods(node, "slow")

    async def run_three_batches() -> list[EvictionOutcome]:
        await _send_and_wait_for_response(EvictionTracker.for_client(admin_client.api), pod)
        nodes = ("node-2", node, node)
        return [
            await execute_eviction_plan(admin_client.api, EvictionPlan(), ExecutionOptions(node_name))
            for node_name in nodes
        ]

    assert [
        [evicted_pod["name"] for evicted_pod in batch.evicted] for batch in admin_client.run(run_three_batches())
    ] == [
        [],
        ["slow"],
        [],
    ]


@pytest.mark.slow
def test_eviction_granted_after_batch_is_collected_without_next_batch(
    workload: Workload, admin_client: SyncClient
) -> None:
    """NMO-17: an eviction that succeeds after the end of its batch can be collected without a further batch."""
    node = workload.take_node()
    (pod,) = workload.create_bare_pods(node, "slow")

    async def evict_and_take_outcomes() -> list[dict[str, str]]:
        await _send_and_wait_for_response(EvictionTracker.for_client(admin_client.api), pod)
        return EvictionTracker.for_client(admin_client.api).collect_granted_evictions(node)

    assert [evicted_pod["name"] for evicted_pod in admin_client.run(evict_and_take_outcomes())] == ["slow"]


@pytest.mark.slow
def test_replay_batch_ignores_evictions_of_other_batches(workload: Workload, admin_client: SyncClient) -> None:
    """Check that a replay's batch neither repeats a drain's evictions nor reports their outcomes."""
    node = workload.take_node()
    slow_pod, other_pod = workload.create_bare_pods(node, "slow", "other")

    async def run_two_batches() -> list[EvictionOutcome]:
        await _send_and_wait_for_response(EvictionTracker.for_client(admin_client.api), slow_pod)
        plan = EvictionPlan(unbudgeted=[slow_pod, other_pod])
        own_result = await execute_eviction_plan(admin_client.api, plan, ExecutionOptions(node, is_replay=True))
        return [own_result, await execute_eviction_plan(admin_client.api, EvictionPlan(), ExecutionOptions(node))]

    own_result, next_result = admin_client.run(run_two_batches())
    assert "slow" in [evicted_pod["name"] for evicted_pod in own_result.in_flight]
    assert [evicted_pod["name"] for evicted_pod in own_result.evicted] in (["other"], [])
    assert "slow" in [evicted_pod["name"] for evicted_pod in next_result.evicted]


async def _send_and_wait_for_response(eviction_tracker: EvictionTracker, pod: Mapping[str, Any]) -> None:
    eviction = await eviction_tracker.send_eviction_once(pod, time.monotonic() + 1)
    assert eviction is not None
    await eviction.task


@pytest.mark.parametrize("has_budget", [False, True])
def test_process_evicts_its_own_pod_last(workload: Workload, admin_client: SyncClient, has_budget: bool) -> None:
    """Check that the process evicts its own pod last, so that it can report the outcomes of the other evictions."""
    node, labels = workload.take_node(), {"app": "evict"}
    (own_pod,) = workload.create_bare_pods(node, "own", labels=labels)
    other_pods = workload.create_bare_pods(node, "a", "b")
    budget = workload.create_budget("evict", labels, 0, expected_healthy=1)
    unbudgeted: list[Pod] = [] if has_budget else [own_pod]
    queues = [BudgetQueue(budget, [own_pod])] if has_budget else []
    plan, options = EvictionPlan(unbudgeted=[*unbudgeted, *other_pods], queues=queues), ExecutionOptions(node, "own")
    evicted_names: list[str] = []
    while len(evicted_names) < 2:  # A slow API server may respond during a later batch.
        result = admin_client.run(execute_eviction_plan(admin_client.api, plan, options))
        evicted_names += [evicted_pod["name"] for evicted_pod in result.evicted]
        assert result.deferred == [own_pod] or not result.evicted
    own_plan, last_result = (
        EvictionPlan(unbudgeted=unbudgeted, queues=queues),
        EvictionOutcome(deferred=[own_pod]),
    )
    while last_result.deferred:  # An eviction of the previous test may still be in flight.
        last_result = admin_client.run(execute_eviction_plan(admin_client.api, own_plan, options))

    assert sorted(evicted_names) == ["a", "b"]
    assert [evicted_pod["name"] for evicted_pod in [*last_result.evicted, *last_result.in_flight]] == ["own"]


def test_own_pod_of_process_waits_for_evictions_in_flight(
    workload: Workload, admin_client: SyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the process's own pod is not deferred while evictions of its node are in flight.

    An immediate pass would find the same state.
    """
    node = workload.take_node()
    own_pod, other_pod = workload.create_bare_pods(node, "own", "other")
    # None of the evictions gets a response before the batch ends.
    monkeypatch.setattr(tracker, "send_eviction", lambda *_, **__: asyncio.sleep(1, Removal.EVICTED))

    async def evict_with_an_eviction_in_flight() -> EvictionOutcome:
        await EvictionTracker.for_client(admin_client.api).send_eviction_once(other_pod, time.monotonic() + 1)
        return await execute_eviction_plan(
            admin_client.api, EvictionPlan(unbudgeted=[own_pod]), ExecutionOptions(node, "own")
        )

    assert admin_client.run(evict_with_an_eviction_in_flight()) == EvictionOutcome()


def test_own_pod_of_process_is_deferred_by_evictions_on_other_nodes(
    workload: Workload, admin_client: SyncClient
) -> None:
    """Check that the process's own pod is deferred while evictions on other nodes are in flight.

    Events of other nodes start no pass for the node of this pod.
    """
    (own_pod,), (other_pod,) = workload.create_bare_pods("node-3", "own"), workload.create_bare_pods("node-2", "other")

    async def evict_with_an_eviction_in_flight() -> EvictionOutcome:
        await EvictionTracker.for_client(admin_client.api).send_eviction_once(other_pod, time.monotonic() + 1)
        options = ExecutionOptions("node-3", "own")
        return await execute_eviction_plan(admin_client.api, EvictionPlan(unbudgeted=[own_pod]), options)

    assert admin_client.run(evict_with_an_eviction_in_flight()) == EvictionOutcome(deferred=[own_pod])


class WeakReferablePod(dict[str, Any]):
    """A pod dict that supports weak references, so that a test can check whether it is still in memory."""


def test_evicted_pod_is_freed_after_outcome_is_recorded(workload: Workload, admin_client: SyncClient) -> None:
    """NMO-6: an evicted pod is freed from memory after its outcome is recorded, since a drain may evict thousands."""
    pod = WeakReferablePod(workload.create_bare_pods("node-1", "a")[0])
    reference, name = weakref.ref(pod), f"eviction of {pod['metadata']['uid']}"

    result = run_batch(admin_client, pod)
    del pod
    gc.collect()

    assert [evicted_pod["name"] for evicted_pod in result.evicted] == ["a"]
    assert reference() is None
    assert not [task for task in gc.get_objects() if isinstance(task, asyncio.Task) and task.get_name() == name]
