"""Tests of `evict` on a real API server, with the controller that maintains the budgets' status."""

from __future__ import annotations

import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from cloudevents.core.base import BaseCloudEvent
from prometheus_client import REGISTRY

from eventing import events, replay_extensions
from eventing.http_binding import received
from functions.event_data import data_of
from functions.maintenance import evict, event_objects
from kube.budgets import plan
from kube.client import eviction_tracker
from kube.client.eviction_batch import evict_batch
from kube.evictions import Batch, pod_path
from kube.maintenance import objects as m
from kube.maintenance.groups import KUBEVIRT, MEDIK8S, Group
from kube.paths import PODS, Object
from kube.pods import key
from tests.fault_proxy import Fault, Faults
from tests.functions.conftest import Functions
from tests.functions.event_builders import said
from tests.functions.request_hooks import requests_of
from tests.kube import samples
from tests.machine_speed import is_below
from tests.proofs import proves
from tests.workload import Audit, Workload, written


def names(pods: list[Any]) -> set[str]:
    return {pod["name"] for pod in pods}


def evict_again(functions: Functions, item: Object) -> BaseCloudEvent:
    """Run `evict` for the latest state of the node and return its reply."""
    reply = functions.answer("evict", said(events.PODS_GONE, item))
    assert reply is not None
    return reply


def await_gone(work: Workload, *pods: str) -> None:
    work.until(f"/api/v1/namespaces/{work.namespace}/pods", lambda known: not set(pods) & set(known))


@proves("X-1", "NMO-6", "NMO-8", "NMO-9")
def test_pods_leave_through_the_eviction_subresource(functions: Functions, work: Workload, audit: Audit) -> None:
    """NMO-6, NMO-8, NMO-9, X-1: `evict` sends one eviction per pod with preconditions, and writes nothing else."""
    node = work.node()
    bare, scratch = work.pods(node, "bare")[0], work.pods(node, "scratch", empty_dir=True)[0]
    (owned,) = work.deployment("web", node, 1)
    item = work.maintenance(node)
    tainted = functions.prepare(item)
    writes = len(audit.writes_by())

    reply = functions.answer("evict", tainted)

    uids = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in (bare, scratch, owned)}
    assert reply is not None
    assert reply.get_type() == events.PODS_EVICTED
    assert {pod["name"]: pod["uid"] for pod in data_of(reply)["evicted"]} == uids
    assert data_of(reply)["blocked"] == []
    assert data_of(reply)["error"] == ""
    assert int(data_of(reply)["podsVersion"]) > 0
    ours = audit.writes_by()[writes:]
    assert {(verb, kind) for verb, kind, _ in written(ours)} == {("create", "pods/eviction")}
    sent = {entry["objectRef"]["name"]: entry["requestObject"]["deleteOptions"] for entry in ours}
    versions = {pod["metadata"]["name"]: pod["metadata"]["resourceVersion"] for pod in (bare, scratch, owned)}
    assert sent == {name: {"preconditions": {"uid": uids[name], "resourceVersion": versions[name]}} for name in uids}
    await_gone(work, "bare", "scratch", owned["metadata"]["name"])


def test_an_eviction_follows_cordon_and_taint(functions: Functions, work: Workload, audit: Audit) -> None:
    """NMO-5: in the audit log, the last patch of the node precedes the first eviction."""
    node = work.node()
    work.pods(node, "bare")

    functions.chain(work.maintenance(node), "begin", "cordon", "taint", "evict")

    kinds = [kind for _, kind, _ in written(audit.writes_by()) if kind in ("nodes", "pods/eviction")]
    assert kinds[-1] == "pods/eviction"
    assert len(kinds) >= 3  # one more if the controller manager added its taint in between
    assert set(kinds[:-1]) == {"nodes"}


@proves("NMO-5")
@pytest.mark.parametrize("missing", ["cordon", "taint"])
def test_a_node_that_is_not_ready_for_it_is_not_drained(
    functions: Functions, work: Workload, audit: Audit, missing: str
) -> None:
    """NMO-5: if the cordon or the taint is missing, `evict` emits `node.drifted` and evicts no pod."""
    node = work.node()
    work.pods(node, "bare")
    item = work.maintenance(node)
    functions.prepare(item)
    if missing == "cordon":
        work.local.kubectl("uncordon", node)
    else:
        work.local.kubectl("taint", "node", node, "medik8s.io/drain:NoSchedule-")

    reply = functions.answer("evict", said(events.NODE_TAINTED, item))

    assert reply is not None
    assert reply.get_type() == events.NODE_DRIFTED
    assert data_of(reply)["message"] == f"node {node} is not cordoned and tainted any more"
    assert audit.evictions() == []


