"""Tests that a tick continues a maintenance from every state in which its next event was lost (rule 11).

The cases are rows of the tables in docs/states.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from cloudevents.core.base import BaseCloudEvent

from eventing import events
from eventing.subscriptions import list_subscribers
from functions.installs import INSTALL_LEASE_CACHE
from kube.maintenance import leases
from kube.maintenance import objects as m
from kube.maintenance.groups import DRAIN_TAINTS, KUBEVIRT, MEDIK8S
from kube.nodes import MAINTENANCE_LABEL, is_cordoned, is_in_maintenance
from kube.paths import Object
from tests.fault_proxy import Fault, FaultProxy
from tests.functions.conftest import Functions
from tests.functions.event_builders import build_added, build_own_event, build_tick, build_updated
from tests.functions.request_hooks import count_requests
from tests.proofs import proves
from tests.workload import AuditLog, Workload, summarize_writes

pytestmark = pytest.mark.usefixtures("without_in_flight_wait")

LISTS_PER_TICK = 5
"""Number of lists that each tick reads: three API groups, nodes and leases."""
VALID_RENEW_TIME, EXPIRED_RENEW_TIME = "2999-01-01T00:00:00.000000Z", "2020-01-01T00:00:00.000000Z"


def deliver_all(functions: Functions, event: BaseCloudEvent) -> Counter[str]:
    """Deliver the event and all replies as the Triggers route them; return the number of events per type."""
    delivered: Counter[str] = Counter()
    queue = [event]
    while queue:
        event = queue.pop(0)
        delivered[event.get_type()] += 1
        assert delivered.total() < 20, delivered
        queue += [reply for name in list_subscribers(event) if (reply := functions.invoke(name, event))]
    return delivered


def run_all_steps(functions: Functions, item: Object) -> Object:
    """Run all steps of the maintenance without losing an event, and return the maintenance."""
    deliver_all(functions, build_added(item))
    return item


def create_new(_functions: Functions, workload: Workload) -> Object:
    return workload.create_maintenance(workload.take_node())


def create_begun(functions: Functions, workload: Workload) -> Object:
    item = workload.create_maintenance(workload.take_node())
    functions.run_begin(item)
    return item


def create_cordoned(functions: Functions, workload: Workload) -> Object:
    item = workload.create_maintenance(workload.take_node())
    functions.run_chain(item, "begin", "cordon")
    return item


def create_tainted(functions: Functions, workload: Workload) -> Object:
    item = workload.create_maintenance(workload.take_node())
    functions.run_until_tainted(item)
    return item


def create_without_pods(functions: Functions, workload: Workload) -> Object:
    """Create a maintenance whose last pod left while PodSource was down."""
    node = workload.take_node()
    workload.create_bare_pods(node, "pod")
    item = workload.create_maintenance(node)
    functions.invoke("status", functions.run_chain(item, "begin", "cordon", "taint", "evict"))
    workload.wait_for_collection(f"/api/v1/namespaces/{workload.namespace}/pods", lambda pods: not pods)
    return item


def create_drained(functions: Functions, workload: Workload) -> Object:
    """Create a maintenance whose `node.drained` did not reach `status`."""
    item = workload.create_maintenance(workload.take_node())
    assert functions.run_chain(item, "begin", "cordon", "taint", "evict").get_type() == events.NODE_DRAINED
    return item


def create_uncordoned(functions: Functions, workload: Workload) -> Object:
    node = workload.take_node()
    item = run_all_steps(functions, workload.create_maintenance(node))
    workload.local_cluster.kubectl("uncordon", node)
    return item


def create_untainted(functions: Functions, workload: Workload) -> Object:
    node = workload.take_node()
    item = run_all_steps(functions, workload.create_maintenance(node))
    workload.local_cluster.kubectl("taint", "node", node, "medik8s.io/drain:NoSchedule-")
    return item


def create_unlabelled(functions: Functions, workload: Workload) -> Object:
    node = workload.take_node()
    item = run_all_steps(functions, workload.create_maintenance(node))
    workload.local_cluster.kubectl("label", "node", node, f"{MAINTENANCE_LABEL}-")
    return item


def create_without_metadata(functions: Functions, workload: Workload) -> Object:
    item = run_all_steps(functions, workload.create_maintenance(workload.take_node()))
    workload.client.patch(
        m.build_path(item), {"metadata": dict.fromkeys(("finalizers", "annotations", "ownerReferences"))}
    )
    return item


def create_without_lease(functions: Functions, workload: Workload) -> Object:
    node = workload.take_node()
    item = run_all_steps(functions, workload.create_maintenance(node))
    workload.delete(leases.build_lease_path(node))
    return item


def create_successor(functions: Functions, workload: Workload) -> Object:
    """Create a maintenance that became the successor of a deleted one, without receiving the event for it."""
    node = workload.take_node()
    first = run_all_steps(functions, workload.create_maintenance(node))
    item = run_all_steps(functions, workload.create_maintenance(node, KUBEVIRT))
    assert workload.read_maintenance(item)["status"]["phase"] == m.FAILED
    workload.delete(m.build_path(first))
    functions.invoke("restore", build_updated(workload.read_maintenance(first)))
    return item


def create_blocked_by_foreign_lease(functions: Functions, workload: Workload) -> Object:
    """Create a maintenance that another tool's lease blocked; the lease has expired since."""
    node = workload.take_node()
    spec = {"holderIdentity": "another-tool", "leaseDurationSeconds": 60, "renewTime": VALID_RENEW_TIME}
    workload.client.create(leases.LEASES_PATH, {"metadata": {"name": leases.build_lease_name(node)}, "spec": spec})
    item = run_all_steps(functions, workload.create_maintenance(node))
    assert "another-tool" in workload.read_maintenance(item)["status"]["lastError"]
    workload.client.patch(leases.build_lease_path(node), {"spec": {"renewTime": EXPIRED_RENEW_TIME}})
    return item


