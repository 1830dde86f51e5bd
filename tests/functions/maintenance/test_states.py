"""Tests that a tick continues a maintenance from every state in which its next event was lost (rule 11).

The states are rows of `due_events.STATES`, which docs/states.md prints.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from cloudevents.core.base import BaseCloudEvent

from chaos.api_fault_proxy import Fault, FaultProxy
from eventing import events
from eventing.subscriptions import list_subscribers
from functions.installs import INSTALL_LEASE_CACHE, is_active_install
from functions.maintenance.due_events import STATES
from kube.maintenance import leases
from kube.maintenance import objects as m
from kube.maintenance.groups import DRAIN_TAINTS, KUBEVIRT, MEDIK8S
from kube.nodes import MAINTENANCE_LABEL, is_cordoned, is_in_maintenance
from kube.paths import Object
from localcluster.audit_log import AuditLog
from tests.functions.conftest import Functions
from tests.functions.event_builders import build_added_event, build_product_event, build_tick, build_updated_event
from tests.functions.request_hooks import count_requests
from tests.proofs import proves
from tests.workload import Workload, summarize_writes

pytestmark = pytest.mark.usefixtures("no_wait_for_events_in_flight")

LISTS_PER_TICK = 5
"""Number of list requests of each tick: for three API groups, nodes and leases."""
VALID_RENEW_TIME, EXPIRED_RENEW_TIME = "2999-01-01T00:00:00.000000Z", "2020-01-01T00:00:00.000000Z"


def deliver_event_and_replies(functions: Functions, event: BaseCloudEvent) -> Counter[str]:
    """Deliver the event and all replies to the functions that the Triggers select; return the event count by type."""
    delivered: Counter[str] = Counter()
    queue = [event]
    while queue:
        event = queue.pop(0)
        delivered[event.get_type()] += 1
        assert delivered.total() < 20, delivered
        queue += [reply for name in list_subscribers(event) if (reply := functions.invoke(name, event))]
    return delivered


def run_all_steps(functions: Functions, maintenance: Object) -> Object:
    """Run all steps of the maintenance, deliver each event, and return the maintenance."""
    deliver_event_and_replies(functions, build_added_event(maintenance))
    return maintenance


def create_new_maintenance(_functions: Functions, workload: Workload) -> Object:
    return workload.create_maintenance(workload.take_node())


def create_begun_maintenance(functions: Functions, workload: Workload) -> Object:
    maintenance = workload.create_maintenance(workload.take_node())
    functions.run_begin(maintenance)
    return maintenance


def create_maintenance_with_cordoned_node(functions: Functions, workload: Workload) -> Object:
    maintenance = workload.create_maintenance(workload.take_node())
    functions.run_chain(maintenance, "begin", "cordon")
    return maintenance


def create_maintenance_with_tainted_node(functions: Functions, workload: Workload) -> Object:
    maintenance = workload.create_maintenance(workload.take_node())
    functions.run_until_tainted(maintenance)
    return maintenance


def create_maintenance_without_remaining_pods(functions: Functions, workload: Workload) -> Object:
    """Create a maintenance of a node whose last pod terminated while PodSource was down."""
    node = workload.take_node()
    workload.create_bare_pods(node, "pod")
    maintenance = workload.create_maintenance(node)
    functions.invoke("status", functions.run_chain(maintenance, "begin", "cordon", "taint", "evict"))
    workload.wait_for_collection(f"/api/v1/namespaces/{workload.namespace}/pods", lambda pods: not pods)
    return maintenance


def create_maintenance_with_lost_drained_event(functions: Functions, workload: Workload) -> Object:
    """Create a maintenance whose event `node.drained` did not reach `status`."""
    maintenance = workload.create_maintenance(workload.take_node())
    assert functions.run_chain(maintenance, "begin", "cordon", "taint", "evict").get_type() == events.NODE_DRAINED
    return maintenance


def create_maintenance_with_uncordoned_node(functions: Functions, workload: Workload) -> Object:
    node = workload.take_node()
    maintenance = run_all_steps(functions, workload.create_maintenance(node))
    workload.local_cluster.kubectl("uncordon", node)
    return maintenance


def create_maintenance_with_untainted_node(functions: Functions, workload: Workload) -> Object:
    node = workload.take_node()
    maintenance = run_all_steps(functions, workload.create_maintenance(node))
    workload.local_cluster.kubectl("taint", "node", node, "medik8s.io/drain:NoSchedule-")
    return maintenance


def create_maintenance_with_unlabelled_node(functions: Functions, workload: Workload) -> Object:
    node = workload.take_node()
    maintenance = run_all_steps(functions, workload.create_maintenance(node))
    workload.local_cluster.kubectl("label", "node", node, f"{MAINTENANCE_LABEL}-")
    return maintenance


def create_maintenance_without_metadata(functions: Functions, workload: Workload) -> Object:
    maintenance = run_all_steps(functions, workload.create_maintenance(workload.take_node()))
    workload.client.patch(
        m.build_path(maintenance), {"metadata": dict.fromkeys(("finalizers", "annotations", "ownerReferences"))}
    )
    return maintenance


def create_maintenance_without_lease(functions: Functions, workload: Workload) -> Object:
    node = workload.take_node()
    maintenance = run_all_steps(functions, workload.create_maintenance(node))
    workload.delete(leases.build_lease_path(node))
    return maintenance


def create_successor_maintenance(functions: Functions, workload: Workload) -> Object:
    """Create the successor of a deleted maintenance, and drop the event that would make the successor begin."""
    node = workload.take_node()
    first = run_all_steps(functions, workload.create_maintenance(node))
    maintenance = run_all_steps(functions, workload.create_maintenance(node, KUBEVIRT))
    assert workload.read_maintenance(maintenance)["status"]["phase"] == m.FAILED
    workload.delete(m.build_path(first))
    functions.invoke("restore", build_updated_event(workload.read_maintenance(first)))
    return maintenance


def create_maintenance_blocked_by_foreign_lease(functions: Functions, workload: Workload) -> Object:
    """Create a maintenance that another tool's lease blocks, and then let that lease expire."""
    node = workload.take_node()
    spec = {"holderIdentity": "another-tool", "leaseDurationSeconds": 60, "renewTime": VALID_RENEW_TIME}
    workload.client.create(leases.LEASES_PATH, {"metadata": {"name": leases.build_lease_name(node)}, "spec": spec})
    maintenance = run_all_steps(functions, workload.create_maintenance(node))
    assert "another-tool" in workload.read_maintenance(maintenance)["status"]["lastError"]
    workload.client.patch(leases.build_lease_path(node), {"spec": {"renewTime": EXPIRED_RENEW_TIME}})
    return maintenance


