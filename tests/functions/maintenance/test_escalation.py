"""Tests for the deadline and the escalation of a drain on a real API server: write order, deletions and rejections.

No test waits until an escalation step is due: each test moves the start of the drain and of the current step into the
past.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from cloudevents.core.base import BaseCloudEvent

from chaos.api_fault_proxy import Fault, FaultProxy
from eventing import events
from functions.event_data import require_data
from functions.maintenance import observation
from kube.budgets import CREATED_BY_LABEL
from kube.evictions.requests import ESCALATION_REMEDY, build_pod_path
from kube.maintenance import objects as m
from kube.maintenance.kubernetes_events import EVENTS_PATH
from kube.paths import Object
from localcluster.audit_log import AuditLog
from tests.functions.conftest import Functions
from tests.functions.event_builders import build_product_event, build_tick
from tests.functions.maintenance.test_drain import (
    get_evicted_pod_names,
    read_blocked_pods,
    run_evict_and_status,
    wait_until_pods_are_gone,
)
from tests.functions.request_hooks import count_requests, run_before_request
from tests.workload import Workload

pytestmark = pytest.mark.usefixtures("no_wait_for_events_in_flight", "clean_cluster")

LONG_AGO = "2020-01-01T00:00:00Z"
LABELS = {"app": "db"}
STEPS = [
    {"after": "10m", "action": "DeleteUnready"},
    {"after": "30m", "action": "Delete"},
    {"after": "1h", "action": "DeleteNow"},
]
SLOW_TERMINATION = {"pod-delete.stage.kwok.x-k8s.io/delay": "1h"}
"""Annotation that makes the simulated kubelet leave a pod terminating for the whole test."""


def create_blocked_drain(functions: Functions, workload: Workload, *pods: str, steps: object = STEPS) -> Object:
    """Create a maintenance of a node whose pods are all blocked by one PDB, and run the first eviction pass."""
    node = workload.take_node()
    workload.create_bare_pods(node, *pods, labels=LABELS)
    workload.create_budget(f"db-{node}", LABELS, len(pods), expected_healthy=len(pods))
    maintenance = workload.create_maintenance(node, drain={"escalation": steps})
    run_evict_and_status(functions, maintenance, functions.run_until_tainted(maintenance))
    return maintenance


def move_start_times_into_past(workload: Workload, maintenance: Object) -> None:
    """Set the start times of the drain and of its current escalation step to a time years ago."""
    step = workload.read_maintenance(maintenance)["status"].get("escalation")
    past_step = {"escalation": {**step, "time": LONG_AGO}} if step else {}
    workload.client.patch(f"{m.build_path(maintenance)}/status", {"status": {"startTime": LONG_AGO, **past_step}})


def run_tick(functions: Functions) -> BaseCloudEvent:
    """Run `resync` with a tick and return the event in its reply."""
    event = functions.invoke("resync", build_tick())
    assert event is not None
    return event


def begin_next_escalation_step(functions: Functions, workload: Workload, maintenance: Object) -> BaseCloudEvent:
    """Begin the drain's next escalation step with a tick and `status`, and return the event `drain.escalated`."""
    move_start_times_into_past(workload, maintenance)
    overdue = run_tick(functions)
    assert overdue.get_type() == events.DRAIN_OVERDUE
    escalated = functions.invoke("status", overdue)
    assert escalated is not None
    assert escalated.get_type() == events.DRAIN_ESCALATED
    return escalated


def begin_escalation_step(functions: Functions, workload: Workload, maintenance: Object, action: str) -> BaseCloudEvent:
    """Begin escalation steps, without evicting, until the step with this action begins; return `drain.escalated`."""
    escalated = begin_next_escalation_step(functions, workload, maintenance)
    while require_data(escalated)["action"] != action:
        escalated = begin_next_escalation_step(functions, workload, maintenance)
    return escalated


def set_ready_condition(workload: Workload, pod: str, status: str) -> None:
    """Set the status of the pod's Ready condition."""
    path = f"/api/v1/namespaces/{workload.namespace}/pods/{pod}/status"
    workload.client.patch(path, {"status": {"conditions": [{"type": "Ready", "status": status}]}})


def make_pod_unready(workload: Workload, maintenance: Object, pod: str, *, healthy: int) -> None:
    """Make the pod unready, and wait until its PDB counts `healthy` healthy pods."""
    set_ready_condition(workload, pod, "False")
    name = f"db-{m.get_node_name(maintenance)}"
    workload.wait_for_object(
        f"/apis/policy/v1/namespaces/{workload.namespace}/poddisruptionbudgets/{name}",
        lambda budget: budget is not None and budget["status"]["currentHealthy"] == healthy,
    )


