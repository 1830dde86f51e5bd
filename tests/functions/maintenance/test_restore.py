"""Tests for `restore` on a real API server."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cloudevents.core.v1.event import CloudEvent

from eventing import events
from functions.event_data import require_data
from functions.maintenance import event_objects
from kube.maintenance import leases
from kube.maintenance import objects as m
from kube.maintenance.groups import GROUPS, KUBEVIRT, MEDIK8S, ApiGroup
from kube.maintenance.kubernetes_events import EVENTS_PATH, UNCORDON_REASON
from kube.maintenance.lookup import sort_by_age
from kube.maintenance.status_patch import UNRESTORED_PREFIX
from kube.nodes import EXCLUDE_LABEL, EXCLUDED_BEFORE_LABEL, MAINTENANCE_LABEL, build_node_path, is_in_maintenance
from kube.paths import Object
from localcluster.audit_log import AuditLog
from tests.functions.conftest import Functions
from tests.functions.event_builders import build_added_event, build_product_event, build_updated_event
from tests.functions.request_hooks import run_before_request
from tests.proofs import proves
from tests.workload import Workload, summarize_writes

every_group = pytest.mark.parametrize("group", GROUPS.values(), ids=lambda group: group.api_version.split("/")[0])


def create_active_maintenance(functions: Functions, workload: Workload, node: str, group: ApiGroup = MEDIK8S) -> Object:
    """Create a maintenance whose node is cordoned and tainted."""
    maintenance = workload.create_maintenance(node, group)
    functions.run_until_tainted(maintenance)
    return workload.read_maintenance(maintenance)


def request_deletion(workload: Workload, maintenance: Object) -> Object:
    """Delete the maintenance, which its finalizer keeps, and return the object."""
    workload.delete(m.build_path(maintenance))
    return workload.read_maintenance(maintenance)


def is_gone(workload: Workload, maintenance: Object) -> bool:
    listed = workload.client.list(
        m.get_group(maintenance).path, field_selector=f"metadata.name={maintenance['metadata']['name']}"
    )
    return not listed["items"]


def is_restored(node: Object | None) -> bool:
    """Return whether the node is schedulable and has no taint.

    The unschedulable taint is ignored, because the controller manager removes it.
    """
    spec = (node or {}).get("spec", {})
    remaining_taints = [
        taint for taint in spec.get("taints") or [] if taint["key"] != "node.kubernetes.io/unschedulable"
    ]
    return not spec.get("unschedulable") and not remaining_taints


@proves("OSV-5")
@every_group
@pytest.mark.parametrize(
    "build_event",
    [build_updated_event, lambda maintenance: build_product_event(events.MAINTENANCE_RESTORE_PENDING, maintenance)],
    ids=["hint", "resync"],
)
def test_restore_undoes_maintenance(
    functions: Functions, workload: Workload, group: ApiGroup, build_event: Callable[[Object], CloudEvent]
) -> None:
    """NMO-14, NMO-15, X-5, OSV-5: `restore` uncordons the node and removes its taints, labels and lease.

    `restore` then removes the maintenance's finalizer and emits `node.restored`.
    """
    node = workload.take_node()
    maintenance = request_deletion(workload, create_active_maintenance(functions, workload, node, group))

    reply = functions.invoke("restore", build_event(maintenance))

    assert reply is not None
    assert (reply.get_type(), require_data(reply)["node"]) == (events.NODE_RESTORED, node)
    assert "nodeDeleted" not in require_data(reply)
    assert is_restored(workload.read_node(node))
    assert MAINTENANCE_LABEL not in workload.read_node(node)["metadata"]["labels"]
    assert is_gone(workload, maintenance)
    assert (
        workload.client.list(leases.LEASES_PATH, field_selector=f"metadata.name={leases.build_lease_name(node)}")[
            "items"
        ]
        == []
    )


@proves("NMO-14")
def test_restore_keeps_other_taints_and_labels(functions: Functions, workload: Workload) -> None:
    """NMO-14, KNM-4: `restore` keeps other taints and labels, and removes the drain taint whatever its value."""
    node = workload.take_node()
    workload.local_cluster.kubectl(
        "taint", "node", node, "medik8s.io/drain=by-hand:NoSchedule", "example.com/theirs=1:NoSchedule"
    )
    workload.local_cluster.kubectl("taint", "node", node, "medik8s.io/drain=other:PreferNoSchedule")
    workload.local_cluster.kubectl("label", "node", node, "example.com/theirs=1")
    labels = workload.read_node(node)["metadata"]["labels"]
    maintenance = request_deletion(workload, create_active_maintenance(functions, workload, node))

    functions.invoke("restore", build_updated_event(maintenance))

    after = workload.read_node(node)
    taints = {(taint["key"], taint.get("value"), taint["effect"]) for taint in after["spec"]["taints"]}
    assert taints == {
        ("example.com/theirs", "1", "NoSchedule"),
        ("medik8s.io/drain", "other", "PreferNoSchedule"),
    }
    assert after["metadata"]["labels"] == labels


@proves("KNM-4", "C4")
def test_restore_removes_preexisting_drain_taint_with_value(functions: Functions, workload: Workload) -> None:
    """Check that `restore` also removes a drain taint with a value that was set before the maintenance."""
    node = workload.take_node()
    workload.local_cluster.kubectl("taint", "node", node, "kubevirt.io/drain=draining:NoSchedule")
    maintenance = request_deletion(workload, create_active_maintenance(functions, workload, node, KUBEVIRT))

    functions.invoke("restore", build_updated_event(maintenance))

    assert is_restored(workload.read_node(node))


@proves("NMO-27b")
def test_restore_removes_other_product_labels_without_maintenance_label(
    functions: Functions, workload: Workload
) -> None:
    """NMO-27b: `restore` removes the product's other labels even if the maintenance label was removed by hand."""
    node = workload.take_node()
    maintenance = create_active_maintenance(functions, workload, node)
    workload.local_cluster.kubectl("label", "node", node, f"{MAINTENANCE_LABEL}-")

    functions.invoke("restore", build_updated_event(request_deletion(workload, maintenance)))

    assert is_restored(workload.read_node(node))
    assert (
        not {MAINTENANCE_LABEL, EXCLUDED_BEFORE_LABEL, EXCLUDE_LABEL}
        & workload.read_node(node)["metadata"]["labels"].keys()
    )


