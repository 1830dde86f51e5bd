"""Tests of `status` on a real API server."""

from __future__ import annotations

import threading

import pytest
from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.event_data import data_of
from functions.installs import CLAIMS
from functions.maintenance import event_objects
from kube.evictions import pod_path
from kube.maintenance import leases
from kube.maintenance import objects as m
from kube.maintenance.kubernetes_events import CORDON, EVENTS
from kube.maintenance.groups import GROUPS, Group
from kube.maintenance.status_patch import KEPT
from kube.nodes import node_path
from kube.paths import PODS, Object
from tests.fault_proxy import Fault, Faults
from tests.functions.conftest import Functions
from tests.functions.event_builders import added, node_updated, said, updated
from tests.functions.request_hooks import lists_of, requests_of
from tests.proofs import proves
from tests.workload import Audit, Workload, written

every_group = pytest.mark.parametrize("group", GROUPS.values(), ids=lambda group: group.api_version.split("/")[0])

FOREIGN = {"holderIdentity": "another", "leaseDurationSeconds": 60, "renewTime": "2999-01-01T00:00:00.000000Z"}


def drain(functions: Functions, work: Workload, item: Object) -> Object:
    """Run each step once with `status` after it, and return the maintenance."""
    event: BaseCloudEvent = added(item)
    for step in ("begin", "cordon", "taint", "evict"):
        reply = functions.answer(step, event)
        assert reply is not None
        functions.answer("status", reply)
        event = reply
    return work.again(item)


def conditions(item: Object) -> dict[str, tuple[str, str]]:
    """Return the conditions in the status, as type → (status, reason)."""
    return {it["type"]: (it["status"], it["reason"]) for it in item["status"]["conditions"]}


@proves("X-1", "KNM-2", "KNM-3")
@every_group
def test_the_first_status_says_what_is_to_be_done(
    functions: Functions, work: Workload, audit: Audit, group: Group
) -> None:
    """NMO-10, NMO-11, KNM-2, KNM-3, OSV-13, X-1: the first status reports Running, the counts and pending pods.

    It has both spellings of the total and is written once, with two Events.
    """
    node = work.node()
    work.pods(node, "a", "b")
    work.pods(node, "static", annotations={"kubernetes.io/config.mirror": "x"})
    item = work.maintenance(node, group)
    begun = functions.begin(item)
    writes = len(audit.writes_by())

    assert functions.answer("status", begun) is None

    item = work.again(item)
    status = item["status"]
    assert (status["phase"], status["drainProgress"]) == ("Running", 0)
    assert (status["totalpods"], status["totalPods"], status["evictionPods"]) == (3, 3, 2)
    assert (status["pendingPods"], status["pendingCount"]) == (["a", "b"], 2)
    assert status["pendingPodsRefs"] == [{"namespace": work.namespace, "name": name} for name in ("a", "b")]
    assert "lastError" not in status
    assert status["lastUpdate"].endswith("Z")
    assert conditions(item) == {"Cordoned": ("False", "NotCordoned"), "Drained": ("False", "Draining")}
    first, *events_told = written(audit.writes_by()[writes:])
    assert first == ("patch", "nodemaintenances/status", item["metadata"]["name"])
    assert [told[:2] for told in events_told] == [("create", "events")] * 2


@proves("NMO-10", "NMO-11")
def test_a_drained_node_succeeds(functions: Functions, work: Workload) -> None:
    """NMO-10, NMO-11: a drained node has phase Succeeded, progress 100 and no pending pods; the counts stay."""
    node = work.node()
    work.pods(node, "a", "b")
    item = drain(functions, work, work.maintenance(node))
    work.until(f"/api/v1/namespaces/{work.namespace}/pods", lambda pods: not pods)

    drained = functions.answer("evict", said(events.PODS_GONE, item))
    assert drained is not None
    functions.answer("status", drained)

    after = work.again(item)
    status = after["status"]
    assert (status["phase"], status["drainProgress"], status["pendingPods"]) == ("Succeeded", 100, [])
    assert (status["totalpods"], status["evictionPods"]) == (2, 2)
    assert conditions(after) == {"Cordoned": ("True", "Cordoned"), "Drained": ("True", "Drained")}
    work.local.kubectl(
        "wait", "--for=condition=Drained", "--timeout=5s", f"nodemaintenances.nodemaintenance.medik8s.io/{_name(item)}"
    )


