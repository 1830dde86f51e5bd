"""Tests that a tick continues a maintenance from every state in which its next event was lost (rule 11).

The cases are rows of the tables in docs/states.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from cloudevents.core.base import BaseCloudEvent

from eventing import events
from eventing.subscriptions import subscribers
from functions.installs import CLAIMS
from kube.maintenance import leases
from kube.maintenance import objects as m
from kube.maintenance.groups import DRAIN_TAINTS, KUBEVIRT, MEDIK8S
from kube.nodes import LABEL, in_maintenance, is_cordoned
from kube.paths import Object
from tests.fault_proxy import Fault, Faults
from tests.functions.conftest import Functions
from tests.functions.event_builders import added, said, tick, updated
from tests.functions.request_hooks import requests_of
from tests.proofs import proves
from tests.workload import Audit, Workload, written

pytestmark = pytest.mark.usefixtures("at_rest")

LISTS = 5
"""Number of lists that each tick reads: three API groups, nodes and leases."""
VALID, EXPIRED = "2999-01-01T00:00:00.000000Z", "2020-01-01T00:00:00.000000Z"


def settle(functions: Functions, event: BaseCloudEvent) -> Counter[str]:
    """Deliver the event and all replies as the Triggers route them; return the number of events per type."""
    delivered: Counter[str] = Counter()
    waiting = [event]
    while waiting:
        event = waiting.pop(0)
        delivered[event.get_type()] += 1
        assert delivered.total() < 20, delivered
        waiting += [reply for name in subscribers(event) if (reply := functions.answer(name, event))]
    return delivered


def drain(functions: Functions, item: Object) -> Object:
    """Run all steps of the maintenance without losing an event, and return the maintenance."""
    settle(functions, added(item))
    return item


def new(_functions: Functions, work: Workload) -> Object:
    return work.maintenance(work.node())


def begun(functions: Functions, work: Workload) -> Object:
    item = work.maintenance(work.node())
    functions.begin(item)
    return item


def cordoned(functions: Functions, work: Workload) -> Object:
    item = work.maintenance(work.node())
    functions.chain(item, "begin", "cordon")
    return item


def closed(functions: Functions, work: Workload) -> Object:
    item = work.maintenance(work.node())
    functions.prepare(item)
    return item


def emptied(functions: Functions, work: Workload) -> Object:
    """Create a maintenance whose last pod left while PodSource was down."""
    node = work.node()
    work.pods(node, "pod")
    item = work.maintenance(node)
    functions.answer("status", functions.chain(item, "begin", "cordon", "taint", "evict"))
    work.until(f"/api/v1/namespaces/{work.namespace}/pods", lambda pods: not pods)
    return item


def drained(functions: Functions, work: Workload) -> Object:
    """Create a maintenance whose `node.drained` did not reach `status`."""
    item = work.maintenance(work.node())
    assert functions.chain(item, "begin", "cordon", "taint", "evict").get_type() == events.NODE_DRAINED
    return item


def uncordoned(functions: Functions, work: Workload) -> Object:
    node = work.node()
    item = drain(functions, work.maintenance(node))
    work.local.kubectl("uncordon", node)
    return item


def untainted(functions: Functions, work: Workload) -> Object:
    node = work.node()
    item = drain(functions, work.maintenance(node))
    work.local.kubectl("taint", "node", node, "medik8s.io/drain:NoSchedule-")
    return item


def unlabelled(functions: Functions, work: Workload) -> Object:
    node = work.node()
    item = drain(functions, work.maintenance(node))
    work.local.kubectl("label", "node", node, f"{LABEL}-")
    return item


def replaced(functions: Functions, work: Workload) -> Object:
    item = drain(functions, work.maintenance(work.node()))
    work.admin.patch(m.path(item), {"metadata": dict.fromkeys(("finalizers", "annotations", "ownerReferences"))})
    return item


def leaseless(functions: Functions, work: Workload) -> Object:
    node = work.node()
    item = drain(functions, work.maintenance(node))
    work.delete(leases.lease_path(node))
    return item


def heir(functions: Functions, work: Workload) -> Object:
    """Create a maintenance that became the successor of a deleted one, without receiving the event for it."""
    node = work.node()
    first = drain(functions, work.maintenance(node))
    item = drain(functions, work.maintenance(node, KUBEVIRT))
    assert work.again(item)["status"]["phase"] == m.FAILED
    work.delete(m.path(first))
    functions.answer("restore", updated(work.again(first)))
    return item


def refused(functions: Functions, work: Workload) -> Object:
    """Create a maintenance that another tool's lease blocked; the lease has expired since."""
    node = work.node()
    spec = {"holderIdentity": "another-tool", "leaseDurationSeconds": 60, "renewTime": VALID}
    work.admin.create(leases.LEASES, {"metadata": {"name": leases.lease_name(node)}, "spec": spec})
    item = drain(functions, work.maintenance(node))
    assert "another-tool" in work.again(item)["status"]["lastError"]
    work.admin.patch(leases.lease_path(node), {"spec": {"renewTime": EXPIRED}})
    return item