def read_pod(workload: Workload, pod: str) -> Object:
    return workload.client.get(f"/api/v1/namespaces/{workload.namespace}/pods/{pod}")


def list_deletions(audit: AuditLog) -> dict[str, Object]:
    """Return the delete options of the product's pod deletions by pod name."""
    return {
        entry["objectRef"]["name"]: entry.get("requestObject") or {}
        for entry in audit.list_writes_by()
        if (entry["verb"], entry["objectRef"]["resource"]) == ("delete", "pods")
    }


def list_escalation_event_messages(workload: Workload, maintenance: Object) -> list[str]:
    """Return the messages of the Kubernetes Events about the maintenance's escalation."""
    selector = f"involvedObject.uid={maintenance['metadata']['uid']},reason=EscalateDrain"
    return [event["message"] for event in workload.client.list(EVENTS_PATH, field_selector=selector)["items"]]


def list_writes(audit: AuditLog, start: int) -> list[tuple[str, str]]:
    """Return the verb and resource of each of the product's writes, except the first `start` writes."""
    references = [(entry["verb"], entry["objectRef"]) for entry in audit.list_writes_by()[start:]]
    return [(verb, "/".join(filter(None, (ref["resource"], ref.get("subresource"))))) for verb, ref in references]


@pytest.mark.usefixtures("delete_permission")
def test_each_escalation_step_is_recorded_before_it_deletes_pods(
    functions: Functions, workload: Workload, audit: AuditLog
) -> None:
    """Check that each escalation step is recorded in Events and status before `evict` deletes pods because of it."""
    node = workload.take_node()
    workload.create_bare_pods(node, "unready", labels=LABELS)
    workload.create_bare_pods(node, "slow", labels=LABELS, annotations=SLOW_TERMINATION)
    workload.create_budget(f"db-{node}", LABELS, 2, expected_healthy=2)
    maintenance = workload.create_maintenance(node, drain={"escalation": STEPS})
    run_evict_and_status(functions, maintenance, functions.run_until_tainted(maintenance))
    make_pod_unready(workload, maintenance, "unready", healthy=1)
    expected: tuple[tuple[str, str, Object], ...] = (
        ("DeleteUnready", "unready", {}),
        ("Delete", "slow", {}),
        ("DeleteNow", "slow", {"gracePeriodSeconds": 0}),
    )

    for action, pod, options in expected:
        writes = len(audit.list_writes_by())
        escalated = begin_next_escalation_step(functions, workload, maintenance)
        step_writes = list_writes(audit, writes)
        status = workload.read_maintenance(maintenance)["status"]
        reply = run_evict_and_status(functions, maintenance, escalated)

        assert (require_data(escalated)["action"], status["escalation"]["action"]) == (action, action)
        assert step_writes == [("create", "events"), ("create", "events"), ("patch", "nodemaintenances/status")]
        assert ("delete", "pods") in list_writes(audit, writes)[len(step_writes) :]
        assert status["phase"] == "Running"
        assert [(item["name"], item["action"]) for item in require_data(reply)["evicted"]] == [(pod, action)]
        sent = dict(list_deletions(audit)[pod])
        assert sent.pop("preconditions").keys() == {"uid", "resourceVersion"}
        assert {name: value for name, value in sent.items() if name == "gracePeriodSeconds"} == options
        wait_until_pods_are_gone(workload, *(["unready"] if action == "DeleteUnready" else []))

    assert run_evict_and_status(functions, maintenance).get_type() == events.NODE_DRAINED
    status = workload.read_maintenance(maintenance)["status"]
    assert (status["phase"], status.get("escalation")) == ("Succeeded", None)
    assert audit.list_evictions() == []
    messages = list_escalation_event_messages(workload, maintenance)
    steps = [f"step {step['action']}, {step['after']} after its start" for step in STEPS]
    assert [sum(step in message for message in messages) for step in steps] == [1, 1, 1]


