"""Tests for `status` on a real API server."""

from __future__ import annotations

import threading

import pytest
from cloudevents.core.base import BaseCloudEvent

from chaos.api_fault_proxy import Fault, FaultProxy
from eventing import events
from functions.event_data import require_data
from functions.installs import INSTALL_LEASE_CACHE
from functions.maintenance import event_objects
from kube.evictions.requests import build_pod_path
from kube.maintenance import leases
from kube.maintenance import objects as m
from kube.maintenance.groups import GROUPS, ApiGroup
from kube.maintenance.kubernetes_events import CORDON_REASON, EVENTS_PATH
from kube.maintenance.status_patch import UNRESTORED_PREFIX
from kube.nodes import build_node_path
from kube.paths import PODS_PATH, Object
from localcluster.audit_log import AuditLog
from tests.functions.conftest import Functions
from tests.functions.event_builders import (
    build_added_event,
    build_node_updated_event,
    build_product_event,
    build_updated_event,
)
from tests.functions.request_hooks import count_requests, record_list_requests
from tests.proofs import proves
from tests.workload import Workload, summarize_writes

every_group = pytest.mark.parametrize("group", GROUPS.values(), ids=lambda group: group.api_version.split("/")[0])

FOREIGN_LEASE_SPEC = {
    "holderIdentity": "another",
    "leaseDurationSeconds": 60,
    "renewTime": "2999-01-01T00:00:00.000000Z",
}


def run_steps_with_status(functions: Functions, workload: Workload, maintenance: Object) -> Object:
    """Run each step once, each followed by `status`, and return the maintenance."""
    event: BaseCloudEvent = build_added_event(maintenance)
    for step in ("begin", "cordon", "taint", "evict"):
        reply = functions.invoke(step, event)
        assert reply is not None
        functions.invoke("status", reply)
        event = reply
    return workload.read_maintenance(maintenance)


def get_conditions(maintenance: Object) -> dict[str, tuple[str, str]]:
    """Map from return the conditions in the maintenance's status, as type to (status, reason)."""
    return {
        condition["type"]: (condition["status"], condition["reason"])
        for condition in maintenance["status"]["conditions"]
    }


@proves("X-1", "KNM-2", "KNM-3")
@every_group
def test_first_status_reports_counts_and_pending_pods(
    functions: Functions, workload: Workload, audit: AuditLog, group: ApiGroup
) -> None:
    """NMO-10, NMO-11, KNM-2, KNM-3, OSV-13, X-1: the first status reports Running, the counts and pending pods.

    The status contains both spellings, `totalPods` and `totalpods`. `status` writes it once, and records two Events.
    """
    node = workload.take_node()
    workload.create_bare_pods(node, "a", "b")
    workload.create_bare_pods(node, "static", annotations={"kubernetes.io/config.mirror": "x"})
    maintenance = workload.create_maintenance(node, group)
    begun_event = functions.run_begin(maintenance)
    writes = len(audit.list_writes_by())

    assert functions.invoke("status", begun_event) is None

    maintenance = workload.read_maintenance(maintenance)
    status = maintenance["status"]
    assert (status["phase"], status["drainProgress"]) == ("Running", 0)
    assert (status["totalpods"], status["totalPods"], status["evictionPods"]) == (3, 3, 2)
    assert (status["pendingPods"], status["pendingCount"]) == (["a", "b"], 2)
    assert status["pendingPodsRefs"] == [{"namespace": workload.namespace, "name": name} for name in ("a", "b")]
    assert "lastError" not in status
    assert status["lastUpdate"].endswith("Z")
    assert get_conditions(maintenance) == {"Cordoned": ("False", "NotCordoned"), "Drained": ("False", "Draining")}
    status_write, *event_writes = summarize_writes(audit.list_writes_by()[writes:])
    assert status_write == ("patch", "nodemaintenances/status", maintenance["metadata"]["name"])
    assert [write[:2] for write in event_writes] == [("create", "events")] * 2


