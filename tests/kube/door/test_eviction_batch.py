"""A batch of evictions against a real API server, sent although the budgets say no: its refusals are data."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from kube.budgets import Plan, plan
from kube.door import eviction_batch, inflight_evictions
from kube.door.api_errors import Unavailable
from kube.door.eviction_batch import evict_batch, evict_batches, granted_late, orphans
from kube.door.eviction_pace import CROWD
from kube.door.inflight_evictions import Sending
from kube.door.paging import Listed
from kube.door.sync_client import Cluster
from kube.evictions import Batch
from kube.paths import Object
from kube.pods import Pod
from localcluster.cluster import LocalCluster
from tests.functions.meanwhile import requests_of
from tests.kube import samples
from tests.workload import Audit, Workload


@pytest.fixture
def work(installed: LocalCluster, admin: Cluster) -> Workload:
    """Give a namespace of the test's own; its pods are on node-1, or on a node of the test's own.

    A batch also reports late evictions of its node, for example those of the test before.
    """
    return Workload(installed, admin)


def batch(admin: Cluster, *pods: Object, seconds: float = 1.0) -> Batch:
    return admin.run(evict_batch(admin.api, Plan(free=list(pods)), seconds))


def test_the_servers_no_is_data(work: Workload, admin: Cluster) -> None:
    """NMO-6, X-6: a 429 by a closed budget is a blocked pod with that budget's name and the server's sentence."""
    (pod,) = work.pods("node-1", "a", labels={"app": "db"})
    work.budget("keep-all", {"app": "db"}, 1, counted=1)

    (blocked,) = batch(admin, pod).blocked

    assert (blocked.reason, blocked.budget) == ("DisruptionBudget", "keep-all")
    assert blocked.message == "The disruption budget keep-all needs 1 healthy pods and has 1 currently"


def test_two_budgets_are_a_500_that_is_data_too(work: Workload, admin: Cluster) -> None:
    """NMO-6: the server answers 500 to a pod behind two budgets: blocked with that reason, the other pod goes."""
    twice, free = work.pods("node-1", "twice", labels={"app": "db"})[0], work.pods("node-1", "free")[0]
    for name in ("one", "two"):
        work.budget(name, {"app": "db"}, 0, counted=1)

    done = batch(admin, twice, free)

    assert [item.reason for item in done.blocked] == ["MultipleBudgets"]
    assert [item["name"] for item in done.evicted] == ["free"]


def test_a_pod_that_is_refused_by_itself_does_not_hold_the_queue(work: Workload, admin: Cluster) -> None:
    """NMO-6: under one budget the first pod is refused for a reason of its own; those behind it are sent."""
    (refused,) = work.pods("node-1", "refused", labels={"app": "db", "also": "yes"})
    others = work.pods("node-1", "b", "c", labels={"app": "db"})
    budget = work.budget("one", {"app": "db"}, 0, counted=3)
    work.budget("two", {"also": "yes"}, 0, counted=1)
    queue = Plan(queues={f"{work.namespace}/one": [refused, *others]}, budgets={f"{work.namespace}/one": budget})

    done = admin.run(evict_batch(admin.api, queue))

    assert [(item.pod["name"], item.reason) for item in done.blocked] == [("refused", "MultipleBudgets")]
    assert {item["name"] for item in [*done.evicted, *done.under_way]} == {"b", "c"}


def test_behind_a_pod_that_its_budget_refuses_none_is_sent(work: Workload, admin: Cluster) -> None:
    """NMO-6, X-6: the server counts otherwise than the plan; it is asked a few times, and not for each of ten pods."""
    audit = Audit(work.local.audit_log)
    pods: list[Mapping[str, Any]] = [*work.pods("node-1", *"abcdefghij", labels={"app": "db"})]
    budget = work.budget("keep-all", {"app": "db"}, 10, counted=10)
    queue = Plan(queues={f"{work.namespace}/keep-all": pods}, budgets={f"{work.namespace}/keep-all": budget})

    done = admin.run(evict_batch(admin.api, queue))

    assert {item.pod["name"] for item in done.blocked} == set("abcdefghij")
    assert {item.reason for item in done.blocked} == {"DisruptionBudget"}
    assert len(audit.evictions()) < 10


def test_behind_evictions_without_an_answer_the_rest_is_left_to_the_next_hint(work: Workload, admin: Cluster) -> None:
    """Design rule 9: a look that can send nothing asks for no other one at once."""
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
    """NMO-6: a 404 is done; another pod of the same name is left alone by the uid precondition."""
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
    """NMO-6: when its time is up no further eviction is sent; the rest is told as unsent."""
    pods = work.pods("node-1", "a", "b")

    done = batch(admin, *pods, seconds=-1)

    assert (done.evicted, done.unsent) == ([], pods)


def test_a_pod_that_an_old_list_shows_is_not_evicted_twice(
    work: Workload, admin: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X-2: the cache from which the next look lists may be older than the evictions of the one before."""
    monkeypatch.setattr(inflight_evictions, "GRANTED_SECONDS", 60.0)  # no batch is as old as that, on any machine
    audit = Audit(work.local.audit_log)
    bare = work.pods("node-1", "bare")
    behind: list[Mapping[str, Any]] = [*work.pods("node-1", "a", "b", labels={"app": "db"})]
    budget, name = work.budget("some", {"app": "db"}, 0, counted=2), f"{work.namespace}/some"
    asked = Plan(free=[*bare], queues={name: behind}, budgets={name: budget})

    evicted: list[str] = []
    while len(evicted) < 3:  # a slow server answers some of them to a later batch
        evicted += [item["name"] for item in admin.run(evict_batch(admin.api, asked)).evicted]
    last = admin.run(evict_batch(admin.api, asked))

    assert sorted(evicted) == ["a", "b", "bare"]
    assert (last.evicted, last.unsent) == ([], [])
    assert {item["name"] for item in last.under_way} == {"bare", "a", "b"}
    assert [entry["responseStatus"]["code"] for entry in audit.evictions()].count(201) == 3