def delete_without_restore(workload: Workload, maintenance: Object) -> None:
    """Remove the maintenance's finalizer and delete the maintenance, so that `restore` does not run."""
    workload.remove_maintenance(maintenance)


@proves("X-7")
@pytest.mark.parametrize("steps", [("begin",), ("begin", "cordon", "taint")], ids=["begun", "cordoned"])
def test_restore_removes_taint_of_maintenance_deleted_without_restore(
    functions: Functions, workload: Workload, steps: tuple[str, ...]
) -> None:
    """NMO-14: `restore` also removes the drain taint of an earlier maintenance that was deleted without a restore."""
    node = workload.take_node()
    delete_without_restore(workload, create_active_maintenance(functions, workload, node, KUBEVIRT))
    maintenance = workload.create_maintenance(node)
    functions.run_chain(maintenance, *steps)

    functions.invoke("restore", build_updated_event(request_deletion(workload, workload.read_maintenance(maintenance))))

    assert is_restored(workload.read_node(node))


@proves("X-7")
def test_restore_keeps_no_taint_for_waiting_maintenance(functions: Functions, workload: Workload) -> None:
    """NMO-14: `restore` does not keep a drain taint for a maintenance that only waits for the node."""
    node = workload.take_node()
    first = create_active_maintenance(functions, workload, node, KUBEVIRT)
    second, third = workload.create_maintenance(node), workload.create_maintenance(node, KUBEVIRT)
    functions.invoke("restore", build_updated_event(request_deletion(workload, first)))
    functions.run_until_tainted(second)
    workload.delete(m.build_path(third))

    functions.invoke("restore", build_updated_event(request_deletion(workload, workload.read_maintenance(second))))

    assert is_restored(workload.read_node(node))