@proves("NMO-10", "NMO-11")
def test_maintenance_of_drained_node_succeeds(functions: Functions, workload: Workload) -> None:
    """NMO-10, NMO-11: after the drain, the phase is Succeeded, the progress is 100 and no pod is pending."""
    node = workload.take_node()
    workload.create_bare_pods(node, "a", "b")
    maintenance = run_steps_with_status(functions, workload, workload.create_maintenance(node))
    workload.wait_for_collection(f"/api/v1/namespaces/{workload.namespace}/pods", lambda pods: not pods)

    drained_event = functions.invoke("evict", build_product_event(events.PODS_GONE, maintenance))
    assert drained_event is not None
    functions.invoke("status", drained_event)

    after = workload.read_maintenance(maintenance)
    status = after["status"]
    assert (status["phase"], status["drainProgress"], status["pendingPods"]) == ("Succeeded", 100, [])
    assert (status["totalpods"], status["evictionPods"]) == (2, 2)
    assert get_conditions(after) == {"Cordoned": ("True", "Cordoned"), "Drained": ("True", "Drained")}
    workload.local_cluster.kubectl(
        "wait",
        "--for=condition=Drained",
        "--timeout=5s",
        f"nodemaintenances.nodemaintenance.medik8s.io/{_get_name(maintenance)}",
    )


def _get_name(maintenance: Object) -> str:
    return str(maintenance["metadata"]["name"])


def test_maintenance_of_node_without_pods_succeeds_immediately(functions: Functions, workload: Workload) -> None:
    """NMO-10: the maintenance of a node without pods to evict succeeds immediately."""
    maintenance = run_steps_with_status(functions, workload, workload.create_maintenance(workload.take_node()))

    status = maintenance["status"]
    assert (status["phase"], status["evictionPods"], status["drainProgress"]) == ("Succeeded", 0, 100)


@proves("NMO-12")
def test_status_writes_nothing_for_redelivered_event(functions: Functions, workload: Workload, audit: AuditLog) -> None:
    """NMO-12, X-2: `status` writes nothing for a redelivered event."""
    node = workload.take_node()
    workload.create_bare_pods(node, "a", finalizers=("example.com/hold",))
    maintenance = workload.create_maintenance(node)
    begun_event = functions.run_begin(maintenance)
    functions.invoke("status", begun_event)
    before, writes = workload.read_maintenance(maintenance), len(audit.list_writes_by())

    functions.invoke("status", begun_event)

    assert workload.read_maintenance(maintenance) == before
    assert len(audit.list_writes_by()) == writes


def test_repeated_passes_of_blocked_drain_write_nothing(
    functions: Functions, workload: Workload, audit: AuditLog
) -> None:
    """X-3, NMO-12: repeated passes of a blocked drain write nothing."""
    node = workload.take_node()
    workload.create_bare_pods(node, "a", labels={"app": "db"})
    workload.create_budget("keep-all", {"app": "db"}, 1, expected_healthy=1)
    maintenance = run_steps_with_status(functions, workload, workload.create_maintenance(node))
    writes = len(audit.list_writes_by())

    for _ in range(2):
        for kind in (events.NODE_TAINTED, events.PODS_GONE):
            reply = functions.invoke("evict", build_product_event(kind, maintenance))
            assert reply is not None
            functions.invoke("status", reply)

    assert summarize_writes(audit.list_writes_by()[writes:]) == []
    assert workload.read_maintenance(maintenance) == maintenance