def create_maintenance_with_outdated_error(functions: Functions, workload: Workload) -> Object:
    """Create a drained maintenance whose status contains an outdated lease renewal error."""
    maintenance = run_all_steps(functions, workload.create_maintenance(workload.take_node()))
    failure_data = {"step": "begin", "error": "leases is forbidden", "begun": True}
    functions.invoke("status", build_product_event(events.MAINTENANCE_STEP_FAILED, maintenance, data=failure_data))
    assert workload.read_maintenance(maintenance)["status"]["lastError"] == failure_data["error"]
    return maintenance


def create_maintenance_before_node(functions: Functions, workload: Workload) -> Object:
    """Create a maintenance that fails because its node does not exist, and then create the node."""
    maintenance = run_all_steps(functions, workload.create_maintenance(node := f"late-{workload.namespace}"))
    assert workload.read_maintenance(maintenance)["status"]["phase"] == m.FAILED
    workload.local_cluster.create_nodes(node)
    return maintenance


def create_maintenance_without_owner_reference(functions: Functions, workload: Workload) -> Object:
    maintenance = run_all_steps(functions, workload.create_maintenance(workload.take_node()))
    workload.client.patch(m.build_path(maintenance), {"metadata": {"ownerReferences": None}})
    return maintenance


def create_maintenance_with_due_lease(functions: Functions, workload: Workload) -> Object:
    node = workload.take_node()
    maintenance = run_all_steps(functions, workload.create_maintenance(node))
    workload.client.patch(leases.build_lease_path(node), {"spec": {"renewTime": EXPIRED_RENEW_TIME}})
    return maintenance