@proves("X-1")
def test_restore_sends_no_write_request_for_pods(functions: Functions, workload: Workload, audit: AuditLog) -> None:
    """OSV-6, X-1: `restore` writes the node, the maintenance, the lease and Events, but no pod."""
    node = workload.take_node()
    workload.create_bare_pods(node, "stays")
    maintenance = request_deletion(workload, create_active_maintenance(functions, workload, node))
    writes = len(audit.list_writes_by())

    functions.invoke("restore", build_updated_event(maintenance))

    kinds = [(verb, kind) for verb, kind, _ in summarize_writes(audit.list_writes_by()[writes:])]
    assert kinds == [
        ("patch", "nodes"),
        ("create", "events"),
        ("delete", "leases"),
        ("patch", "nodemaintenances"),
        ("create", "events"),
        ("create", "events"),
    ]
    assert "Uncordon a node" in workload.local_cluster.kubectl("describe", "node", node).stdout


def test_restore_answers_503_if_maintenance_was_edited(functions: Functions, workload: Workload) -> None:
    """X-6: `restore` answers 503 if the maintenance was edited after `restore` read it, and succeeds when retried."""
    maintenance = request_deletion(workload, create_active_maintenance(functions, workload, workload.take_node()))

    def edit_maintenance() -> None:
        workload.client.patch(m.build_path(maintenance), {"metadata": {"labels": {"edited": "yes"}}})

    with run_before_request(functions.clusters["restore"], "PATCH", m.build_path(maintenance), edit_maintenance):
        response = functions.post("restore", build_updated_event(maintenance))
    assert (response.status_code, "finalizer" in response.text) == (503, True)
    functions.invoke("restore", build_updated_event(maintenance))

    assert is_gone(workload, maintenance)


@proves("OSV-12")
def test_uncordon_node_event_has_type_normal(functions: Functions, workload: Workload) -> None:
    """OSV-12: the Event for a restored node has the type Normal."""
    node = workload.take_node()
    functions.invoke(
        "restore", build_updated_event(request_deletion(workload, create_active_maintenance(functions, workload, node)))
    )

    assert list_uncordon_event_types(workload, node) == ["Normal"]


def list_uncordon_event_types(workload: Workload, node: str) -> list[str]:
    """Return the types of the node's UncordonNode Events."""
    uncordon_events = workload.client.list(
        EVENTS_PATH, field_selector=f"involvedObject.name={node},reason={UNCORDON_REASON}"
    )["items"]
    return [event["type"] for event in uncordon_events]


@proves("X-7", "OSV-12")
def test_handover_to_successor_records_no_uncordon_node_event(functions: Functions, workload: Workload) -> None:
    """X-7, OSV-12: no Event UncordonNode is recorded if the node stays cordoned for its next maintenance."""
    node = workload.take_node()
    first = create_active_maintenance(functions, workload, node, KUBEVIRT)
    workload.create_maintenance(node)

    functions.invoke("restore", build_updated_event(request_deletion(workload, first)))

    assert workload.read_node(node)["spec"]["unschedulable"] is True
    assert list_uncordon_event_types(workload, node) == []


@proves("NMO-14")
def test_restore_keeps_drain_taint_of_other_api_group(functions: Functions, workload: Workload) -> None:
    """NMO-14: `restore` keeps another API group's drain taint, which the maintenance did not set."""
    node = workload.take_node()
    workload.local_cluster.kubectl("taint", "node", node, "kubevirt.io/drain=by-hand:NoSchedule")
    maintenance = request_deletion(workload, create_active_maintenance(functions, workload, node))

    functions.invoke("restore", build_updated_event(maintenance))

    taints = {(taint["key"], taint.get("value")) for taint in workload.read_node(node)["spec"]["taints"]}
    assert ("kubevirt.io/drain", "by-hand") in taints
    assert MEDIK8S.drain_taint not in {key for key, _ in taints}


@proves("X-7")
def test_maintenance_of_other_node_is_not_successor(functions: Functions, workload: Workload) -> None:
    """X-7: a maintenance for another node is not a successor and gets no finalizer."""
    node = workload.take_node()
    maintenance = create_active_maintenance(functions, workload, node)
    other_maintenance = workload.create_maintenance(workload.take_node())

    reply = functions.invoke("restore", build_updated_event(request_deletion(workload, maintenance)))

    assert reply is not None
    assert reply.get_type() == events.NODE_RESTORED
    assert is_restored(workload.read_node(node))
    assert m.get_finalizers(workload.read_maintenance(other_maintenance)) == []