@proves("X-6")
@pytest.mark.parametrize("kind", evict.OTHERS)
def test_a_hint_about_a_node_that_was_opened_is_left_to_guard(
    functions: Functions, work: Workload, audit: Audit, kind: str
) -> None:
    """Rule 9: `evict` ignores a hint about an uncordoned node, since it would bypass the cooldown of `guard`."""
    node = work.node()
    work.pods(node, "bare")
    item = work.maintenance(node)
    functions.prepare(item)
    work.local.kubectl("uncordon", node)

    assert functions.answer("evict", said(kind, item)) is None
    assert audit.evictions() == []


def test_a_drained_node_whose_status_has_it_open_is_told_once_more(functions: Functions, work: Workload) -> None:
    """NMO-13: if the status reports a drained node as uncordoned, `node.drained` is emitted again after the cordon."""
    node = work.node()
    item = work.maintenance(node)
    drained = functions.chain(item, "begin", "cordon", "taint", "evict")
    functions.answer("status", drained)
    work.local.kubectl("uncordon", node)
    failed = functions.answer("evict", said(events.NODE_TAINTED, item, data={"again": True}))
    assert failed is not None
    functions.answer("status", failed)
    opened = work.again(item)
    assert opened["status"]["lastError"] == data_of(failed)["error"]
    cordoned = functions.answer("cordon", said(events.NODE_DRIFTED, item))
    assert cordoned is not None
    tainted = functions.answer("taint", cordoned)
    assert tainted is not None

    told = functions.answer("evict", tainted)
    assert told is not None
    functions.answer("status", told)

    assert [m.phase(opened), m.is_cordoned(opened)] == ["Succeeded", False]
    closed = work.again(item)
    assert m.is_told_drained(closed)
    assert m.last_error(closed) == ""
    assert functions.answer("evict", said(events.NODE_TAINTED, item)) is None


def test_a_node_that_is_opened_whenever_it_is_closed_is_a_failure(
    functions: Functions, work: Workload, audit: Audit
) -> None:
    """Rule 9: if the node is uncordoned again after its second cordon, `evict` emits `maintenance.failed`."""
    node = work.node()
    item = work.maintenance(node)
    tainted = functions.prepare(item)

    work.local.kubectl("uncordon", node)
    drifted = functions.answer("evict", tainted)
    assert drifted is not None
    cordoned = functions.answer("cordon", drifted)
    assert cordoned is not None
    tainted_again = functions.answer("taint", cordoned)
    assert tainted_again is not None
    work.local.kubectl("uncordon", node)
    failed = functions.answer("evict", tainted_again)

    assert failed is not None
    assert (drifted.get_type(), failed.get_type()) == (events.NODE_DRIFTED, events.MAINTENANCE_FAILED)
    assert data_of(failed)["error"].startswith(f"node {node} was cordoned and tainted twice, and is not")
    functions.answer("status", failed)
    assert work.again(item)["status"]["lastError"] == data_of(failed)["error"]
    assert audit.evictions() == []


@proves("NMO-7", "NMO-9")
def test_daemons_and_static_pods_stay(functions: Functions, work: Workload, audit: Audit) -> None:
    """NMO-7, NMO-9, DRN-3: a node with only a DaemonSet pod and a mirror pod counts as drained."""
    node = work.node()
    work.daemonset("agent", node)
    work.pods(node, "static", annotations={"kubernetes.io/config.mirror": "x"})

    reply = functions.chain(work.maintenance(node), "begin", "cordon", "taint", "evict")

    assert reply.get_type() == events.NODE_DRAINED
    assert audit.evictions() == []