def _name(item: Object) -> str:
    return str(item["metadata"]["name"])


def test_a_node_with_nothing_to_evict_succeeds_at_once(functions: Functions, work: Workload) -> None:
    """NMO-10: a node without pods to evict succeeds at once."""
    item = drain(functions, work, work.maintenance(work.node()))

    status = item["status"]
    assert (status["phase"], status["evictionPods"], status["drainProgress"]) == ("Succeeded", 0, 100)


@proves("NMO-12")
def test_nothing_is_written_when_nothing_changes(functions: Functions, work: Workload, audit: Audit) -> None:
    """NMO-12, X-2: a redelivered event writes nothing."""
    node = work.node()
    work.pods(node, "a", finalizers=("example.com/hold",))
    item = work.maintenance(node)
    begun = functions.begin(item)
    functions.answer("status", begun)
    before, writes = work.again(item), len(audit.writes_by())

    functions.answer("status", begun)

    assert work.again(item) == before
    assert len(audit.writes_by()) == writes


def test_a_blocked_drain_is_quiet_between_its_events(functions: Functions, work: Workload, audit: Audit) -> None:
    """X-3, NMO-12: repeated passes of a blocked drain write nothing."""
    node = work.node()
    work.pods(node, "a", labels={"app": "db"})
    work.budget("keep-all", {"app": "db"}, 1, counted=1)
    item = drain(functions, work, work.maintenance(node))
    writes = len(audit.writes_by())

    for _ in range(2):
        for kind in (events.NODE_TAINTED, events.PODS_GONE):
            reply = functions.answer("evict", said(kind, item))
            assert reply is not None
            functions.answer("status", reply)

    assert written(audit.writes_by()[writes:]) == []
    assert work.again(item) == item


@proves("NMO-13", "C20")
def test_a_blocked_pod_is_named_and_forgotten(functions: Functions, work: Workload) -> None:
    """NMO-13, C20: `lastError` and `blockedPods` name a blocked pod, and are cleared after the drain."""
    node = work.node()
    work.pods(node, "a", labels={"app": "db"})
    work.budget("keep-all", {"app": "db"}, 1, counted=1)
    item = drain(functions, work, work.maintenance(node))
    (blocked,) = item["status"]["blockedPods"]
    assert (blocked["name"], blocked["reason"], blocked["budget"]) == ("a", "DisruptionBudget", "keep-all")
    assert (blocked["healthy"], blocked["needed"]) == (1, 1)
    assert item["status"]["lastError"] == f"{work.namespace}/a: {blocked['message']}"
    assert conditions(item)["Drained"] == ("False", "Blocked")

    work.delete(f"/apis/policy/v1/namespaces/{work.namespace}/poddisruptionbudgets/keep-all")
    work.until(f"/apis/policy/v1/namespaces/{work.namespace}/poddisruptionbudgets", lambda budgets: not budgets)
    functions.answer("evict", said(events.PODS_GONE, item))
    work.until(f"/api/v1/namespaces/{work.namespace}/pods", lambda pods: not pods)
    drained = functions.answer("evict", said(events.PODS_GONE, item))
    assert drained is not None
    functions.answer("status", drained)

    status = work.again(item)["status"]
    assert (status["phase"], status["blockedPods"]) == ("Succeeded", [])
    assert "lastError" not in status


def test_progress_never_goes_back(functions: Functions, work: Workload) -> None:
    """NMO-10, NMO-12: `drainProgress` never decreases, even if new pods appear."""
    node = work.node()
    names = [f"pod-{number}" for number in range(4)]
    work.pods(node, *names)
    item = drain_to_begun(functions, work, node)
    seen = []
    for name in [*names[:2], "", *names[2:]]:
        path = f"/api/v1/namespaces/{work.namespace}/pods"
        if name:
            work.delete(f"{path}/{name}")
            work.wait_for(f"{path}/{name}", lambda pod: pod is None)
        else:
            work.pods(node, "late", "later")
        functions.answer("status", said(events.PODS_EVICTED, item))
        status = work.again(item)["status"]
        seen.append((status["drainProgress"], len(status["pendingPods"])))

    assert seen == [(25, 3), (50, 2), (50, 4), (50, 3), (50, 2)]