def create_maintenance_with_counted_renewal_failure(functions: Functions, workload: Workload) -> Object:
    """Create a drained maintenance that holds its lease, and whose status counts a failed renewal."""
    maintenance = run_all_steps(functions, workload.create_maintenance(workload.take_node()))
    workload.client.patch(f"{m.build_path(maintenance)}/status", {"status": {"errorOnLeaseCount": 1}})
    return maintenance


CreateMaintenance = Callable[[Functions, Workload], Object]
COMPLETED_STATES: dict[str, list[tuple[CreateMaintenance, int]]] = {
    "created": [(create_new_maintenance, 5)],
    "rejected or waiting": [(create_maintenance_before_node, 5), (create_maintenance_blocked_by_foreign_lease, 5)],
    "successor": [(create_successor_maintenance, 5)],
    "begun, but another client removed the finalizer or the counts": [(create_maintenance_without_metadata, 4)],
    "begun, and the node's Lease is missing": [(create_maintenance_without_lease, 1)],
    "begun, and the node's Lease is due": [(create_maintenance_with_due_lease, 1)],
    "begun, and holds the node's Lease again": [(create_maintenance_with_counted_renewal_failure, 5)],
    "begun, but another client removed the owner": [(create_maintenance_without_owner_reference, 4)],
    "begun, and the node is not cordoned": [
        (create_begun_maintenance, 4),
        (create_maintenance_with_uncordoned_node, 3),
    ],
    "node cordoned and not tainted": [
        (create_maintenance_with_cordoned_node, 4),
        (create_maintenance_with_untainted_node, 3),
    ],
    "node cordoned and tainted, but another client removed": [(create_maintenance_with_unlabelled_node, 3)],
    "drained, but `lastError`": [(create_maintenance_with_outdated_error, 5)],
    "node cordoned and tainted, no pod left": [
        (create_maintenance_with_tainted_node, 2),
        (create_maintenance_without_remaining_pods, 2),
        (create_maintenance_with_lost_drained_event, 2),
    ],
}
"""Map from first words of a state's name to functions that create a maintenance in this state and drop its next event.

Each number is the maximum number of events from the tick until the maintenance is complete.
"""
DELETED_STATE = "deleted"
STATES_OF_OTHER_TESTS = (
    "events are in flight, and the Lease is due",  # test_resync.py
    "events are in flight, and the drain",  # test_escalation.py
    "Lease lost: ",  # test_lost_lease.py
    "begun, but another client removed the finalizer or the counts, and the node no longer exists",  # test_resync.py
    "begun, and another client holds the node's Lease",  # test_lost_lease.py
    "pods left, and the spec has changed",  # test_drain.py
    "node cordoned and tainted, and the drain",  # test_escalation.py
    "pods left, of which none may be evicted now, but",  # test_resync.py
    "pods left that may be evicted now",  # this file
)


def get_due_event(first_words: str) -> str:
    """Return the event that a tick emits for the first state whose name starts with these words."""
    return next(state.due_event for state in STATES if state.name.startswith(first_words))


def test_each_state_with_due_event_has_test() -> None:
    """Design rule 11: for each state in which a tick emits an event, a test drops the event that the tick replaces."""
    tested = (*COMPLETED_STATES, DELETED_STATE, *STATES_OF_OTHER_TESTS)

    untested = [state.name for state in STATES if state.due_event and not state.name.startswith(tested)]

    assert untested == []
    assert all(get_due_event(first_words) for first_words in tested)


