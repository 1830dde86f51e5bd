"""Tests for late node patches: the maintenance is deleted after a step has read it, but before the step's patch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.event_data import require_data
from kube.client.api import JSON_PATCH
from kube.maintenance import leases
from kube.maintenance import objects as m
from kube.maintenance.groups import DRAIN_TAINTS, KUBEVIRT, MEDIK8S, ApiGroup
from kube.nodes import MAINTENANCE_LABEL, build_cordon_patch, build_node_path, is_in_maintenance
from kube.paths import Object
from localcluster.audit_log import AuditLog
from tests.functions.conftest import Functions
from tests.functions.event_builders import build_product_event, build_tick, build_updated_event
from tests.functions.request_hooks import count_requests, run_before_request
from tests.proofs import proves
from tests.workload import Workload, summarize_writes

pytestmark = pytest.mark.usefixtures("no_wait_for_events_in_flight")

PRECEDING_STEPS = {"cordon": ("begin",), "taint": ("begin", "cordon")}
"""Map from step whose node patch is delayed to the steps that run before it."""


def is_restored(node: Object) -> bool:
    """Return whether the node is schedulable and has neither the maintenance label nor a drain taint.

    The unschedulable taint is ignored, because the controller manager removes it.
    """
    keys = {taint["key"] for taint in node["spec"].get("taints") or []}
    return not (
        node["spec"].get("unschedulable") or MAINTENANCE_LABEL in node["metadata"]["labels"] or keys & DRAIN_TAINTS
    )


def build_restore_action(functions: Functions, workload: Workload, maintenance: Object) -> Callable[[], None]:
    """Return an action that deletes the maintenance and restores its node, to run during another step."""

    def delete_and_restore() -> None:
        workload.delete(m.build_path(maintenance))
        reply = functions.invoke("restore", build_updated_event(workload.read_maintenance(maintenance)))
        assert reply is not None
        assert reply.get_type() == events.NODE_RESTORED

    return delete_and_restore


def run_step_with_late_patch(
    functions: Functions, workload: Workload, maintenance: Object, step: str
) -> BaseCloudEvent | None:
    """Run a step, delay its node patch until the node has been restored, and return the step's reply."""
    node = maintenance["spec"]["nodeName"]
    event = functions.run_chain(maintenance, *PRECEDING_STEPS[step])
    with run_before_request(
        functions.clusters[step], "PATCH", build_node_path(node), build_restore_action(functions, workload, maintenance)
    ):
        return functions.invoke(step, event)


def test_cordon_of_restored_node_is_undone(functions: Functions, workload: Workload, audit: AuditLog) -> None:
    """Design rule 12: if the maintenance is deleted during `cordon`, later events make `restore` undo the cordon."""
    node = workload.take_node()
    maintenance = workload.create_maintenance(node)

    cordoned_event = run_step_with_late_patch(functions, workload, maintenance, "cordon")
    assert cordoned_event is not None
    reply = functions.invoke("taint", cordoned_event)

    assert reply is not None
    assert (reply.get_type(), require_data(reply)["maintenance"]) == (
        events.MAINTENANCE_RESTORE_PENDING,
        events.ObjectReference.from_object(maintenance).as_data(),
    )
    assert not is_restored(workload.read_node(node))
    restored_event = functions.invoke("restore", reply)
    assert restored_event is not None
    assert restored_event.get_type() == events.NODE_RESTORED
    assert is_restored(workload.read_node(node))
    assert functions.invoke("restore", reply) is None
    assert functions.invoke("resync", build_tick()) is None
    assert len([entry for entry in summarize_writes(audit.list_writes_by()) if entry[:2] == ("patch", "nodes")]) == 2


def test_cordon_executed_after_timeout_is_undone(functions: Functions, workload: Workload) -> None:
    """Design rule 12: a redelivery undoes a cordon that the API server executed after the step's timeout."""
    node = workload.take_node()
    maintenance = workload.create_maintenance(node)
    begun_event = functions.run_begin(maintenance)
    patch = build_cordon_patch(workload.read_node(node), maintenance["metadata"]["uid"])
    build_restore_action(functions, workload, maintenance)()
    workload.client.patch(build_node_path(node), patch, JSON_PATCH)

    reply = functions.invoke("cordon", begun_event)

    assert reply is not None
    assert reply.get_type() == events.MAINTENANCE_RESTORE_PENDING
    functions.invoke("restore", reply)
    assert is_restored(workload.read_node(node))
    assert functions.invoke("cordon", begun_event) is None


def test_delayed_taint_of_restored_node_is_rejected(functions: Functions, workload: Workload) -> None:
    """Design rule 12: the API server rejects a delayed taint if the node lacks the label that the patch requires."""
    node = workload.take_node()

    assert run_step_with_late_patch(functions, workload, workload.create_maintenance(node), "taint") is None

    assert is_restored(workload.read_node(node))