def drain_to_begun(functions: Functions, work: Workload, node: str) -> Object:
    item = work.maintenance(node)
    functions.answer("status", functions.begin(item))
    return work.again(item)


@proves("NMO-22", "C6")
def test_what_never_began_has_failed(functions: Functions, work: Workload, audit: Audit) -> None:
    """NMO-19, NMO-22, C6: a maintenance that cannot begin has phase Failed with the reason, written only once."""
    item = work.maintenance("nowhere")
    failed = functions.answer("begin", added(item))
    assert failed is not None

    functions.answer("status", failed)
    functions.answer("status", failed)

    status = work.again(item)["status"]
    assert (status["phase"], status["lastError"]) == ("Failed", 'nodes "nowhere" not found')
    assert [told[1] for told in written(audit.writes_by())] == ["nodemaintenances/status", "events", "events"]


@pytest.mark.parametrize("way", ["refused", "waits"])
def test_why_one_could_not_begin_is_no_error_of_it_once_it_has(functions: Functions, work: Workload, way: str) -> None:
    """X-2: a late failure event of `begin` changes nothing after the maintenance has begun."""
    node = work.node()
    first, second = work.maintenance(node), work.maintenance(node)
    if way == "refused":
        drain(functions, work, first)
    else:
        work.admin.create(leases.LEASES, {"metadata": {"name": leases.lease_name(node)}, "spec": FOREIGN})
    late = functions.answer("begin", added(second))
    assert late is not None
    functions.answer("status", late)
    assert m.last_error(work.again(second)) == data_of(late)["error"]
    if way == "refused":
        work.delete(m.path(first))
        functions.answer("restore", updated(work.again(first)))
    else:
        work.delete(leases.lease_path(node))
    functions.answer("status", functions.begin(second))
    running = work.again(second)
    functions.answer("status", late)
    assert work.again(second) == running
    drained = drain(functions, work, second)

    functions.answer("status", late)

    assert work.again(second) == drained
    assert (m.phase(drained), m.last_error(drained)) == (m.SUCCEEDED, "")


@proves("NMO-13", "C20")
def test_a_failed_step_of_a_begun_one_leaves_it_running(functions: Functions, work: Workload) -> None:
    """NMO-5, NMO-13: an error of `cordon` is in `lastError`, the phase stays Running, and a later success clears it."""
    node = work.node()
    work.pods(node, "a")
    item = drain_to_begun(functions, work, node)

    functions.answer("status", said(events.MAINTENANCE_FAILED, item, data={"step": "cordon", "error": "no right"}))
    refused = work.again(item)["status"]
    functions.answer("status", said(events.PODS_EVICTED, item))

    assert (refused["phase"], refused["lastError"]) == ("Running", "no right")
    assert "lastError" not in work.again(item)["status"]


def test_an_old_report_of_a_drained_node_does_not_succeed(functions: Functions, work: Workload) -> None:
    """X-2: a late `node.drained` does not set Succeeded while a pod remains."""
    node = work.node()
    item = drain_to_begun(functions, work, node)
    work.pods(node, "late")

    functions.answer("status", said(events.NODE_DRAINED, item))

    status = work.again(item)["status"]
    assert (status["phase"], status["pendingPods"]) == ("Running", ["late"])


def test_one_that_is_being_deleted_gets_no_status(functions: Functions, work: Workload, audit: Audit) -> None:
    """X-2: `status` writes nothing for a maintenance that is being deleted."""
    node = work.node()
    item = drain_to_begun(functions, work, node)
    work.pods(node, "a")
    work.delete(m.path(item))
    writes = len(audit.writes_by())

    functions.answer("status", said(events.PODS_EVICTED, item))

    assert len(audit.writes_by()) == writes


def test_why_a_node_is_not_given_back_is_said_while_the_object_ends(functions: Functions, work: Workload) -> None:
    """NMO-13: for a maintenance that is being deleted, `status` writes only errors of `restore`."""
    item = drain_to_begun(functions, work, work.node())
    work.delete(m.path(item))

    shown = []
    for step, error in (("evict", "too late"), ("restore", "no right"), ("cordon", "too late")):
        functions.answer("status", said(events.MAINTENANCE_FAILED, item, data={"step": step, "error": error}))
        shown.append(m.last_error(work.again(item)))

    assert shown == ["", f"{KEPT}no right", f"{KEPT}no right"]


