"""Tests for `begin` on a real API server."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from eventing import events
from functions.event_data import require_data
from functions.installs import INSTALL_LEASE_CACHE
from functions.maintenance import event_objects
from kube.evictions.requests import build_pod_path
from kube.maintenance import leases
from kube.maintenance import objects as m
from kube.maintenance.groups import GROUPS, KUBEVIRT, MEDIK8S, ApiGroup
from kube.nodes import build_node_path
from kube.paths import PODS_PATH
from localcluster.audit_log import AuditLog
from tests.functions.conftest import Functions
from tests.functions.event_builders import build_added_event, build_product_event
from tests.functions.maintenance.test_status import run_steps_with_status
from tests.functions.request_hooks import count_requests, run_before_request
from tests.proofs import proves
from tests.workload import Workload, summarize_writes

every_group = pytest.mark.parametrize("group", GROUPS.values(), ids=lambda group: group.api_version.split("/")[0])

VALID_RENEW_TIME, EXPIRED_RENEW_TIME = "2999-01-01T00:00:00.000000Z", "2020-01-01T00:00:00.000000Z"
"""`renewTime` values of another tool's lease: of a valid lease, and of an expired lease."""


def create_lease_of_other_tool(
    workload: Workload, node: str, renew_time: str, holder: str | None = "another-tool"
) -> None:
    """Create the node's lease with another tool as its holder."""
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 60, "renewTime": renew_time}
    workload.client.create(leases.LEASES_PATH, {"metadata": {"name": leases.build_lease_name(node)}, "spec": spec})


@proves("NMO-7", "NMO-11", "NMO-16", "KNM-3")
@every_group
def test_begin_sets_finalizer_owner_reference_lease_and_pod_counts(
    functions: Functions, workload: Workload, group: ApiGroup
) -> None:
    """NMO-11, NMO-16, NMO-20, KNM-3, X-7: `begin` sets finalizer, owner, lease and pod counts."""
    node = workload.take_node()
    workload.create_bare_pods(node, "bare", "second")
    workload.create_bare_pods(node, "static", annotations={"kubernetes.io/config.mirror": "x"})
    workload.create_daemonset("agent", node)
    maintenance = workload.create_maintenance(node, group)

    reply = functions.invoke("begin", build_added_event(maintenance))

    maintenance = workload.read_maintenance(maintenance)
    assert reply is not None
    assert reply.get_type() == events.MAINTENANCE_BEGUN
    data = dict(require_data(reply))
    assert int(data.pop("podsVersion")) > 0
    assert data == {
        "maintenance": events.ObjectReference.from_object(maintenance).as_data(),
        "node": node,
        "totalpods": 4,
        "evictionPods": 2,
        "maintenanceVersion": maintenance["metadata"]["resourceVersion"],
        "closed": False,
        "left": [{"namespace": workload.namespace, "name": name} for name in ("bare", "second")],
    }
    assert maintenance["metadata"]["finalizers"] == [m.FINALIZER]
    (owner,) = maintenance["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", node, workload.read_node(node)["metadata"]["uid"])
    assert m.parse_annotated_pod_counts(maintenance) == {"totalpods": 4, "evictionPods": 2}
    assert leases.is_holder(workload.client.get(leases.build_lease_path(node)), maintenance)


@proves("X-1")
def test_begin_writes_only_maintenance_and_lease(functions: Functions, workload: Workload, audit: AuditLog) -> None:
    """X-1, NMO-11: `begin` creates one lease and patches the maintenance once; it writes neither node nor pods."""
    node = workload.take_node()
    maintenance = workload.create_maintenance(node)

    functions.run_begin(maintenance)

    name = maintenance["metadata"]["name"]
    assert summarize_writes(audit.list_writes_by()) == [
        ("create", "leases", f"node-{node}"),
        ("patch", "nodemaintenances", name),
    ]


@proves("X-2", "NMO-11")
def test_begin_writes_nothing_for_duplicate_event(functions: Functions, workload: Workload, audit: AuditLog) -> None:
    """X-2: `begin` writes nothing for a duplicate event, and its reply contains no snapshot of the pods.

    For a duplicate event, `begin` does not list the pods, so `status` lists them.
    """
    node = workload.take_node()
    workload.create_bare_pods(node, "bare")
    maintenance = workload.create_maintenance(node)
    event = build_added_event(maintenance)
    first_event = functions.invoke("begin", event)
    workload.create_bare_pods(node, "late")
    before, writes = workload.read_maintenance(maintenance), len(audit.list_writes_by())

    second_event = functions.invoke("begin", event)

    assert first_event is not None
    assert second_event is not None
    snapshot_fields = ("maintenanceVersion", "closed", "left", "podsVersion")
    expected_data = {name: value for name, value in require_data(first_event).items() if name not in snapshot_fields}
    assert set(snapshot_fields) <= set(require_data(first_event))
    assert (second_event.get_id(), second_event.get_data()) == (first_event.get_id(), expected_data)
    assert workload.read_maintenance(maintenance) == before
    assert len(audit.list_writes_by()) == writes