def troubled(functions: Functions, work: Workload) -> Object:
    """Create a drained maintenance whose status has an outdated error of a lease renewal."""
    item = drain(functions, work.maintenance(work.node()))
    late = {"step": "begin", "error": "leases is forbidden", "begun": True}
    functions.answer("status", said(events.MAINTENANCE_FAILED, item, data=late))
    assert work.again(item)["status"]["lastError"] == late["error"]
    return item


def unknown(functions: Functions, work: Workload) -> Object:
    """Create a maintenance that failed because its node was created only afterwards."""
    item = drain(functions, work.maintenance(late := f"late-{work.namespace}"))
    assert work.again(item)["status"]["phase"] == m.FAILED
    work.local.add_named(late)
    return item


@pytest.mark.slow
@proves("X-3")
@pytest.mark.parametrize(
    ("arrange", "says", "most"),
    [
        (new, events.MAINTENANCE_FOUND, 5),
        (unknown, events.MAINTENANCE_FOUND, 5),
        (refused, events.MAINTENANCE_FOUND, 5),
        (heir, events.MAINTENANCE_FOUND, 5),
        (replaced, events.MAINTENANCE_FOUND, 4),
        (leaseless, events.MAINTENANCE_FOUND, 1),
        (troubled, events.MAINTENANCE_FOUND, 5),
        (begun, events.NODE_DRIFTED, 4),
        (cordoned, events.NODE_DRIFTED, 4),
        (uncordoned, events.NODE_DRIFTED, 3),
        (untainted, events.NODE_DRIFTED, 3),
        (unlabelled, events.NODE_DRIFTED, 3),
        (closed, events.NODE_TAINTED, 2),
        (emptied, events.NODE_TAINTED, 2),
        (drained, events.NODE_TAINTED, 2),
    ],
)
def test_a_tick_moves_it_on_to_its_end(
    functions: Functions, work: Workload, arrange: Callable[[Functions, Workload], Object], says: str, most: int
) -> None:
    """Rule 11, X-3: one event of a tick completes the maintenance, and later ticks emit nothing for it.

    The test caches the account of `resync` and that its install is active, so that a tick reads neither.
    """
    CLAIMS.own(functions.clusters["resync"])
    CLAIMS.confirm(functions.clusters["resync"])
    item = arrange(functions, work)
    with requests_of(functions.clusters["resync"].api) as requests:
        said_now = functions.answer("resync", tick())

    assert said_now is not None
    assert said_now.get_type() == says
    assert requests.total() <= LISTS + 1
    assert settle(functions, said_now).total() <= most
    item = work.again(item)
    assert (m.has_begun(item), m.is_owned(item), m.phase(item)) == (True, True, m.SUCCEEDED)
    node = work.read_node(m.node_name(item))
    assert in_maintenance(node, m.group(item).drain_taint)
    assert leases.is_holder(work.admin.get(leases.lease_path(m.node_name(item))), item)
    assert functions.answer("resync", tick()) is None