@pytest.mark.slow
@proves("X-3")
@pytest.mark.parametrize(
    ("state", "create_maintenance", "max_events"),
    [
        pytest.param(state, create_maintenance, max_events, id=create_maintenance.__name__)
        for state, cases in COMPLETED_STATES.items()
        for create_maintenance, max_events in cases
    ],
)
def test_tick_continues_maintenance_after_lost_event(
    functions: Functions, workload: Workload, state: str, create_maintenance: CreateMaintenance, max_events: int
) -> None:
    """Design rule 11, X-3: the event that a tick emits completes the maintenance, and later ticks emit nothing.

    The test first lets `resync` cache its account and that its install is active, so that the tick reads neither.
    """
    INSTALL_LEASE_CACHE.get_account(functions.clusters["resync"])
    INSTALL_LEASE_CACHE.confirm(functions.clusters["resync"])
    maintenance = create_maintenance(functions, workload)
    with count_requests(functions.clusters["resync"].api) as requests:
        reply = functions.invoke("resync", build_tick())

    assert reply is not None
    assert reply.get_type() == get_due_event(state)
    assert requests.total() <= LISTS_PER_TICK + 1
    assert deliver_event_and_replies(functions, reply).total() <= max_events
    maintenance = workload.read_maintenance(maintenance)
    assert (m.has_begun(maintenance), m.has_node_owner(maintenance), m.get_phase(maintenance)) == (
        True,
        True,
        m.SUCCEEDED,
    )
    node = workload.read_node(m.get_node_name(maintenance))
    assert is_in_maintenance(node, m.get_group(maintenance).drain_taint)
    assert leases.is_holder(workload.client.get(leases.build_lease_path(m.get_node_name(maintenance))), maintenance)
    assert functions.invoke("resync", build_tick()) is None


@proves("NMO-13")
def test_failed_lease_renewal_is_retried_once_per_tick(
    functions: Functions, proxied_functions: Functions, fault_proxy: FaultProxy, workload: Workload, audit: AuditLog
) -> None:
    """Design rule 9: each tick retries a failed lease renewal once without a write; a success clears the error."""
    maintenance = run_all_steps(functions, workload.create_maintenance(workload.take_node()))
    fault_proxy.inject(lambda request: Fault(403, "may not") if request.startswith("get leases") else None)
    functions.invoke(
        "status",
        run_failing_begin(
            proxied_functions, build_product_event(events.MAINTENANCE_PENDING, maintenance, data={"begun": True})
        ),
    )
    failed_maintenance, writes = workload.read_maintenance(maintenance), len(audit.list_writes_by())
    assert m.get_last_error(failed_maintenance) == "may not"

    for _ in range(3):
        pending_event = functions.invoke("resync", build_tick())
        assert pending_event is not None
        assert functions.invoke("status", run_failing_begin(proxied_functions, pending_event)) is None
    assert workload.read_maintenance(maintenance) == failed_maintenance
    assert summarize_writes(audit.list_writes_by()[writes:]) == []

    fault_proxy.stop_faults()
    pending_event = functions.invoke("resync", build_tick())
    assert pending_event is not None
    deliver_event_and_replies(functions, pending_event)
    assert m.get_last_error(workload.read_maintenance(maintenance)) == ""
    assert functions.invoke("resync", build_tick()) is None


def run_failing_begin(proxied_functions: Functions, event: BaseCloudEvent) -> BaseCloudEvent:
    """Run `begin`, assert that it fails, and return its event `maintenance.step_failed`."""
    failure_event = proxied_functions.invoke("begin", event)
    assert failure_event is not None
    assert failure_event.get_type() == events.MAINTENANCE_STEP_FAILED
    return failure_event


def create_deleted_maintenance(functions: Functions, workload: Workload) -> Object:
    maintenance = run_all_steps(functions, workload.create_maintenance(workload.take_node()))
    workload.delete(m.build_path(maintenance))
    return maintenance


def create_maintenance_deleted_after_begin(functions: Functions, workload: Workload) -> Object:
    maintenance = create_begun_maintenance(functions, workload)
    workload.delete(m.build_path(maintenance))
    return maintenance


def create_maintenance_deleted_without_finalizer(functions: Functions, workload: Workload) -> Object:
    """Create a drained maintenance, remove its finalizer and delete it."""
    maintenance = run_all_steps(functions, workload.create_maintenance(workload.take_node(), KUBEVIRT))
    workload.remove_maintenance(maintenance)
    return maintenance