def test_begin_sends_fixed_number_of_requests(functions: Functions, workload: Workload) -> None:
    """Check that `begin` sends five requests for a new maintenance, and three reads for a duplicate event."""
    INSTALL_LEASE_CACHE.confirm(functions.clusters["begin"])
    node = workload.take_node()
    maintenance = workload.create_maintenance(node)
    path, event = m.build_path(maintenance), build_added_event(maintenance)
    read = {f"GET {path}": 1, f"GET {build_node_path(node)}": 1}
    written = {f"POST {leases.LEASES_PATH}": 1, f"PATCH {path}": 1}

    with count_requests(functions.clusters["begin"].api) as first:
        functions.invoke("begin", event)
    with count_requests(functions.clusters["begin"].api) as second:
        functions.invoke("begin", event)

    assert first == {**read, f"GET {PODS_PATH}": 1, **written}
    assert second == {**read, f"GET {leases.build_lease_path(node)}": 1}


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_begin_accepts_events_in_binary_and_structured_mode(
    functions: Functions, workload: Workload, mode: str
) -> None:
    """X-1: `begin` accepts an event in binary and in structured mode."""
    maintenance = workload.create_maintenance(workload.take_node())

    response = functions.post("begin", build_added_event(maintenance), mode=mode)

    assert response.status_code == 200
    assert response.headers["ce-type"] == events.MAINTENANCE_BEGUN
    assert response.content_type == "application/json"


@proves("NMO-19")
def test_begin_fails_for_unknown_node(functions: Functions, workload: Workload, audit: AuditLog) -> None:
    """NMO-19: for an unknown node, `begin` emits `maintenance.step_failed` and writes nothing."""
    maintenance = workload.create_maintenance("nowhere")

    reply = functions.invoke("begin", build_added_event(maintenance))

    assert reply is not None
    assert reply.get_type() == events.MAINTENANCE_STEP_FAILED
    assert require_data(reply)["error"] == 'nodes "nowhere" not found'
    assert audit.list_writes_by() == []


@pytest.mark.parametrize("suffix", ["/status", "/", "/..", "?x=1", "#x", ",x", "=x", " ", "\n"])
def test_begin_treats_malformed_node_name_as_unknown_node(
    functions: Functions, workload: Workload, audit: AuditLog, suffix: str
) -> None:
    """NMO-19: a node name that contains path or selector characters is an unknown node, and the status reports that."""
    name = f"{workload.take_node()}{suffix}"
    maintenance = workload.create_maintenance(name)

    reply = functions.invoke("begin", build_added_event(maintenance))

    assert reply is not None
    assert require_data(reply)["error"] == f'nodes "{name}" not found'
    assert audit.list_writes_by() == []
    functions.invoke("status", reply)
    assert workload.read_maintenance(maintenance)["status"]["lastError"] == f'nodes "{name}" not found'
    workload.delete(m.build_path(maintenance))


def test_succeeded_maintenance_is_not_begun_again(functions: Functions, workload: Workload) -> None:
    """X-2: `begin` ignores a duplicate of the first event after the drain has succeeded."""
    maintenance = run_steps_with_status(functions, workload, workload.create_maintenance(workload.take_node()))
    assert m.get_phase(maintenance) == m.SUCCEEDED

    assert functions.invoke("begin", build_added_event(maintenance)) is None