def test_taint_restores_removed_label(functions: Functions, workload: Workload) -> None:
    """Design rule 12: `taint` restores a label that another writer removed, and the maintenance continues."""
    node = workload.take_node()
    maintenance = workload.create_maintenance(node)
    cordoned_event = functions.run_chain(maintenance, "begin", "cordon")
    workload.local_cluster.kubectl("label", "node", node, f"{MAINTENANCE_LABEL}-")

    reply = functions.invoke("taint", cordoned_event)

    assert reply is not None
    assert reply.get_type() == events.NODE_TAINTED
    assert workload.read_node(node)["metadata"]["labels"][MAINTENANCE_LABEL] == maintenance["metadata"]["uid"]


def test_taint_reads_maintenance_only_before_write_on_labelled_node(functions: Functions, workload: Workload) -> None:
    """Design rule 8: on a labelled node, `taint` reads the maintenance before each write, but not after it."""
    node = workload.take_node()
    maintenance = workload.create_maintenance(node)
    cordoned_event = functions.run_chain(maintenance, "begin", "cordon")

    with count_requests(functions.clusters["taint"].api) as requests:
        functions.invoke("taint", cordoned_event)

    assert requests[f"GET {m.build_path(maintenance)}"] == requests[f"PATCH {build_node_path(node)}"] > 0


@pytest.mark.parametrize("group", [MEDIK8S, KUBEVIRT], ids=["medik8s", "kubevirt"])
def test_taint_of_restored_node_is_undone(functions: Functions, workload: Workload, group: ApiGroup) -> None:
    """Design rule 12: if the node is restored after `taint` read the maintenance, the taints are removed again."""
    node = workload.take_node()
    maintenance = workload.create_maintenance(node, group)
    cordoned_event = functions.run_chain(maintenance, "begin", "cordon")
    restore_node = build_restore_action(functions, workload, maintenance)
    with run_before_request(
        functions.clusters["taint"], "GET", build_node_path(node), restore_node, after_path=m.build_path(maintenance)
    ):
        reply = functions.invoke("taint", cordoned_event)

    assert reply is not None
    assert reply.get_type() == events.MAINTENANCE_RESTORE_PENDING
    functions.invoke("restore", reply)
    assert is_restored(workload.read_node(node))


@pytest.mark.parametrize("is_next_tainted", [False, True], ids=["before its steps", "after its steps"])
def test_delayed_cordon_does_not_affect_next_maintenance(
    functions: Functions, workload: Workload, is_next_tainted: bool
) -> None:
    """Design rule 12: a delayed cordon changes neither the taints nor the label of the node's next maintenance."""
    node = workload.take_node()
    maintenance = workload.create_maintenance(node)
    begun_event = functions.run_begin(maintenance)
    next_maintenances: list[Object] = []

    def begin_next_maintenance() -> None:
        build_restore_action(functions, workload, maintenance)()
        next_maintenances.append(workload.create_maintenance(node, KUBEVIRT))
        functions.run_begin(next_maintenances[0])
        if is_next_tainted:
            functions.run_until_tainted(next_maintenances[0])

    with run_before_request(functions.clusters["cordon"], "PATCH", build_node_path(node), begin_next_maintenance):
        reply = functions.invoke("cordon", begun_event)
    if reply is not None and (reply := functions.invoke("taint", reply)) is not None:
        assert reply.get_type() == events.MAINTENANCE_RESTORE_PENDING
        functions.invoke("restore", reply)
    functions.run_until_tainted(next_maintenances[0])

    node_object = workload.read_node(node)
    assert is_in_maintenance(node_object, KUBEVIRT.drain_taint)
    assert node_object["metadata"]["labels"][MAINTENANCE_LABEL] == next_maintenances[0]["metadata"]["uid"]
    assert leases.is_holder(workload.client.get(leases.build_lease_path(node)), next_maintenances[0])


@proves("X-3")
def test_tick_restores_node_after_delayed_cordon(functions: Functions, workload: Workload, audit: AuditLog) -> None:
    """Design rule 12: if `cordon`'s reply is lost, a tick emits one event, and `restore` undoes the delayed cordon."""
    node = workload.take_node()
    run_step_with_late_patch(functions, workload, workload.create_maintenance(node), "cordon")

    restore_event = functions.invoke("resync", build_tick())
    assert restore_event is not None
    assert (restore_event.get_type(), require_data(restore_event)["node"]) == (events.MAINTENANCE_RESTORE_PENDING, node)
    writes = len(audit.list_writes_by())
    restored_event = functions.invoke("restore", restore_event)

    assert restored_event is not None
    assert (restored_event.get_type(), require_data(restored_event)["node"]) == (events.NODE_RESTORED, node)
    assert is_restored(workload.read_node(node))
    kinds = [(verb, kind) for verb, kind, _ in summarize_writes(audit.list_writes_by()[writes:])]
    assert kinds == [("patch", "nodes"), ("create", "events")]
    assert functions.invoke("resync", build_tick()) is None


