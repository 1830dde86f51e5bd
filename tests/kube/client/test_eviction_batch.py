"""Tests of eviction batches against a real API server, including evictions that it refuses."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from kube.budgets import Plan, plan
from kube.client import eviction_batch, eviction_tracker
from kube.client.api_errors import Unavailable
from kube.client.eviction_batch import evict_batch, evict_batches, granted_late, orphans
from kube.client.eviction_limits import CROWD
from kube.client.eviction_tracker import Sending
from kube.client.paging import Listed
from kube.client.sync_client import Cluster
from kube.evictions import Batch
from kube.paths import Object
from kube.pods import Pod
from localcluster.cluster import LocalCluster
from tests.functions.request_hooks import requests_of
from tests.kube import samples
from tests.workload import Audit, Workload


@pytest.fixture
def work(installed: LocalCluster, admin: Cluster) -> Workload:
    """Return a workload in a namespace of its own, with pods on node-1 or on a node of its own.

    Some tests need their own node: a batch also reports its node's late evictions, for example of the previous test.
    """
    return Workload(installed, admin)


def batch(admin: Cluster, *pods: Object, seconds: float = 1.0) -> Batch:
    return admin.run(evict_batch(admin.api, Plan(free=list(pods)), seconds))


def test_the_servers_no_is_data(work: Workload, admin: Cluster) -> None:
    """NMO-6, X-6: a pod refused with 429 is blocked, with the budget's name and the API server's message."""
    (pod,) = work.pods("node-1", "a", labels={"app": "db"})
    work.budget("keep-all", {"app": "db"}, 1, counted=1)

    (blocked,) = batch(admin, pod).blocked

    assert (blocked.reason, blocked.budget) == ("DisruptionBudget", "keep-all")
    assert blocked.message == "The disruption budget keep-all needs 1 healthy pods and has 1 currently"


def test_two_budgets_are_a_500_that_is_data_too(work: Workload, admin: Cluster) -> None:
    """NMO-6: a pod under two budgets, refused with 500, is blocked for that reason; the other pod is evicted."""
    twice, free = work.pods("node-1", "twice", labels={"app": "db"})[0], work.pods("node-1", "free")[0]
    for name in ("one", "two"):
        work.budget(name, {"app": "db"}, 0, counted=1)

    done = batch(admin, twice, free)

    assert [item.reason for item in done.blocked] == ["MultipleBudgets"]
    assert [item["name"] for item in done.evicted] == ["free"]


def test_a_pod_that_is_refused_by_itself_does_not_hold_the_queue(work: Workload, admin: Cluster) -> None:
    """NMO-6: after a pod is refused for a reason of its own, the batch still evicts the other pods under its budget."""
    (refused,) = work.pods("node-1", "refused", labels={"app": "db", "also": "yes"})
    others = work.pods("node-1", "b", "c", labels={"app": "db"})
    budget = work.budget("one", {"app": "db"}, 0, counted=3)
    work.budget("two", {"also": "yes"}, 0, counted=1)
    queue = Plan(queues={f"{work.namespace}/one": [refused, *others]}, budgets={f"{work.namespace}/one": budget})

    done = admin.run(evict_batch(admin.api, queue))

    assert [(item.pod["name"], item.reason) for item in done.blocked] == [("refused", "MultipleBudgets")]
    assert {item["name"] for item in [*done.evicted, *done.under_way]} == {"b", "c"}


def test_behind_a_pod_that_its_budget_refuses_none_is_sent(work: Workload, admin: Cluster) -> None:
    """NMO-6, X-6: after a budget refuses one of ten pods, the batch blocks the rest without a request for each."""
    audit = Audit(work.local.audit_log)
    pods: list[Mapping[str, Any]] = [*work.pods("node-1", *"abcdefghij", labels={"app": "db"})]
    budget = work.budget("keep-all", {"app": "db"}, 10, counted=10)
    queue = Plan(queues={f"{work.namespace}/keep-all": pods}, budgets={f"{work.namespace}/keep-all": budget})

    done = admin.run(evict_batch(admin.api, queue))

    assert {item.pod["name"] for item in done.blocked} == set("abcdefghij")
    assert {item.reason for item in done.blocked} == {"DisruptionBudget"}
    assert len(audit.evictions()) < 10


def test_behind_evictions_without_an_answer_the_rest_is_left_to_the_next_hint(work: Workload, admin: Cluster) -> None:
    """Design rule 9: a batch that can send no eviction reports no deferred pod, so that no pass follows at once."""
    audit = Audit(work.local.audit_log)
    pods: list[Mapping[str, Any]] = [*work.pods("node-1", *"abc", labels={"app": "db"})]
    budget, name = work.budget("some", {"app": "db"}, 0, counted=3), f"{work.namespace}/some"
    queue = Plan(queues={name: pods}, budgets={name: budget})

    async def behind_sleepers() -> Batch:
        lane = Sending.of(admin.api).lane(name)
        sleepers = [asyncio.create_task(asyncio.sleep(60)) for _ in range(CROWD + 2)]
        for sleeper in sleepers:
            lane.put(sleeper)
        batch = await evict_batch(admin.api, queue)
        for sleeper in sleepers:
            sleeper.cancel()
        return batch

    held = admin.run(behind_sleepers())
    sent = audit.evictions()
    free = admin.run(evict_batch(admin.api, queue))

    assert (held, sent) == (Batch(), [])
    assert free.evicted


@pytest.mark.parametrize("what", ["never-there", "another-of-its-name"])
def test_a_pod_that_is_gone_counts_as_gone(work: Workload, admin: Cluster, what: str) -> None:
    """NMO-6: a pod with a 404 counts as gone, and the uid precondition protects another pod of the same name."""
    pod = samples.pod(what, namespace=work.namespace)
    if what == "another-of-its-name":
        work.pods("node-1", what)

    done = batch(admin, pod)

    assert [item["name"] for item in done.gone] == [what]
    assert done.blocked == []
    if what == "another-of-its-name":
        now = admin.get(f"/api/v1/namespaces/{work.namespace}/pods/{what}")
        assert "deletionTimestamp" not in now["metadata"]


def test_a_batch_ends_in_time(work: Workload, admin: Cluster) -> None:
    """NMO-6: after its time is up, a batch sends no eviction and reports the remaining pods as deferred."""
    pods = work.pods("node-1", "a", "b")

    done = batch(admin, *pods, seconds=-1)

    assert (done.evicted, done.unsent) == ([], pods)


def test_a_pod_that_an_old_list_shows_is_not_evicted_twice(
    work: Workload, admin: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X-2: pods that an outdated cached list still shows are not evicted a second time."""
    monkeypatch.setattr(eviction_tracker, "GRANTED_SECONDS", 60.0)  # longer than the batches take on any machine
    audit = Audit(work.local.audit_log)
    bare = work.pods("node-1", "bare")
    behind: list[Mapping[str, Any]] = [*work.pods("node-1", "a", "b", labels={"app": "db"})]
    budget, name = work.budget("some", {"app": "db"}, 0, counted=2), f"{work.namespace}/some"
    asked = Plan(free=[*bare], queues={name: behind}, budgets={name: budget})

    evicted: list[str] = []
    while len(evicted) < 3:  # a slow API server may respond during a later batch
        evicted += [item["name"] for item in admin.run(evict_batch(admin.api, asked)).evicted]
    last = admin.run(evict_batch(admin.api, asked))

    assert sorted(evicted) == ["a", "b", "bare"]
    assert (last.evicted, last.unsent) == ([], [])
    assert {item["name"] for item in last.under_way} == {"bare", "a", "b"}
    assert [entry["responseStatus"]["code"] for entry in audit.evictions()].count(201) == 3