@proves("NMO-22")
@pytest.mark.parametrize("second_group", [MEDIK8S, KUBEVIRT], ids=["same-group", "other-group"])
def test_second_maintenance_of_node_fails(
    functions: Functions, workload: Workload, audit: AuditLog, second_group: ApiGroup
) -> None:
    """NMO-22, X-7: a node's second maintenance fails, whatever its API group; the error names the first maintenance."""
    node = workload.take_node()
    first, second = workload.create_maintenance(node), workload.create_maintenance(node, second_group)
    functions.run_begin(first)
    writes = len(audit.list_writes_by())

    reply = functions.invoke("begin", build_added_event(second))

    assert reply is not None
    assert reply.get_type() == events.MAINTENANCE_STEP_FAILED
    error = require_data(reply)["error"]
    assert error.startswith(f"invalid nodeName, a NodeMaintenance for node {node} already exists: ")
    assert first["metadata"]["name"] in error
    outcomes = [(entry["verb"], entry["responseStatus"]["code"]) for entry in audit.list_writes_by()[writes:]]
    assert outcomes == [("create", 409)]  # The node's lease already exists.


@proves("NMO-22")
@pytest.mark.parametrize("second_group", [MEDIK8S, KUBEVIRT], ids=["same-group", "other-group"])
def test_second_maintenance_fails_even_if_lease_is_deleted(
    functions: Functions, workload: Workload, audit: AuditLog, second_group: ApiGroup
) -> None:
    """NMO-22: a node's second maintenance fails even if the first maintenance's lease was deleted."""
    node = workload.take_node()
    first = run_steps_with_status(functions, workload, workload.create_maintenance(node))
    workload.delete(leases.build_lease_path(node))
    second, writes = workload.create_maintenance(node, second_group), len(audit.list_writes_by())

    reply = functions.invoke("begin", build_added_event(second))

    assert reply is not None
    assert reply.get_type() == events.MAINTENANCE_STEP_FAILED
    assert first["metadata"]["name"] in str(require_data(reply)["error"])
    assert summarize_writes(audit.list_writes_by()[writes:]) == []
    functions.invoke("begin", build_added_event(first))
    assert leases.is_holder(workload.client.get(leases.build_lease_path(node)), first)


@proves("NMO-27", "NMO-27a")
@pytest.mark.parametrize(
    ("renew_time", "has_expired"),
    [(VALID_RENEW_TIME, False), (EXPIRED_RENEW_TIME, True)],
    ids=["held", "expired"],
)
def test_lease_of_another_tool_blocks_maintenance_until_expiry(
    functions: Functions, workload: Workload, renew_time: str, has_expired: bool
) -> None:
    """NMO-27a: another tool's valid lease blocks the maintenance; `begin` takes over an expired lease."""
    node = workload.take_node()
    create_lease_of_other_tool(workload, node, renew_time)
    maintenance = workload.create_maintenance(node)

    reply = functions.invoke("begin", build_added_event(maintenance))

    assert reply is not None
    assert reply.get_type() == (events.MAINTENANCE_BEGUN if has_expired else events.MAINTENANCE_STEP_FAILED)
    assert m.has_begun(workload.read_maintenance(maintenance)) is has_expired
    assert leases.is_holder(workload.client.get(leases.build_lease_path(node)), maintenance) is has_expired
    if not has_expired:
        message = (
            f'the lease of node "{node}" is held by another-tool: the maintenance begins when the lease is released'
        )
        assert require_data(reply)["error"] == message
        functions.invoke("status", reply)
        status = workload.read_maintenance(maintenance)["status"]
        assert (status["lastError"], status.get("phase")) == (message, None)
        assert workload.read_node(node)["spec"].get("unschedulable") is None


@pytest.mark.parametrize("holder", ["", None], ids=["empty", "null"])
def test_lease_without_holder_is_acquired(functions: Functions, workload: Workload, holder: str | None) -> None:
    """NMO-27a: a lease without a holder does not block the maintenance, even before it expires."""
    node = workload.take_node()
    create_lease_of_other_tool(workload, node, VALID_RENEW_TIME, holder)
    maintenance = workload.create_maintenance(node)

    assert functions.run_begin(maintenance).get_type() == events.MAINTENANCE_BEGUN

    assert leases.is_holder(workload.client.get(leases.build_lease_path(node)), maintenance)


def test_begin_answers_503_if_lease_is_deleted_before_takeover(functions: Functions, workload: Workload) -> None:
    """X-6: `begin` answers 503 if the lease is deleted after `begin` has read it, and succeeds when retried."""
    node = workload.take_node()
    path = leases.build_lease_path(node)
    create_lease_of_other_tool(workload, node, EXPIRED_RENEW_TIME)
    maintenance = workload.create_maintenance(node)

    with run_before_request(functions.clusters["begin"], "PATCH", path, lambda: workload.delete(path)):
        response = functions.post("begin", build_added_event(maintenance))

    assert (response.status_code, f'the lease of node "{node}"' in response.text) == (503, True)
    functions.run_begin(maintenance)
    assert leases.is_holder(workload.client.get(path), maintenance)