@proves("NMO-13")
def test_an_error_of_a_renewal_is_looked_at_by_each_tick_and_told_once(
    functions: Functions, spoiled: Functions, faults: Faults, work: Workload, audit: Audit
) -> None:
    """Rule 9: a failing renewal causes one pass of `begin` per tick and no write; a success clears the error."""
    item = drain(functions, work.maintenance(work.node()))
    faults.spoil(lambda request: Fault(403, "may not") if request.startswith("get leases") else None)
    functions.answer("status", begun_in_vain(spoiled, said(events.MAINTENANCE_FOUND, item, data={"begun": True})))
    shown, writes = work.again(item), len(audit.writes_by())
    assert m.last_error(shown) == "may not"

    for _ in range(3):
        found = functions.answer("resync", tick())
        assert found is not None
        assert functions.answer("status", begun_in_vain(spoiled, found)) is None
    assert work.again(item) == shown
    assert written(audit.writes_by()[writes:]) == []

    faults.speak_again()
    found = functions.answer("resync", tick())
    assert found is not None
    settle(functions, found)
    assert m.last_error(work.again(item)) == ""
    assert functions.answer("resync", tick()) is None


def begun_in_vain(spoiled: Functions, found: BaseCloudEvent) -> BaseCloudEvent:
    """Run `begin`, which fails, and return its failure event."""
    failed = spoiled.answer("begin", found)
    assert failed is not None
    assert failed.get_type() == events.MAINTENANCE_FAILED
    return failed


def deleted(functions: Functions, work: Workload) -> Object:
    item = drain(functions, work.maintenance(work.node()))
    work.delete(m.path(item))
    return item


def deleted_before_its_steps(functions: Functions, work: Workload) -> Object:
    item = begun(functions, work)
    work.delete(m.path(item))
    return item


def lost(functions: Functions, work: Workload) -> Object:
    """Create a drained maintenance, remove its finalizer and delete it."""
    item = drain(functions, work.maintenance(work.node(), KUBEVIRT))
    work.vanish(item)
    return item


def both(functions: Functions, work: Workload) -> Object:
    """Create a maintenance and its successor, delete both and lose both events; return the successor."""
    node = work.node()
    first = drain(functions, work.maintenance(node))
    item = drain(functions, work.maintenance(node, KUBEVIRT))
    work.delete(m.path(first))
    functions.answer("restore", updated(work.again(first)))
    work.delete(m.path(item))
    return item


def nodeless(functions: Functions, work: Workload) -> Object:
    """Create a maintenance, and delete it and its node."""
    node = work.node()
    item = drain(functions, work.maintenance(node))
    work.delete(f"/api/v1/nodes/{node}")
    work.delete(m.path(item))
    return item


@proves("X-5")
@pytest.mark.parametrize("arrange", [deleted, deleted_before_its_steps, lost, both, nodeless])
def test_a_tick_gives_its_node_back(
    functions: Functions, work: Workload, arrange: Callable[[Functions, Workload], Object]
) -> None:
    """Rule 11, X-5: one event of a tick restores the node and releases lease and maintenance; later ticks emit none."""
    item = arrange(functions, work)
    name = m.node_name(item)
    with requests_of(functions.clusters["resync"].api) as requests:
        ended = functions.answer("resync", tick())

    assert ended is not None
    assert ended.get_type() == events.MAINTENANCE_ENDED
    assert requests.total() == LISTS
    assert settle(functions, ended).total() <= 2
    for node in work.admin.list("/api/v1/nodes", fields=f"metadata.name={name}")["items"]:
        keys = {taint["key"] for taint in node["spec"].get("taints") or []}
        assert not node["spec"].get("unschedulable")
        assert not {*node["metadata"]["labels"]} & {LABEL}
        assert not keys & DRAIN_TAINTS
    assert work.admin.list(leases.LEASES, fields=f"metadata.name={leases.lease_name(name)}")["items"] == []
    assert work.admin.list(m.group(item).path, fields=f"metadata.name={item['metadata']['name']}")["items"] == []
    assert functions.answer("resync", tick()) is None