def create_deleted_maintenance_and_successor(functions: Functions, workload: Workload) -> Object:
    """Create a maintenance and its successor, delete both, drop the events about them, and return the successor."""
    node = workload.take_node()
    first = run_all_steps(functions, workload.create_maintenance(node))
    maintenance = run_all_steps(functions, workload.create_maintenance(node, KUBEVIRT))
    workload.delete(m.build_path(first))
    functions.invoke("restore", build_updated_event(workload.read_maintenance(first)))
    workload.delete(m.build_path(maintenance))
    return maintenance


def create_deleted_maintenance_with_deleted_node(functions: Functions, workload: Workload) -> Object:
    """Create a maintenance, and delete its node and the maintenance."""
    node = workload.take_node()
    maintenance = run_all_steps(functions, workload.create_maintenance(node))
    workload.delete(f"/api/v1/nodes/{node}")
    workload.delete(m.build_path(maintenance))
    return maintenance


@proves("X-5")
@pytest.mark.parametrize(
    "create_maintenance",
    [
        create_deleted_maintenance,
        create_maintenance_deleted_after_begin,
        create_maintenance_deleted_without_finalizer,
        create_deleted_maintenance_and_successor,
        create_deleted_maintenance_with_deleted_node,
    ],
)
def test_tick_restores_node_of_deleted_maintenance(
    functions: Functions, workload: Workload, create_maintenance: CreateMaintenance
) -> None:
    """Design rule 11, X-5: a tick's event restores the node and releases the lease; later ticks emit nothing.

    The test first lets `resync` cache its account and that its install is active, so that the tick reads neither.
    """
    maintenance = create_maintenance(functions, workload)
    name = m.get_node_name(maintenance)
    # Let `resync` read the install Lease and cache it.
    assert is_active_install(functions.clusters["resync"])
    INSTALL_LEASE_CACHE.get_account(functions.clusters["resync"])
    INSTALL_LEASE_CACHE.confirm(functions.clusters["resync"])
    with count_requests(functions.clusters["resync"].api) as requests:
        restore_event = functions.invoke("resync", build_tick())

    assert restore_event is not None
    assert restore_event.get_type() == get_due_event(DELETED_STATE)
    assert requests.total() == LISTS_PER_TICK
    assert deliver_event_and_replies(functions, restore_event).total() <= 2
    for node in workload.client.list("/api/v1/nodes", field_selector=f"metadata.name={name}")["items"]:
        keys = {taint["key"] for taint in node["spec"].get("taints") or []}
        assert not node["spec"].get("unschedulable")
        assert not {*node["metadata"]["labels"]} & {MAINTENANCE_LABEL}
        assert not keys & DRAIN_TAINTS
    assert (
        workload.client.list(leases.LEASES_PATH, field_selector=f"metadata.name={leases.build_lease_name(name)}")[
            "items"
        ]
        == []
    )
    assert (
        workload.client.list(
            m.get_group(maintenance).path, field_selector=f"metadata.name={maintenance['metadata']['name']}"
        )["items"]
        == []
    )
    assert functions.invoke("resync", build_tick()) is None


@proves("X-3")
@pytest.mark.parametrize("value", ["", "Foo_Bar"])
def test_node_with_invalid_maintenance_label_is_restored_once(
    functions: Functions, workload: Workload, value: str
) -> None:
    """Design rule 12: a node whose maintenance label contains no valid uid is restored, but only once."""
    node = workload.take_node()
    workload.local_cluster.kubectl("cordon", node)
    workload.local_cluster.kubectl("label", "node", node, f"{MAINTENANCE_LABEL}={value}")

    restore_event = functions.invoke("resync", build_tick())
    assert restore_event is not None
    deliver_event_and_replies(functions, restore_event)

    node_object = workload.read_node(node)
    assert not is_cordoned(node_object)
    assert MAINTENANCE_LABEL not in node_object["metadata"]["labels"]
    assert functions.invoke("resync", build_tick()) is None