@pytest.mark.slow
def test_what_was_granted_behind_its_batch_is_told_by_the_next_one(work: Workload, admin: Cluster) -> None:
    """NMO-17: an eviction granted after its batch is reported once, by the node's next batch.

    At that time the pod is terminating, so no plan contains it.
    """
    node = work.node()
    (pod,) = work.pods(node, "slow")

    async def batches() -> list[Batch]:
        await _answered(Sending.of(admin.api), pod)
        nodes = ("node-2", node, node)
        return [await evict_batch(admin.api, Plan(), node=each) for each in nodes]

    assert [[item["name"] for item in batch.evicted] for batch in admin.run(batches())] == [[], ["slow"], []]


@pytest.mark.slow
def test_what_was_granted_behind_the_last_batch_is_taken_without_one(work: Workload, admin: Cluster) -> None:
    """Take the late outcomes of a node for which no further batch follows, because it is drained."""
    node = work.node()
    (pod,) = work.pods(node, "slow")

    async def taken() -> list[dict[str, str]]:
        await _answered(Sending.of(admin.api), pod)
        return await granted_late(admin.api, node)

    assert [item["name"] for item in admin.run(taken())] == ["slow"]


@pytest.mark.slow
def test_of_its_own_alone_a_batch_takes_the_outcome(work: Workload, admin: Cluster) -> None:
    """Replays during a drain neither repeat the drain's evictions nor take their outcomes."""
    node = work.node()
    slow, other = work.pods(node, "slow", "other")

    async def batches() -> list[Batch]:
        await _answered(Sending.of(admin.api), slow)
        asked = Plan(free=[slow, other])
        own = await evict_batch(admin.api, asked, node=node, own_only=True)
        return [own, await evict_batch(admin.api, Plan(), node=node)]

    own, later = admin.run(batches())
    assert "slow" in [item["name"] for item in own.under_way]
    assert [item["name"] for item in own.evicted] in (["other"], [])
    assert "slow" in [item["name"] for item in later.evicted]