@proves("NMO-13", "C20")
def test_blocked_pod_is_reported_and_cleared(functions: Functions, workload: Workload) -> None:
    """NMO-13, C20: `lastError` and `blockedPods` name a blocked pod, and are cleared after the drain."""
    node = workload.take_node()
    workload.create_bare_pods(node, "a", labels={"app": "db"})
    workload.create_budget("keep-all", {"app": "db"}, 1, expected_healthy=1)
    maintenance = run_steps_with_status(functions, workload, workload.create_maintenance(node))
    (blocked,) = maintenance["status"]["blockedPods"]
    assert (blocked["name"], blocked["reason"], blocked["budget"]) == ("a", "DisruptionBudget", "keep-all")
    assert (blocked["healthy"], blocked["needed"]) == (1, 1)
    assert maintenance["status"]["lastError"] == f"{workload.namespace}/a: {blocked['message']}"
    assert get_conditions(maintenance)["Drained"] == ("False", "Blocked")

    workload.delete(f"/apis/policy/v1/namespaces/{workload.namespace}/poddisruptionbudgets/keep-all")
    workload.wait_for_collection(
        f"/apis/policy/v1/namespaces/{workload.namespace}/poddisruptionbudgets", lambda budgets: not budgets
    )
    functions.invoke("evict", build_product_event(events.PODS_GONE, maintenance))
    workload.wait_for_collection(f"/api/v1/namespaces/{workload.namespace}/pods", lambda pods: not pods)
    drained_event = functions.invoke("evict", build_product_event(events.PODS_GONE, maintenance))
    assert drained_event is not None
    functions.invoke("status", drained_event)

    status = workload.read_maintenance(maintenance)["status"]
    assert (status["phase"], status["blockedPods"]) == ("Succeeded", [])
    assert "lastError" not in status


def test_drain_progress_never_decreases(functions: Functions, workload: Workload) -> None:
    """NMO-10, NMO-12: `drainProgress` never decreases, even if new pods appear."""
    node = workload.take_node()
    names = [f"pod-{number}" for number in range(4)]
    workload.create_bare_pods(node, *names)
    maintenance = create_begun_maintenance(functions, workload, node)
    progress = []
    for name in [*names[:2], "", *names[2:]]:
        path = f"/api/v1/namespaces/{workload.namespace}/pods"
        if name:
            workload.delete(f"{path}/{name}")
            workload.wait_for_object(f"{path}/{name}", lambda pod: pod is None)
        else:
            workload.create_bare_pods(node, "late", "later")
        functions.invoke("status", build_product_event(events.PODS_EVICTED, maintenance))
        status = workload.read_maintenance(maintenance)["status"]
        progress.append((status["drainProgress"], len(status["pendingPods"])))

    assert progress == [(25, 3), (50, 2), (50, 4), (50, 3), (50, 2)]


def create_begun_maintenance(functions: Functions, workload: Workload, node: str) -> Object:
    maintenance = workload.create_maintenance(node)
    functions.invoke("status", functions.run_begin(maintenance))
    return workload.read_maintenance(maintenance)


@proves("NMO-22", "C6")
def test_maintenance_that_cannot_begin_fails(functions: Functions, workload: Workload, audit: AuditLog) -> None:
    """NMO-19, NMO-22, C6: a maintenance that cannot begin gets the phase Failed and the error with one write."""
    maintenance = workload.create_maintenance("nowhere")
    failure_event = functions.invoke("begin", build_added_event(maintenance))
    assert failure_event is not None

    functions.invoke("status", failure_event)
    functions.invoke("status", failure_event)

    status = workload.read_maintenance(maintenance)["status"]
    assert (status["phase"], status["lastError"]) == ("Failed", 'nodes "nowhere" not found')
    assert [write[1] for write in summarize_writes(audit.list_writes_by())] == [
        "nodemaintenances/status",
        "events",
        "events",
    ]


@pytest.mark.parametrize("cause", ["refused", "waits"])
def test_failure_of_begin_is_ignored_after_later_success(functions: Functions, workload: Workload, cause: str) -> None:
    """X-2: a late `maintenance.step_failed` of `begin` changes nothing after the maintenance has begun."""
    node = workload.take_node()
    first, second = workload.create_maintenance(node), workload.create_maintenance(node)
    if cause == "refused":
        run_steps_with_status(functions, workload, first)
    else:
        workload.client.create(
            leases.LEASES_PATH, {"metadata": {"name": leases.build_lease_name(node)}, "spec": FOREIGN_LEASE_SPEC}
        )
    late_event = functions.invoke("begin", build_added_event(second))
    assert late_event is not None
    functions.invoke("status", late_event)
    assert m.get_last_error(workload.read_maintenance(second)) == require_data(late_event)["error"]
    if cause == "refused":
        workload.delete(m.build_path(first))
        functions.invoke("restore", build_updated_event(workload.read_maintenance(first)))
    else:
        workload.delete(leases.build_lease_path(node))
    functions.invoke("status", functions.run_begin(second))
    running_maintenance = workload.read_maintenance(second)
    functions.invoke("status", late_event)
    assert workload.read_maintenance(second) == running_maintenance
    drained_maintenance = run_steps_with_status(functions, workload, second)

    functions.invoke("status", late_event)

    assert workload.read_maintenance(second) == drained_maintenance
    assert (m.get_phase(drained_maintenance), m.get_last_error(drained_maintenance)) == (m.SUCCEEDED, "")