@proves("NMO-7")
def test_a_daemon_without_its_daemonset_leaves(functions: Functions, work: Workload) -> None:
    """NMO-7: a DaemonSet pod whose DaemonSet is gone is evicted like any bare pod."""
    node = work.node()
    pod = work.daemonset("agent", node)
    path = f"/apis/apps/v1/namespaces/{work.namespace}/daemonsets/agent"
    orphaning = {"propagationPolicy": "Orphan"}
    owner = pod["metadata"]["ownerReferences"][0]
    work.admin.run(work.admin.api.request("DELETE", path, body=orphaning))
    work.wait_for(path, lambda found: found is None)
    pod_path = f"/api/v1/namespaces/{work.namespace}/pods/{pod['metadata']['name']}"
    # restore the reference to the deleted DaemonSet; the finalizer keeps the pod from being garbage-collected
    work.admin.patch(pod_path, {"metadata": {"ownerReferences": [owner], "finalizers": ["example.com/hold"]}})
    item = work.maintenance(node)

    reply = functions.chain(item, "begin", "cordon", "taint", "evict")

    assert reply.get_type() == events.PODS_EVICTED
    pending = work.admin.get(pod_path)["metadata"]
    assert pending["deletionTimestamp"]
    work.admin.patch(pod_path, {"metadata": {"finalizers": []}})


@proves("NMO-9")
def test_finished_pods_are_removed(functions: Functions, work: Workload) -> None:
    """NMO-9: a pod that has run to completion is evicted, too."""
    node = work.node()
    (pod,) = work.pods(node, "done")
    work.admin.patch(f"/api/v1/namespaces/{work.namespace}/pods/done/status", {"status": {"phase": "Succeeded"}})
    work.wait_for(
        f"/api/v1/namespaces/{work.namespace}/pods/done",
        lambda found: found is not None and found["status"]["phase"] == "Succeeded",
    )

    reply = functions.chain(work.maintenance(node), "begin", "cordon", "taint", "evict")

    assert names(data_of(reply)["evicted"]) == {"done"}
    await_gone(work, pod["metadata"]["name"])


def test_a_drained_node_is_told_after_another_look(
    functions: Functions, spoiled: Functions, faults: Faults, work: Workload, audit: Audit
) -> None:
    """NMO-10: if the cache shows no pod, `evict` lists the latest state before it reports a drained node."""
    node = work.node()
    tainted = functions.prepare(work.maintenance(node))
    work.pods(node, f"late-{node}")
    stale = Fault(200, body={"items": [], "metadata": {"resourceVersion": "1"}})
    faults.spoil(lambda request: stale if request == "list pods 1" else None)

    response = spoiled.post("evict", tainted)

    asked = faults.seen["list pods"]
    faults.speak_again()
    assert asked == 2
    assert response.headers["ce-type"] == events.PODS_EVICTED
    assert len(audit.evictions(f"late-{node}")) == 1


def test_an_empty_node_is_drained_and_the_answer_names_the_state(functions: Functions, work: Workload) -> None:
    """NMO-10: `node.drained` carries the resourceVersion of the list without pods."""
    reply = functions.chain(work.maintenance(work.node()), "begin", "cordon", "taint", "evict")

    assert reply.get_type() == events.NODE_DRAINED
    assert int(data_of(reply)["podsVersion"]) > 0


def test_what_was_not_sent_in_time_may_go_at_once() -> None:
    """NMO-6, rule 9: deferred pods cause another pass if the batch made progress, and are blocked otherwise."""
    left = samples.pod("left")
    got_on, stood_still = Batch(evicted=[{"uid": "u"}], unsent=[left]), Batch(unsent=[left])

    assert evict._more(got_on, samples.maintenance())
    assert not evict._more(stood_still, samples.maintenance())
    assert [item.reason for item in got_on.blocked + stood_still.blocked] == ["NoTime"]


def test_what_is_on_its_way_is_waited_for_by_events(functions: Functions, work: Workload, audit: Audit) -> None:
    """X-2, NMO-6: a second pass does not evict a terminating pod again; `node.drained` follows when it is gone."""
    node = work.node()
    work.pods(node, "slow", finalizers=("example.com/hold",))
    item = work.maintenance(node)
    functions.answer("evict", functions.prepare(item))
    sent = audit.evictions("slow")

    meanwhile = evict_again(functions, item)

    assert meanwhile.get_type() == events.PODS_EVICTED
    assert data_of(meanwhile)["evicted"] == []
    assert data_of(meanwhile)["blocked"] == []
    assert audit.evictions("slow") == sent
    # an eviction that conflicted with another write of the pod is retried
    assert [entry["responseStatus"]["code"] < 300 for entry in sent if entry["responseStatus"]["code"] != 409] == [True]
    work.admin.patch(f"/api/v1/namespaces/{work.namespace}/pods/slow", {"metadata": {"finalizers": []}})
    await_gone(work, "slow")
    assert evict_again(functions, item).get_type() == events.NODE_DRAINED


