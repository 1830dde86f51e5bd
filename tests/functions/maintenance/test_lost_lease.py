"""Tests for failed lease renewals: the status counts them, and after four failures the node is restored (NMO-27a)."""

from __future__ import annotations

import pytest

from chaos.api_fault_proxy import Fault, FaultProxy
from eventing import events
from functions.event_data import require_data
from kube.maintenance import leases
from kube.maintenance import objects as m
from kube.maintenance.groups import KUBEVIRT, MEDIK8S
from kube.nodes import EXCLUDE_LABEL, MAINTENANCE_LABEL, find_missing_taints, is_cordoned, is_in_maintenance
from kube.paths import Object
from localcluster.audit_log import AuditLog
from tests.functions.conftest import Functions
from tests.functions.event_builders import build_node_deleted_event, build_tick, build_updated_event
from tests.functions.maintenance.test_faults import parse_reply
from tests.functions.maintenance.test_states import deliver_event_and_replies, run_all_steps
from tests.proofs import proves
from tests.workload import Workload, summarize_writes

pytestmark = pytest.mark.usefixtures("no_wait_for_events_in_flight")

DRAIN_TAINT_KEY = "medik8s.io/drain"
FOREIGN_LEASE_PATCH = {
    "metadata": {"annotations": None},
    "spec": {"holderIdentity": "self-node-remediation", "renewTime": "2999-01-01T00:00:00.000000Z"},
}


def create_maintenance_with_lost_lease(functions: Functions, workload: Workload, tick_count: int) -> Object:
    """Create a drained maintenance, give its lease to another tool, run `tick_count` ticks, return the maintenance."""
    node = workload.take_node()
    maintenance = run_all_steps(functions, workload.create_maintenance(node))
    workload.client.patch(leases.build_lease_path(node), FOREIGN_LEASE_PATCH)
    for _ in range(tick_count):
        pending_event = functions.invoke("resync", build_tick())
        assert pending_event is not None
        deliver_event_and_replies(functions, pending_event)
    return maintenance


def is_restored(node: Object) -> bool:
    """Return whether the node is schedulable, and has neither labels of the product nor a drain taint."""
    labels = node["metadata"]["labels"]
    return (
        not is_cordoned(node)
        and not {MAINTENANCE_LABEL, EXCLUDE_LABEL} & labels.keys()
        and len(find_missing_taints(node, DRAIN_TAINT_KEY)) >= 1
    )


@proves("NMO-27a")
def test_fourth_failed_lease_renewal_restores_node(functions: Functions, workload: Workload, audit: AuditLog) -> None:
    """NMO-27a: three failed renewals are tolerated; after the fourth the phase is Failed and the node is restored.

    The error message is the medik8s operator's. Later events change nothing.
    """
    maintenance = create_maintenance_with_lost_lease(functions, workload, 3)
    node = maintenance["spec"]["nodeName"]
    status_after_three = workload.read_maintenance(maintenance)["status"]
    assert (status_after_three["phase"], status_after_three["errorOnLeaseCount"]) == (m.SUCCEEDED, 3)
    assert "held by self-node-remediation" in status_after_three["lastError"]
    assert is_in_maintenance(workload.read_node(node), DRAIN_TAINT_KEY)

    pending_event = functions.invoke("resync", build_tick())
    assert pending_event is not None
    deliver_event_and_replies(functions, pending_event)
    failed_maintenance = workload.read_maintenance(maintenance)
    failed_status = failed_maintenance["status"]
    assert (failed_status["phase"], failed_status["errorOnLeaseCount"]) == (m.FAILED, 4)
    assert failed_status["lastError"] == "maintenance failed: lease could not be extended after 4 attempts"
    assert [m.get_condition(failed_maintenance, kind)["status"] for kind in ("Cordoned", "Drained")] == [
        "False",
        "False",
    ]

    restored_event = functions.invoke("restore", build_updated_event(failed_maintenance))
    assert restored_event is not None
    assert (restored_event.get_type(), require_data(restored_event)["node"]) == (events.NODE_RESTORED, node)
    assert is_restored(workload.read_node(node))
    lease = workload.client.get(leases.build_lease_path(node))
    assert lease["spec"]["holderIdentity"] == "self-node-remediation"
    writes = len(audit.list_writes_by())
    for event in (
        build_updated_event(failed_maintenance),
        build_node_deleted_event(workload.read_node(node)),
        pending_event,
    ):
        deliver_event_and_replies(functions, event)
    assert functions.invoke("resync", build_tick()) is None
    assert summarize_writes(audit.list_writes_by()[writes:]) == []


