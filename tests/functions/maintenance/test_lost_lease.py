"""Tests of a maintenance whose lease another tool took: it counts failed renewals and restores its node (NMO-27a)."""

from __future__ import annotations

import pytest

from eventing import events
from functions.event_data import data_of
from kube.maintenance import leases
from kube.maintenance import objects as m
from kube.maintenance.groups import KUBEVIRT, MEDIK8S
from kube.nodes import EXCLUDED, LABEL, in_maintenance, is_cordoned, missing_taints
from kube.paths import Object
from tests.fault_proxy import Fault, Faults
from tests.functions.conftest import Functions
from tests.functions.event_builders import node_deleted, tick, updated
from tests.functions.maintenance.test_faults import reply_of
from tests.functions.maintenance.test_states import drain, settle
from tests.proofs import proves
from tests.workload import Audit, Workload, written

pytestmark = pytest.mark.usefixtures("at_rest")

KEY = "medik8s.io/drain"
FOREIGN = {
    "metadata": {"annotations": None},
    "spec": {"holderIdentity": "self-node-remediation", "renewTime": "2999-01-01T00:00:00.000000Z"},
}


def robbed(functions: Functions, work: Workload, ticks: int) -> Object:
    """Create a drained maintenance, give its lease to another tool, and run `ticks` ticks; return the maintenance."""
    node = work.node()
    item = drain(functions, work.maintenance(node))
    work.admin.patch(leases.lease_path(node), FOREIGN)
    for _ in range(ticks):
        found = functions.answer("resync", tick())
        assert found is not None
        settle(functions, found)
    return item


def is_given_back(node: Object) -> bool:
    """Return whether the node is schedulable, has none of our labels, and lacks a maintenance taint."""
    labels = node["metadata"]["labels"]
    return not is_cordoned(node) and not {LABEL, EXCLUDED} & labels.keys() and len(missing_taints(node, KEY)) >= 1


@proves("NMO-27a")
def test_more_than_three_failed_renewals_give_the_node_back(functions: Functions, work: Workload, audit: Audit) -> None:
    """NMO-27a: three failed renewals are tolerated; after the fourth the phase is Failed and the node is restored.

    The error has the wording of [SRC]. Later events change nothing.
    """
    item = robbed(functions, work, 3)
    node = item["spec"]["nodeName"]
    borne = work.again(item)["status"]
    assert (borne["phase"], borne["errorOnLeaseCount"]) == (m.SUCCEEDED, 3)
    assert "held by self-node-remediation" in borne["lastError"]
    assert in_maintenance(work.read_node(node), KEY)

    found = functions.answer("resync", tick())
    assert found is not None
    settle(functions, found)
    given_up = work.again(item)
    shown = given_up["status"]
    assert (shown["phase"], shown["errorOnLeaseCount"]) == (m.FAILED, 4)
    assert shown["lastError"] == "maintenance failed: lease could not be extended after 4 attempts"
    assert [m.condition(given_up, kind)["status"] for kind in ("Cordoned", "Drained")] == ["False", "False"]

    restored = functions.answer("restore", updated(given_up))
    assert restored is not None
    assert (restored.get_type(), data_of(restored)["node"]) == (events.NODE_RESTORED, node)
    assert is_given_back(work.read_node(node))
    lease = work.admin.get(leases.lease_path(node))
    assert lease["spec"]["holderIdentity"] == "self-node-remediation"
    writes = len(audit.writes_by())
    for event in (updated(given_up), node_deleted(work.read_node(node)), found):
        settle(functions, event)
    assert functions.answer("resync", tick()) is None
    assert written(audit.writes_by()[writes:]) == []


@pytest.mark.parametrize("lost", ["status", "restore"])
def test_a_tick_finishes_what_was_lost(functions: Functions, work: Workload, lost: str) -> None:
    """X-3, NMO-27a: a tick makes up for a lost event to `status` or `restore`."""
    item = robbed(functions, work, 3)
    found = functions.answer("resync", tick())
    assert found is not None
    if lost == "restore":
        settle(functions, found)
    else:
        functions.answer("begin", found)

    for _ in range(2):
        again = functions.answer("resync", tick())
        if again is not None:
            settle(functions, again)

    assert work.again(item)["status"]["phase"] == m.FAILED
    assert is_given_back(work.read_node(item["spec"]["nodeName"]))


