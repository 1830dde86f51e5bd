"""Tests for `guard` on a real API server."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from cloudevents.core.v1.event import CloudEvent

from chaos.api_fault_proxy import Fault, FaultProxy
from eventing import events
from functions.event_data import require_data
from functions.installs import INSTALL_LEASE_CACHE
from functions.maintenance.guard import guard
from kube.maintenance import objects as m
from kube.maintenance.groups import GROUPS, KUBEVIRT, MEDIK8S, ApiGroup
from kube.maintenance.kubernetes_events import CORDONED_AGAIN_REASON, EVENTS_PATH
from kube.maintenance.lookup import sort_by_age
from kube.nodes import MAINTENANCE_LABEL
from kube.paths import Object
from kube.times import format_time
from localcluster.audit_log import AuditLog
from tests.functions.conftest import Functions
from tests.functions.event_builders import (
    build_node_deleted_event,
    build_node_updated_event,
    build_product_event,
    build_updated_event,
)
from tests.functions.request_hooks import count_requests, record_list_requests, run_before_request
from tests.proofs import proves
from tests.workload import Workload, summarize_writes


def create_active_maintenance(functions: Functions, workload: Workload, node: str, group: ApiGroup = MEDIK8S) -> Object:
    """Create a maintenance whose node is cordoned and tainted, and whose status reports the cordon."""
    maintenance = workload.create_maintenance(node, group)
    functions.run_until_tainted(maintenance)
    functions.invoke("status", build_product_event(events.PODS_EVICTED, maintenance))
    maintenance = workload.read_maintenance(maintenance)
    assert m.get_condition(maintenance, "Cordoned")["status"] == "True"
    return maintenance


def test_guard_emits_node_drifted_for_uncordoned_node(
    functions: Functions, workload: Workload, audit: AuditLog
) -> None:
    """NMO-3, NMO-5: for a node that was uncordoned by hand, `guard` emits `node.drifted` and records a Warning."""
    node = workload.take_node()
    maintenance = create_active_maintenance(functions, workload, node)
    workload.local_cluster.kubectl("uncordon", node)
    writes = len(audit.list_writes_by())

    reply = functions.invoke("guard", build_node_updated_event(workload.read_node(node)))

    assert reply is not None
    assert reply.get_type() == events.NODE_DRIFTED
    assert require_data(reply)["maintenance"] == events.ObjectReference.from_object(maintenance).as_data()
    assert [(verb, kind) for verb, kind, _ in summarize_writes(audit.list_writes_by()[writes:])] == [
        ("create", "events")
    ]
    description = workload.local_cluster.kubectl("describe", "node", node).stdout
    assert (
        f'node "{node}" was uncordoned or untainted during maintenance "{maintenance["metadata"]["name"]}"'
        in description
    )
    (warning_event,) = workload.client.list(
        EVENTS_PATH, field_selector=f"involvedObject.name={node},reason={CORDONED_AGAIN_REASON}"
    )["items"]
    assert warning_event["type"] == "Warning"
    assert warning_event["message"].endswith(f"to end the maintenance, run kubectl maintenance stop {node}")


@pytest.mark.parametrize("group", GROUPS.values(), ids=lambda group: group.api_version.split("/")[0])
def test_guard_emits_node_drifted_for_removed_drain_taint(
    functions: Functions, workload: Workload, group: ApiGroup
) -> None:
    """NMO-4, X-7: `guard` emits `node.drifted` if the drain taint of any API group was removed by hand."""
    node = workload.take_node()
    maintenance = create_active_maintenance(functions, workload, node, group)
    workload.local_cluster.kubectl("taint", "node", node, f"{group.drain_taint}:NoSchedule-")

    reply = functions.invoke("guard", build_node_updated_event(workload.read_node(node)))

    assert reply is not None
    assert reply.get_type() == events.NODE_DRIFTED
    assert require_data(reply)["maintenance"] == events.ObjectReference.from_object(maintenance).as_data()


@pytest.mark.parametrize("label", ["of-an-earlier-one", ""])
def test_guard_detects_drift_with_any_maintenance_label_value(
    functions: Functions, workload: Workload, label: str
) -> None:
    """Design rule 10: `guard` finds the node's maintenance even if the label has a different or an empty value."""
    node = workload.take_node()
    maintenance = create_active_maintenance(functions, workload, node)
    workload.local_cluster.kubectl("uncordon", node)
    workload.local_cluster.kubectl("label", "--overwrite", "node", node, f"{MAINTENANCE_LABEL}={label}")

    reply = functions.invoke("guard", build_node_updated_event(workload.read_node(node)))

    assert reply is not None
    assert require_data(reply)["maintenance"] == events.ObjectReference.from_object(maintenance).as_data()


