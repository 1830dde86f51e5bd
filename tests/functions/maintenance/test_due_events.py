"""Tests of which event a maintenance waits for, as truth tables on plain dicts."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from eventing import events
from functions.maintenance.due_events import Due, Known, Look, due, due_by, due_on, is_under_way, strays
from functions.maintenance.metrics import Fleet
from kube.maintenance import leases
from kube.maintenance.objects import SNAPSHOT
from kube.paths import Object
from tests.kube.samples import IN_MAINTENANCE, TAINTED, maintenance, node, pod

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
REFUSED = {"phase": "Failed", "lastUpdate": "2026-01-02T03:00:00Z"}
CLOSED, OPENED = ([{"type": "Cordoned", "status": status}] for status in ("True", "False"))
DRAINED = {"phase": "Succeeded", "lastUpdate": "2026-01-02T03:00:00Z", "conditions": CLOSED}
BEGUN, NEW = maintenance(DRAINED), maintenance(counts="")
FAILED = maintenance(REFUSED, counts="")
STRIPPED = maintenance(DRAINED, counts="")
WAITING = maintenance({"lastError": "held by another", "lastUpdate": "2026-01-02T03:00:00Z"}, counts="")
OPEN = maintenance({"phase": "Running", "conditions": OPENED})
GIVEN_UP = maintenance({**REFUSED, "errorOnLeaseCount": 4})
REGAINED = maintenance({**DRAINED, "errorOnLeaseCount": 3})
TROUBLED = maintenance({**DRAINED, "lastError": "leases is forbidden"})
DRAINING = maintenance({**DRAINED, "phase": "Running", "lastError": "pods is forbidden"})
FOREIGN: Object = {
    "metadata": {"name": "node-node-1"},
    "spec": {"holderIdentity": "another", "renewTime": "2026-01-02T03:04:00.0Z", "leaseDurationSeconds": 600},
}
EXPIRED = {**FOREIGN, "spec": {**FOREIGN["spec"], "leaseDurationSeconds": 1}}
NOTED = {"annotations": {SNAPSHOT: '{"totalpods": 9, "evictionPods": 5, "uid": "other-uid"}'}}
OTHER = {**BEGUN, "metadata": {**BEGUN["metadata"], **NOTED, "name": "other", "uid": "other-uid"}}
GIVEN_UP_OTHER = {**OTHER, "status": {**REFUSED, "errorOnLeaseCount": 4}}
ENDING = {**OTHER, "metadata": {**OTHER["metadata"], "deletionTimestamp": "2026-01-02T03:04:05Z"}}
ENDED = {"deletionTimestamp": "2026-01-02T03:04:05Z", "finalizers": ["example.com/hold"]}
OVER = {**ENDING, "metadata": {**ENDING["metadata"], **ENDED}}
GIVEN_UP_OVER = {**GIVEN_UP, "metadata": {**GIVEN_UP["metadata"], **ENDED}}
ELSEWHERE = {**OTHER, "spec": {"nodeName": "node-2"}}


def lease(item: Object, age: timedelta = timedelta()) -> Object:
    return leases.lease_of("node-1", item, NOW - age)


def known(item: Object, held: Object | None = None, found: Object | None = None) -> Known:
    return Known([item], {"node-1": found} if found else {}, {"node-1": held} if held else {})


@pytest.mark.parametrize(
    ("item", "lists", "answer"),
    [
        pytest.param(NEW, Known([NEW], None, None), events.MAINTENANCE_FOUND, id="new, nothing listed"),
        pytest.param(BEGUN, Known([BEGUN], None, {}), Look.LATER, id="nodes not listed"),
        pytest.param(BEGUN, Known([BEGUN], {}, None), Look.LATER, id="leases not listed"),
        pytest.param(FAILED, known(FAILED), Look.NODE, id="refused, no lease"),
        pytest.param(FAILED, known(FAILED, found=IN_MAINTENANCE), events.MAINTENANCE_FOUND, id="refused, its turn"),
        pytest.param(FAILED, Known([OTHER, FAILED], {}, {"node-1": lease(OTHER)}), "", id="refused, another holds"),
        pytest.param(FAILED, Known([OVER, FAILED], {}, {"node-1": lease(OVER)}), Look.NODE, id="refused, other over"),
        pytest.param(FAILED, Known([OTHER, FAILED], {}, {}), "", id="refused, the other's lease deleted"),
        pytest.param(FAILED, Known([ENDING, FAILED], {}, {}), "", id="refused, the same, and the other is ending"),
        pytest.param(FAILED, Known([OTHER, FAILED], {}, {"node-1": EXPIRED}), "", id="refused, the other is robbed"),
        pytest.param(FAILED, Known([ELSEWHERE, FAILED], {}, {}), Look.NODE, id="refused, the other is elsewhere"),
        pytest.param(FAILED, Known([GIVEN_UP_OTHER, FAILED], {}, {}), Look.NODE, id="refused, the other gave up"),
        pytest.param(FAILED, known(FAILED, lease(FAILED)), Look.NODE, id="failed after it took the lease"),
        pytest.param(
            STRIPPED, known(STRIPPED, lease(STRIPPED), IN_MAINTENANCE), events.MAINTENANCE_FOUND, id="metadata replaced"
        ),
        pytest.param(BEGUN, known(BEGUN, lease(BEGUN)), Look.NODE, id="begun, no label"),
        pytest.param(BEGUN, known(BEGUN, lease(BEGUN), IN_MAINTENANCE), Look.PODS, id="as it should be"),
        pytest.param(BEGUN, known(BEGUN, None, IN_MAINTENANCE), events.MAINTENANCE_FOUND, id="no lease"),
        pytest.param(WAITING, known(WAITING, FOREIGN, node()), "", id="waits for another tool"),
        pytest.param(WAITING, known(WAITING, None, node()), events.MAINTENANCE_FOUND, id="waits no more"),
        pytest.param(BEGUN, known(BEGUN, FOREIGN, IN_MAINTENANCE), events.MAINTENANCE_FOUND, id="lost its lease"),
        pytest.param(GIVEN_UP, known(GIVEN_UP, FOREIGN, IN_MAINTENANCE), events.MAINTENANCE_ENDED, id="given up"),
        pytest.param(GIVEN_UP, known(GIVEN_UP, FOREIGN, node()), "", id="given up and given back"),
        pytest.param(GIVEN_UP, known(GIVEN_UP, None, node(holder="another")), "", id="given up, the next one's node"),
    ],
)
def test_what_the_lists_tell(item: Object, lists: Known, answer: Due) -> None:
    """X-3: `due` returns the event, or the read that must decide, from the lists alone."""
    assert due(item, lists, NOW) == answer


@pytest.mark.parametrize(
    ("item", "found", "held", "answer"),
    [
        pytest.param(BEGUN, None, lease(BEGUN), "", id="node gone"),
        pytest.param(STRIPPED, None, lease(STRIPPED), events.MAINTENANCE_FOUND, id="metadata replaced, node gone"),
        pytest.param(FAILED, None, None, "", id="never there"),
        pytest.param(FAILED, node(), None, events.MAINTENANCE_FOUND, id="there now"),
        pytest.param(BEGUN, node(*TAINTED, cordoned=True), lease(BEGUN), events.NODE_DRIFTED, id="label lost"),
        pytest.param(BEGUN, node(holder="nm-uid"), lease(BEGUN), events.NODE_DRIFTED, id="uncordoned"),
        pytest.param(
            BEGUN, IN_MAINTENANCE, lease(BEGUN, timedelta(minutes=46)), events.MAINTENANCE_FOUND, id="lease due"
        ),
        pytest.param(REGAINED, IN_MAINTENANCE, lease(REGAINED), events.MAINTENANCE_FOUND, id="lease ours, not told"),
        pytest.param(TROUBLED, IN_MAINTENANCE, lease(TROUBLED), events.MAINTENANCE_FOUND, id="drained, an error left"),
        pytest.param(TROUBLED, node(holder="nm-uid"), lease(TROUBLED), events.NODE_DRIFTED, id="the same, uncordoned"),
        pytest.param(DRAINING, IN_MAINTENANCE, lease(DRAINING), Look.PODS, id="an error of a drain"),
    ],
)
def test_what_the_node_tells(item: Object, found: Object | None, held: Object | None, answer: Due) -> None:
    """X-3, NMO-19: `due_on` returns the event that the state of the node requires."""
    assert due_on(item, found, held, NOW) == answer


BUSY = maintenance({"phase": "Running", "lastUpdate": "2026-01-02T03:04:04Z"})
BUSY_ENDING = {**BUSY, "metadata": {**BUSY["metadata"], "deletionTimestamp": "2026-01-02T03:04:05Z"}}
BUSY_STRIPPED = maintenance({"phase": "Running", "lastUpdate": "2026-01-02T03:04:04Z"}, counts="")
LATE = timedelta(minutes=46)


@pytest.mark.parametrize(
    ("item", "held", "answer"),
    [
        pytest.param(BUSY, lease(BUSY, LATE), events.MAINTENANCE_FOUND, id="due"),
        pytest.param(BUSY, lease(BUSY), "", id="not due"),
        pytest.param(BUSY, lease(OTHER, LATE), "", id="another's"),
        pytest.param(BUSY, None, "", id="none"),
        pytest.param(BUSY_STRIPPED, lease(BUSY, LATE), "", id="not begun"),
        pytest.param(BUSY_ENDING, lease(BUSY, LATE), "", id="ending"),
    ],
)
def test_what_is_under_way_waits_for_its_lease_alone(item: Object, held: Object | None, answer: Due) -> None:
    """NMO-27a, rule 11: a maintenance in flight waits only for the renewal of its lease, once that is due."""
    lists = Known([item] * 20, {"node-1": IN_MAINTENANCE}, {"node-1": held} if held else {})

    assert due(item, lists, NOW) == answer


def test_one_without_its_owner_reference_is_begun_again() -> None:
    """X-3, NMO-20: a maintenance whose owner reference was removed waits for `begin`, which sets it again."""
    stripped = {**BEGUN, "metadata": {**BEGUN["metadata"], "ownerReferences": []}}

    assert due(stripped, known(stripped, lease(stripped), IN_MAINTENANCE), NOW) == events.MAINTENANCE_FOUND


def seen(seconds: float, *, deleted: float | None = None, written: float | None = None) -> Object:
    """Build a begun maintenance with these ages of creation, deletion and last status write, in seconds."""
    stamps = {"creationTimestamp": seconds, "deletionTimestamp": deleted}
    item = maintenance({"phase": "Running"} if written is None else {"phase": "Running", "lastUpdate": ago(written)})
    item["metadata"] |= {name: ago(value) for name, value in stamps.items() if value is not None}
    return item


def ago(seconds: float) -> str:
    return (NOW - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize(
    ("item", "queue", "answer"),
    [
        pytest.param(seen(100, written=0), 0, True, id="written now"),
        pytest.param(seen(100, written=4), 0, True, id="written a moment ago"),
        pytest.param(seen(100, written=5), 0, False, id="written five seconds ago"),
        pytest.param(seen(100, written=5), 1, True, id="the same, behind others"),
        pytest.param(seen(100, written=6), 1, False, id="longer ago than that"),
        pytest.param(seen(100, written=-1), 9, False, id="written by a clock that is ahead"),
        pytest.param(seen(0), 0, False, id="new, and few are at work"),
        pytest.param(seen(3), 9, True, id="new, behind others"),
        pytest.param(seen(9), 9, False, id="new no more"),
        pytest.param(seen(100, deleted=0, written=0), 0, False, id="deleted, and few are at work"),
        pytest.param(seen(100, deleted=3, written=50), 9, True, id="deleted, behind others"),
        pytest.param(seen(100, deleted=9, written=0), 9, False, id="deleted longer ago"),
        pytest.param(maintenance(), 9, False, id="without any time"),
    ],
)
def test_what_was_written_a_moment_ago_is_under_way(item: Object, queue: float, answer: bool) -> None:
    """Rule 9: a maintenance is in flight for some time after its last write, and longer if others are queued."""
    assert is_under_way(item, NOW, queue) is answer


@pytest.mark.parametrize(
    ("item", "answer"),
    [(ENDING, events.MAINTENANCE_ENDED), (OVER, "")],
    ids=["to be given back", "over"],
)
def test_one_that_is_deleted_waits_for_restore(item: Object, answer: Due) -> None:
    """X-3: a deleted maintenance waits for `restore` as long as it has our finalizer."""
    later = NOW + timedelta(seconds=30)

    assert due(item, known(item, lease(item), IN_MAINTENANCE), later) == answer


@pytest.mark.parametrize(("at_work", "seconds"), [(10, 0.0), (11, 0.3), (20, 3.0), (500, 60.0)])
def test_the_more_are_at_work_the_longer_each_may_wait(at_work: int, seconds: float) -> None:
    """Rule 9: the queue time grows with the number of maintenances in progress, up to one minute.

    Deleted maintenances count; succeeded and failed ones do not.
    """
    items = [maintenance({"phase": "Running"})] * (at_work - 1) + [ENDING, BEGUN, FAILED]

    assert Known(items, {}, {}).queue_seconds == pytest.approx(seconds)


LEASED = events.Reference("nodemaintenance.medik8s.io/v1beta1", "nm", "nm-uid")
BY_HAND = events.Reference("nodemaintenance.medik8s.io/v1beta1", "unknown", "Foo_Bar")
LABELLED = events.Reference("nodemaintenance.medik8s.io/v1beta1", "nm-uid", "nm-uid")


@pytest.mark.parametrize(
    ("lists", "left"),
    [
        (Known([], {"node-1": IN_MAINTENANCE}, {}), [(LABELLED, "node-1")]),
        (Known([], {"node-1": node(holder="Foo_Bar")}, {}), [(BY_HAND, "node-1")]),
        (Known([], {}, {"node-1": lease(BEGUN)}), [(LEASED, "node-1")]),
        (Known([], {"node-1": IN_MAINTENANCE}, {"node-1": lease(BEGUN)}), [(LEASED, "node-1")]),
        (Known([OVER], {"node-1": IN_MAINTENANCE}, {}), [(LABELLED, "node-1")]),
        (Known([ELSEWHERE], {"node-1": IN_MAINTENANCE}, {}), [(LABELLED, "node-1")]),
        (Known([OTHER], {"node-1": IN_MAINTENANCE}, {"node-1": lease(BEGUN)}), []),
        (Known([ENDING], {"node-1": IN_MAINTENANCE}, {}), []),
        (Known([NEW], {"node-1": IN_MAINTENANCE}, {}), []),
        (Known([GIVEN_UP_OTHER], {"node-1": IN_MAINTENANCE}, {}), [(LABELLED, "node-1")]),
        (Known([GIVEN_UP], {"node-1": IN_MAINTENANCE}, {}), []),
        (Known([GIVEN_UP_OVER], {"node-1": IN_MAINTENANCE}, {}), [(LABELLED, "node-1")]),
        (Known([], {}, {"node-1": {"metadata": {}, "spec": {"holderIdentity": "another"}}}), []),
        (Known([], {"node-1": IN_MAINTENANCE}, {}, whole=False), []),
        (Known([], None, {"node-1": lease(BEGUN)}), []),
        (Known([], {"node-1": IN_MAINTENANCE}, None), []),
    ],
    ids=[
        *("labelled", "labelled by hand", "leased", "both", "kept by others", "of another node"),
        *(
            "another's",
            "being given back",
            "another waits",
            "another gave up",
            "its own, to be given back",
            "its own, given up and over",
            "another tool's lease",
        ),
        *("a group not listed", "nodes not listed", "leases not listed"),
    ],
)
def test_what_nobody_answers_for_is_a_stray(lists: Known, left: list[tuple[events.Reference, str]]) -> None:
    """Rule 12: a node or lease whose maintenance no longer exists is orphaned, unless a list is incomplete."""
    assert strays(lists) == left


def test_another_node_of_the_name_is_none_of_its() -> None:
    """NMO-20: a node whose uid differs from the recorded one does not belong to the maintenance."""
    owned = maintenance(DRAINED)
    owned["metadata"]["ownerReferences"] = [{"kind": "Node", "uid": "of-the-old-node"}]

    assert due_on(owned, node(), lease(owned), NOW) == ""


@pytest.mark.parametrize(
    ("item", "pods", "answer"),
    [
        (BEGUN, [], ""),
        (maintenance({"phase": "Succeeded", "conditions": OPENED}), [], events.NODE_TAINTED),
        (maintenance({"phase": "Succeeded"}), [], ""),
        (maintenance({"phase": "Running"}), [], events.NODE_TAINTED),
        (BEGUN, [pod()], events.NODE_TAINTED),
        (BEGUN, [pod(deletionTimestamp="2026-01-02T03:04:06Z")], ""),
        (OPEN, [pod(deletionTimestamp="2026-01-02T03:04:06Z")], events.NODE_TAINTED),
        (maintenance({"phase": "Running"}), [pod(deletionTimestamp="2026-01-02T03:04:06Z")], ""),
        (BEGUN, [pod(deletionTimestamp="2026-01-02T03:04:05Z")], events.NODE_TAINTED),
        (BEGUN, [pod(deletionTimestamp="2026-01-02T03:04:06Z"), pod("late")], events.NODE_TAINTED),
    ],
    ids=[
        "rests",
        "closed, not known",
        "keeps no conditions",
        "all gone, not known",
        "a late one",
        "ending",
        "ending, closed, not known",
        "ending, keeps no conditions",
        "stuck",
        "ending and a late one",
    ],
)
def test_what_the_pods_tell(item: Object, pods: list[Object], answer: str) -> None:
    """X-3: `due_by` asks for another pass if a pod may leave, or if the status does not report the finished drain."""
    assert due_by(item, pods, NOW) == answer


TOLD = {"namespace": "ns", "name": "pod", "reason": "Force", "message": "", "budget": ""}
KEPT = {"force": False}


def draining(drain: Object, *blocked: Object, phase: str = "Running", seen: int = 1) -> Object:
    """Build a maintenance with this `spec.drain`; its status has observed generation `seen`, the spec has 1."""
    conditions = [*CLOSED, {"type": "Drained", "status": "False", "observedGeneration": seen}]
    item = maintenance({"phase": phase, "blockedPods": list(blocked), "conditions": conditions})
    return {**item, "spec": {**item["spec"], "drain": drain}}


@pytest.mark.parametrize(
    ("item", "pods", "answer"),
    [
        pytest.param(draining(KEPT, TOLD), [pod()], "", id="told"),
        pytest.param(draining(KEPT), [pod()], events.NODE_TAINTED, id="not told"),
        pytest.param(draining({}, TOLD), [pod()], events.NODE_TAINTED, id="allowed now"),
        pytest.param(draining(KEPT, TOLD, seen=0), [pod()], events.NODE_TAINTED, id="spec changed"),
        pytest.param(draining(KEPT, TOLD), [pod(), pod("web", owner="Job")], events.NODE_TAINTED, id="another may go"),
        pytest.param(
            draining(KEPT, TOLD),
            [pod(), pod("web", owner="Job", deletionTimestamp="2026-01-02T03:04:06Z")],
            "",
            id="another is on its way",
        ),
        pytest.param(draining({"podSelector": "a=b"}, TOLD), [pod()], events.NODE_TAINTED, id="none selected any more"),
        pytest.param(draining({"podSelector": "a=b"}, phase="Succeeded", seen=0), [pod()], "", id="none selected"),
        pytest.param(draining({"podSelector": "a="}, phase="Succeeded"), [pod()], "", id="drained"),
    ],
)
def test_what_the_pods_tell_under_flags(item: Object, pods: list[Object], answer: str) -> None:
    """DRN-1a, rule 8: a refused pod that the status reports causes no pass; a changed spec does."""
    assert due_by(item, pods, NOW) == answer


def test_a_daemon_without_its_daemonset_that_is_told_is_left_to_a_person() -> None:
    """DRN-1a, NMO-7: a refused orphaned DaemonSet pod that the status reports causes no pass until it is allowed."""
    told = {**TOLD, "name": "agent"}

    assert due_by(draining(KEPT, told), [pod("agent", owner="DaemonSet")], NOW) == ""
    assert due_by(draining({}, told), [pod("agent", owner="DaemonSet")], NOW) == events.NODE_TAINTED


@pytest.mark.parametrize("foreign", ["yesterday", "2026-01-02T03:03:00.5+00:00", 7])
def test_a_time_in_another_form_stops_no_tick(foreign: object) -> None:
    """X-3: a `lastUpdate` in another format does not stop the tick."""
    item = maintenance({"phase": "Running", "lastUpdate": foreign})

    assert due(item, known(item, lease(item), IN_MAINTENANCE), NOW) is Look.PODS


@pytest.mark.parametrize("field", ["spec", "status"])
def test_one_whose_spec_or_status_is_no_object_stops_no_other(field: str) -> None:
    """X-3: a maintenance whose spec or status is not an object does not stop the tick for others."""
    odd = {**OTHER, field: "x"}
    lists = Known([odd, BEGUN], {"node-1": IN_MAINTENANCE}, {"node-1": lease(BEGUN)})

    Fleet().update(lists.items)

    assert due(BEGUN, lists, NOW) is Look.PODS
    assert strays(lists) == []
    assert isinstance(due(odd, lists, NOW), str | Look)