@proves("NMO-13", "C20")
def test_error_of_cordon_keeps_phase_running(functions: Functions, workload: Workload) -> None:
    """NMO-5, NMO-13: `lastError` contains the error of `cordon` until a later success, and the phase stays Running."""
    node = workload.take_node()
    workload.create_bare_pods(node, "a")
    maintenance = create_begun_maintenance(functions, workload, node)

    functions.invoke(
        "status",
        build_product_event(events.MAINTENANCE_STEP_FAILED, maintenance, data={"step": "cordon", "error": "no right"}),
    )
    status_with_error = workload.read_maintenance(maintenance)["status"]
    functions.invoke("status", build_product_event(events.PODS_EVICTED, maintenance))

    assert (status_with_error["phase"], status_with_error["lastError"]) == ("Running", "no right")
    assert "lastError" not in workload.read_maintenance(maintenance)["status"]


def test_outdated_node_drained_does_not_set_succeeded(functions: Functions, workload: Workload) -> None:
    """X-2: a late `node.drained` does not set Succeeded while a pod remains."""
    node = workload.take_node()
    maintenance = create_begun_maintenance(functions, workload, node)
    workload.create_bare_pods(node, "late")

    functions.invoke("status", build_product_event(events.NODE_DRAINED, maintenance))

    status = workload.read_maintenance(maintenance)["status"]
    assert (status["phase"], status["pendingPods"]) == ("Running", ["late"])


def test_status_writes_nothing_for_deleted_maintenance(
    functions: Functions, workload: Workload, audit: AuditLog
) -> None:
    """X-2: `status` writes nothing for a maintenance that is being deleted."""
    node = workload.take_node()
    maintenance = create_begun_maintenance(functions, workload, node)
    workload.create_bare_pods(node, "a")
    workload.delete(m.build_path(maintenance))
    writes = len(audit.list_writes_by())

    functions.invoke("status", build_product_event(events.PODS_EVICTED, maintenance))

    assert len(audit.list_writes_by()) == writes


def test_only_restore_errors_are_written_during_deletion(functions: Functions, workload: Workload) -> None:
    """NMO-13: for a maintenance that is being deleted, `status` writes only errors of `restore`."""
    maintenance = create_begun_maintenance(functions, workload, workload.take_node())
    workload.delete(m.build_path(maintenance))

    last_errors = []
    for step, error in (("evict", "too late"), ("restore", "no right"), ("cordon", "too late")):
        functions.invoke(
            "status",
            build_product_event(events.MAINTENANCE_STEP_FAILED, maintenance, data={"step": step, "error": error}),
        )
        last_errors.append(m.get_last_error(workload.read_maintenance(maintenance)))

    assert last_errors == ["", f"{UNRESTORED_PREFIX}no right", f"{UNRESTORED_PREFIX}no right"]