def test_guard_sends_one_list_request_between_cordon_and_taint(functions: Functions, workload: Workload) -> None:
    """Design rule 10: between cordon and taint, `guard` sends only one list request.

    The controller manager adds the unschedulable taint in each drain, which causes an update event between the two.
    The test first caches that this install is active, because `guard` otherwise reads the install Lease once a minute.
    """
    INSTALL_LEASE_CACHE.confirm(functions.clusters["guard"])
    node = workload.take_node()
    functions.run_chain(workload.create_maintenance(node), "begin", "cordon")
    hint = build_node_updated_event(workload.read_node(node))

    with count_requests(functions.clusters["guard"].api) as requests:
        assert functions.invoke("guard", hint) is None

    assert requests == {f"GET {MEDIK8S.path}": 1}


def test_guard_treats_removed_maintenance_label_as_drift(functions: Functions, workload: Workload) -> None:
    """Design rule 10: the event source reports a node without its label as deleted, which `guard` treats as drift."""
    node = workload.take_node()
    maintenance = create_active_maintenance(functions, workload, node)
    before = workload.read_node(node)
    workload.local_cluster.kubectl("label", "node", node, f"{MAINTENANCE_LABEL}-")

    reply = functions.invoke("guard", build_node_deleted_event(before))

    assert reply is not None
    assert reply.get_type() == events.NODE_DRIFTED
    assert f'node "{node}" was unlabelled during' in require_data(reply)["message"]
    cordoned_event = functions.invoke("cordon", reply)
    assert cordoned_event is not None
    functions.invoke("taint", cordoned_event)
    assert workload.read_node(node)["metadata"]["labels"][MAINTENANCE_LABEL] == maintenance["metadata"]["uid"]
    assert functions.invoke("guard", build_node_updated_event(workload.read_node(node))) is None
    assert not m.is_deleting(workload.read_maintenance(maintenance))


def test_guard_emits_one_event_for_repeated_drift_until_backoff_ends(
    functions: Functions, workload: Workload, audit: AuditLog
) -> None:
    """Design rule 9: `guard` emits one event for repeated drift; then its backoff grows with the drift's duration.

    Another controller may remove the label again and again. During the backoff, only a tick repairs the drift.
    """
    node = workload.take_node()
    maintenance = create_active_maintenance(functions, workload, node)
    labelled_node = workload.read_node(node)
    workload.local_cluster.kubectl("label", "node", node, f"{MAINTENANCE_LABEL}-")
    writes = len(audit.list_writes_by())

    first_event = functions.invoke("guard", build_node_deleted_event(labelled_node))
    repeated_replies = [functions.invoke("guard", build_node_deleted_event(labelled_node)) for _ in range(5)]
    write_count = len(audit.list_writes_by()) - writes
    set_drift_event_age(workload, node, first_seconds_ago=80, last_seconds_ago=11)
    reply_in_backoff = functions.invoke("guard", build_node_deleted_event(labelled_node))

    assert first_event is not None
    assert repeated_replies == [None] * 5
    assert write_count == 1
    assert reply_in_backoff is None  # The drift has lasted for 69 seconds, so the backoff is 60 seconds.
    set_drift_event_age(workload, node, first_seconds_ago=21, last_seconds_ago=11)
    assert functions.invoke("guard", build_node_deleted_event(labelled_node)) is not None
    assert not m.is_deleting(workload.read_maintenance(maintenance))