def test_begin_answers_503_if_lease_is_deleted_before_read(functions: Functions, workload: Workload) -> None:
    """X-6: `begin` answers 503 if the lease is deleted after the create request's conflict and before the read."""
    node = workload.take_node()
    path = leases.build_lease_path(node)
    create_lease_of_other_tool(workload, node, VALID_RENEW_TIME)
    maintenance = workload.create_maintenance(node)

    with run_before_request(functions.clusters["begin"], "GET", path, lambda: workload.delete(path)):
        response = functions.post("begin", build_added_event(maintenance))

    assert (response.status_code, f'the lease of node "{node}"' in response.text) == (503, True)
    functions.run_begin(maintenance)
    assert leases.is_holder(workload.client.get(path), maintenance)


def test_concurrently_renewed_lease_is_not_taken_over(functions: Functions, workload: Workload) -> None:
    """NMO-27a, X-6: `begin` does not take over an expired lease that its holder renews before the takeover's write."""
    node = workload.take_node()
    path = leases.build_lease_path(node)
    create_lease_of_other_tool(workload, node, EXPIRED_RENEW_TIME)
    maintenance = workload.create_maintenance(node)
    renewed = {"spec": {"renewTime": VALID_RENEW_TIME}}

    with run_before_request(functions.clusters["begin"], "PATCH", path, lambda: workload.client.patch(path, renewed)):
        response = functions.post("begin", build_added_event(maintenance))
    reply = functions.invoke("begin", build_added_event(maintenance))

    assert (response.status_code, f'the lease of node "{node}"' in response.text) == (503, True)
    assert reply is not None
    assert "is held by another-tool" in require_data(reply)["error"]
    assert not m.has_begun(workload.read_maintenance(maintenance))


@proves("NMO-27a")
def test_lost_lease_is_reported_with_new_holder(functions: Functions, workload: Workload) -> None:
    """NMO-27a: for a maintenance in progress, `begin` counts the failed renewal and names the lease's new holder."""
    node = workload.take_node()
    maintenance, other = workload.create_maintenance(node), workload.create_maintenance(node, KUBEVIRT)
    functions.run_begin(maintenance)
    foreign_lease = leases.build_lease(node, other, datetime.now(timezone.utc))
    workload.client.patch(
        leases.build_lease_path(node), {"metadata": foreign_lease["metadata"], "spec": foreign_lease["spec"]}
    )

    reply = functions.invoke("begin", build_product_event(events.MAINTENANCE_PENDING, maintenance))

    assert reply is not None
    assert (reply.get_type(), require_data(reply)["leaseErrors"]) == (events.MAINTENANCE_STEP_FAILED, 1)
    holder = f"{other['metadata']['name']} ({other['apiVersion']})"
    assert f'the lease of node "{node}" is held by {holder}' in require_data(reply)["error"]


@proves("NMO-7", "NMO-11")
def test_pod_of_deleted_daemonset_is_counted(functions: Functions, workload: Workload) -> None:
    """NMO-7, NMO-11: a DaemonSet pod whose DaemonSet no longer exists counts as a pod to evict."""
    node = workload.take_node()
    metadata = workload.create_daemonset("agent", node)["metadata"]
    daemonset = f"/apis/apps/v1/namespaces/{workload.namespace}/daemonsets/agent"
    workload.client.run(workload.client.api.request("DELETE", daemonset, body={"propagationPolicy": "Orphan"}))
    workload.wait_for_object(daemonset, lambda current: current is None)
    pod = f"/api/v1/namespaces/{workload.namespace}/pods/{metadata['name']}"
    # The garbage collector does not delete a pod if it cannot find the owner's kind.
    owner = {**metadata["ownerReferences"][0], "apiVersion": "gone.example.com/v1"}
    workload.client.patch(pod, {"metadata": {"ownerReferences": [owner]}})

    begun_event = functions.run_begin(workload.create_maintenance(node))

    assert (require_data(begun_event)["totalpods"], require_data(begun_event)["evictionPods"]) == (1, 1)


@proves("DRN-1a")
def test_terminating_pod_is_counted(functions: Functions, workload: Workload) -> None:
    """DRN-1a: a terminating pod counts as a pod to evict until `skipWaitForDeleteTimeoutSeconds` have passed."""
    node = workload.take_node()
    (pod,) = workload.create_bare_pods(node, "slow", finalizers=("example.com/hold",))
    workload.delete(build_pod_path(pod))
    maintenance = workload.create_maintenance(node, drain={"skipWaitForDeleteTimeoutSeconds": 3600})

    begun_event = functions.run_begin(maintenance)

    assert require_data(begun_event)["evictionPods"] == 1
    workload.client.patch(build_pod_path(pod), {"metadata": {"finalizers": []}})