def test_escalation_step_without_permission_deletes_no_pod_and_names_component(
    functions: Functions, workload: Workload, audit: AuditLog
) -> None:
    """Check that without the component `deleting`, no pod is deleted, the status names it, and the next pass waits."""
    maintenance = create_blocked_drain(functions, workload, "a")
    escalated = begin_escalation_step(functions, workload, maintenance, "Delete")

    run_evict_and_status(functions, maintenance, escalated)
    reason, message = read_blocked_pods(workload, maintenance)["a"]
    run_evict_and_status(functions, maintenance)

    assert reason == "Escalation"
    assert message.startswith('escalation step Delete: pods "a" is forbidden')
    assert message.endswith(ESCALATION_REMEDY)
    status = workload.read_maintenance(maintenance)["status"]
    assert (status["phase"], status["pendingPods"]) == ("Running", ["a"])
    assert ESCALATION_REMEDY in status["lastError"]
    assert len(list_deletions(audit)) == 1
    assert "deletionTimestamp" not in read_pod(workload, "a")["metadata"]


def test_deletion_of_terminating_pod_without_permission_is_reported(functions: Functions, workload: Workload) -> None:
    """Check that a missing permission for `DeleteNow` is reported even if only a terminating pod is left."""
    node = workload.take_node()
    workload.create_bare_pods(node, "a", finalizers=("example.com/hold",))
    maintenance = workload.create_maintenance(node, drain={"escalation": STEPS[2:], "gracePeriodSeconds": 900})
    run_evict_and_status(functions, maintenance, functions.run_until_tainted(maintenance))
    escalated = begin_next_escalation_step(functions, workload, maintenance)

    run_evict_and_status(functions, maintenance, escalated)
    first = workload.read_maintenance(maintenance)
    run_evict_and_status(functions, maintenance)

    assert [pod["reason"] for pod in first["status"]["blockedPods"]] == ["Escalation"]
    assert ESCALATION_REMEDY in first["status"]["lastError"]
    assert workload.read_maintenance(maintenance) == first
    assert functions.invoke("resync", build_tick()) is None


def delete_maintenance(workload: Workload, maintenance: Object) -> None:
    workload.delete(m.build_path(maintenance))


def remove_later_escalation_steps(workload: Workload, maintenance: Object) -> None:
    workload.client.patch(m.build_path(maintenance), {"spec": {"drain": {"escalation": STEPS[:1]}}})


def uncordon_node(workload: Workload, maintenance: Object) -> None:
    workload.local_cluster.kubectl("uncordon", m.get_node_name(maintenance))


@pytest.mark.usefixtures("delete_permission")
@pytest.mark.parametrize("change", [delete_maintenance, remove_later_escalation_steps, uncordon_node])
def test_escalation_step_deletes_no_pod_after_removal_of_maintenance_step_or_cordon(
    functions: Functions, workload: Workload, audit: AuditLog, change: Callable[[Workload, Object], None]
) -> None:
    """Check that an escalation step deletes no pod if the maintenance, the step or the cordon was removed before."""
    maintenance = create_blocked_drain(functions, workload, "a")
    escalated = begin_escalation_step(functions, workload, maintenance, "Delete")
    change(workload, maintenance)

    functions.invoke("evict", escalated)
    functions.invoke("evict", build_product_event(events.PODS_GONE, maintenance))

    assert list_deletions(audit) == {}
    assert "deletionTimestamp" not in read_pod(workload, "a")["metadata"]


@pytest.mark.usefixtures("delete_permission")
def test_premature_event_neither_begins_escalation_step_nor_deletes_pod(
    functions: Functions, workload: Workload, audit: AuditLog
) -> None:
    """Check that a premature `drain.overdue`, or a `drain.escalated` without a recorded step, changes nothing."""
    maintenance = create_blocked_drain(functions, workload, "a")
    before = workload.read_maintenance(maintenance)

    for step in ({}, *STEPS):
        assert functions.invoke("status", build_product_event(events.DRAIN_OVERDUE, maintenance, data=step)) is None
    data = {"action": "DeleteNow", "after": "1h"}
    functions.invoke("evict", build_product_event(events.DRAIN_ESCALATED, maintenance, data=data))

    assert workload.read_maintenance(maintenance) == before
    assert list_deletions(audit) == {}