@pytest.mark.slow
@proves("X-6")
def test_guard_emits_nothing_if_kubernetes_event_cannot_be_written(
    proxied_functions: Functions, fault_proxy: FaultProxy, functions: Functions, workload: Workload
) -> None:
    """Design rule 9: `guard` emits nothing if it cannot write the Event that counts the repeated drift."""
    node = workload.take_node()
    create_active_maintenance(functions, workload, node)
    workload.local_cluster.kubectl("uncordon", node)
    fault_proxy.inject(lambda request: Fault(403, "exceeded quota") if request.startswith("create events") else None)

    reply = proxied_functions.invoke("guard", build_node_updated_event(workload.read_node(node)))
    fault_proxy.stop_faults()

    assert reply is None
    assert functions.invoke("guard", build_node_updated_event(workload.read_node(node))) is not None


def create_two_maintenances(workload: Workload, node: str) -> list[Object]:
    """Create two maintenances for a node and return them in the order of `guard`: by age in seconds, then by uid."""
    return list(sort_by_age([workload.create_maintenance(node), workload.create_maintenance(node)]))


def mark_as_begun(workload: Workload, maintenance: Object, *, is_cordoned: bool) -> None:
    """Mark a maintenance as begun, even without the lease; `is_cordoned` also sets the condition Cordoned."""
    node = workload.read_node(maintenance["spec"]["nodeName"])
    workload.client.patch(
        m.build_path(maintenance),
        m.build_begin_patch(workload.read_maintenance(maintenance), node, {"totalpods": 0, "evictionPods": 0}),
    )
    if is_cordoned:
        now = format_time(datetime.now(timezone.utc))
        condition = {
            "type": "Cordoned",
            "status": "True",
            "reason": "Cordoned",
            "message": "m",
            "lastTransitionTime": now,
        }
        workload.client.patch(f"{m.build_path(maintenance)}/status", {"status": {"conditions": [condition]}})
    version = workload.read_maintenance(maintenance)["metadata"]["resourceVersion"]
    # Wait until the API server's watch cache contains the change.
    workload.client.run(workload.client.api.list(m.get_group(maintenance).path, resource_version=version))


@pytest.mark.parametrize("reason", ["not cordoned yet", "drift just emitted"])
def test_guard_checks_second_maintenance_if_first_causes_no_event(
    functions: Functions, workload: Workload, reason: str
) -> None:
    """X-7: if `guard` emits nothing for a node's first maintenance, it still checks the second maintenance.

    The status of the first maintenance reports no cordon yet, or its drift has just been emitted.
    """
    node = workload.take_node()
    first, second = create_two_maintenances(workload, node)
    mark_as_begun(workload, first, is_cordoned=reason == "drift just emitted")
    workload.local_cluster.kubectl("label", "node", node, f"{MAINTENANCE_LABEL}={second['metadata']['uid']}")
    hint = build_node_updated_event(workload.read_node(node))
    first_replies = [] if reason == "not cordoned yet" else guard(hint, functions.clusters["guard"])
    mark_as_begun(workload, second, is_cordoned=True)

    replies = guard(hint, functions.clusters["guard"])

    assert [require_data(event)["maintenance"]["uid"] for event in (*first_replies, *replies)] == [
        maintenance["metadata"]["uid"] for maintenance in ([first, second] if first_replies else [second])
    ]


def test_guard_deletes_second_maintenance_of_deleted_node(functions: Functions, workload: Workload) -> None:
    """NMO-20: `guard` deletes a deleted node's second maintenance even if the first maintenance no longer exists."""
    node = workload.take_node()
    first, second = create_two_maintenances(workload, node)
    for maintenance in (first, second):
        mark_as_begun(workload, maintenance, is_cordoned=True)
        # The API server does not serve this API version, so the garbage collector does not delete the maintenance.
        owner = {
            **workload.read_maintenance(maintenance)["metadata"]["ownerReferences"][0],
            "apiVersion": "example.com/v1",
        }
        workload.client.patch(m.build_path(maintenance), {"metadata": {"ownerReferences": [owner]}})
    hint = build_node_deleted_event(workload.read_node(node))
    workload.delete(f"/api/v1/nodes/{node}")

    def delete_first_maintenance() -> None:
        workload.remove_maintenance(first)

    with run_before_request(functions.clusters["guard"], "DELETE", m.build_path(first), delete_first_maintenance):
        assert functions.invoke("guard", hint) is None

    assert m.is_deleting(workload.read_maintenance(second))