def create_with_outdated_error(functions: Functions, workload: Workload) -> Object:
    """Create a drained maintenance whose status has an outdated error of a lease renewal."""
    item = run_all_steps(functions, workload.create_maintenance(workload.take_node()))
    failure_data = {"step": "begin", "error": "leases is forbidden", "begun": True}
    functions.invoke("status", build_own_event(events.MAINTENANCE_STEP_FAILED, item, data=failure_data))
    assert workload.read_maintenance(item)["status"]["lastError"] == failure_data["error"]
    return item


def create_with_late_node(functions: Functions, workload: Workload) -> Object:
    """Create a maintenance that failed because its node was created only afterwards."""
    item = run_all_steps(functions, workload.create_maintenance(node := f"late-{workload.namespace}"))
    assert workload.read_maintenance(item)["status"]["phase"] == m.FAILED
    workload.local_cluster.create_nodes(node)
    return item


@pytest.mark.slow
@proves("X-3")
@pytest.mark.parametrize(
    ("create", "event_type", "max_events"),
    [
        (create_new, events.MAINTENANCE_PENDING, 5),
        (create_with_late_node, events.MAINTENANCE_PENDING, 5),
        (create_blocked_by_foreign_lease, events.MAINTENANCE_PENDING, 5),
        (create_successor, events.MAINTENANCE_PENDING, 5),
        (create_without_metadata, events.MAINTENANCE_PENDING, 4),
        (create_without_lease, events.MAINTENANCE_PENDING, 1),
        (create_with_outdated_error, events.MAINTENANCE_PENDING, 5),
        (create_begun, events.NODE_DRIFTED, 4),
        (create_cordoned, events.NODE_DRIFTED, 4),
        (create_uncordoned, events.NODE_DRIFTED, 3),
        (create_untainted, events.NODE_DRIFTED, 3),
        (create_unlabelled, events.NODE_DRIFTED, 3),
        (create_tainted, events.NODE_TAINTED, 2),
        (create_without_pods, events.NODE_TAINTED, 2),
        (create_drained, events.NODE_TAINTED, 2),
    ],
)
def test_tick_completes_maintenance(
    functions: Functions,
    workload: Workload,
    create: Callable[[Functions, Workload], Object],
    event_type: str,
    max_events: int,
) -> None:
    """Rule 11, X-3: one event of a tick completes the maintenance, and later ticks emit nothing for it.

    The test caches the account of `resync` and that its install is active, so that a tick reads neither.
    """
    INSTALL_LEASE_CACHE.get_account(functions.clusters["resync"])
    INSTALL_LEASE_CACHE.confirm(functions.clusters["resync"])
    item = create(functions, workload)
    with count_requests(functions.clusters["resync"].api) as requests:
        reply = functions.invoke("resync", build_tick())

    assert reply is not None
    assert reply.get_type() == event_type
    assert requests.total() <= LISTS_PER_TICK + 1
    assert deliver_all(functions, reply).total() <= max_events
    item = workload.read_maintenance(item)
    assert (m.has_begun(item), m.has_node_owner(item), m.get_phase(item)) == (True, True, m.SUCCEEDED)
    node = workload.read_node(m.get_node_name(item))
    assert is_in_maintenance(node, m.get_group(item).drain_taint)
    assert leases.is_holder(workload.client.get(leases.build_lease_path(m.get_node_name(item))), item)
    assert functions.invoke("resync", build_tick()) is None