@proves("X-6")
def test_what_comes_at_once_is_written_without_conflict(functions: Functions, work: Workload, audit: Audit) -> None:
    """X-6, design rule 8: concurrent events about one status are written together, without a conflict."""
    node = work.node()
    item = drain_to_begun(functions, work, node)
    writes, answers = len(audit.writes_by()), []

    def tell(number: int) -> None:
        event = said(events.MAINTENANCE_FAILED, item, data={"step": "evict", "error": f"error {number}"})
        answers.append(functions.post("status", event).status_code)

    tellers = [threading.Thread(target=tell, args=(number,)) for number in range(12)]
    for teller in tellers:
        teller.start()
    for teller in tellers:
        teller.join()

    tried = [entry["responseStatus"]["code"] for entry in audit.writes_by()[writes:]]
    assert answers == [204] * 12
    assert set(tried) == {200}
    assert len(tried) < 12
    assert work.again(item)["status"]["lastError"].startswith("error ")


def test_a_phase_is_logged(functions: Functions, work: Workload, caplog: pytest.LogCaptureFixture) -> None:
    """NMO-17: `status` logs a new phase."""
    node = work.node()
    begun = functions.begin(work.maintenance(node))
    caplog.clear()

    with caplog.at_level("INFO", logger=event_objects.log.name):
        functions.answer("status", begun)

    assert [record.message for record in caplog.records] == ["phase is Running now"]


def test_a_success_is_not_taken_back_by_a_list_from_the_cache(
    functions: Functions, spoiled: Functions, faults: Faults, work: Workload, audit: Audit
) -> None:
    """X-2, NMO-10: before `status` revokes a success, it lists the latest state and so ignores a stale cache."""
    node = work.node()
    (gone,) = work.pods(node, f"gone-{node}")
    work.delete(pod_path(gone))
    work.wait_for(pod_path(gone), lambda found: found is None)
    item = drain(functions, work, work.maintenance(node))
    writes = len(audit.writes_by())
    stale = Fault(200, body={"items": [gone], "metadata": {"resourceVersion": "1"}})
    faults.spoil(lambda request: stale if request == "list pods 1" else None)

    response = spoiled.post("status", said(events.PODS_EVICTED, item))

    asked = faults.seen["list pods"]
    faults.speak_again()
    assert (response.status_code, asked) == (204, 2)
    assert work.again(item)["status"]["phase"] == "Succeeded"
    assert len(audit.writes_by()) == writes


@pytest.mark.parametrize("seen", ["", "1"], ids=["no state", "a state"])
def test_the_pods_are_no_older_than_the_state_that_the_event_speaks_of(
    functions: Functions, work: Workload, seen: str
) -> None:
    """Rule 1: `status` lists pods that are at least as new as the state named in the event."""
    item = drain_to_begun(functions, work, work.node())
    told = said(events.PODS_EVICTED, item, data={"podsVersion": seen} if seen else {})

    with lists_of(functions.clusters["status"].api) as asked:
        functions.answer("status", told)

    assert [one.version for one in asked if one.path == PODS] == [seen or "0"]


def test_what_a_step_has_just_seen_is_not_read_again(functions: Functions, work: Workload) -> None:
    """Check that `status` sends two requests after `begin` and `evict`, because it uses the event's snapshot.

    After `node.drained` it also lists the pods, but does not read the node.
    """
    CLAIMS.confirm(functions.clusters["status"])
    node = work.node()
    work.pods(node, "a", "b")
    item, api = work.maintenance(node), functions.clusters["status"].api
    steps: list[tuple[BaseCloudEvent, int]] = []
    event: BaseCloudEvent = added(item)
    for step in ("begin", "cordon", "taint", "evict", "evict"):
        reply = functions.answer(step, event)
        assert reply is not None
        if step in ("begin", "evict"):
            with requests_of(api) as asked:
                functions.answer("status", reply)
            steps.append((reply, sum(count for what, count in asked.items() if "/events" not in what)))
        event = reply
        if step == "evict":
            work.until(f"/api/v1/namespaces/{work.namespace}/pods", lambda pods: not pods)
            event = said(events.PODS_GONE, item)

    kinds = [events.MAINTENANCE_BEGUN, events.PODS_EVICTED, events.NODE_DRAINED]
    assert [(reply.get_type(), asked) for reply, asked in steps] == list(zip(kinds, (2, 2, 3), strict=True))
    after = work.again(item)
    assert after["status"]["phase"] == "Succeeded"
    assert conditions(after) == {"Cordoned": ("True", "Cordoned"), "Drained": ("True", "Drained")}