@pytest.mark.parametrize("is_deleted", [False, True], ids=["updated", "deleted"])
def test_guard_lists_latest_state_after_node_deletion(
    functions: Functions, workload: Workload, is_deleted: bool
) -> None:
    """Design rule 1: `guard` lists the latest state after a deletion, and the cached state after an update.

    The cache may still contain the maintenance although `restore` has just removed the node's label.
    """
    node = workload.take_node()
    maintenance = create_active_maintenance(functions, workload, node)
    workload.local_cluster.kubectl("uncordon", node)
    hint = (build_node_deleted_event if is_deleted else build_node_updated_event)(workload.read_node(node))

    with record_list_requests(functions.clusters["guard"].api) as requests:
        functions.invoke("guard", hint)

    versions = {request.version for request in requests if request.path == m.get_group(maintenance).path}
    assert versions == ({""} if is_deleted else {"0"})


def set_drift_event_age(workload: Workload, node: str, *, first_seconds_ago: int, last_seconds_ago: int) -> None:
    """Set the ages, in seconds, of the first and last timestamp of the Event that counts the node's drift."""
    (event,) = workload.client.list(
        EVENTS_PATH, field_selector=f"involvedObject.name={node},reason={CORDONED_AGAIN_REASON}"
    )["items"]
    now = datetime.now(timezone.utc)
    times = {"firstTimestamp": first_seconds_ago, "lastTimestamp": last_seconds_ago}
    patch = {name: format_time(now - timedelta(seconds=seconds)) for name, seconds in times.items()}
    workload.client.patch(f"{EVENTS_PATH}/{event['metadata']['name']}", patch)


def test_guard_ignores_restored_node(functions: Functions, workload: Workload, audit: AuditLog) -> None:
    """Design rule 10: `guard` ignores the deletion event that `restore` causes by removing the label."""
    node = workload.take_node()
    maintenance = create_active_maintenance(functions, workload, node)
    before = workload.read_node(node)
    workload.delete(m.build_path(maintenance))
    functions.invoke("restore", build_updated_event(workload.read_maintenance(maintenance)))
    writes = len(audit.list_writes_by())

    assert functions.invoke("guard", build_node_deleted_event(before)) is None
    assert len(audit.list_writes_by()) == writes


@proves("NMO-20")
def test_guard_deletes_maintenance_of_replaced_node(functions: Functions, workload: Workload) -> None:
    """NMO-20: `guard` deletes the maintenance of a deleted node even if a new node has its name."""
    node = workload.take_node()
    maintenance = create_active_maintenance(functions, workload, node)
    before = workload.read_node(node)
    workload.delete(f"/api/v1/nodes/{node}")
    workload.client.create("/api/v1/nodes", {"metadata": {"name": node}})

    assert functions.invoke("guard", build_node_deleted_event(before)) is None

    assert m.is_deleting(workload.read_maintenance(maintenance))
    assert not workload.read_node(node)["spec"].get("unschedulable")


def test_guard_deletes_maintenance_without_owner_reference_only_if_node_is_gone(
    functions: Functions, workload: Workload
) -> None:
    """NMO-20: `guard` deletes a maintenance without an owner reference only if no node with that name exists."""
    node = workload.take_node()
    maintenance = create_active_maintenance(functions, workload, node)
    workload.client.patch(m.build_path(maintenance), {"metadata": {"ownerReferences": []}})
    before = workload.read_node(node)

    functions.invoke("guard", build_node_deleted_event(before))
    is_kept = not m.is_deleting(workload.read_maintenance(maintenance))
    workload.delete(f"/api/v1/nodes/{node}")
    functions.invoke("guard", build_node_deleted_event(before))

    assert (is_kept, m.is_deleting(workload.read_maintenance(maintenance))) == (True, True)