@pytest.mark.parametrize("skipped_step", ["status", "restore"])
def test_tick_replaces_lost_event_to_status_or_restore(
    functions: Functions, workload: Workload, skipped_step: str
) -> None:
    """X-3, NMO-27a: if the event for `status` or `restore` is lost, a tick emits a replacement."""
    maintenance = create_maintenance_with_lost_lease(functions, workload, 3)
    pending_event = functions.invoke("resync", build_tick())
    assert pending_event is not None
    if skipped_step == "restore":
        deliver_event_and_replies(functions, pending_event)
    else:
        functions.invoke("begin", pending_event)

    for _ in range(2):
        next_event = functions.invoke("resync", build_tick())
        if next_event is not None:
            deliver_event_and_replies(functions, next_event)

    assert workload.read_maintenance(maintenance)["status"]["phase"] == m.FAILED
    assert is_restored(workload.read_node(maintenance["spec"]["nodeName"]))


def test_successful_lease_renewal_clears_error_count(functions: Functions, workload: Workload) -> None:
    """NMO-27a: a successful renewal clears the error and the count of failed renewals."""
    maintenance = create_maintenance_with_lost_lease(functions, workload, 2)
    node = maintenance["spec"]["nodeName"]
    assert workload.read_maintenance(maintenance)["status"]["errorOnLeaseCount"] == 2
    workload.client.run(workload.client.api.request("DELETE", leases.build_lease_path(node)))

    pending_event = functions.invoke("resync", build_tick())
    assert pending_event is not None
    assert pending_event.get_type() == events.MAINTENANCE_PENDING
    deliver_event_and_replies(functions, pending_event)

    status = workload.read_maintenance(maintenance)["status"]
    assert status["phase"] == m.SUCCEEDED
    assert not {"errorOnLeaseCount", "lastError"} & status.keys()
    assert leases.is_holder(workload.client.get(leases.build_lease_path(node)), maintenance)
    assert functions.invoke("resync", build_tick()) is None


def test_forbidden_lease_renewal_is_reported(
    functions: Functions, proxied_functions: Functions, workload: Workload, fault_proxy: FaultProxy
) -> None:
    """NMO-13: a forbidden lease renewal is reported even for a drained node, until the permission is granted."""
    maintenance = run_all_steps(functions, workload.create_maintenance(workload.take_node()))
    workload.client.run(workload.client.api.request("DELETE", leases.build_lease_path(maintenance["spec"]["nodeName"])))
    pending_event = functions.invoke("resync", build_tick())
    assert pending_event is not None
    fault_proxy.inject(
        lambda request: Fault(403, "cannot create leases") if request.startswith("create leases") else None
    )

    failure_event = parse_reply(proxied_functions.post("begin", pending_event))
    assert failure_event is not None
    deliver_event_and_replies(functions, failure_event)

    status = workload.read_maintenance(maintenance)["status"]
    assert (status["phase"], status["lastError"]) == (m.SUCCEEDED, "cannot create leases")
    next_event = functions.invoke("resync", build_tick())
    assert next_event is not None
    deliver_event_and_replies(functions, next_event)
    assert not m.get_last_error(workload.read_maintenance(maintenance))