@proves("X-7")
def test_restore_keeps_taint_of_successor_only(functions: Functions, workload: Workload) -> None:
    """X-7, NMO-14: `restore` keeps the successor's drain taint, but not the taints of later maintenances."""
    node = workload.take_node()
    first = create_active_maintenance(functions, workload, node, KUBEVIRT)
    successor = workload.create_maintenance(node)
    last = workload.create_maintenance(node, KUBEVIRT)
    while (
        sort_by_age([successor, last])[0] is not successor
    ):  # Creation times have a resolution of one second, so the uids may determine the order.
        workload.delete(m.build_path(last))
        last = workload.create_maintenance(node, KUBEVIRT)

    reply = functions.invoke("restore", build_updated_event(request_deletion(workload, first)))

    assert reply is not None
    assert require_data(reply)["maintenance"] == events.ObjectReference.from_object(successor).as_data()
    assert KUBEVIRT.drain_taint not in {taint["key"] for taint in workload.read_node(node)["spec"]["taints"]}


def test_restore_ignores_update_without_deletion(functions: Functions, workload: Workload, audit: AuditLog) -> None:
    """X-2: `restore` ignores events about a maintenance that is not being deleted, such as status updates."""
    maintenance = create_active_maintenance(functions, workload, workload.take_node())
    writes = len(audit.list_writes_by())

    assert functions.invoke("restore", build_updated_event(maintenance)) is None
    assert functions.invoke("restore", build_product_event(events.MAINTENANCE_RESTORE_PENDING, maintenance)) is None
    assert len(audit.list_writes_by()) == writes


def test_status_update_does_not_trigger_restore(functions: Functions, workload: Workload, audit: AuditLog) -> None:
    """Design rule 9: a status update that reports a failed restore does not trigger another restore; only a tick does.

    Otherwise, an admission webhook whose message changes each time would cause an endless loop.
    """
    maintenance = request_deletion(workload, create_active_maintenance(functions, workload, workload.take_node()))
    reported = {
        **maintenance,
        "status": {**maintenance.get("status", {}), "lastError": f"{UNRESTORED_PREFIX}refused at 12:00:01"},
    }
    writes = len(audit.list_writes_by())

    assert functions.invoke("restore", build_updated_event(reported)) is None
    assert len(audit.list_writes_by()) == writes

    functions.invoke("restore", build_product_event(events.MAINTENANCE_RESTORE_PENDING, maintenance))

    assert is_gone(workload, maintenance)


def test_restore_ignores_duplicate_event(functions: Functions, workload: Workload, audit: AuditLog) -> None:
    """X-2: `restore` ignores a duplicate event, even if a new maintenance has the same name."""
    node = workload.take_node()
    maintenance = request_deletion(workload, create_active_maintenance(functions, workload, node))
    event = build_updated_event(maintenance)
    functions.invoke("restore", event)
    writes = len(audit.list_writes_by())

    assert functions.invoke("restore", event) is None
    body = {"apiVersion": maintenance["apiVersion"], "kind": maintenance["kind"], "spec": maintenance["spec"]}
    recreated = workload.client.create(MEDIK8S.path, {**body, "metadata": {"name": maintenance["metadata"]["name"]}})
    workload.delete(m.build_path(recreated))

    assert functions.invoke("restore", event) is None
    assert len(audit.list_writes_by()) == writes


@proves("NMO-15")
def test_maintenance_name_is_reusable_after_restore(functions: Functions, workload: Workload) -> None:
    """NMO-15: a new maintenance with the same name can begin right after the restore."""
    node = workload.take_node()
    maintenance = request_deletion(workload, create_active_maintenance(functions, workload, node))
    functions.invoke("restore", build_updated_event(maintenance))
    body = {"apiVersion": maintenance["apiVersion"], "kind": maintenance["kind"], "spec": maintenance["spec"]}
    recreated = workload.client.create(MEDIK8S.path, {**body, "metadata": {"name": maintenance["metadata"]["name"]}})

    reply = functions.invoke("begin", build_added_event(recreated))

    assert reply is not None
    assert reply.get_type() == events.MAINTENANCE_BEGUN