@pytest.mark.parametrize("holder_name", ["x/status", "..", "x?watch=1"])
def test_lease_with_invalid_holder_is_taken_over(functions: Functions, workload: Workload, holder_name: str) -> None:
    """X-2: a lease whose holder annotation has an invalid object name does not block the maintenance."""
    node = workload.take_node()
    lease = leases.build_lease(node, workload.create_maintenance("nowhere"), datetime.now(timezone.utc))
    lease["metadata"]["annotations"] = {leases.HOLDER_ANNOTATION: f"{MEDIK8S.api_version} {holder_name} some-uid"}
    workload.client.create(leases.LEASES_PATH, lease)

    reply = functions.run_begin(workload.create_maintenance(node))

    assert reply.get_type() == events.MAINTENANCE_BEGUN


def test_lease_of_missing_maintenance_is_taken_over(functions: Functions, workload: Workload) -> None:
    """NMO-22: `begin` takes over the lease of a maintenance that no longer exists."""
    node = workload.take_node()
    first, second = workload.create_maintenance(node), workload.create_maintenance(node, KUBEVIRT)
    functions.run_begin(first)
    workload.remove_maintenance(first)

    functions.run_begin(second)

    assert leases.is_holder(workload.client.get(leases.build_lease_path(node)), second)


def test_lease_of_released_maintenance_is_taken_over(functions: Functions, workload: Workload) -> None:
    """NMO-22, design rule 12: `begin` takes over a lease that a delayed request created for a released maintenance."""
    node = workload.take_node()
    first = workload.create_maintenance(node, finalizers=["example.com/hold"])
    functions.run_until_tainted(first)
    workload.delete(m.build_path(first))
    functions.invoke("restore", build_product_event(events.MAINTENANCE_RESTORE_PENDING, first))
    workload.client.create(leases.LEASES_PATH, leases.build_lease(node, first, datetime.now(timezone.utc)))
    second = workload.create_maintenance(node)

    functions.run_begin(second)

    assert leases.is_holder(workload.client.get(leases.build_lease_path(node)), second)
    workload.client.patch(m.build_path(first), {"metadata": {"finalizers": []}})


def test_begin_renews_lease_when_renewal_is_due(functions: Functions, workload: Workload) -> None:
    """NMO-27: `begin` renews the lease of a maintenance in progress when the renewal is due."""
    node = workload.take_node()
    maintenance = workload.create_maintenance(node)
    functions.run_begin(maintenance)
    workload.client.patch(leases.build_lease_path(node), {"spec": {"renewTime": EXPIRED_RENEW_TIME}})

    functions.invoke("begin", build_product_event(events.MAINTENANCE_PENDING, maintenance))

    assert workload.client.get(leases.build_lease_path(node))["spec"]["renewTime"] > "2026"


def test_failed_maintenance_begins_after_node_creation(functions: Functions, workload: Workload) -> None:
    """NMO-19: a maintenance that failed because its node was unknown begins after the node is created."""
    maintenance = workload.create_maintenance(node := f"late-{workload.namespace}")
    failure_event = functions.invoke("begin", build_added_event(maintenance))
    assert failure_event is not None
    functions.invoke("status", failure_event)

    workload.local_cluster.create_nodes(node)
    reply = functions.invoke("begin", build_product_event(events.MAINTENANCE_PENDING, maintenance))

    assert reply is not None
    assert reply.get_type() == events.MAINTENANCE_BEGUN