def test_passes_side_by_side_evict_every_pod_once(functions: Functions, work: Workload, audit: Audit) -> None:
    """X-2: concurrent passes for one node evict each pod exactly once."""
    node = work.node()
    pods = work.pods(node, *(f"pod-{number}" for number in range(10)), finalizers=("example.com/hold",))
    maintenance = work.maintenance(node)
    tainted, reference = functions.prepare(maintenance), events.Reference.of(maintenance)
    opened = (events.event(events.BUDGET_OPENED, "podsource", reference, node, seed=str(number)) for number in range(3))

    with ThreadPoolExecutor() as passes:
        replies = list(passes.map(lambda event: functions.answer("evict", event), [tainted, *opened]))

    granted = [entry for entry in audit.evictions() if entry["responseStatus"]["code"] < 300]
    uids = Counter(entry["requestObject"]["deleteOptions"]["preconditions"]["uid"] for entry in granted)
    assert uids == {pod["metadata"]["uid"]: 1 for pod in pods}
    told = [pod["uid"] for reply in replies if reply for pod in data_of(reply)["evicted"]]
    assert sorted(told) == sorted(uids)
    assert [blocked for reply in replies if reply for blocked in data_of(reply)["blocked"]] == []
    for pod in pods:
        path = f"/api/v1/namespaces/{work.namespace}/pods/{pod['metadata']['name']}"
        work.admin.patch(path, {"metadata": {"finalizers": []}})


def test_a_pod_that_changed_since_it_was_seen_is_evicted_all_the_same(
    functions: Functions, work: Workload, audit: Audit
) -> None:
    """X-2: an eviction that conflicts with another write of the same pod is retried."""
    node = work.node()
    (pod,) = work.pods(node, "busy")
    path = pod_path(pod)
    work.admin.patch(path, {"metadata": {"labels": {"changed": "yes"}}})

    batch = work.admin.run(evict_batch(work.admin.api, plan([pod], [])))

    assert [item["uid"] for item in batch.evicted] == [pod["metadata"]["uid"]]
    assert [entry["responseStatus"]["code"] for entry in audit.evictions("busy")] == [409, 201]