@pytest.mark.slow
def test_what_was_granted_behind_its_batch_is_told_by_the_next_one(work: Workload, admin: Cluster) -> None:
    """Design rule 10: the pod is on its way by then, and in no plan; each eviction is told once, at its own node."""
    node = work.node()
    (pod,) = work.pods(node, "slow")

    async def batches() -> list[Batch]:
        await _answered(Sending.of(admin.api), pod)
        nodes = ("node-2", node, node)
        return [await evict_batch(admin.api, Plan(), node=each) for each in nodes]

    assert [[item["name"] for item in batch.evicted] for batch in admin.run(batches())] == [[], ["slow"], []]


@pytest.mark.slow
def test_what_was_granted_behind_the_last_batch_is_taken_without_one(work: Workload, admin: Cluster) -> None:
    """A node that is drained meanwhile."""
    node = work.node()
    (pod,) = work.pods(node, "slow")

    async def taken() -> list[dict[str, str]]:
        await _answered(Sending.of(admin.api), pod)
        return await granted_late(admin.api, node)

    assert [item["name"] for item in admin.run(taken())] == ["slow"]


@pytest.mark.slow
def test_of_its_own_alone_a_batch_takes_the_outcome(work: Workload, admin: Cluster) -> None:
    """A replay beside a drain: what that has sent is not sent again, and is left to its next look."""
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
    """A process that ends tells nobody what came of the evictions that it had sent."""
    node, labels = work.node(), {"app": "evict"}
    (own,) = work.pods(node, "own", labels=labels)
    others = work.pods(node, "a", "b")
    budget, name = work.budget("evict", labels, 0, counted=1), f"{work.namespace}/evict"
    free: list[Pod] = [] if budgeted else [own]
    queues: dict[str, list[Pod]] = {name: [own]} if budgeted else {}
    asked = Plan(free=[*free, *others], queues=queues, budgets={name: budget})
    told: list[str] = []
    while len(told) < 2:  # a slow server answers to a later batch
        done = admin.run(evict_batch(admin.api, asked, node=node, host="own"))
        told += [item["name"] for item in done.evicted]
        assert done.unsent == [own] or not done.evicted
    left, last = Plan(free=free, queues=queues, budgets={name: budget}), Batch(unsent=[own])
    while last.unsent:  # a slow server has not answered an eviction of the test before
        last = admin.run(evict_batch(admin.api, left, node=node, host="own"))

    assert sorted(told) == ["a", "b"]
    assert [item["name"] for item in [*last.evicted, *last.under_way]] == ["own"]