@proves("NMO-14", "C22")
def test_restore_uncordons_node_cordoned_by_hand(functions: Functions, workload: Workload) -> None:
    """NMO-14, C22: `restore` also uncordons a node that was cordoned by hand before the maintenance."""
    node = workload.take_node()
    workload.local_cluster.kubectl("cordon", node)
    maintenance = request_deletion(workload, create_active_maintenance(functions, workload, node))

    functions.invoke("restore", build_updated_event(maintenance))

    assert not workload.read_node(node)["spec"].get("unschedulable")


@proves("NMO-16")
def test_restore_removes_finalizer_of_medik8s_operator(functions: Functions, workload: Workload) -> None:
    """NMO-16: `restore` removes the medik8s operator's finalizer and keeps other finalizers."""
    node = workload.take_node()
    maintenance = workload.create_maintenance(node, finalizers=["foregroundDeleteNodeMaintenance", "example.com/hold"])
    workload.local_cluster.kubectl("cordon", node)
    maintenance = request_deletion(workload, maintenance)

    functions.invoke("restore", build_updated_event(maintenance))

    assert workload.read_maintenance(maintenance)["metadata"]["finalizers"] == ["example.com/hold"]
    assert not workload.read_node(node)["spec"].get("unschedulable")
    workload.client.patch(m.build_path(maintenance), {"metadata": {"finalizers": []}})


@proves("NMO-14")
def test_restore_releases_maintenance_of_deleted_node(functions: Functions, workload: Workload) -> None:
    """NMO-14, NMO-20: `restore` releases a maintenance whose node is deleted, and reports that the node is gone."""
    node = workload.take_node()
    maintenance = create_active_maintenance(functions, workload, node)
    workload.delete(f"/api/v1/nodes/{node}")
    maintenance = request_deletion(workload, maintenance)

    reply = functions.invoke("restore", build_updated_event(maintenance))

    assert reply is not None
    assert (reply.get_type(), require_data(reply)["nodeDeleted"]) == (events.NODE_RESTORED, True)
    assert is_gone(workload, maintenance)


@pytest.mark.parametrize("second_group", [MEDIK8S, KUBEVIRT], ids=["same-group", "other-group"])
def test_node_is_handed_over_to_second_maintenance(
    functions: Functions, workload: Workload, second_group: ApiGroup
) -> None:
    """X-7, NMO-22: when a node's first maintenance ends, the node stays cordoned for the second maintenance.

    When the second maintenance ends, the node is restored.
    """
    node = workload.take_node()
    first = create_active_maintenance(functions, workload, node)
    second = workload.create_maintenance(node, second_group)
    functions.invoke("begin", build_added_event(second))

    reply = functions.invoke("restore", build_updated_event(request_deletion(workload, first)))

    assert reply is not None
    assert reply.get_type() == events.MAINTENANCE_PENDING
    assert require_data(reply)["maintenance"] == events.ObjectReference.from_object(second).as_data()
    assert is_gone(workload, first)
    assert workload.read_node(node)["spec"]["unschedulable"] is True
    assert workload.read_node(node)["metadata"]["labels"][MAINTENANCE_LABEL] == second["metadata"]["uid"]

    begun_event = functions.invoke("begin", reply)
    assert begun_event is not None
    cordoned_event = functions.invoke("cordon", begun_event)
    assert cordoned_event is not None
    functions.invoke("taint", cordoned_event)
    last_event = functions.invoke("restore", build_updated_event(request_deletion(workload, second)))

    assert last_event is not None
    assert last_event.get_type() == events.NODE_RESTORED
    assert is_restored(workload.read_node(node))


@proves("X-7")
@pytest.mark.parametrize("second_group", [MEDIK8S, KUBEVIRT], ids=["same-group", "other-group"])
def test_node_is_restored_if_successor_is_deleted_before_begin(
    functions: Functions, workload: Workload, audit: AuditLog, second_group: ApiGroup
) -> None:
    """X-7: if the successor is deleted before it begins, its deletion restores the node."""
    node = workload.take_node()
    first = create_active_maintenance(functions, workload, node)
    second = workload.create_maintenance(node, second_group)
    pending_event = functions.invoke("restore", build_updated_event(request_deletion(workload, first)))
    assert pending_event is not None
    writes = len(audit.list_writes_by())

    last_event = functions.invoke("restore", build_updated_event(request_deletion(workload, second)))

    assert last_event is not None
    assert last_event.get_type() == events.NODE_RESTORED
    assert is_restored(workload.read_node(node))
    assert MAINTENANCE_LABEL not in workload.read_node(node)["metadata"]["labels"]
    assert is_gone(workload, second)
    assert functions.invoke("begin", pending_event) is None
    assert len(audit.list_writes_by()) - writes <= 6