def test_a_lease_that_comes_back_ends_the_count(functions: Functions, work: Workload) -> None:
    """NMO-27a: a renewal that succeeds clears the count and the error."""
    item = robbed(functions, work, 2)
    node = item["spec"]["nodeName"]
    assert work.again(item)["status"]["errorOnLeaseCount"] == 2
    work.admin.run(work.admin.api.request("DELETE", leases.lease_path(node)))

    found = functions.answer("resync", tick())
    assert found is not None
    assert found.get_type() == events.MAINTENANCE_FOUND
    settle(functions, found)

    shown = work.again(item)["status"]
    assert shown["phase"] == m.SUCCEEDED
    assert not {"errorOnLeaseCount", "lastError"} & shown.keys()
    assert leases.is_holder(work.admin.get(leases.lease_path(node)), item)
    assert functions.answer("resync", tick()) is None


def test_a_lease_that_may_not_be_renewed_is_told_of_a_drained_node(
    functions: Functions, spoiled: Functions, work: Workload, faults: Faults
) -> None:
    """NMO-13: a forbidden renewal is reported for a drained node too, and cleared once the right is granted."""
    item = drain(functions, work.maintenance(work.node()))
    work.admin.run(work.admin.api.request("DELETE", leases.lease_path(item["spec"]["nodeName"])))
    found = functions.answer("resync", tick())
    assert found is not None
    faults.spoil(lambda request: Fault(403, "cannot create leases") if request.startswith("create leases") else None)

    refused = reply_of(spoiled.post("begin", found))
    assert refused is not None
    settle(functions, refused)

    shown = work.again(item)["status"]
    assert (shown["phase"], shown["lastError"]) == (m.SUCCEEDED, "cannot create leases")
    again = functions.answer("resync", tick())
    assert again is not None
    settle(functions, again)
    assert not m.last_error(work.again(item))


@proves("NMO-22")
def test_a_lease_that_somebody_deletes_goes_to_nobody_else(functions: Functions, work: Workload) -> None:
    """Rule 11: a deleted lease goes back to the maintenance that has the node, not to the one that waits for it."""
    node = work.node()
    first, second = (drain(functions, work.maintenance(node, group)) for group in (MEDIK8S, KUBEVIRT))
    refused = work.again(second)
    work.delete(leases.lease_path(node))

    found = functions.answer("resync", tick())
    assert found is not None
    assert found.get_extension("maintenance") == first["metadata"]["uid"]
    settle(functions, found)

    assert leases.is_holder(work.admin.get(leases.lease_path(node)), first)
    assert work.again(second) == refused
    assert functions.answer("resync", tick()) is None


def test_an_event_delivered_again_counts_once(functions: Functions, work: Workload) -> None:
    """X-2: a redelivered event does not increase the count of failed renewals."""
    item = robbed(functions, work, 0)
    found = functions.answer("resync", tick())
    assert found is not None
    refused = functions.answer("begin", found)
    assert refused is not None

    for _ in range(5):
        functions.answer("status", refused)

    assert work.again(item)["status"]["errorOnLeaseCount"] == 1


def test_a_failure_that_is_told_late_ends_nothing(functions: Functions, work: Workload) -> None:
    """X-2: a fourth failure that reaches `status` after a successful renewal changes nothing."""
    item = robbed(functions, work, 3)
    found = functions.answer("resync", tick())
    assert found is not None
    late = functions.answer("begin", found)
    assert late is not None
    work.delete(leases.lease_path(item["spec"]["nodeName"]))
    settle(functions, found)
    renewed = work.again(item)["status"]

    functions.answer("status", late)

    assert work.again(item)["status"] == renewed
    assert renewed["phase"] == m.SUCCEEDED
    assert "errorOnLeaseCount" not in renewed


@pytest.mark.parametrize("ticks", [0, 3], ids=["a failure comes late", "the success is lost"])
def test_an_error_of_a_lease_that_is_ours_again_ends_with_the_next_tick(
    functions: Functions, work: Workload, ticks: int
) -> None:
    """X-3, NMO-27a: the next tick clears an outdated renewal error while the maintenance holds its lease.

    The next renewal is due only half an hour later, and another failure would restore the node.
    """
    item = robbed(functions, work, ticks)
    found = functions.answer("resync", tick())
    assert found is not None
    late = functions.answer("begin", found)
    assert late is not None
    work.delete(leases.lease_path(item["spec"]["nodeName"]))
    if ticks:
        functions.answer("begin", found)  # the reply is lost
    else:
        settle(functions, found)
        functions.answer("status", late)
    assert work.again(item)["status"]["errorOnLeaseCount"] == max(ticks, 1)

    again = functions.answer("resync", tick())
    assert again is not None
    settle(functions, again)

    assert not {"errorOnLeaseCount", "lastError"} & work.again(item)["status"].keys()
    assert functions.answer("resync", tick()) is None