@pytest.mark.usefixtures("delete_permission")
def test_pod_that_becomes_ready_during_pass_is_not_deleted(
    functions: Functions, workload: Workload, audit: AuditLog
) -> None:
    """Check that a pod that becomes ready between the list and delete requests stays, blocked by its PDB again."""
    maintenance = create_blocked_drain(functions, workload, "a")
    make_pod_unready(workload, maintenance, "a", healthy=0)
    escalated = begin_next_escalation_step(functions, workload, maintenance)
    path = build_pod_path(read_pod(workload, "a"))

    with run_before_request(
        functions.clusters["evict"], "DELETE", path, lambda: set_ready_condition(workload, "a", "True")
    ):
        run_evict_and_status(functions, maintenance, escalated)
    assert read_blocked_pods(workload, maintenance)["a"][0] == "Changing"

    workload.client.patch(f"{m.build_path(maintenance)}/status", {"status": {"blockedPods": []}})
    run_evict_and_status(functions, maintenance)
    assert read_blocked_pods(workload, maintenance)["a"][0] == "DisruptionBudget"
    assert len(list_deletions(audit)) == 1
    assert "deletionTimestamp" not in read_pod(workload, "a")["metadata"]


@pytest.mark.usefixtures("delete_permission")
def test_escalation_step_does_not_delete_excluded_pods(
    functions: Functions, workload: Workload, audit: AuditLog
) -> None:
    """Check that `DeleteNow` deletes no pod of a DaemonSet or a VM, and no pod that `spec.drain` excludes."""
    node = workload.take_node()
    workload.create_daemonset("agent", node)
    workload.create_bare_pods(node, "launcher", labels={**LABELS, CREATED_BY_LABEL: "vmi-uid"})
    workload.create_bare_pods(node, "scratch", "terminating", labels=LABELS, empty_dir=True)
    workload.create_bare_pods(node, "unselected", labels={"app": "other"})
    workload.create_budget("db", LABELS, 3, expected_healthy=3)
    spec = {"ignoreDaemonSets": False, "deleteEmptyDirData": False, "podSelector": "app!=other", "escalation": STEPS}
    maintenance = workload.create_maintenance(node, drain=spec)
    run_evict_and_status(functions, maintenance, functions.run_until_tainted(maintenance))
    escalated = begin_escalation_step(functions, workload, maintenance, "DeleteNow")
    workload.client.patch(
        f"/api/v1/namespaces/{workload.namespace}/pods/terminating", {"metadata": {"finalizers": ["example.com/hold"]}}
    )
    workload.delete(f"/api/v1/namespaces/{workload.namespace}/pods/terminating")

    run_evict_and_status(functions, maintenance, escalated)

    assert list_deletions(audit) == {}


@pytest.mark.usefixtures("delete_permission")
def test_only_one_of_two_concurrent_passes_deletes_pod(
    functions: Functions, workload: Workload, audit: AuditLog
) -> None:
    """Check that only one of two concurrent passes deletes the pod, and that neither pass reports it as blocked."""
    maintenance = create_blocked_drain(functions, workload, "a")
    workload.client.patch(
        f"/api/v1/namespaces/{workload.namespace}/pods/a", {"metadata": {"finalizers": ["example.com/hold"]}}
    )
    escalated = begin_escalation_step(functions, workload, maintenance, "Delete")
    second = Functions(workload.local_cluster)

    with ThreadPoolExecutor() as executor:
        futures = [executor.submit(item.invoke, "evict", escalated) for item in (functions, second)]
        replies = [reply for future in futures if (reply := future.result())]
    second.close()

    entries = [entry for entry in audit.list_writes_by() if entry["verb"] == "delete"]
    granted = [entry for entry in entries if entry["responseStatus"]["code"] == 200]
    assert len(granted) == 1
    assert sum(len(require_data(reply)["evicted"]) for reply in replies) == 1
    assert [require_data(reply)["blocked"] for reply in replies] == [[]] * len(replies)


def test_escalation_step_does_not_begin_while_its_kubernetes_event_is_rejected(
    functions: Functions, proxied_functions: Functions, fault_proxy: FaultProxy, workload: Workload
) -> None:
    """Check that an escalation step begins only after its Kubernetes Events are written; the next tick retries."""
    maintenance = create_blocked_drain(functions, workload, "a")
    move_start_times_into_past(workload, maintenance)
    fault_proxy.inject(lambda request: Fault(403, "may not") if request.startswith("create events") else None)

    reply = proxied_functions.invoke("status", run_tick(functions))
    fault_proxy.stop_faults()

    assert reply is None
    assert "escalation" not in workload.read_maintenance(maintenance)["status"]
    assert functions.invoke("status", run_tick(functions)) is not None