@proves("X-7")
@pytest.mark.parametrize("removal", ["before begin", "during begin"])
def test_node_is_restored_without_tick_if_successor_vanished(
    functions: Functions, workload: Workload, removal: str
) -> None:
    """X-7: if the successor no longer exists, `begin` emits `maintenance.restore_pending` immediately, before any tick.

    The API server may ignore a finalizer that is written during a deletion.
    """
    node = workload.take_node()
    first = create_active_maintenance(functions, workload, node)
    second = workload.create_maintenance(node)
    pending_event = functions.invoke("restore", build_updated_event(request_deletion(workload, first)))
    assert pending_event is not None
    if removal == "before begin":
        workload.remove_maintenance(second)
    else:
        with run_before_request(
            functions.clusters["begin"], "PATCH", m.build_path(second), lambda: workload.remove_maintenance(second)
        ):
            assert functions.post("begin", pending_event).status_code == 503

    restore_event = functions.invoke("begin", pending_event)

    assert restore_event is not None
    assert restore_event.get_type() == events.MAINTENANCE_RESTORE_PENDING
    functions.invoke("restore", restore_event)
    assert is_restored(workload.read_node(node))
    assert MAINTENANCE_LABEL not in workload.read_node(node)["metadata"]["labels"]
    assert functions.invoke("begin", pending_event) is None


@pytest.mark.parametrize("finalizers", [[], ["example.com/hold"]], ids=["no finalizer", "foreign finalizer"])
def test_successor_deleted_before_finalizer_is_set_is_skipped(
    functions: Functions, workload: Workload, finalizers: list[str]
) -> None:
    """X-7: a maintenance deleted before `restore` sets its finalizer is not a successor, and the node is restored."""
    node = workload.take_node()
    first = create_active_maintenance(functions, workload, node)
    second = workload.create_maintenance(node, finalizers=finalizers)
    event, client = build_updated_event(request_deletion(workload, first)), functions.clusters["restore"]

    with run_before_request(client, "PATCH", m.build_path(second), lambda: workload.delete(m.build_path(second))):
        reply = functions.invoke("restore", event)

    assert reply is not None
    assert reply.get_type() == events.NODE_RESTORED
    assert is_restored(workload.read_node(node))
    assert is_gone(workload, first)
    assert not finalizers or workload.read_maintenance(second)["metadata"]["finalizers"] == finalizers


def test_successor_edited_before_finalizer_is_set_takes_over_node(functions: Functions, workload: Workload) -> None:
    """X-7: if the successor is edited before `restore` sets its finalizer, `restore` reads the successor again."""
    node = workload.take_node()
    event = build_updated_event(request_deletion(workload, create_active_maintenance(functions, workload, node)))
    second = workload.create_maintenance(node)

    def edit_next_maintenance() -> None:
        workload.client.patch(m.build_path(second), {"spec": {"reason": "edited"}})

    with run_before_request(functions.clusters["restore"], "PATCH", m.build_path(second), edit_next_maintenance):
        reply = functions.invoke("restore", event)

    assert reply is not None
    assert require_data(reply)["maintenance"] == events.ObjectReference.from_object(second).as_data()
    assert workload.read_maintenance(second)["metadata"]["finalizers"] == [m.FINALIZER]
    assert workload.read_node(node)["spec"]["unschedulable"] is True


@proves("X-2")
def test_duplicate_event_does_not_restore_node_of_next_maintenance(functions: Functions, workload: Workload) -> None:
    """X-2: `restore` does not change the node if another maintenance has begun since `restore` read the node."""
    node = workload.take_node()
    event = build_updated_event(request_deletion(workload, create_active_maintenance(functions, workload, node)))
    successors: list[Object] = []

    def restore_and_begin_next_maintenance() -> None:
        assert functions.invoke("restore", event) is not None
        successors.append(create_active_maintenance(functions, workload, node))

    with run_before_request(
        functions.clusters["restore"], "PATCH", build_node_path(node), restore_and_begin_next_maintenance
    ):
        assert functions.invoke("restore", event) is None

    node_object = workload.read_node(node)
    assert is_in_maintenance(node_object, MEDIK8S.drain_taint)
    assert node_object["metadata"]["labels"][MAINTENANCE_LABEL] == successors[0]["metadata"]["uid"]
    assert leases.is_holder(workload.client.get(leases.build_lease_path(node)), successors[0])