def test_the_pod_of_the_process_waits_for_answers(
    work: Workload, admin: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And asks for no look at once: that would see the same."""
    node = work.node()
    own, other = work.pods(node, "own", "other")
    monkeypatch.setattr(Sending, "_request", lambda *_: asyncio.sleep(1))  # no answer for that long

    async def beside_one_under_way() -> Batch:
        await Sending.of(admin.api).send(other, time.monotonic() + 1)
        return await evict_batch(admin.api, Plan(free=[own]), node=node, host="own")

    assert admin.run(beside_one_under_way()) == Batch()


def test_the_pod_of_the_process_waits_for_answers_from_other_nodes(work: Workload, admin: Cluster) -> None:
    """No hint of those is about this node: what is unsent is asked for."""
    (own,), (other,) = work.pods("node-3", "own"), work.pods("node-2", "other")

    async def beside_one_under_way() -> Batch:
        await Sending.of(admin.api).send(other, time.monotonic() + 1)
        return await evict_batch(admin.api, Plan(free=[own]), node="node-3", host="own")

    assert admin.run(beside_one_under_way()) == Batch(unsent=[own])


def budget_that_opens(work: Workload, counted: int, allows: int) -> Object:
    """A budget that lets all its pods go, as it was when it let only so many."""
    budget = work.budget("some", {"app": "db"}, 0, counted=counted)
    return {**budget, "status": {**budget["status"], "disruptionsAllowed": allows}}


def batches(admin: Cluster, pods: Sequence[Pod], budget: Object, host: str = "") -> tuple[Batch, int]:
    """What came of the batches, and how often budgets were read for them."""
    with requests_of(admin.api) as asked:
        done = admin.run(evict_batches(admin.api, plan(pods, [budget]), pods, host=host))
    return done, sum(count for what, count in asked.items() if "poddisruptionbudgets" in what)


def names(pods: Iterable[Mapping[str, str]]) -> list[str]:
    return sorted(pod["name"] for pod in pods)


def test_what_opens_while_a_batch_is_sent_goes_in_the_same_look(
    work: Workload, admin: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten evictions take as long as pods need elsewhere: one list of budgets in place of another look and status."""
    monkeypatch.setattr(eviction_batch, "OPENED_SECONDS", 0.0)
    pods: list[Pod] = [*work.pods("node-1", *"abc", labels={"app": "db"})]

    done, read = batches(admin, pods, budget_that_opens(work, 3, allows=1))

    assert names([*done.evicted, *done.under_way]) == ["a", "b", "c"]
    assert (done.blocked, done.unsent, read) == ([], [], 1)


def test_behind_a_short_batch_no_budget_is_read_again(
    work: Workload, admin: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A budget of one has not opened by then; it would cost a request for each pod."""
    monkeypatch.setattr(eviction_batch, "OPENED_SECONDS", 60.0)
    pods: list[Pod] = [*work.pods("node-1", *"abc", labels={"app": "db"})]

    done, read = batches(admin, pods, budget_that_opens(work, 3, allows=1))

    assert (len(done.evicted) + len(done.under_way), len(done.blocked), read) == (1, 2, 0)


def test_a_budget_that_stays_closed_ends_the_look(
    work: Workload, admin: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 3: the next one is a hint's; who waits is blocked, once, with the counts that were read last."""
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
    """Rule 9: the plan lets a pod go, and the server refuses it: no further batch in this look."""
    monkeypatch.setattr(eviction_batch, "OPENED_SECONDS", 0.0)
    pods: list[Pod] = [*work.pods("node-1", *"abc", labels={"app": "db"})]
    budget = work.budget("some", {"app": "db"}, 3, counted=3)
    stale = {**budget, "status": {**budget["status"], "disruptionsAllowed": 1}}

    done, read = batches(admin, pods, stale)

    assert (done.evicted, len(done.blocked), read) == ([], 3, 0)


def test_the_pod_of_the_process_is_in_no_later_batch(
    work: Workload, admin: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcomes of the first one would be told by nobody."""
    monkeypatch.setattr(eviction_batch, "OPENED_SECONDS", 0.0)
    pods: list[Pod] = [*work.pods("node-1", "a", "own", labels={"app": "db"})]

    done, _ = batches(admin, pods, budget_that_opens(work, 2, allows=1), host="own")

    assert names([*done.evicted, *done.under_way]) == ["a"]
    assert names(item.pod for item in done.blocked) == ["own"]


def test_budgets_that_cannot_be_read_lose_no_outcome(
    work: Workload, admin: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who was evicted is told all the same; the others are left to the next hint."""

    async def refused(*_: object) -> Listed:
        raise Unavailable(503, "the server is busy")

    monkeypatch.setattr(eviction_batch, "OPENED_SECONDS", 0.0)
    monkeypatch.setattr(eviction_batch, "budgets_over", refused)
    pods: list[Pod] = [*work.pods("node-1", *"abc", labels={"app": "db"})]

    done, _ = batches(admin, pods, budget_that_opens(work, 3, allows=1))

    assert (len(done.evicted) + len(done.under_way), len(done.blocked)) == (1, 2)


class Weak(dict[str, Any]):
    """A pod of which a test can see whether anybody has it still."""


def test_a_pod_is_forgotten_when_its_eviction_is_booked(work: Workload, admin: Cluster) -> None:
    """NMO-6: of thousands of pods that went none stays in memory for as long as an outcome is kept."""
    pod = Weak(work.pods("node-1", "a")[0])
    seen, name = weakref.ref(pod), f"eviction of {pod['metadata']['uid']}"

    done = batch(admin, pod)
    del pod
    gc.collect()

    assert [item["name"] for item in done.evicted] == ["a"]
    assert seen() is None
    assert not [each for each in gc.get_objects() if isinstance(each, asyncio.Task) and each.get_name() == name]


def test_an_orphan_is_a_daemon_whose_daemonset_is_gone(work: Workload, admin: Cluster) -> None:
    """NMO-7: of two DaemonSet pods the one without its DaemonSet is the orphan; other pods are never."""
    living = work.daemonset("agent", "node-1")
    orphan = samples.pod("orphan", namespace=work.namespace, owner="DaemonSet")

    assert admin.run(orphans(admin.api, [living, orphan, samples.pod("bare")])) == {orphan["metadata"]["uid"]}