@proves("NMO-22")
def test_deleted_lease_is_recreated_for_holder(functions: Functions, workload: Workload) -> None:
    """Design rule 11: a deleted lease is recreated for the node's active maintenance, not for the next one."""
    node = workload.take_node()
    first, second = (
        run_all_steps(functions, workload.create_maintenance(node, group)) for group in (MEDIK8S, KUBEVIRT)
    )
    waiting_maintenance = workload.read_maintenance(second)
    workload.delete(leases.build_lease_path(node))

    pending_event = functions.invoke("resync", build_tick())
    assert pending_event is not None
    assert pending_event.get_extension("maintenance") == first["metadata"]["uid"]
    deliver_event_and_replies(functions, pending_event)

    assert leases.is_holder(workload.client.get(leases.build_lease_path(node)), first)
    assert workload.read_maintenance(second) == waiting_maintenance
    assert functions.invoke("resync", build_tick()) is None


def test_redelivered_renewal_failure_is_counted_once(functions: Functions, workload: Workload) -> None:
    """X-2: a redelivered event does not increase the count of failed renewals."""
    maintenance = create_maintenance_with_lost_lease(functions, workload, 0)
    pending_event = functions.invoke("resync", build_tick())
    assert pending_event is not None
    failure_event = functions.invoke("begin", pending_event)
    assert failure_event is not None

    for _ in range(5):
        functions.invoke("status", failure_event)

    assert workload.read_maintenance(maintenance)["status"]["errorOnLeaseCount"] == 1


def test_renewal_failure_reported_after_success_is_ignored(functions: Functions, workload: Workload) -> None:
    """X-2: a fourth renewal failure that reaches `status` after a successful renewal changes nothing."""
    maintenance = create_maintenance_with_lost_lease(functions, workload, 3)
    pending_event = functions.invoke("resync", build_tick())
    assert pending_event is not None
    late_event = functions.invoke("begin", pending_event)
    assert late_event is not None
    workload.delete(leases.build_lease_path(maintenance["spec"]["nodeName"]))
    deliver_event_and_replies(functions, pending_event)
    renewed = workload.read_maintenance(maintenance)["status"]

    functions.invoke("status", late_event)

    assert workload.read_maintenance(maintenance)["status"] == renewed
    assert renewed["phase"] == m.SUCCEEDED
    assert "errorOnLeaseCount" not in renewed


@pytest.mark.parametrize("tick_count", [0, 3], ids=["late failure", "lost success"])
def test_tick_clears_outdated_renewal_error(functions: Functions, workload: Workload, tick_count: int) -> None:
    """X-3, NMO-27a: the next tick clears an outdated renewal error while the maintenance holds its lease.

    The tick does not wait for the next renewal, which is due half an hour later. If that renewal failed, too, the node
    would be restored.
    """
    maintenance = create_maintenance_with_lost_lease(functions, workload, tick_count)
    pending_event = functions.invoke("resync", build_tick())
    assert pending_event is not None
    late_event = functions.invoke("begin", pending_event)
    assert late_event is not None
    workload.delete(leases.build_lease_path(maintenance["spec"]["nodeName"]))
    if tick_count:
        functions.invoke("begin", pending_event)  # The reply of `begin` is lost.
    else:
        deliver_event_and_replies(functions, pending_event)
        functions.invoke("status", late_event)
    assert workload.read_maintenance(maintenance)["status"]["errorOnLeaseCount"] == max(tick_count, 1)

    next_event = functions.invoke("resync", build_tick())
    assert next_event is not None
    deliver_event_and_replies(functions, next_event)

    assert not {"errorOnLeaseCount", "lastError"} & workload.read_maintenance(maintenance)["status"].keys()
    assert functions.invoke("resync", build_tick()) is None


@pytest.mark.slow
def test_deletion_after_lost_lease_does_not_change_restored_node(functions: Functions, workload: Workload) -> None:
    """NMO-27a: deleting a maintenance that lost its lease does not change the restored node."""
    maintenance = create_maintenance_with_lost_lease(functions, workload, 4)
    node = maintenance["spec"]["nodeName"]
    deliver_event_and_replies(functions, build_updated_event(workload.read_maintenance(maintenance)))
    workload.local_cluster.kubectl("cordon", node)

    workload.delete(m.build_path(maintenance))
    deliver_event_and_replies(functions, build_updated_event(workload.read_maintenance(maintenance)))

    assert is_cordoned(workload.read_node(node))
    assert m.build_path(maintenance).rpartition("/")[2] not in {
        remaining["metadata"]["name"] for remaining in workload.client.list(m.get_group(maintenance).path)["items"]
    }
    assert workload.client.get(leases.build_lease_path(node))["spec"]["holderIdentity"] == "self-node-remediation"