@proves("X-2")
def test_duplicate_event_does_not_delete_lease_of_next_holder(functions: Functions, workload: Workload) -> None:
    """X-2: `restore` does not delete a lease that another holder takes over after `restore` has read the lease."""
    node = workload.take_node()
    maintenance = create_active_maintenance(functions, workload, node)
    event, path = build_updated_event(request_deletion(workload, maintenance)), leases.build_lease_path(node)

    with run_before_request(functions.clusters["restore"], "DELETE", path, lambda: take_over_lease(workload, path)):
        functions.invoke("restore", event)

    assert workload.client.get(path)["spec"]["holderIdentity"] == "the next one"


def take_over_lease(workload: Workload, path: str) -> None:
    """Make another holder take over the lease at this path."""
    workload.client.patch(path, {"spec": {"holderIdentity": "the next one"}})


@proves("NMO-20")
def test_restore_does_not_uncordon_replacement_node(functions: Functions, workload: Workload) -> None:
    """NMO-20: `restore` does not uncordon a node that was recreated after `restore` had read the original node."""
    node = workload.take_node()
    event = build_updated_event(request_deletion(workload, create_active_maintenance(functions, workload, node)))

    def replace_node() -> None:
        workload.delete(build_node_path(node))
        workload.client.create("/api/v1/nodes", {"metadata": {"name": node}, "spec": {"unschedulable": True}})

    with run_before_request(functions.clusters["restore"], "PATCH", build_node_path(node), replace_node):
        functions.invoke("restore", event)

    assert workload.read_node(node)["spec"]["unschedulable"] is True


def test_deletion_before_begin_does_not_change_node(functions: Functions, workload: Workload, audit: AuditLog) -> None:
    """NMO-22: the deletion of a maintenance that has not begun does not change the node."""
    node = workload.take_node()
    create_active_maintenance(functions, workload, node)
    second = workload.create_maintenance(node, KUBEVIRT)
    failure_event = functions.invoke("begin", build_added_event(second))
    assert failure_event is not None
    functions.invoke("status", failure_event)
    second = workload.read_maintenance(second)
    workload.delete(m.build_path(second))
    writes = len(audit.list_writes_by())

    hint = {**second, "metadata": {**second["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    assert functions.invoke("restore", build_updated_event(hint)) is None
    assert len(audit.list_writes_by()) == writes
    assert workload.read_node(node)["spec"]["unschedulable"] is True


def test_interrupted_restore_is_completed(functions: Functions, workload: Workload) -> None:
    """X-5: `restore` removes the finalizer if an earlier attempt restored only the node."""
    node = workload.take_node()
    maintenance = request_deletion(workload, create_active_maintenance(functions, workload, node))
    workload.local_cluster.kubectl("uncordon", node)
    workload.local_cluster.kubectl("taint", "node", node, "medik8s.io/drain:NoSchedule-")

    functions.invoke("restore", build_product_event(events.MAINTENANCE_RESTORE_PENDING, maintenance))

    assert is_gone(workload, maintenance)


def test_restore_logs_each_change(functions: Functions, workload: Workload, caplog: pytest.LogCaptureFixture) -> None:
    """NMO-17, NMO-17a, KNM-5: `restore` logs each change with the messages that the requirements specify."""
    node = workload.take_node()
    maintenance = request_deletion(workload, create_active_maintenance(functions, workload, node))
    caplog.clear()

    with caplog.at_level("INFO", logger=event_objects.log.name):
        functions.invoke("restore", build_updated_event(maintenance))

    assert [record.message for record in caplog.records] == [
        "Reconciling NodeMaintenance",
        f"Maintenance taints will be removed from node {node}",
        f"Applying medik8s.io/drain taint remove on Node: {node}",
        f"uncordon Node: {node}",
        f"NodeMaintenance Object: /{maintenance['metadata']['name']} Deleted ",
    ]