async def _answered(sending: Sending, pod: Mapping[str, Any]) -> None:
    sent = await sending.send(pod, time.monotonic() + 1)
    assert sent is not None
    await sent.task


@pytest.mark.parametrize("budgeted", [False, True])
def test_the_pod_of_the_process_goes_alone_and_last(work: Workload, admin: Cluster, budgeted: bool) -> None:
    """Evict the process's own pod last, because an exiting process cannot report the outcomes of other evictions."""
    node, labels = work.node(), {"app": "evict"}
    (own,) = work.pods(node, "own", labels=labels)
    others = work.pods(node, "a", "b")
    budget, name = work.budget("evict", labels, 0, counted=1), f"{work.namespace}/evict"
    free: list[Pod] = [] if budgeted else [own]
    queues: dict[str, list[Pod]] = {name: [own]} if budgeted else {}
    asked = Plan(free=[*free, *others], queues=queues, budgets={name: budget})
    told: list[str] = []
    while len(told) < 2:  # a slow API server may respond during a later batch
        done = admin.run(evict_batch(admin.api, asked, node=node, host="own"))
        told += [item["name"] for item in done.evicted]
        assert done.unsent == [own] or not done.evicted
    left, last = Plan(free=free, queues=queues, budgets={name: budget}), Batch(unsent=[own])
    while last.unsent:  # an eviction of the previous test may still be in flight
        last = admin.run(evict_batch(admin.api, left, node=node, host="own"))

    assert sorted(told) == ["a", "b"]
    assert [item["name"] for item in [*last.evicted, *last.under_way]] == ["own"]