@proves("X-6")
def test_concurrent_events_are_applied_or_retried_after_conflicts(
    functions: Functions, workload: Workload, audit: AuditLog
) -> None:
    """X-6: if concurrent events about a maintenance cause conflicts, `status` applies each event or answers 503."""
    node = workload.take_node()
    maintenance = create_begun_maintenance(functions, workload, node)
    writes, statuses = len(audit.list_writes_by()), []

    def post_event(number: int) -> None:
        event = build_product_event(
            events.MAINTENANCE_STEP_FAILED, maintenance, data={"step": "evict", "error": f"error {number}"}
        )
        statuses.append(functions.post("status", event).status_code)

    threads = [threading.Thread(target=post_event, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    write_codes = [entry["responseStatus"]["code"] for entry in audit.list_writes_by()[writes:]]
    assert set(write_codes) <= {200, 409, 504}  # 504: the step's deadline had passed.
    assert set(statuses) <= {204, 503}
    assert write_codes.count(200) >= statuses.count(204) > 0
    assert workload.read_maintenance(maintenance)["status"]["lastError"].startswith("error ")


def test_new_maintenance_phase_is_logged(
    functions: Functions, workload: Workload, caplog: pytest.LogCaptureFixture
) -> None:
    """NMO-17: `status` logs a new phase."""
    node = workload.take_node()
    begun_event = functions.run_begin(workload.create_maintenance(node))
    caplog.clear()

    with caplog.at_level("INFO", logger=event_objects.log.name):
        functions.invoke("status", begun_event)

    assert [record.message for record in caplog.records] == ["phase is Running now"]


def test_stale_cache_does_not_revoke_success(
    functions: Functions, proxied_functions: Functions, fault_proxy: FaultProxy, workload: Workload, audit: AuditLog
) -> None:
    """X-2, NMO-10: before `status` revokes a success, it lists the latest pods, because the cache may be stale."""
    node = workload.take_node()
    (deleted_pod,) = workload.create_bare_pods(node, f"gone-{node}")
    workload.delete(build_pod_path(deleted_pod))
    workload.wait_for_object(build_pod_path(deleted_pod), lambda current: current is None)
    maintenance = run_steps_with_status(functions, workload, workload.create_maintenance(node))
    writes = len(audit.list_writes_by())
    stale_list = Fault(200, body={"items": [deleted_pod], "metadata": {"resourceVersion": "1"}})
    fault_proxy.inject(lambda request: stale_list if request == "list pods 1" else None)

    response = proxied_functions.post("status", build_product_event(events.PODS_EVICTED, maintenance))

    list_count = fault_proxy.request_counts["list pods"]
    fault_proxy.stop_faults()
    assert (response.status_code, list_count) == (204, 2)
    assert workload.read_maintenance(maintenance)["status"]["phase"] == "Succeeded"
    assert len(audit.list_writes_by()) == writes


@pytest.mark.parametrize("pods_version", ["", "1"], ids=["without version", "with version"])
def test_status_lists_pods_at_resource_version_of_event(
    functions: Functions, workload: Workload, pods_version: str
) -> None:
    """Design rule 1: `status` requests a pod list that is at least as new as the resourceVersion in the event."""
    maintenance = create_begun_maintenance(functions, workload, workload.take_node())
    event = build_product_event(
        events.PODS_EVICTED, maintenance, data={"podsVersion": pods_version} if pods_version else {}
    )

    with record_list_requests(functions.clusters["status"].api) as requests:
        functions.invoke("status", event)

    assert [request.version for request in requests if request.path == PODS_PATH] == [pods_version or "0"]


def test_status_uses_snapshot_of_event_instead_of_requests(functions: Functions, workload: Workload) -> None:
    """Check that `status` sends two requests for an event of `begin` or `evict`, because it uses the event's snapshot.

    After `node.drained`, `status` also lists the pods, but does not read the node.
    """
    INSTALL_LEASE_CACHE.confirm(functions.clusters["status"])
    node = workload.take_node()
    workload.create_bare_pods(node, "a", "b")
    maintenance, api = workload.create_maintenance(node), functions.clusters["status"].api
    steps: list[tuple[BaseCloudEvent, int]] = []
    event: BaseCloudEvent = build_added_event(maintenance)
    for step in ("begin", "cordon", "taint", "evict", "evict"):
        reply = functions.invoke(step, event)
        assert reply is not None
        if step in ("begin", "evict"):
            with count_requests(api) as requests:
                functions.invoke("status", reply)
            steps.append((reply, sum(count for request, count in requests.items() if "/events" not in request)))
        event = reply
        if step == "evict":
            workload.wait_for_collection(f"/api/v1/namespaces/{workload.namespace}/pods", lambda pods: not pods)
            event = build_product_event(events.PODS_GONE, maintenance)

    kinds = [events.MAINTENANCE_BEGUN, events.PODS_EVICTED, events.NODE_DRAINED]
    assert [(reply.get_type(), count) for reply, count in steps] == list(zip(kinds, (2, 2, 3), strict=True))
    after = workload.read_maintenance(maintenance)
    assert after["status"]["phase"] == "Succeeded"
    assert get_conditions(after) == {"Cordoned": ("True", "Cordoned"), "Drained": ("True", "Drained")}


@proves("X-2")
def test_outdated_event_snapshot_is_ignored(functions: Functions, workload: Workload) -> None:
    """X-2, design rule 1: `status` ignores an event's snapshot taken before another write, and reads the cluster."""
    node = workload.take_node()
    workload.create_bare_pods(node, "a", "b", finalizers=("example.com/hold",))
    maintenance = workload.create_maintenance(node)
    functions.invoke("status", functions.run_begin(maintenance))
    late_event = functions.invoke("evict", functions.run_until_tainted(maintenance))
    assert late_event is not None
    functions.invoke("status", late_event)
    functions.invoke(
        "status",
        build_product_event(events.MAINTENANCE_STEP_FAILED, maintenance, data={"step": "evict", "error": "one"}),
    )
    pod_path = f"/api/v1/namespaces/{workload.namespace}/pods/a"
    workload.client.patch(pod_path, {"metadata": {"finalizers": None}})
    workload.wait_for_object(pod_path, lambda pod: pod is None)
    workload.client.patch(build_node_path(node), {"spec": {"unschedulable": False}})

    functions.invoke("status", late_event)

    status = workload.read_maintenance(maintenance)["status"]
    assert status["pendingPods"] == ["b"]
    assert get_conditions(workload.read_maintenance(maintenance))["Cordoned"] == ("False", "NotCordoned")
    workload.client.patch(f"/api/v1/namespaces/{workload.namespace}/pods/b", {"metadata": {"finalizers": None}})


def test_status_does_not_read_node_for_pods_gone(functions: Functions, workload: Workload) -> None:
    """Check that `status` sends three requests for `pods.gone`, without a read of the node, which `guard` checks."""
    INSTALL_LEASE_CACHE.confirm(functions.clusters["status"])
    node = workload.take_node()
    workload.create_bare_pods(node, "a", "b", finalizers=("example.com/hold",))
    maintenance = run_steps_with_status(functions, workload, workload.create_maintenance(node))
    pod_path = f"/api/v1/namespaces/{workload.namespace}/pods/a"
    workload.client.patch(pod_path, {"metadata": {"finalizers": None}})
    workload.wait_for_object(pod_path, lambda pod: pod is None)

    with count_requests(functions.clusters["status"].api) as requests:
        functions.invoke("status", build_product_event(events.PODS_GONE, maintenance))

    assert requests == {
        f"GET {m.build_path(maintenance)}": 1,
        f"GET {PODS_PATH}": 1,
        f"PATCH {m.build_path(maintenance)}/status": 1,
    }
    after = workload.read_maintenance(maintenance)
    assert after["status"]["pendingPods"] == ["b"]
    assert get_conditions(after)["Cordoned"] == ("True", "Cordoned")
    workload.client.patch(f"/api/v1/namespaces/{workload.namespace}/pods/b", {"metadata": {"finalizers": None}})


@proves("OSV-12")
def test_cordon_node_event_is_recorded_once(functions: Functions, workload: Workload) -> None:
    """OSV-12: the Event CordonNode is recorded only with the first status that reports the cordon."""
    node = workload.take_node()
    workload.create_bare_pods(node, "a", "b", finalizers=("example.com/hold",))
    maintenance = create_begun_maintenance(functions, workload, node)
    assert CORDON_REASON not in list_node_events(workload, node)
    functions.run_chain(maintenance, "begin", "cordon", "taint")

    counts = []
    for error in ("one", "another"):
        functions.invoke(
            "status",
            build_product_event(events.MAINTENANCE_STEP_FAILED, maintenance, data={"step": "evict", "error": error}),
        )
        cordon_event = list_node_events(workload, node)[CORDON_REASON]
        counts.append((cordon_event["type"], cordon_event.get("count", 1)))

    assert counts == [("Normal", 1)] * 2
    for name in ("a", "b"):
        path = f"/api/v1/namespaces/{workload.namespace}/pods/{name}"
        workload.client.patch(path, {"metadata": {"finalizers": []}})


def list_node_events(workload: Workload, node: str) -> dict[str, Object]:
    """Return the Kubernetes Events about a node by reason."""
    node_events = workload.client.list(
        EVENTS_PATH, field_selector=f"involvedObject.kind=Node,involvedObject.name={node}"
    )["items"]
    return {event["reason"]: event for event in node_events}


@pytest.mark.slow
@proves("NMO-12")
def test_large_status_is_truncated_and_stored(functions: Functions, workload: Workload) -> None:
    """NMO-12, NMO-13: a status with 250 blocked pods, long names and long messages is truncated and stored."""
    node = workload.take_node()
    names = [f"{number:03}-{'x' * 249}" for number in range(250)]
    maintenance = workload.create_maintenance(node, name="m" * 253)
    # Record the Event BeginMaintenance before the slow writes.
    functions.invoke("status", functions.run_begin(maintenance))
    functions.run_until_tainted(maintenance)
    workload.create_bare_pods(node, *names, ready=False)
    long_message = "a webhook's long message " * 1000
    refusals = [
        {"namespace": workload.namespace, "name": name, "reason": "Error", "message": long_message[:6000]}
        for name in names
    ]

    evicted_event = build_product_event(
        events.PODS_EVICTED, maintenance, data={"blocked": refusals, "error": long_message}
    )
    codes = [functions.post("status", evicted_event).status_code for _ in range(5)]  # A busy server may cause a 503.

    assert set(codes) <= {204, 503}
    assert 204 in codes
    status = workload.read_maintenance(maintenance)["status"]
    assert (status["pendingCount"], status["pendingPods"]) == (250, names)
    assert len(status["blockedPods"]) == 250
    assert status["blockedPods"][0]["message"].endswith("more characters)")
    assert status["lastError"].endswith("more characters)")
    functions.invoke(
        "status",
        build_product_event(events.MAINTENANCE_STEP_FAILED, maintenance, data={"step": "evict", "error": long_message}),
    )
    recorded_events = workload.client.list(
        "/api/v1/namespaces/default/events", field_selector=f"involvedObject.name={'m' * 253}"
    )["items"]
    assert [event["reason"] for event in recorded_events] == ["BeginMaintenance"]


@pytest.mark.parametrize("timestamp", ["2026-01-02T03:04:05.678+02:00", "2026-01-02t03:04:05z"])
def test_timestamps_in_any_rfc3339_format_are_accepted(
    functions: Functions, workload: Workload, timestamp: str
) -> None:
    """NMO-12: `evict`, `status` and `guard` accept a status with timestamps in any RFC 3339 format."""
    node = workload.take_node()
    (held_pod,) = workload.create_bare_pods(node, f"held-{node}", finalizers=("example.com/hold",))
    maintenance = workload.create_maintenance(node)
    functions.run_until_tainted(maintenance)
    entry = {"namespace": workload.namespace, "name": f"held-{node}", "reason": "Error", "message": "m"}
    condition = {
        "type": "Cordoned",
        "status": "True",
        "reason": "Cordoned",
        "message": "m",
        "lastTransitionTime": timestamp,
    }
    status = {"lastUpdate": timestamp, "blockedPods": [{**entry, "since": timestamp, "retryAfter": timestamp}]}
    workload.client.patch(
        f"{m.build_path(maintenance)}/status", {"status": {**status, "phase": "Running", "conditions": [condition]}}
    )

    reply = functions.invoke("evict", build_product_event(events.NODE_TAINTED, maintenance))
    assert reply is not None
    functions.invoke("status", reply)

    assert [pod["name"] for pod in require_data(reply)["evicted"]] == [f"held-{node}"]
    assert workload.read_maintenance(maintenance)["status"]["blockedPods"] == []
    assert functions.post("guard", build_node_updated_event(workload.read_node(node))).status_code == 204
    workload.client.patch(build_pod_path(held_pod), {"metadata": {"finalizers": []}})