def test_guard_ignores_node_without_drift(functions: Functions, workload: Workload, audit: AuditLog) -> None:
    """X-2: `guard` ignores an update of a node without drift, and an outdated event about the same node."""
    node = workload.take_node()
    before = workload.read_node(node)
    create_active_maintenance(functions, workload, node)
    writes = len(audit.list_writes_by())

    assert functions.invoke("guard", build_node_updated_event(workload.read_node(node))) is None
    assert functions.invoke("guard", build_node_updated_event(before)) is None
    assert len(audit.list_writes_by()) == writes


def test_guard_ignores_node_that_is_not_cordoned_yet(functions: Functions, workload: Workload, audit: AuditLog) -> None:
    """X-2: `guard` ignores a node that is not cordoned yet because its maintenance has just begun."""
    node = workload.take_node()
    maintenance = workload.create_maintenance(node)
    functions.invoke("status", functions.run_begin(maintenance))
    writes = len(audit.list_writes_by())

    assert functions.invoke("guard", build_node_updated_event(workload.read_node(node))) is None
    assert len(audit.list_writes_by()) == writes


@proves("DRN-6")
def test_guard_ignores_manual_cordon(functions: Functions, workload: Workload, audit: AuditLog) -> None:
    """DRN-6: `guard` does not react to a manual cordon of a node without a maintenance."""
    node = workload.take_node()
    for command in ("cordon", "uncordon"):
        workload.local_cluster.kubectl(command, node)
        assert functions.invoke("guard", build_node_updated_event(workload.read_node(node))) is None

    assert audit.list_writes_by() == []


def test_guard_deletes_maintenance_of_deleted_node(functions: Functions, workload: Workload) -> None:
    """NMO-20: `guard` deletes the maintenance of a deleted node, and `restore` releases the maintenance."""
    node = workload.take_node()
    maintenance = create_active_maintenance(functions, workload, node)
    before = workload.read_node(node)
    workload.delete(f"/api/v1/nodes/{node}")

    assert functions.invoke("guard", build_node_deleted_event(before)) is None

    maintenance = workload.read_maintenance(maintenance)
    assert m.is_deleting(maintenance)
    functions.invoke("restore", build_updated_event(maintenance))
    assert (
        workload.client.list(
            m.get_group(maintenance).path, field_selector=f"metadata.name={maintenance['metadata']['name']}"
        )["items"]
        == []
    )


def test_guard_ignores_outdated_node_deletion(functions: Functions, workload: Workload, audit: AuditLog) -> None:
    """X-2: an outdated deletion event for an earlier node of the same name does not end the new node's maintenance."""
    node = workload.take_node()
    old_node = {**workload.read_node(node)}
    maintenance = create_active_maintenance(functions, workload, node)
    writes = len(audit.list_writes_by())

    functions.invoke(
        "guard", build_node_deleted_event({**old_node, "metadata": {**old_node["metadata"], "uid": "of-an-older-node"}})
    )

    assert not m.is_deleting(workload.read_maintenance(maintenance))
    assert len(audit.list_writes_by()) == writes


def test_guard_keeps_maintenance_that_has_not_begun_if_node_is_deleted(
    functions: Functions, workload: Workload, audit: AuditLog
) -> None:
    """NMO-22: `guard` does not delete a deleted node's maintenance if the maintenance has not begun."""
    node = workload.take_node()
    before = workload.read_node(node)
    maintenance = workload.create_maintenance(node, KUBEVIRT)

    functions.invoke("guard", build_node_deleted_event(before))

    assert not m.is_deleting(workload.read_maintenance(maintenance))
    assert audit.list_writes_by() == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metadata": {}}, "metadata.name of the Node"),
        ({"metadata": {"name": ""}}, "metadata.name of the Node"),
        ({"spec": None}, "spec of the Node"),
        ({"spec": {"taints": 1, "unschedulable": True}}, "the Node in data"),
    ],
)
def test_guard_answers_400_to_malformed_node(functions: Functions, change: Object, message: str) -> None:
    """X-6: `guard` answers 400 to an event with a malformed Node and names the malformed field."""
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n", "labels": {MAINTENANCE_LABEL: "some-uid"}},
        "spec": {},
    }
    event = CloudEvent(dict(build_node_updated_event(node).get_attributes()), {**node, **change})

    response = functions.post("guard", event)

    assert (response.status_code, response.text.startswith(message)) == (400, True), response.text