@proves("NMO-11", "X-3")
@pytest.mark.parametrize(
    "removed_field", ["finalizers", "annotations", "ownerReferences", ""], ids=lambda name: name or "all"
)
def test_begin_restores_removed_metadata(
    functions: Functions, workload: Workload, audit: AuditLog, removed_field: str
) -> None:
    """NMO-11, X-3: `begin` restores metadata that another writer removed, and takes the pod counts from the status.

    `kubectl replace` with the user's manifest removes all metadata that `begin` has set.
    """
    node = workload.take_node()
    workload.create_bare_pods(node, "goes", "stays")
    maintenance = workload.create_maintenance(node)
    functions.invoke("status", functions.run_begin(maintenance))
    before = workload.read_maintenance(maintenance)["metadata"]
    workload.delete(f"/api/v1/namespaces/{workload.namespace}/pods/goes?gracePeriodSeconds=0")
    names = [removed_field] if removed_field else ["finalizers", "annotations", "ownerReferences"]
    workload.client.patch(m.build_path(maintenance), {"metadata": dict.fromkeys(names)})
    writes = len(audit.list_writes_by())

    reply = functions.invoke("begin", build_product_event(events.MAINTENANCE_PENDING, maintenance))

    after = workload.read_maintenance(maintenance)["metadata"]
    assert {name: after[name] for name in ("finalizers", "annotations", "ownerReferences")} == {
        name: before[name] for name in ("finalizers", "annotations", "ownerReferences")
    }
    assert m.parse_annotated_pod_counts(workload.read_maintenance(maintenance)) == {"totalpods": 2, "evictionPods": 2}
    assert reply is not None
    assert reply.get_type() == events.MAINTENANCE_BEGUN
    assert summarize_writes(audit.list_writes_by()[writes:]) == [
        ("patch", "nodemaintenances", maintenance["metadata"]["name"])
    ]


def test_deleted_maintenance_does_not_begin(functions: Functions, workload: Workload, audit: AuditLog) -> None:
    """X-2: `begin` ignores a maintenance that is being deleted."""
    maintenance = workload.create_maintenance(workload.take_node(), finalizers=["example.com/hold"])
    workload.delete(m.build_path(maintenance))

    assert functions.invoke("begin", build_added_event(maintenance)) is None
    assert audit.list_writes_by() == []


def test_begin_keeps_finalizers_and_owner_references_of_other_clients(functions: Functions, workload: Workload) -> None:
    """NMO-16: `begin` keeps the finalizers and owner references that other clients set on the maintenance."""
    node = workload.take_node()
    namespace = workload.client.get(f"/api/v1/namespaces/{workload.namespace}")
    owner = {"apiVersion": "v1", "kind": "Namespace", "name": workload.namespace, "uid": namespace["metadata"]["uid"]}
    maintenance = workload.create_maintenance(node, finalizers=["example.com/hold"], ownerReferences=[owner])

    functions.run_begin(maintenance)

    metadata = workload.read_maintenance(maintenance)["metadata"]
    assert metadata["finalizers"] == ["example.com/hold", m.FINALIZER]
    assert [reference["kind"] for reference in metadata["ownerReferences"]] == ["Namespace", "Node"]


@proves("NMO-7", "NMO-8")
def test_begin_logs_same_lines_as_medik8s_operator(
    functions: Functions, workload: Workload, caplog: pytest.LogCaptureFixture
) -> None:
    """NMO-7, NMO-8, NMO-17, KNM-5: `begin` logs the same lines as the medik8s operator."""
    node = workload.take_node()
    workload.create_bare_pods(node, "bare")
    workload.create_daemonset("agent", node)
    daemonset_pod = next(
        pod["metadata"]["name"]
        for pod in workload.client.list(f"/api/v1/namespaces/{workload.namespace}/pods", label_selector="app=agent")[
            "items"
        ]
    )
    maintenance = workload.create_maintenance(node, reason="new disks")

    with caplog.at_level("INFO", logger=event_objects.log.name):
        functions.run_begin(maintenance)

    lines = [record.message for record in caplog.records if record.name == "controller_nodemaintenance"]
    assert lines == [
        "Reconciling NodeMaintenance",
        "Applying maintenance mode",
        f"Applying Maintenance mode on Node: {node} with Reason: new disks",
        f"WARNING: ignoring DaemonSet-managed Pods: {workload.namespace}/{daemonset_pod}; deleting Pods not managed by "
        f"ReplicationController, ReplicaSet, Job, DaemonSet or StatefulSet: {workload.namespace}/bare",
    ]
    assert vars(caplog.records[1])["fields"]["reason"] == "new disks"


def test_missing_maintenance_reason_is_logged_as_empty(
    functions: Functions, workload: Workload, caplog: pytest.LogCaptureFixture
) -> None:
    """NMO-17: a maintenance without a reason is logged with an empty reason."""
    node = workload.take_node()
    maintenance = workload.create_maintenance(node, reason="")

    with caplog.at_level("INFO", logger=event_objects.log.name):
        functions.run_begin(maintenance)

    assert f"Applying Maintenance mode on Node: {node} with Reason: " in [record.message for record in caplog.records]