def test_the_pod_of_the_process_waits_for_answers(
    work: Workload, admin: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Report no deferred pod, because an immediate pass would find the same state."""
    node = work.node()
    own, other = work.pods(node, "own", "other")
    monkeypatch.setattr(Sending, "_request", lambda *_: asyncio.sleep(1))  # no response within the batch

    async def beside_one_under_way() -> Batch:
        await Sending.of(admin.api).send(other, time.monotonic() + 1)
        return await evict_batch(admin.api, Plan(free=[own]), node=node, host="own")

    assert admin.run(beside_one_under_way()) == Batch()


def test_the_pod_of_the_process_waits_for_answers_from_other_nodes(work: Workload, admin: Cluster) -> None:
    """Report the process's own pod as deferred, because events of other nodes start no pass for this node."""
    (own,), (other,) = work.pods("node-3", "own"), work.pods("node-2", "other")

    async def beside_one_under_way() -> Batch:
        await Sending.of(admin.api).send(other, time.monotonic() + 1)
        return await evict_batch(admin.api, Plan(free=[own]), node="node-3", host="own")

    assert admin.run(beside_one_under_way()) == Batch(unsent=[own])


def budget_that_opens(work: Workload, counted: int, allows: int) -> Object:
    """Create a budget that admits all its pods, and return it with a status that admits only `allows` of them."""
    budget = work.budget("some", {"app": "db"}, 0, counted=counted)
    return {**budget, "status": {**budget["status"], "disruptionsAllowed": allows}}


def batches(admin: Cluster, pods: Sequence[Pod], budget: Object, host: str = "") -> tuple[Batch, int]:
    """Return the result of the batches, and how often they read budgets."""
    with requests_of(admin.api) as asked:
        done = admin.run(evict_batches(admin.api, plan(pods, [budget]), pods, host=host))
    return done, sum(count for what, count in asked.items() if "poddisruptionbudgets" in what)


def names(pods: Iterable[Mapping[str, str]]) -> list[str]:
    return sorted(pod["name"] for pod in pods)


def test_what_opens_while_a_batch_is_sent_goes_in_the_same_look(
    work: Workload, admin: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evict newly admitted pods in the same pass: one list of budgets saves another pass and status write."""
    monkeypatch.setattr(eviction_batch, "OPENED_SECONDS", 0.0)
    pods: list[Pod] = [*work.pods("node-1", *"abc", labels={"app": "db"})]

    done, read = batches(admin, pods, budget_that_opens(work, 3, allows=1))

    assert names([*done.evicted, *done.under_way]) == ["a", "b", "c"]
    assert (done.blocked, done.unsent, read) == ([], [], 1)


def test_behind_a_short_batch_no_budget_is_read_again(
    work: Workload, admin: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read no budgets after a short batch: no replacement pod is ready yet, and each pod would cost a request."""
    monkeypatch.setattr(eviction_batch, "OPENED_SECONDS", 60.0)
    pods: list[Pod] = [*work.pods("node-1", *"abc", labels={"app": "db"})]

    done, read = batches(admin, pods, budget_that_opens(work, 3, allows=1))

    assert (len(done.evicted) + len(done.under_way), len(done.blocked), read) == (1, 2, 0)


def test_a_budget_that_stays_closed_ends_the_look(
    work: Workload, admin: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 3: the pass ends if the budget admits no more pods, and reports each waiting pod as blocked once."""
    monkeypatch.setattr(eviction_batch, "OPENED_SECONDS", 0.0)
    pods: list[Pod] = [*work.pods("node-1", *"abc", labels={"app": "db"})]
    budget = work.budget("some", {"app": "db"}, 2, counted=3)

    done, read = batches(admin, pods, budget)

    assert (len(done.evicted) + len(done.under_way), read) == (1, 1)
    assert len({item.pod["name"] for item in done.blocked}) == len(done.blocked) == 2
    assert {item.reason for item in done.blocked} == {"DisruptionBudget"}


def test_a_server_that_counts_otherwise_is_not_asked_again(
    work: Workload, admin: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 9: no further batch follows in this pass if the API server refuses an eviction that the plan admitted."""
    monkeypatch.setattr(eviction_batch, "OPENED_SECONDS", 0.0)
    pods: list[Pod] = [*work.pods("node-1", *"abc", labels={"app": "db"})]
    budget = work.budget("some", {"app": "db"}, 3, counted=3)
    stale = {**budget, "status": {**budget["status"], "disruptionsAllowed": 1}}

    done, read = batches(admin, pods, stale)

    assert (done.evicted, len(done.blocked), read) == ([], 3, 0)


def test_the_pod_of_the_process_is_in_no_later_batch(
    work: Workload, admin: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leave the process's own pod to the next pass: an exiting process could not report the first batch's outcomes."""
    monkeypatch.setattr(eviction_batch, "OPENED_SECONDS", 0.0)
    pods: list[Pod] = [*work.pods("node-1", "a", "own", labels={"app": "db"})]

    done, _ = batches(admin, pods, budget_that_opens(work, 2, allows=1), host="own")

    assert names([*done.evicted, *done.under_way]) == ["a"]
    assert names(item.pod for item in done.blocked) == ["own"]


def test_budgets_that_cannot_be_read_lose_no_outcome(
    work: Workload, admin: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Report the evicted pods even if budgets cannot be read again; the other pods wait for the next event."""

    async def refused(*_: object) -> Listed:
        raise Unavailable(503, "the server is busy")

    monkeypatch.setattr(eviction_batch, "OPENED_SECONDS", 0.0)
    monkeypatch.setattr(eviction_batch, "budgets_over", refused)
    pods: list[Pod] = [*work.pods("node-1", *"abc", labels={"app": "db"})]

    done, _ = batches(admin, pods, budget_that_opens(work, 3, allows=1))

    assert (len(done.evicted) + len(done.under_way), len(done.blocked)) == (1, 2)


class Weak(dict[str, Any]):
    """A pod dict that supports weak references, so that a test can check whether it is still in memory."""


def test_a_pod_is_forgotten_when_its_eviction_is_booked(work: Workload, admin: Cluster) -> None:
    """NMO-6: an evicted pod is freed from memory once its outcome is recorded, because a drain evicts thousands."""
    pod = Weak(work.pods("node-1", "a")[0])
    seen, name = weakref.ref(pod), f"eviction of {pod['metadata']['uid']}"

    done = batch(admin, pod)
    del pod
    gc.collect()

    assert [item["name"] for item in done.evicted] == ["a"]
    assert seen() is None
    assert not [each for each in gc.get_objects() if isinstance(each, asyncio.Task) and each.get_name() == name]


def test_an_orphan_is_a_daemon_whose_daemonset_is_gone(work: Workload, admin: Cluster) -> None:
    """NMO-7: only a DaemonSet pod whose DaemonSet does not exist is an orphan."""
    living = work.daemonset("agent", "node-1")
    orphan = samples.pod("orphan", namespace=work.namespace, owner="DaemonSet")

    assert admin.run(orphans(admin.api, [living, orphan, samples.pod("bare")])) == {orphan["metadata"]["uid"]}