@proves("X-2")
def test_what_a_step_saw_before_another_status_was_written_is_not_believed(
    functions: Functions, work: Workload
) -> None:
    """X-2, rule 1: `status` ignores an event's snapshot that precedes another write, and reads pods and node again."""
    node = work.node()
    work.pods(node, "a", "b", finalizers=("example.com/hold",))
    item = work.maintenance(node)
    functions.answer("status", functions.begin(item))
    late = functions.answer("evict", functions.prepare(item))
    assert late is not None
    functions.answer("status", late)
    functions.answer("status", said(events.MAINTENANCE_FAILED, item, data={"step": "evict", "error": "one"}))
    gone = f"/api/v1/namespaces/{work.namespace}/pods/a"
    work.admin.patch(gone, {"metadata": {"finalizers": None}})
    work.wait_for(gone, lambda found: found is None)
    work.admin.patch(node_path(node), {"spec": {"unschedulable": False}})

    functions.answer("status", late)

    status = work.again(item)["status"]
    assert status["pendingPods"] == ["b"]
    assert conditions(work.again(item))["Cordoned"] == ("False", "NotCordoned")
    work.admin.patch(f"/api/v1/namespaces/{work.namespace}/pods/b", {"metadata": {"finalizers": None}})


@pytest.mark.parametrize("foreign", [False, True], ids=["our own write", "another's write"])
def test_what_a_step_saw_before_our_own_write_is_not_read_again(
    functions: Functions, work: Workload, foreign: bool
) -> None:
    """Check that `status` uses a snapshot after which only this process has written the status.

    It then needs two requests. A change by another writer makes the snapshot outdated (X-2).
    """
    CLAIMS.confirm(functions.clusters["status"])
    node, api = work.node(), functions.clusters["status"].api
    work.pods(node, "a", "b", finalizers=("example.com/hold",))
    item = work.maintenance(node)
    begun = functions.begin(item)
    late = functions.answer("evict", functions.prepare(item))
    assert late is not None
    functions.answer("status", begun)
    if foreign:
        work.admin.patch(m.path(item), {"metadata": {"annotations": {"somebody": "else"}}})

    with requests_of(api) as asked:
        functions.answer("status", late)

    assert sum(count for what, count in asked.items() if "/events" not in what) == (4 if foreign else 2)
    assert work.again(item)["status"]["pendingPods"] == ["a", "b"]
    assert conditions(work.again(item))["Cordoned"] == ("True", "Cordoned")
    for name in ("a", "b"):
        work.admin.patch(f"/api/v1/namespaces/{work.namespace}/pods/{name}", {"metadata": {"finalizers": None}})


def test_of_pods_that_have_gone_nobody_looks_at_the_node(functions: Functions, work: Workload) -> None:
    """Check that `status` sends three requests for `pods.gone`: it does not read the node, whose cordon is guarded."""
    CLAIMS.confirm(functions.clusters["status"])
    node = work.node()
    work.pods(node, "a", "b", finalizers=("example.com/hold",))
    item = drain(functions, work, work.maintenance(node))
    gone = f"/api/v1/namespaces/{work.namespace}/pods/a"
    work.admin.patch(gone, {"metadata": {"finalizers": None}})
    work.wait_for(gone, lambda found: found is None)

    with requests_of(functions.clusters["status"].api) as asked:
        functions.answer("status", said(events.PODS_GONE, item))

    assert asked == {f"GET {m.path(item)}": 1, f"GET {PODS}": 1, f"PATCH {m.path(item)}/status": 1}
    after = work.again(item)
    assert after["status"]["pendingPods"] == ["b"]
    assert conditions(after)["Cordoned"] == ("True", "Cordoned")
    work.admin.patch(f"/api/v1/namespaces/{work.namespace}/pods/b", {"metadata": {"finalizers": None}})