@proves("NMO-13")
def test_failed_renewal_is_retried_per_tick(
    functions: Functions, proxied_functions: Functions, fault_proxy: FaultProxy, workload: Workload, audit: AuditLog
) -> None:
    """Rule 9: a failing renewal causes one pass of `begin` per tick and no write; a success clears the error."""
    item = run_all_steps(functions, workload.create_maintenance(workload.take_node()))
    fault_proxy.inject(lambda request: Fault(403, "may not") if request.startswith("get leases") else None)
    functions.invoke(
        "status",
        run_failing_begin(proxied_functions, build_own_event(events.MAINTENANCE_PENDING, item, data={"begun": True})),
    )
    maintenance, writes = workload.read_maintenance(item), len(audit.list_writes_by())
    assert m.get_last_error(maintenance) == "may not"

    for _ in range(3):
        pending_event = functions.invoke("resync", build_tick())
        assert pending_event is not None
        assert functions.invoke("status", run_failing_begin(proxied_functions, pending_event)) is None
    assert workload.read_maintenance(item) == maintenance
    assert summarize_writes(audit.list_writes_by()[writes:]) == []

    fault_proxy.stop_faults()
    pending_event = functions.invoke("resync", build_tick())
    assert pending_event is not None
    deliver_all(functions, pending_event)
    assert m.get_last_error(workload.read_maintenance(item)) == ""
    assert functions.invoke("resync", build_tick()) is None


def run_failing_begin(proxied_functions: Functions, event: BaseCloudEvent) -> BaseCloudEvent:
    """Run `begin`, which fails, and return its failure event."""
    failure_event = proxied_functions.invoke("begin", event)
    assert failure_event is not None
    assert failure_event.get_type() == events.MAINTENANCE_STEP_FAILED
    return failure_event


def create_deleted(functions: Functions, workload: Workload) -> Object:
    item = run_all_steps(functions, workload.create_maintenance(workload.take_node()))
    workload.delete(m.build_path(item))
    return item


def create_deleted_after_begin(functions: Functions, workload: Workload) -> Object:
    item = create_begun(functions, workload)
    workload.delete(m.build_path(item))
    return item


def create_vanished(functions: Functions, workload: Workload) -> Object:
    """Create a drained maintenance, remove its finalizer and delete it."""
    item = run_all_steps(functions, workload.create_maintenance(workload.take_node(), KUBEVIRT))
    workload.remove_maintenance(item)
    return item


def create_deleted_pair(functions: Functions, workload: Workload) -> Object:
    """Create a maintenance and its successor, delete both and lose both events; return the successor."""
    node = workload.take_node()
    first = run_all_steps(functions, workload.create_maintenance(node))
    item = run_all_steps(functions, workload.create_maintenance(node, KUBEVIRT))
    workload.delete(m.build_path(first))
    functions.invoke("restore", build_updated(workload.read_maintenance(first)))
    workload.delete(m.build_path(item))
    return item


def create_deleted_without_node(functions: Functions, workload: Workload) -> Object:
    """Create a maintenance, and delete it and its node."""
    node = workload.take_node()
    item = run_all_steps(functions, workload.create_maintenance(node))
    workload.delete(f"/api/v1/nodes/{node}")
    workload.delete(m.build_path(item))
    return item


@proves("X-5")
@pytest.mark.parametrize(
    "create",
    [create_deleted, create_deleted_after_begin, create_vanished, create_deleted_pair, create_deleted_without_node],
)
def test_tick_restores_node(
    functions: Functions, workload: Workload, create: Callable[[Functions, Workload], Object]
) -> None:
    """Rule 11, X-5: one event of a tick restores the node and releases lease and maintenance; later ticks emit none."""
    item = create(functions, workload)
    name = m.get_node_name(item)
    with count_requests(functions.clusters["resync"].api) as requests:
        restore_event = functions.invoke("resync", build_tick())

    assert restore_event is not None
    assert restore_event.get_type() == events.MAINTENANCE_RESTORE_PENDING
    assert requests.total() == LISTS_PER_TICK
    assert deliver_all(functions, restore_event).total() <= 2
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
        workload.client.list(m.get_group(item).path, field_selector=f"metadata.name={item['metadata']['name']}")[
            "items"
        ]
        == []
    )
    assert functions.invoke("resync", build_tick()) is None