def test_tick_emits_due_escalation_step_while_event_is_in_flight(
    functions: Functions, workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a tick emits `drain.overdue` with the due step even while an event of the drain is in flight."""
    maintenance = create_blocked_drain(functions, workload, "a")
    monkeypatch.setattr(observation, "IN_FLIGHT_SECONDS", 3600)
    assert functions.invoke("resync", build_tick()) is None
    move_start_times_into_past(workload, maintenance)

    overdue = run_tick(functions)

    assert overdue.get_type() == events.DRAIN_OVERDUE
    assert STEPS[0].items() <= require_data(overdue).items()
    assert functions.invoke("status", overdue) is not None
    assert functions.invoke("resync", build_tick()) is None


@pytest.mark.usefixtures("delete_permission")
@pytest.mark.parametrize("lost", [events.DRAIN_OVERDUE, events.DRAIN_ESCALATED])
def test_ticks_perform_escalation_step_if_event_is_lost(functions: Functions, workload: Workload, lost: str) -> None:
    """Design rule 11: if `drain.overdue` or `drain.escalated` is lost, ticks begin and perform the escalation step."""
    maintenance = create_blocked_drain(functions, workload, "a", steps=STEPS[1:])
    move_start_times_into_past(workload, maintenance)
    overdue = run_tick(functions)
    if lost == events.DRAIN_ESCALATED:
        functions.invoke("status", overdue)
    else:
        functions.invoke("status", run_tick(functions))

    tainted = run_tick(functions)

    assert (overdue.get_type(), tainted.get_type()) == (events.DRAIN_OVERDUE, events.NODE_TAINTED)
    assert get_evicted_pod_names(run_evict_and_status(functions, maintenance, tainted)) == {"a"}


@pytest.mark.usefixtures("delete_permission")
def test_repeated_event_does_not_begin_next_escalation_step(functions: Functions, workload: Workload) -> None:
    """X-2: a repeated `drain.overdue` does not begin the second escalation step, even if that step is due."""
    maintenance = create_blocked_drain(functions, workload, "a")
    move_start_times_into_past(workload, maintenance)
    overdue = run_tick(functions)
    functions.invoke("status", overdue)
    move_start_times_into_past(workload, maintenance)
    before = workload.read_maintenance(maintenance)["status"]["escalation"]

    assert functions.invoke("status", overdue) is None
    assert workload.read_maintenance(maintenance)["status"]["escalation"] == before
    assert before["action"] == "DeleteUnready"


def test_passed_deadline_is_reported_once_and_drain_continues(functions: Functions, workload: Workload) -> None:
    """Check that a passed deadline is reported in the status and in one Event per object, and deletes no pod."""
    node = workload.take_node()
    workload.create_bare_pods(node, "a", labels=LABELS)
    workload.create_budget("db", LABELS, 1, expected_healthy=1)
    maintenance = workload.create_maintenance(node, drain={"deadline": "1h30m"})
    run_evict_and_status(functions, maintenance, functions.run_until_tainted(maintenance))
    before = [run_tick(functions).get_type() for _ in range(2)]
    move_start_times_into_past(workload, maintenance)

    assert functions.invoke("status", run_tick(functions)) is None
    after = [run_tick(functions).get_type() for _ in range(2)]

    assert before == after == [events.NODE_TAINTED] * 2
    status = workload.read_maintenance(maintenance)["status"]
    condition = m.get_condition({"status": status}, "Drained")
    assert (status["phase"], condition["reason"]) == ("Running", "DeadlineExceeded")
    assert condition["message"] == "1 pod left, 1 of them blocked; not drained within the deadline of 1h30m"
    selector = "reason=DrainDeadlineExceeded"
    recorded = workload.client.list(EVENTS_PATH, field_selector=selector)["items"]
    names = {maintenance["metadata"]["name"], node}
    assert sorted(item["involvedObject"]["name"] for item in recorded if item["involvedObject"]["name"] in names) == (
        sorted(names)
    )


def test_drain_without_schedule_causes_no_further_requests(functions: Functions, workload: Workload) -> None:
    """Check that a drain with a future deadline and future steps sends the same requests as a drain without them."""
    counts: list[tuple[int, int]] = []
    for drain in ({}, {"deadline": "1h", "escalation": STEPS}):
        node = workload.take_node()
        workload.create_bare_pods(node, f"pod-{len(counts)}")
        maintenance = workload.create_maintenance(node, drain=drain)
        tainted = functions.run_until_tainted(maintenance)
        with (
            count_requests(functions.clusters["evict"].api) as evict_requests,
            count_requests(functions.clusters["status"].api) as status_requests,
        ):
            run_evict_and_status(functions, maintenance, tainted)
        counts.append((evict_requests.total(), status_requests.total()))

    assert counts[0] == counts[1]