def test_lease_with_invalid_holder_is_released(functions: Functions, workload: Workload) -> None:
    """Design rule 12: a lease whose holder annotation has an invalid object name is released as orphaned."""
    node = workload.take_node()
    maintenance = run_all_steps(functions, workload.create_maintenance(node))
    annotation = {leases.HOLDER_ANNOTATION: f"{MEDIK8S.api_version} x/status some-uid"}
    workload.remove_maintenance(maintenance)
    workload.client.patch(leases.build_lease_path(node), {"metadata": {"annotations": annotation}})

    restore_event = functions.invoke("resync", build_tick())
    assert restore_event is not None
    deliver_event_and_replies(functions, restore_event)

    assert (
        workload.client.list(leases.LEASES_PATH, field_selector=f"metadata.name={leases.build_lease_name(node)}")[
            "items"
        ]
        == []
    )
    assert functions.invoke("resync", build_tick()) is None


@proves("X-3")
def test_tick_replaces_lost_budget_opened_event(functions: Functions, workload: Workload) -> None:
    """Design rule 11: if `budget.opened` was lost, the event that a tick emits makes `evict` evict the pod."""
    node = workload.take_node()
    workload.create_bare_pods(node, "pod", labels={"app": "x"})
    workload.create_budget("keep", {"app": "x"}, 1, expected_healthy=1)
    maintenance = run_all_steps(functions, workload.create_maintenance(node))
    assert workload.read_maintenance(maintenance)["status"]["blockedPods"]
    workload.delete(f"/apis/policy/v1/namespaces/{workload.namespace}/poddisruptionbudgets/keep")

    reply = functions.invoke("resync", build_tick())

    assert reply is not None
    assert deliver_event_and_replies(functions, reply)[events.PODS_EVICTED] == 1
    workload.wait_for_collection(f"/api/v1/namespaces/{workload.namespace}/pods", lambda pods: not pods)


@proves("X-3")
@pytest.mark.parametrize("blocked_names", [["kept"], []], ids=["while waiting", "after success"])
def test_tick_replaces_lost_pods_added_event(
    functions: Functions, workload: Workload, blocked_names: list[str]
) -> None:
    """Design rule 11: if `pods.added` was lost, the event that a tick emits makes `evict` evict the new pod.

    In one case, the drain waits for a PDB; in the other, the maintenance has already succeeded.
    """
    node = workload.take_node()
    workload.create_bare_pods(node, *blocked_names, labels={"app": "kept"})
    workload.create_budget("keep", {"app": "kept"}, 1, expected_healthy=len(blocked_names))
    run_all_steps(functions, workload.create_maintenance(node))
    workload.create_bare_pods(node, "unheard")

    reply = functions.invoke("resync", build_tick())

    assert reply is not None
    assert reply.get_type() == events.NODE_TAINTED
    assert deliver_event_and_replies(functions, reply)[events.PODS_EVICTED] == 1
    workload.wait_for_collection(
        f"/api/v1/namespaces/{workload.namespace}/pods", lambda pods: list(pods) == blocked_names
    )


@proves("X-3")
def test_tick_emits_nothing_for_maintenance_that_waits_for_administrator(
    functions: Functions, workload: Workload
) -> None:
    """Design rule 11: a tick emits nothing for a maintenance that needs an administrator; `lastError` states why."""
    node = workload.take_node()
    first = run_all_steps(functions, workload.create_maintenance(node))
    second = run_all_steps(functions, workload.create_maintenance(node, KUBEVIRT))
    without_node = run_all_steps(functions, workload.create_maintenance("nowhere"))

    assert functions.invoke("resync", build_tick()) is None

    assert first["metadata"]["name"] in workload.read_maintenance(second)["status"]["lastError"]
    assert workload.read_maintenance(without_node)["status"]["lastError"] == 'nodes "nowhere" not found'
    assert functions.invoke("restore", build_product_event(events.MAINTENANCE_RESTORE_PENDING, second)) is None