def test_deletion_restores_node_that_restore_skipped(functions: Functions, workload: Workload) -> None:
    """Design rule 11: if `restore` skipped a node without the label, the maintenance's deletion restores the node."""
    maintenance = create_maintenance_with_lost_lease(functions, workload, 4)
    node = maintenance["spec"]["nodeName"]
    workload.local_cluster.kubectl("label", "node", node, f"{MAINTENANCE_LABEL}-")
    deliver_event_and_replies(functions, build_updated_event(workload.read_maintenance(maintenance)))
    assert is_cordoned(workload.read_node(node))

    workload.delete(m.build_path(maintenance))
    deliver_event_and_replies(functions, build_updated_event(workload.read_maintenance(maintenance)))

    assert is_restored(workload.read_node(node))


@proves("X-5")
def test_tick_restores_node_after_loss_of_lease_and_finalizer(functions: Functions, workload: Workload) -> None:
    """Design rule 11: a tick restores the node of a deleted maintenance without lease and without product finalizer.

    A finalizer of another client keeps the object.
    """
    maintenance = create_maintenance_with_lost_lease(functions, workload, 4)
    node = maintenance["spec"]["nodeName"]
    workload.client.patch(m.build_path(maintenance), {"metadata": {"finalizers": ["example.com/hold"]}})
    workload.delete(m.build_path(maintenance))

    pending_event = functions.invoke("resync", build_tick())
    assert pending_event is not None
    deliver_event_and_replies(functions, pending_event)

    assert is_restored(workload.read_node(node))
    assert workload.client.get(leases.build_lease_path(node))["spec"]["holderIdentity"] == "self-node-remediation"
    assert functions.invoke("resync", build_tick()) is None


def test_steps_do_nothing_after_lease_is_lost(functions: Functions, workload: Workload) -> None:
    """NMO-27a: after the lease is lost, `cordon`, `taint` and `evict` do nothing."""
    maintenance = create_maintenance_with_lost_lease(functions, workload, 4)
    node = maintenance["spec"]["nodeName"]
    deliver_event_and_replies(functions, build_updated_event(workload.read_maintenance(maintenance)))

    consumed = {"cordon": events.NODE_DRIFTED, "taint": events.NODE_CORDONED, "evict": events.NODE_TAINTED}
    for step, kind in consumed.items():
        event = events.build_event(kind, "test", events.ObjectReference.from_object(maintenance), node, seed=step)
        assert functions.invoke(step, event) is None

    assert is_restored(workload.read_node(node))


@pytest.mark.slow
@pytest.mark.parametrize("end", ["deleted", "removed"])
def test_maintenance_with_lost_lease_is_not_successor(functions: Functions, workload: Workload, end: str) -> None:
    """X-7: after a lost lease, a maintenance does not take over the node again: the next deletion restores the node."""
    first = create_maintenance_with_lost_lease(functions, workload, 4)
    node = first["spec"]["nodeName"]
    deliver_event_and_replies(functions, build_updated_event(workload.read_maintenance(first)))
    workload.client.run(workload.client.api.request("DELETE", leases.build_lease_path(node)))
    second = run_all_steps(functions, workload.create_maintenance(node))
    assert is_in_maintenance(workload.read_node(node), DRAIN_TAINT_KEY)

    if end == "deleted":
        workload.delete(m.build_path(second))
        deliver_event_and_replies(functions, build_updated_event(workload.read_maintenance(second)))
    else:
        workload.remove_maintenance(second)
        pending_event = functions.invoke("resync", build_tick())
        assert pending_event is not None
        deliver_event_and_replies(functions, pending_event)

    assert is_restored(workload.read_node(node))
    assert functions.invoke("resync", build_tick()) is None
    assert workload.read_maintenance(first)["status"]["phase"] == m.FAILED