@proves("X-3")
@pytest.mark.parametrize("value", ["", "Foo_Bar"])
def test_invalid_label_is_removed(functions: Functions, workload: Workload, value: str) -> None:
    """Rule 12: a node whose label contains no valid uid is restored, and only once."""
    node = workload.take_node()
    workload.local_cluster.kubectl("cordon", node)
    workload.local_cluster.kubectl("label", "node", node, f"{MAINTENANCE_LABEL}={value}")

    restore_event = functions.invoke("resync", build_tick())
    assert restore_event is not None
    deliver_all(functions, restore_event)

    node_object = workload.read_node(node)
    assert not is_cordoned(node_object)
    assert MAINTENANCE_LABEL not in node_object["metadata"]["labels"]
    assert functions.invoke("resync", build_tick()) is None


def test_lease_with_invalid_holder_is_released(functions: Functions, workload: Workload) -> None:
    """Rule 12: a lease whose annotation has an invalid object name is released as orphaned."""
    node = workload.take_node()
    item = run_all_steps(functions, workload.create_maintenance(node))
    annotation = {leases.HOLDER_ANNOTATION: f"{MEDIK8S.api_version} x/status some-uid"}
    workload.remove_maintenance(item)
    workload.client.patch(leases.build_lease_path(node), {"metadata": {"annotations": annotation}})

    restore_event = functions.invoke("resync", build_tick())
    assert restore_event is not None
    deliver_all(functions, restore_event)

    assert (
        workload.client.list(leases.LEASES_PATH, field_selector=f"metadata.name={leases.build_lease_name(node)}")[
            "items"
        ]
        == []
    )
    assert functions.invoke("resync", build_tick()) is None


@proves("X-3")
def test_tick_replaces_lost_budget_event(functions: Functions, workload: Workload) -> None:
    """Rule 11: if `budget.opened` was lost, the event of a tick makes `evict` evict the pod."""
    node = workload.take_node()
    workload.create_bare_pods(node, "pod", labels={"app": "x"})
    workload.create_budget("keep", {"app": "x"}, 1, expected_healthy=1)
    item = run_all_steps(functions, workload.create_maintenance(node))
    assert workload.read_maintenance(item)["status"]["blockedPods"]
    workload.delete(f"/apis/policy/v1/namespaces/{workload.namespace}/poddisruptionbudgets/keep")

    reply = functions.invoke("resync", build_tick())

    assert reply is not None
    assert deliver_all(functions, reply)[events.PODS_EVICTED] == 1
    workload.wait_for_collection(f"/api/v1/namespaces/{workload.namespace}/pods", lambda pods: not pods)


@proves("X-3")
@pytest.mark.parametrize("blocked_names", [["kept"], []], ids=["while waiting", "after success"])
def test_tick_replaces_lost_pods_event(functions: Functions, workload: Workload, blocked_names: list[str]) -> None:
    """Rule 11: if `pods.added` was lost, the event of a tick makes `evict` evict the new pod.

    The drain waits for a budget, or has succeeded already.
    """
    node = workload.take_node()
    workload.create_bare_pods(node, *blocked_names, labels={"app": "kept"})
    workload.create_budget("keep", {"app": "kept"}, 1, expected_healthy=len(blocked_names))
    run_all_steps(functions, workload.create_maintenance(node))
    workload.create_bare_pods(node, "unheard")

    reply = functions.invoke("resync", build_tick())

    assert reply is not None
    assert reply.get_type() == events.NODE_TAINTED
    assert deliver_all(functions, reply)[events.PODS_EVICTED] == 1
    workload.wait_for_collection(
        f"/api/v1/namespaces/{workload.namespace}/pods", lambda pods: list(pods) == blocked_names
    )


@proves("X-3")
def test_waiting_maintenance_gets_no_event(functions: Functions, workload: Workload) -> None:
    """Rule 11: a maintenance that waits for an administrator gets no event, and `lastError` names the cause."""
    node = workload.take_node()
    first = run_all_steps(functions, workload.create_maintenance(node))
    second = run_all_steps(functions, workload.create_maintenance(node, KUBEVIRT))
    without_node = run_all_steps(functions, workload.create_maintenance("nowhere"))

    assert functions.invoke("resync", build_tick()) is None

    assert first["metadata"]["name"] in workload.read_maintenance(second)["status"]["lastError"]
    assert workload.read_maintenance(without_node)["status"]["lastError"] == 'nodes "nowhere" not found'
    assert functions.invoke("restore", build_own_event(events.MAINTENANCE_RESTORE_PENDING, second)) is None