@proves("OSV-12")
def test_that_a_node_is_cordoned_is_announced_once(functions: Functions, work: Workload) -> None:
    """OSV-12: CordonNode is recorded with the first status that reports the cordon, and not again."""
    node = work.node()
    work.pods(node, "a", "b", finalizers=("example.com/hold",))
    item = drain_to_begun(functions, work, node)
    assert CORDON not in announced(work, node)
    functions.chain(item, "begin", "cordon", "taint")

    counts = []
    for error in ("one", "another"):
        functions.answer("status", said(events.MAINTENANCE_FAILED, item, data={"step": "evict", "error": error}))
        told = announced(work, node)[CORDON]
        counts.append((told["type"], told.get("count", 1)))

    assert counts == [("Normal", 1)] * 2
    for name in ("a", "b"):
        path = f"/api/v1/namespaces/{work.namespace}/pods/{name}"
        work.admin.patch(path, {"metadata": {"finalizers": []}})


def announced(work: Workload, node: str) -> dict[str, Object]:
    """Return the Events about a node by reason."""
    found = work.admin.list(EVENTS, fields=f"involvedObject.kind=Node,involvedObject.name={node}")["items"]
    return {item["reason"]: item for item in found}


@pytest.mark.slow
@proves("NMO-12")
def test_the_status_of_a_crowd_is_written(functions: Functions, work: Workload) -> None:
    """NMO-12, NMO-13: a status with 250 blocked pods, long names and long messages is truncated and stored."""
    node = work.node()
    names = [f"{number:03}-{'x' * 249}" for number in range(250)]
    item = work.maintenance(node, name="m" * 253)
    functions.answer("status", functions.begin(item))  # records BeginMaintenance before the slow writes
    functions.prepare(item)
    work.pods(node, *names, ready=False)
    words = "a webhook that likes to talk " * 1000
    refusals = [
        {"namespace": work.namespace, "name": name, "reason": "Error", "message": words[:6000]} for name in names
    ]

    told = said(events.PODS_EVICTED, item, data={"blocked": refusals, "error": words})
    codes = [functions.post("status", told).status_code for _ in range(5)]  # a busy server may cause a 503

    assert set(codes) <= {204, 503}
    assert 204 in codes
    status = work.again(item)["status"]
    assert (status["pendingCount"], status["pendingPods"]) == (250, names)
    assert len(status["blockedPods"]) == 250
    assert status["blockedPods"][0]["message"].endswith("more characters)")
    assert status["lastError"].endswith("more characters)")
    functions.answer("status", said(events.MAINTENANCE_FAILED, item, data={"step": "evict", "error": words}))
    announced = work.admin.list("/api/v1/namespaces/default/events", fields=f"involvedObject.name={'m' * 253}")["items"]
    assert [event["reason"] for event in announced] == ["BeginMaintenance"]


@pytest.mark.parametrize("foreign", ["2026-01-02T03:04:05.678+02:00", "2026-01-02t03:04:05z"])
def test_a_status_with_other_times_is_gone_on_with(functions: Functions, work: Workload, foreign: str) -> None:
    """NMO-12: `evict`, `status` and `guard` accept a status with times in any format of RFC 3339."""
    node = work.node()
    (held,) = work.pods(node, f"held-{node}", finalizers=("example.com/hold",))
    item = work.maintenance(node)
    functions.prepare(item)
    entry = {"namespace": work.namespace, "name": f"held-{node}", "reason": "Error", "message": "m"}
    condition = {
        "type": "Cordoned",
        "status": "True",
        "reason": "Cordoned",
        "message": "m",
        "lastTransitionTime": foreign,
    }
    status = {"lastUpdate": foreign, "blockedPods": [{**entry, "since": foreign, "retryAfter": foreign}]}
    work.admin.patch(f"{m.path(item)}/status", {"status": {**status, "phase": "Running", "conditions": [condition]}})

    reply = functions.answer("evict", said(events.NODE_TAINTED, item))
    assert reply is not None
    functions.answer("status", reply)

    assert [pod["name"] for pod in data_of(reply)["evicted"]] == [f"held-{node}"]
    assert work.again(item)["status"]["blockedPods"] == []
    assert functions.post("guard", node_updated(work.read_node(node))).status_code == 204
    work.admin.patch(pod_path(held), {"metadata": {"finalizers": []}})