@proves("X-3")
@pytest.mark.parametrize("value", ["", "Foo_Bar"])
def test_a_label_that_no_maintenance_set_is_taken_off(functions: Functions, work: Workload, value: str) -> None:
    """Rule 12: a node whose label contains no valid uid is restored, and only once."""
    node = work.node()
    work.local.kubectl("cordon", node)
    work.local.kubectl("label", "node", node, f"{LABEL}={value}")

    ended = functions.answer("resync", tick())
    assert ended is not None
    settle(functions, ended)

    found = work.read_node(node)
    assert not is_cordoned(found)
    assert LABEL not in found["metadata"]["labels"]
    assert functions.answer("resync", tick()) is None


def test_a_lease_that_names_no_object_is_released(functions: Functions, work: Workload) -> None:
    """Rule 12: a lease whose annotation has an invalid object name is released as orphaned."""
    node = work.node()
    item = drain(functions, work.maintenance(node))
    annotation = {leases.HOLDER_ANNOTATION: f"{MEDIK8S.api_version} x/status some-uid"}
    work.vanish(item)
    work.admin.patch(leases.lease_path(node), {"metadata": {"annotations": annotation}})

    ended = functions.answer("resync", tick())
    assert ended is not None
    settle(functions, ended)

    assert work.admin.list(leases.LEASES, fields=f"metadata.name={leases.lease_name(node)}")["items"] == []
    assert functions.answer("resync", tick()) is None


@proves("X-3")
def test_a_budget_that_opened_unheard_is_no_end(functions: Functions, work: Workload) -> None:
    """Rule 11: if `budget.opened` was lost, the event of a tick makes `evict` evict the pod."""
    node = work.node()
    work.pods(node, "pod", labels={"app": "x"})
    work.budget("keep", {"app": "x"}, 1, counted=1)
    item = drain(functions, work.maintenance(node))
    assert work.again(item)["status"]["blockedPods"]
    work.delete(f"/apis/policy/v1/namespaces/{work.namespace}/poddisruptionbudgets/keep")

    reply = functions.answer("resync", tick())

    assert reply is not None
    assert settle(functions, reply)[events.PODS_EVICTED] == 1
    work.until(f"/api/v1/namespaces/{work.namespace}/pods", lambda pods: not pods)


@proves("X-3")
@pytest.mark.parametrize("left", [["kept"], []], ids=["while it waits", "after its end"])
def test_a_pod_that_came_unheard_goes(functions: Functions, work: Workload, left: list[str]) -> None:
    """Rule 11: if `pods.came` was lost, the event of a tick makes `evict` evict the new pod.

    The drain waits for a budget, or has succeeded already.
    """
    node = work.node()
    work.pods(node, *left, labels={"app": "kept"})
    work.budget("keep", {"app": "kept"}, 1, counted=len(left))
    drain(functions, work.maintenance(node))
    work.pods(node, "unheard")

    reply = functions.answer("resync", tick())

    assert reply is not None
    assert reply.get_type() == events.NODE_TAINTED
    assert settle(functions, reply)[events.PODS_EVICTED] == 1
    work.until(f"/api/v1/namespaces/{work.namespace}/pods", lambda pods: list(pods) == left)


@proves("X-3")
def test_what_waits_for_somebody_else_says_for_whom(functions: Functions, work: Workload) -> None:
    """Rule 11: a maintenance that waits for an administrator gets no event, and `lastError` names the cause."""
    node = work.node()
    first = drain(functions, work.maintenance(node))
    second = drain(functions, work.maintenance(node, KUBEVIRT))
    nowhere = drain(functions, work.maintenance("nowhere"))

    assert functions.answer("resync", tick()) is None

    assert first["metadata"]["name"] in work.again(second)["status"]["lastError"]
    assert work.again(nowhere)["status"]["lastError"] == 'nodes "nowhere" not found'
    assert functions.answer("restore", said(events.MAINTENANCE_ENDED, second)) is None