@pytest.mark.slow
def test_what_is_given_back_is_not_touched_again_at_the_end(functions: Functions, work: Workload) -> None:
    """NMO-27a: deleting a maintenance that lost its lease does not change the restored node."""
    item = robbed(functions, work, 4)
    node = item["spec"]["nodeName"]
    settle(functions, updated(work.again(item)))
    work.local.kubectl("cordon", node)

    work.delete(m.path(item))
    settle(functions, updated(work.again(item)))

    assert is_cordoned(work.read_node(node))
    assert m.path(item).rpartition("/")[2] not in {
        other["metadata"]["name"] for other in work.admin.list(m.group(item).path)["items"]
    }
    assert work.admin.get(leases.lease_path(node))["spec"]["holderIdentity"] == "self-node-remediation"


def test_what_was_not_given_back_for_want_of_a_label_is_at_the_end(functions: Functions, work: Workload) -> None:
    """Rule 11: a node that `restore` skipped because its label was missing is restored at the deletion."""
    item = robbed(functions, work, 4)
    node = item["spec"]["nodeName"]
    work.local.kubectl("label", "node", node, f"{LABEL}-")
    settle(functions, updated(work.again(item)))
    assert is_cordoned(work.read_node(node))

    work.delete(m.path(item))
    settle(functions, updated(work.again(item)))

    assert is_given_back(work.read_node(node))


@proves("X-5")
def test_what_gave_up_and_is_kept_by_others_leaves_no_node_closed(functions: Functions, work: Workload) -> None:
    """Rule 11: a tick restores the node of a maintenance that lost its lease and then our finalizer.

    Another finalizer keeps the object.
    """
    item = robbed(functions, work, 4)
    node = item["spec"]["nodeName"]
    work.admin.patch(m.path(item), {"metadata": {"finalizers": ["example.com/hold"]}})
    work.delete(m.path(item))

    found = functions.answer("resync", tick())
    assert found is not None
    settle(functions, found)

    assert is_given_back(work.read_node(node))
    assert work.admin.get(leases.lease_path(node))["spec"]["holderIdentity"] == "self-node-remediation"
    assert functions.answer("resync", tick()) is None


def test_an_evicting_step_stops_when_the_lease_is_lost(functions: Functions, work: Workload) -> None:
    """NMO-27a: after the lease is lost, `cordon`, `taint` and `evict` do nothing."""
    item = robbed(functions, work, 4)
    node = item["spec"]["nodeName"]
    settle(functions, updated(work.again(item)))

    consumed = {"cordon": events.NODE_DRIFTED, "taint": events.NODE_CORDONED, "evict": events.NODE_TAINTED}
    for step, kind in consumed.items():
        event = events.event(kind, "test", events.Reference.of(item), node, seed=step)
        assert functions.answer(step, event) is None

    assert is_given_back(work.read_node(node))


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["deleted", "gone without a trace"])
def test_who_gave_up_is_no_heir(functions: Functions, work: Workload, ends: str) -> None:
    """X-7: a maintenance that lost its lease is not a successor: the node is restored after the next one."""
    first = robbed(functions, work, 4)
    node = first["spec"]["nodeName"]
    settle(functions, updated(work.again(first)))
    work.admin.run(work.admin.api.request("DELETE", leases.lease_path(node)))
    second = drain(functions, work.maintenance(node))
    assert in_maintenance(work.read_node(node), KEY)

    if ends == "deleted":
        work.delete(m.path(second))
        settle(functions, updated(work.again(second)))
    else:
        work.vanish(second)
        found = functions.answer("resync", tick())
        assert found is not None
        settle(functions, found)

    assert is_given_back(work.read_node(node))
    assert functions.answer("resync", tick()) is None
    assert work.again(first)["status"]["phase"] == m.FAILED