def test_a_conflict_that_is_answered_late_is_left_to_the_next_look(
    functions: Functions, work: Workload, audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 12: a conflict that arrives late is not retried in the same pass.

    After a slow webhook the maintenance may have ended, and only the next pass reads it again.
    """
    (pod,) = work.pods(work.node(), "slow")
    work.admin.patch(pod_path(pod), {"metadata": {"labels": {"changed": "yes"}}})
    monkeypatch.setattr(eviction_tracker, "STALE_SECONDS", 0.0)

    batch = work.admin.run(evict_batch(work.admin.api, plan([pod], [])))
    (fresh,) = [work.admin.get(pod_path(pod))]
    again = work.admin.run(evict_batch(work.admin.api, plan([fresh], [])))

    assert [item.reason for item in batch.blocked] == ["Changing"]
    assert [item["uid"] for item in again.evicted] == [pod["metadata"]["uid"]]
    assert [entry["responseStatus"]["code"] for entry in audit.evictions("slow")] == [409, 201]


@proves("X-6")
def test_a_budget_lets_go_as_many_as_it_allows(functions: Functions, work: Workload, audit: Audit) -> None:
    """NMO-6, X-6: of three pods with a budget that needs two, one is evicted.

    The others are blocked with the budget's name and counts.
    """
    node = work.node()
    work.pods(node, "a", "b", "c", labels={"app": "db"})
    work.budget("keep-two", {"app": "db"}, 2, counted=3)

    reply = functions.chain(work.maintenance(node), "begin", "cordon", "taint", "evict")

    data = data_of(reply)
    gone, blocked = names(data["evicted"]), {item["name"]: item for item in data["blocked"]}
    assert len(gone) == 1
    assert set(blocked) == {"a", "b", "c"} - gone
    assert len(audit.evictions()) == 1
    for item in blocked.values():
        assert (item["reason"], item["budget"]) == ("DisruptionBudget", "keep-two")
        assert (item["healthy"], item["needed"]) == (2, 2)  # the evicted pod no longer counts
    assert "keep-two needs 2 healthy pods and has 2" in data["error"]


@proves("X-6")
def test_nothing_is_sent_to_a_budget_that_allows_none(functions: Functions, work: Workload, audit: Audit) -> None:
    """NMO-6, X-6: no eviction is sent for a pod whose budget allows none, and the other pods are evicted."""
    node = work.node()
    work.pods(node, "a", labels={"app": "db"})
    work.pods(node, "free")
    work.budget("keep-all", {"app": "db"}, 1, counted=1)
    item = work.maintenance(node)

    first = functions.answer("evict", functions.prepare(item))
    await_gone(work, "free")
    second = evict_again(functions, item)

    assert first is not None
    assert names(data_of(first)["evicted"]) == {"free"}
    for reply in (first, second):
        assert [item["message"] for item in data_of(reply)["blocked"]] == [
            "budget keep-all needs 1 healthy pods and has 1"
        ]
    assert audit.evictions("a") == []


def test_a_pod_behind_two_budgets_is_blocked_and_the_others_go_on(
    functions: Functions, work: Workload, audit: Audit
) -> None:
    """NMO-6: a pod with two budgets is blocked with both names, and the other pods are evicted.

    The API server would answer 500 to its eviction.
    """
    node = work.node()
    work.pods(node, "twice", labels={"app": "db", "tier": "x"})
    work.pods(node, "free")
    work.budget("one", {"app": "db"}, 0, counted=1)
    work.budget("two", {"tier": "x"}, 0, counted=1)

    reply = functions.chain(work.maintenance(node), "begin", "cordon", "taint", "evict")

    (blocked,) = data_of(reply)["blocked"]
    assert names(data_of(reply)["evicted"]) == {"free"}
    assert (blocked["name"], blocked["reason"], blocked["budget"]) == ("twice", "MultipleBudgets", "one, two")
    assert len(audit.evictions()) == 1


def test_a_pod_in_a_terminating_namespace(
    functions: Functions, spoiled: Functions, faults: Faults, work: Workload
) -> None:
    """NMO-6: a pod in a terminating namespace is blocked with the reason NamespaceTerminating."""
    node, namespace = work.node(), work.add_namespace()
    (doomed,) = work.pods(node, "doomed", namespace=namespace, finalizers=("example.com/hold",))
    tainted = functions.prepare(work.maintenance(node))
    words = "is being terminated"
    body = {"details": {"causes": [{"reason": "NamespaceTerminating"}]}}
    faults.spoil(lambda request: Fault(403, words, body=body) if request.startswith("create pods/eviction") else None)

    response = spoiled.post("evict", tainted)

    faults.speak_again()
    (blocked,) = json.loads(response.data)["blocked"]
    assert (blocked["reason"], blocked["uid"]) == ("NamespaceTerminating", doomed["metadata"]["uid"])
    assert json.loads(response.data)["evicted"] == []
    work.admin.patch(pod_path(doomed), {"metadata": {"finalizers": []}})


@proves("NMO-6")
def test_a_pod_that_went_meanwhile_counts_as_gone(
    functions: Functions, spoiled: Functions, faults: Faults, work: Workload, audit: Audit
) -> None:
    """NMO-6: pods that were deleted before their eviction are neither evicted, blocked nor an error."""
    node = work.node()
    pods = work.pods(node, *(f"pod-{number}-{node}" for number in range(5)))
    tainted = functions.prepare(work.maintenance(node))
    for pod in pods:
        work.delete(pod_path(pod))
        work.wait_for(pod_path(pod), lambda found: found is None)
    stale = Fault(200, body={"items": pods, "metadata": {"resourceVersion": "1"}})
    faults.spoil(lambda request: stale if request.startswith("list pods ") else None)
    names = [pod["metadata"]["name"] for pod in pods]

    while not (sent := audit.evictions(*names)):  # on a busy machine the first batch may time out before it sends any
        reply = spoiled.answer("evict", tainted)
        assert reply is not None
        assert reply.get_type() == events.PODS_EVICTED
        data = data_of(reply)
        assert (data["evicted"], data["blocked"], data["error"]) == ([], [], "")

    faults.speak_again()
    assert {entry["responseStatus"]["code"] for entry in sent} == {404}


@proves("NMO-6")
def test_whose_turn_did_not_come_goes_with_the_next_batch(
    functions: Functions, spoiled: Functions, faults: Faults, work: Workload
) -> None:
    """NMO-6, rule 9: a pod that a busy API server rejected is evicted by the next batch, without a backoff."""
    node = work.node()
    work.pods(node, f"first-{node}", f"second-{node}")
    item = work.maintenance(node)
    tainted = functions.prepare(item)
    busy = Fault(429, "too many requests", 1)
    faults.spoil(lambda request: busy if request == "create pods/eviction 1" else None)

    first = spoiled.post("evict", tainted)
    faults.speak_again()
    second = spoiled.post("evict", received(dict(first.headers), first.data))

    told = [json.loads(response.data) for response in (first, second)]
    assert [response.headers.get("ce-more") for response in (first, second)] == ["true", None]
    assert [(data["blocked"], data["error"]) for data in told] == [([], "")] * 2
    assert [len(data["evicted"]) for data in told] == [1, 1]
    assert names(told[0]["evicted"] + told[1]["evicted"]) == {f"first-{node}", f"second-{node}"}


def test_what_the_server_keeps_refusing_asks_for_no_batch_at_once(
    functions: Functions, spoiled: Functions, faults: Faults, work: Workload
) -> None:
    """Rule 9: if a busy API server rejects all evictions, the pods are blocked and no further pass follows."""
    node = work.node()
    work.pods(node, f"first-{node}", f"second-{node}")
    tainted = functions.prepare(work.maintenance(node))
    busy = Fault(429, "too many requests", 1)
    faults.spoil(lambda request: busy if request.startswith("create pods/eviction") else None)

    response = spoiled.post("evict", tainted)

    faults.speak_again()
    assert response.headers.get("ce-more") is None
    assert [pod["reason"] for pod in json.loads(response.data)["blocked"]] == ["Busy", "Busy"]


def test_a_list_that_fails_does_not_matter_where_nothing_is_to_be_done(
    functions: Functions, spoiled: Functions, faults: Faults, work: Workload
) -> None:
    """X-2: a failed list of pods is ignored if the maintenance is being deleted, so the event is not retried."""
    item = work.maintenance(work.node())
    tainted = functions.prepare(item)
    work.delete(m.path(item))
    faults.spoil(lambda request: Fault(500, "no list") if request.startswith("list pods") else None)

    response = spoiled.post("evict", tainted)

    asked = faults.seen["list pods"]
    faults.speak_again()
    assert (response.status_code, asked > 0) == (204, True)


def test_daemons_are_looked_after_when_all_others_go(functions: Functions, work: Workload) -> None:
    """Rule 8, NMO-7: `evict` reads DaemonSets only if no other pod may leave."""
    node = work.node()
    work.daemonset("agent", node)
    work.pods(node, "bare")
    tainted = functions.prepare(work.maintenance(node))

    with requests_of(functions.clusters["evict"].api) as counted:
        reply = functions.answer("evict", tainted)

    assert reply is not None
    assert names(data_of(reply)["evicted"]) == {"bare"}
    assert not [request for request in counted if "daemonsets" in request]


def test_an_eviction_is_in_the_figures_and_a_replay_of_it_is_not(functions: Functions, work: Workload) -> None:
    """docs/observability.md: the metrics count an eviction, but not its replay."""
    node = work.node()
    work.pods(node, "bare")
    tainted = functions.prepare(work.maintenance(node))
    before = evicted_so_far()

    functions.answer("evict", replay_extensions.marked(tainted, "r", dry_run=True))
    replayed = evicted_so_far()
    functions.answer("evict", tainted)

    assert (replayed - before, evicted_so_far() - before) == (0, 1)


def evicted_so_far() -> float:
    """Return the number of evicted pods in the metrics."""
    return REGISTRY.get_sample_value("nodemaintenance_evictions_total", {"outcome": "evicted"}) or 0.0


THIRTY = [f"pod-{number}" for number in range(30)]


@pytest.fixture
def crowded(functions: Functions, work: Workload) -> BaseCloudEvent:
    """Return `node.tainted` for a node with thirty pods."""
    node = work.node()
    work.pods(node, *THIRTY)
    return functions.prepare(work.maintenance(node))


@pytest.mark.slow
def test_thirty_free_pods_go_side_by_side(functions: Functions, crowded: BaseCloudEvent, audit: Audit) -> None:
    """NMO-6: thirty pods without a budget are evicted in under a second, each by one request.

    A fast machine needs one batch. The time limit is longer on a slow machine, which may need several.
    """
    evicted: set[str] = set()
    started = time.monotonic()
    for _ in range(len(THIRTY)):
        reply = functions.answer("evict", crowded)
        evicted |= names(data_of(reply)["evicted"]) if reply else set()
        if evicted == set(THIRTY):
            break
    seconds = time.monotonic() - started

    assert evicted == set(THIRTY)
    assert len(audit.evictions()) == 30
    assert is_below(seconds, 1.0)


@pytest.mark.parametrize(("group", "line"), [(MEDIK8S, "evicting pod {key}"), (KUBEVIRT, 'evicting pod "bare"')])
def test_the_operators_lines_are_in_the_log(
    functions: Functions, work: Workload, caplog: pytest.LogCaptureFixture, group: Group, line: str
) -> None:
    """NMO-17, KNM-5: each eviction is logged with the message of the maintenance's API group."""
    node = work.node()
    (pod,) = work.pods(node, "bare")
    tainted = functions.prepare(work.maintenance(node, group))
    caplog.clear()

    with caplog.at_level("INFO", logger=event_objects.log.name):
        functions.answer("evict", tainted)

    assert [record.message for record in caplog.records] == ["Evict all Pods from Node", line.format(key=key(pod))]
    assert vars(caplog.records[-1])["fields"]["pod"] == key(pod)


def test_what_is_blocked_is_in_the_log(functions: Functions, work: Workload, caplog: pytest.LogCaptureFixture) -> None:
    """NMO-17: `evict` logs the number of blocked pods, and the pods with their reasons as a field."""
    node = work.node()
    work.pods(node, "a", labels={"app": "db"})
    work.budget("keep-all", {"app": "db"}, 1, counted=1)
    tainted = functions.prepare(work.maintenance(node))
    caplog.clear()

    with caplog.at_level("INFO", logger=event_objects.log.name):
        reply = functions.answer("evict", tainted)

    assert reply is not None
    assert [record.message for record in caplog.records] == ["1 pod blocked"]
    assert vars(caplog.records[-1])["fields"]["error"] == data_of(reply)["error"] != ""


@pytest.mark.parametrize("name", ["podsVersion", "budgetsVersion"])
def test_no_older_state_is_looked_at_than_the_hint_speaks_of(functions: Functions, work: Workload, name: str) -> None:
    """Rule 1: `evict` answers 503 and evicts no pod if the API server's state is older than the hint's."""
    node = work.node()
    pod = work.pods(node, "stays")[0]
    item = work.maintenance(node)
    functions.prepare(item)
    later = str(int(pod["metadata"]["resourceVersion"]) + 10**6)

    response = functions.post("evict", said(events.BUDGET_OPENED, item, data={name: later}))

    assert response.status_code == 503
    assert not work.admin.get(pod_path(pod))["metadata"].get("deletionTimestamp")


def test_that_the_last_pod_was_seen_gone_spares_a_second_list(functions: Functions, work: Workload) -> None:
    """Rule 8: `evict` lists pods only once if the hint names the state in which the last pod is gone."""
    node = work.node()
    item = work.maintenance(node)
    functions.prepare(item)
    version = work.read_node(node)["metadata"]["resourceVersion"]
    asked = []

    for data in ({"podsVersion": version}, {}):
        with requests_of(functions.clusters["evict"].api) as counted:
            reply = functions.answer("evict", said(events.PODS_GONE, item, data=data))
        assert reply is not None
        assert reply.get_type() == events.NODE_DRAINED
        asked.append(counted[f"GET {PODS}"])

    assert asked == [1, 2]