@proves("X-3", "X-5")
def test_tick_restores_node_after_finalizer_removal(functions: Functions, workload: Workload) -> None:
    """X-3, X-5: a tick restores the node and releases its lease if the finalizer was removed during the drain."""
    node = workload.take_node()
    maintenance = workload.create_maintenance(node, KUBEVIRT)
    functions.run_until_tainted(maintenance)
    workload.remove_maintenance(maintenance)

    restore_event = functions.invoke("resync", build_tick())
    assert restore_event is not None
    assert require_data(restore_event)["maintenance"] == events.ObjectReference.from_object(maintenance).as_data()
    assert functions.invoke("restore", restore_event) is not None

    assert is_restored(workload.read_node(node))
    assert (
        workload.client.list(leases.LEASES_PATH, field_selector=f"metadata.name={leases.build_lease_name(node)}")[
            "items"
        ]
        == []
    )
    assert functions.invoke("resync", build_tick()) is None


def test_tick_releases_orphaned_lease(functions: Functions, workload: Workload) -> None:
    """Design rule 12: a tick releases the lease of a maintenance that no longer exists, without changing the node."""
    node = workload.take_node()
    workload.local_cluster.kubectl("cordon", node)
    maintenance = workload.create_maintenance(node)
    functions.run_begin(maintenance)
    workload.remove_maintenance(maintenance)

    restore_event = functions.invoke("resync", build_tick())
    assert restore_event is not None
    restored_event = functions.invoke("restore", restore_event)

    assert restored_event is not None
    assert restored_event.get_type() == events.NODE_RESTORED
    assert (
        workload.client.list(leases.LEASES_PATH, field_selector=f"metadata.name={leases.build_lease_name(node)}")[
            "items"
        ]
        == []
    )
    assert workload.read_node(node)["spec"]["unschedulable"] is True
    assert functions.invoke("resync", build_tick()) is None


def test_restore_emits_nothing_if_duplicate_event_has_released_lease(functions: Functions, workload: Workload) -> None:
    """X-2: `restore` emits nothing if a duplicate event has already released the orphaned lease."""
    node = workload.take_node()
    maintenance = workload.create_maintenance(node)
    functions.run_begin(maintenance)
    restore_event, path = (
        build_product_event(events.MAINTENANCE_RESTORE_PENDING, maintenance),
        leases.build_lease_path(node),
    )
    workload.remove_maintenance(maintenance)

    with run_before_request(functions.clusters["restore"], "DELETE", path, lambda: workload.delete(path)):
        assert functions.invoke("restore", restore_event) is None


def test_orphaned_node_is_restored_if_another_node_has_maintenance(functions: Functions, workload: Workload) -> None:
    """Design rule 12: `restore` restores an orphaned node even if another node has a maintenance."""
    node = workload.take_node()
    maintenance = workload.create_maintenance(node)
    functions.run_until_tainted(maintenance)
    restore_event = build_product_event(events.MAINTENANCE_RESTORE_PENDING, maintenance)
    workload.remove_maintenance(maintenance)
    workload.create_maintenance(workload.take_node())

    assert functions.invoke("restore", restore_event) is not None
    assert is_restored(workload.read_node(node))


@pytest.mark.parametrize("has_begun", [True, False], ids=["begun", "waiting"])
def test_outdated_event_does_not_restore_node_of_new_maintenance(
    functions: Functions, workload: Workload, audit: AuditLog, has_begun: bool
) -> None:
    """X-2: an outdated event does not restore a node that has a new maintenance."""
    node = workload.take_node()
    maintenance = workload.create_maintenance(node)
    functions.run_until_tainted(maintenance)
    restore_event = build_product_event(events.MAINTENANCE_RESTORE_PENDING, maintenance)
    workload.remove_maintenance(maintenance)
    following = workload.create_maintenance(node)
    if has_begun:
        functions.run_until_tainted(following)
    writes = len(audit.list_writes_by())

    assert functions.invoke("restore", restore_event) is None
    assert len(audit.list_writes_by()) == writes


def test_cordon_and_taint_copy_again_flag_to_reply(functions: Functions, workload: Workload) -> None:
    """Design rule 9: `cordon` and `taint` copy `again`, which marks a repair requested by `evict`, to the reply."""
    maintenance = workload.create_maintenance(workload.take_node())
    first_event = functions.run_until_tainted(maintenance)

    cordoned_event = functions.invoke(
        "cordon", build_product_event(events.NODE_DRIFTED, maintenance, data={"again": True})
    )
    assert cordoned_event is not None
    tainted_event = functions.invoke("taint", cordoned_event)

    assert tainted_event is not None
    assert [require_data(event).get("again") for event in (first_event, cordoned_event, tainted_event)] == [
        None,
        True,
        True,
    ]
