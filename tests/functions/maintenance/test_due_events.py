"""Tests for the functions of `resync` that determine the event that a maintenance waits for, on plain dicts."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from eventing import events
from functions.maintenance.due_events import (
    STATES,
    DueEvent,
    State,
    find_due_event,
    find_nodes_of_missing_maintenances,
    find_state,
)
from functions.maintenance.metrics import MaintenanceCollector
from functions.maintenance.observation import Observation, RequiredRead, ResyncSnapshot
from kube.maintenance import leases
from kube.maintenance.objects import INITIAL_COUNTS_ANNOTATION
from kube.paths import Object
from tests.kube.samples import DRAIN_TAINTS, NODE_IN_MAINTENANCE, make_maintenance, make_node, make_pod
from tests.states_table import PAGE, update_page

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
FAILED_STATUS = {"phase": "Failed", "lastUpdate": "2026-01-02T03:00:00Z"}
CORDONED_CONDITIONS, UNCORDONED_CONDITIONS = ([{"type": "Cordoned", "status": status}] for status in ("True", "False"))
SUCCEEDED_STATUS = {"phase": "Succeeded", "lastUpdate": "2026-01-02T03:00:00Z", "conditions": CORDONED_CONDITIONS}
BEGUN, NEW = make_maintenance(SUCCEEDED_STATUS), make_maintenance(counts="")
FAILED = make_maintenance(FAILED_STATUS, counts="")
REMOVED_METADATA = make_maintenance(SUCCEEDED_STATUS, counts="")
WAITING_FOR_LEASE = make_maintenance({"lastError": "held by another", "lastUpdate": "2026-01-02T03:00:00Z"}, counts="")
UNCORDONED = make_maintenance({"phase": "Running", "conditions": UNCORDONED_CONDITIONS})
LEASE_LOST = make_maintenance({**FAILED_STATUS, "errorOnLeaseCount": 4})
LEASE_REGAINED = make_maintenance({**SUCCEEDED_STATUS, "errorOnLeaseCount": 3})
SUCCEEDED_WITH_ERROR = make_maintenance({**SUCCEEDED_STATUS, "lastError": "leases is forbidden"})
RUNNING_WITH_ERROR = make_maintenance({**SUCCEEDED_STATUS, "phase": "Running", "lastError": "pods is forbidden"})
FOREIGN_LEASE: Object = {
    "metadata": {"name": "node-node-1"},
    "spec": {"holderIdentity": "another", "renewTime": "2026-01-02T03:04:00.0Z", "leaseDurationSeconds": 600},
}
EXPIRED_LEASE = {**FOREIGN_LEASE, "spec": {**FOREIGN_LEASE["spec"], "leaseDurationSeconds": 1}}
OTHER_ANNOTATIONS = {
    "annotations": {INITIAL_COUNTS_ANNOTATION: '{"totalpods": 9, "evictionPods": 5, "uid": "other-uid"}'}
}
OTHER = {**BEGUN, "metadata": {**BEGUN["metadata"], **OTHER_ANNOTATIONS, "name": "other", "uid": "other-uid"}}
OTHER_LEASE_LOST = {**OTHER, "status": {**FAILED_STATUS, "errorOnLeaseCount": 4}}
OTHER_DELETED = {**OTHER, "metadata": {**OTHER["metadata"], "deletionTimestamp": "2026-01-02T03:04:05Z"}}
RELEASED_METADATA = {"deletionTimestamp": "2026-01-02T03:04:05Z", "finalizers": ["example.com/hold"]}
OTHER_RELEASED = {**OTHER_DELETED, "metadata": {**OTHER_DELETED["metadata"], **RELEASED_METADATA}}
LEASE_LOST_RELEASED = {**LEASE_LOST, "metadata": {**LEASE_LOST["metadata"], **RELEASED_METADATA}}
OTHER_NODE = {**OTHER, "spec": {"nodeName": "node-2"}}


def build_lease(maintenance: Object, age: timedelta = timedelta()) -> Object:
    return leases.build_lease("node-1", maintenance, NOW - age)


def build_snapshot(maintenance: Object, lease: Object | None = None, node: Object | None = None) -> ResyncSnapshot:
    return ResyncSnapshot([maintenance], {"node-1": node} if node else {}, {"node-1": lease} if lease else {})


def observe_node(maintenance: Object, node: Object | None, lease: Object | None = None) -> Observation:
    """Build the `Observation` of a tick that has read the node."""
    return Observation(maintenance, build_snapshot(maintenance, lease), NOW, node)


def observe_pods(maintenance: Object, *pods: Object) -> Observation:
    """Build the `Observation` of a tick that has read the pods of a node under maintenance."""
    snapshot = build_snapshot(maintenance, build_lease(maintenance), NODE_IN_MAINTENANCE)
    return Observation(maintenance, snapshot, NOW, pods=pods)


@pytest.mark.parametrize(
    ("maintenance", "snapshot", "expected"),
    [
        pytest.param(NEW, ResyncSnapshot([NEW], None, None), events.MAINTENANCE_PENDING, id="new, nothing listed"),
        pytest.param(BEGUN, ResyncSnapshot([BEGUN], None, {}), RequiredRead.UNAVAILABLE, id="nodes not listed"),
        pytest.param(BEGUN, ResyncSnapshot([BEGUN], {}, None), RequiredRead.UNAVAILABLE, id="leases not listed"),
        pytest.param(FAILED, build_snapshot(FAILED), RequiredRead.NODE, id="failed, no lease"),
        pytest.param(
            FAILED,
            build_snapshot(FAILED, node=NODE_IN_MAINTENANCE),
            events.MAINTENANCE_PENDING,
            id="failed, node has maintenance label",
        ),
        pytest.param(
            FAILED, ResyncSnapshot([OTHER, FAILED], {}, {"node-1": build_lease(OTHER)}), "", id="failed, another holder"
        ),
        pytest.param(
            FAILED,
            ResyncSnapshot([OTHER_RELEASED, FAILED], {}, {"node-1": build_lease(OTHER_RELEASED)}),
            RequiredRead.NODE,
            id="failed, another maintenance released",
        ),
        pytest.param(FAILED, ResyncSnapshot([OTHER, FAILED], {}, {}), "", id="failed, holder's lease deleted"),
        pytest.param(FAILED, ResyncSnapshot([OTHER_DELETED, FAILED], {}, {}), "", id="failed, holder deleted"),
        pytest.param(
            FAILED,
            ResyncSnapshot([OTHER, FAILED], {}, {"node-1": EXPIRED_LEASE}),
            "",
            id="failed, lease of another tool",
        ),
        pytest.param(
            FAILED,
            ResyncSnapshot([OTHER_NODE, FAILED], {}, {}),
            RequiredRead.NODE,
            id="failed, maintenance of another node",
        ),
        pytest.param(
            FAILED,
            ResyncSnapshot([OTHER_LEASE_LOST, FAILED], {}, {}),
            RequiredRead.NODE,
            id="failed, another maintenance lost lease",
        ),
        pytest.param(FAILED, build_snapshot(FAILED, build_lease(FAILED)), RequiredRead.NODE, id="failed with lease"),
        pytest.param(
            REMOVED_METADATA,
            build_snapshot(REMOVED_METADATA, build_lease(REMOVED_METADATA), NODE_IN_MAINTENANCE),
            events.MAINTENANCE_PENDING,
            id="metadata replaced",
        ),
        pytest.param(BEGUN, build_snapshot(BEGUN, build_lease(BEGUN)), RequiredRead.NODE, id="begun, no label"),
        pytest.param(
            BEGUN,
            build_snapshot(BEGUN, build_lease(BEGUN), NODE_IN_MAINTENANCE),
            RequiredRead.PODS,
            id="begun, node in maintenance",
        ),
        pytest.param(
            BEGUN, build_snapshot(BEGUN, None, NODE_IN_MAINTENANCE), events.MAINTENANCE_PENDING, id="no lease"
        ),
        pytest.param(
            WAITING_FOR_LEASE,
            build_snapshot(WAITING_FOR_LEASE, FOREIGN_LEASE, make_node()),
            "",
            id="not begun, lease of another tool",
        ),
        pytest.param(
            WAITING_FOR_LEASE,
            build_snapshot(WAITING_FOR_LEASE, None, make_node()),
            events.MAINTENANCE_PENDING,
            id="lease of another tool expired",
        ),
        pytest.param(
            BEGUN,
            build_snapshot(BEGUN, FOREIGN_LEASE, NODE_IN_MAINTENANCE),
            events.MAINTENANCE_PENDING,
            id="begun, lease of another tool",
        ),
        pytest.param(
            LEASE_LOST,
            build_snapshot(LEASE_LOST, FOREIGN_LEASE, NODE_IN_MAINTENANCE),
            events.MAINTENANCE_RESTORE_PENDING,
            id="lease lost",
        ),
        pytest.param(LEASE_LOST, build_snapshot(LEASE_LOST, FOREIGN_LEASE, make_node()), "", id="lease lost, released"),
        pytest.param(
            LEASE_LOST,
            build_snapshot(LEASE_LOST, None, make_node(maintenance_uid="another")),
            "",
            id="lease lost, node labelled for successor",
        ),
    ],
)
def test_find_due_event_returns_event_or_required_read(
    maintenance: Object, snapshot: ResyncSnapshot, expected: DueEvent
) -> None:
    """X-3: from the listed objects, `find_due_event` returns the due event, or the read that must decide."""
    assert find_due_event(Observation(maintenance, snapshot, NOW)) == expected


@pytest.mark.parametrize(
    ("maintenance", "node", "lease", "expected"),
    [
        pytest.param(BEGUN, None, build_lease(BEGUN), "", id="node gone"),
        pytest.param(
            REMOVED_METADATA,
            None,
            build_lease(REMOVED_METADATA),
            events.MAINTENANCE_PENDING,
            id="metadata replaced, node gone",
        ),
        pytest.param(FAILED, None, None, "", id="node never existed"),
        pytest.param(FAILED, make_node(), None, events.MAINTENANCE_PENDING, id="node exists now"),
        pytest.param(
            BEGUN, make_node(*DRAIN_TAINTS, cordoned=True), build_lease(BEGUN), events.NODE_DRIFTED, id="no label"
        ),
        pytest.param(
            BEGUN, make_node(maintenance_uid="nm-uid"), build_lease(BEGUN), events.NODE_DRIFTED, id="uncordoned"
        ),
        pytest.param(
            BEGUN,
            NODE_IN_MAINTENANCE,
            build_lease(BEGUN, timedelta(minutes=46)),
            events.MAINTENANCE_PENDING,
            id="lease due",
        ),
        pytest.param(
            LEASE_REGAINED,
            NODE_IN_MAINTENANCE,
            build_lease(LEASE_REGAINED),
            events.MAINTENANCE_PENDING,
            id="lease regained, not reported",
        ),
        pytest.param(
            SUCCEEDED_WITH_ERROR,
            NODE_IN_MAINTENANCE,
            build_lease(SUCCEEDED_WITH_ERROR),
            events.MAINTENANCE_PENDING,
            id="drained with error",
        ),
        pytest.param(
            SUCCEEDED_WITH_ERROR,
            make_node(maintenance_uid="nm-uid"),
            build_lease(SUCCEEDED_WITH_ERROR),
            events.NODE_DRIFTED,
            id="drained with error, uncordoned",
        ),
        pytest.param(
            RUNNING_WITH_ERROR,
            NODE_IN_MAINTENANCE,
            build_lease(RUNNING_WITH_ERROR),
            RequiredRead.PODS,
            id="running with error",
        ),
    ],
)
def test_find_due_event_on_node_returns_event_that_node_requires(
    maintenance: Object, node: Object | None, lease: Object | None, expected: DueEvent
) -> None:
    """X-3, NMO-19: `find_due_event_on_node` returns the event that the state of the node requires."""
    assert find_due_event(observe_node(maintenance, node, lease)) == expected


RUNNING = make_maintenance({"phase": "Running", "lastUpdate": "2026-01-02T03:04:04Z"})
IN_FLIGHT = make_maintenance({**SUCCEEDED_STATUS, "lastUpdate": "2026-01-02T03:04:04Z"})
RUNNING_DELETED = {**RUNNING, "metadata": {**RUNNING["metadata"], "deletionTimestamp": "2026-01-02T03:04:05Z"}}
RUNNING_REMOVED_METADATA = make_maintenance({"phase": "Running", "lastUpdate": "2026-01-02T03:04:04Z"}, counts="")
OVERDUE_AGE = timedelta(minutes=46)


def set_passed_deadline(maintenance: Object) -> Object:
    """Return the maintenance with a passed deadline that the status does not report yet."""
    status = {**maintenance["status"], "startTime": "2026-01-02T02:03:05Z"}
    return {**maintenance, "spec": {**maintenance["spec"], "drain": {"deadline": "1h"}}, "status": status}


@pytest.mark.parametrize(
    ("maintenance", "lease", "expected"),
    [
        pytest.param(RUNNING, build_lease(RUNNING, OVERDUE_AGE), events.MAINTENANCE_PENDING, id="renewal due"),
        pytest.param(RUNNING, build_lease(RUNNING), "", id="renewal not due"),
        pytest.param(RUNNING, build_lease(OTHER, OVERDUE_AGE), "", id="other holder"),
        pytest.param(RUNNING, None, "", id="no lease"),
        pytest.param(RUNNING_REMOVED_METADATA, build_lease(RUNNING, OVERDUE_AGE), "", id="not begun"),
        pytest.param(RUNNING_DELETED, build_lease(RUNNING, OVERDUE_AGE), "", id="deleted"),
        pytest.param(set_passed_deadline(RUNNING), build_lease(RUNNING), events.DRAIN_OVERDUE, id="deadline passed"),
        pytest.param(
            set_passed_deadline(RUNNING),
            build_lease(RUNNING, OVERDUE_AGE),
            events.MAINTENANCE_PENDING,
            id="deadline passed, renewal due",
        ),
        pytest.param(set_passed_deadline(IN_FLIGHT), build_lease(RUNNING), "", id="deadline passed, drained"),
        pytest.param(set_passed_deadline(RUNNING_DELETED), None, "", id="deadline passed, deleted"),
        pytest.param(set_passed_deadline(RUNNING_REMOVED_METADATA), None, "", id="deadline passed, not begun"),
    ],
)
def test_only_lease_renewal_and_overdue_drain_are_due_while_event_is_in_flight(
    maintenance: Object, lease: Object | None, expected: DueEvent
) -> None:
    """NMO-27a, design rule 11: while an event is in flight, only lease renewal, deadline or escalation can be due."""
    snapshot = ResyncSnapshot([maintenance] * 20, {"node-1": NODE_IN_MAINTENANCE}, {"node-1": lease} if lease else {})

    assert find_due_event(Observation(maintenance, snapshot, NOW)) == expected


def test_begin_is_due_if_owner_reference_is_missing() -> None:
    """X-3, NMO-20: a maintenance whose owner reference was removed waits for `begin`, which restores it."""
    without_owner = {**BEGUN, "metadata": {**BEGUN["metadata"], "ownerReferences": []}}

    assert (
        find_due_event(observe_node(without_owner, NODE_IN_MAINTENANCE, build_lease(without_owner)))
        == events.MAINTENANCE_PENDING
    )


def build_maintenance_with_ages(
    created: float, *, deleted: float | None = None, written: float | None = None
) -> Object:
    """Build a begun maintenance that was created, deleted and written to the status this many seconds ago."""
    ages_by_field = {"creationTimestamp": created, "deletionTimestamp": deleted}
    maintenance = make_maintenance(
        {"phase": "Running"} if written is None else {"phase": "Running", "lastUpdate": format_seconds_ago(written)}
    )
    maintenance["metadata"] |= {
        name: format_seconds_ago(value) for name, value in ages_by_field.items() if value is not None
    }
    return maintenance


def format_seconds_ago(seconds: float) -> str:
    return (NOW - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize(
    ("maintenance", "active_count", "is_in_flight"),
    [
        pytest.param(build_maintenance_with_ages(100, written=0), 10, True, id="written now"),
        pytest.param(build_maintenance_with_ages(100, written=4), 10, True, id="written four seconds ago"),
        pytest.param(build_maintenance_with_ages(100, written=5), 10, False, id="written five seconds ago"),
        pytest.param(
            build_maintenance_with_ages(100, written=5), 13, True, id="written five seconds ago, events queued"
        ),
        pytest.param(build_maintenance_with_ages(100, written=6), 13, False, id="written long ago"),
        pytest.param(build_maintenance_with_ages(100, written=-1), 40, False, id="written in the future"),
        pytest.param(build_maintenance_with_ages(0), 10, False, id="new, few active"),
        pytest.param(build_maintenance_with_ages(3), 40, True, id="new, many active"),
        pytest.param(build_maintenance_with_ages(9), 40, False, id="not new"),
        pytest.param(build_maintenance_with_ages(100, deleted=0, written=0), 10, False, id="deleted, few active"),
        pytest.param(build_maintenance_with_ages(100, deleted=3, written=50), 40, True, id="deleted, many active"),
        pytest.param(build_maintenance_with_ages(100, deleted=9, written=0), 40, False, id="deleted long ago"),
        pytest.param(make_maintenance(), 40, False, id="no timestamps"),
    ],
)
def test_event_counts_as_in_flight_shortly_after_last_write(
    maintenance: Object, active_count: int, is_in_flight: bool
) -> None:
    """Design rule 9: an event counts as in flight for five seconds plus the queueing time after the last status write.

    With 10, 13 and 40 active maintenances, the queueing time is 0, 0.9 and 9 seconds.
    """
    snapshot = ResyncSnapshot([make_maintenance({"phase": "Running"})] * active_count, {}, {})

    assert Observation(maintenance, snapshot, NOW).is_in_flight is is_in_flight


@pytest.mark.parametrize(
    ("maintenance", "expected"),
    [(OTHER_DELETED, events.MAINTENANCE_RESTORE_PENDING), (OTHER_RELEASED, "")],
    ids=["deleted", "released"],
)
def test_deleted_maintenance_waits_for_restore(maintenance: Object, expected: DueEvent) -> None:
    """X-3: a deleted maintenance waits for `restore` until the product's finalizer is removed."""
    now = NOW + timedelta(seconds=30)

    assert (
        find_due_event(
            Observation(maintenance, build_snapshot(maintenance, build_lease(maintenance), NODE_IN_MAINTENANCE), now)
        )
        == expected
    )


@pytest.mark.parametrize(("active_count", "seconds"), [(10, 0.0), (11, 0.3), (20, 3.0), (500, 60.0)])
def test_queueing_time_grows_with_active_maintenances(active_count: int, seconds: float) -> None:
    """Design rule 9: the queueing time grows with the number of maintenances in progress, up to one minute.

    A deleted maintenance counts as in progress; a succeeded or failed maintenance does not.
    """
    maintenances = [make_maintenance({"phase": "Running"})] * (active_count - 1) + [OTHER_DELETED, BEGUN, FAILED]

    assert ResyncSnapshot(maintenances, {}, {}).expected_queue_seconds == pytest.approx(seconds)


LEASED_REFERENCE = events.ObjectReference("nodemaintenance.medik8s.io/v1beta1", "nm", "nm-uid")
INVALID_LABEL_REFERENCE = events.ObjectReference("nodemaintenance.medik8s.io/v1beta1", "unknown", "Foo_Bar")
LABELLED_REFERENCE = events.ObjectReference("nodemaintenance.medik8s.io/v1beta1", "nm-uid", "nm-uid")


@pytest.mark.parametrize(
    ("snapshot", "expected"),
    [
        (ResyncSnapshot([], {"node-1": NODE_IN_MAINTENANCE}, {}), [(LABELLED_REFERENCE, "node-1")]),
        (
            ResyncSnapshot([], {"node-1": make_node(maintenance_uid="Foo_Bar")}, {}),
            [(INVALID_LABEL_REFERENCE, "node-1")],
        ),
        (ResyncSnapshot([], {}, {"node-1": build_lease(BEGUN)}), [(LEASED_REFERENCE, "node-1")]),
        (
            ResyncSnapshot([], {"node-1": NODE_IN_MAINTENANCE}, {"node-1": build_lease(BEGUN)}),
            [(LEASED_REFERENCE, "node-1")],
        ),
        (ResyncSnapshot([OTHER_RELEASED], {"node-1": NODE_IN_MAINTENANCE}, {}), [(LABELLED_REFERENCE, "node-1")]),
        (ResyncSnapshot([OTHER_NODE], {"node-1": NODE_IN_MAINTENANCE}, {}), [(LABELLED_REFERENCE, "node-1")]),
        (ResyncSnapshot([OTHER], {"node-1": NODE_IN_MAINTENANCE}, {"node-1": build_lease(BEGUN)}), []),
        (ResyncSnapshot([OTHER_DELETED], {"node-1": NODE_IN_MAINTENANCE}, {}), []),
        (ResyncSnapshot([NEW], {"node-1": NODE_IN_MAINTENANCE}, {}), []),
        (ResyncSnapshot([OTHER_LEASE_LOST], {"node-1": NODE_IN_MAINTENANCE}, {}), [(LABELLED_REFERENCE, "node-1")]),
        (ResyncSnapshot([LEASE_LOST], {"node-1": NODE_IN_MAINTENANCE}, {}), []),
        (ResyncSnapshot([LEASE_LOST_RELEASED], {"node-1": NODE_IN_MAINTENANCE}, {}), [(LABELLED_REFERENCE, "node-1")]),
        (ResyncSnapshot([], {}, {"node-1": {"metadata": {}, "spec": {"holderIdentity": "another"}}}), []),
        (ResyncSnapshot([], {"node-1": NODE_IN_MAINTENANCE}, {}, is_complete=False), []),
        (ResyncSnapshot([], None, {"node-1": build_lease(BEGUN)}), []),
        (ResyncSnapshot([], {"node-1": NODE_IN_MAINTENANCE}, None), []),
    ],
    ids=[
        *("labelled", "labelled by hand", "leased", "labelled and leased", "released", "maintenance of another node"),
        *(
            "other maintenance",
            "other maintenance deleted",
            "other maintenance new",
            "other maintenance lost lease",
            "labelled maintenance lost lease",
            "labelled maintenance lost lease and was released",
            "another tool's lease",
        ),
        *("API group not listed", "nodes not listed", "leases not listed"),
    ],
)
def test_orphaned_nodes_and_leases_are_found(
    snapshot: ResyncSnapshot, expected: list[tuple[events.ObjectReference, str]]
) -> None:
    """Design rule 12: a node or lease is orphaned if its maintenance does not exist, unless a list request failed."""
    assert find_nodes_of_missing_maintenances(snapshot) == expected


def test_no_event_is_due_for_recreated_node() -> None:
    """NMO-20: no event is due if the node's uid differs from the uid in the maintenance's owner reference."""
    maintenance = make_maintenance(SUCCEEDED_STATUS)
    maintenance["metadata"]["ownerReferences"] = [{"kind": "Node", "uid": "of-the-old-node"}]

    assert find_due_event(observe_node(maintenance, make_node(), build_lease(maintenance))) == ""


@pytest.mark.parametrize(
    ("maintenance", "pods", "expected"),
    [
        (BEGUN, [], ""),
        (make_maintenance({"phase": "Succeeded", "conditions": UNCORDONED_CONDITIONS}), [], events.NODE_TAINTED),
        (make_maintenance({"phase": "Succeeded"}), [], ""),
        (make_maintenance({"phase": "Running"}), [], events.NODE_TAINTED),
        (BEGUN, [make_pod()], events.NODE_TAINTED),
        (BEGUN, [make_pod(deletionTimestamp="2026-01-02T03:04:06Z")], ""),
        (UNCORDONED, [make_pod(deletionTimestamp="2026-01-02T03:04:06Z")], events.NODE_TAINTED),
        (make_maintenance({"phase": "Running"}), [make_pod(deletionTimestamp="2026-01-02T03:04:06Z")], ""),
        (BEGUN, [make_pod(deletionTimestamp="2026-01-02T03:04:05Z")], events.NODE_TAINTED),
        (BEGUN, [make_pod(deletionTimestamp="2026-01-02T03:04:06Z"), make_pod("late")], events.NODE_TAINTED),
    ],
    ids=[
        "no pods",
        "cordon not reported",
        "no conditions",
        "success not reported",
        "new pod",
        "terminating pod",
        "terminating, cordon not reported",
        "terminating, no conditions",
        "stuck pod",
        "terminating pod and new pod",
    ],
)
def test_find_due_event_by_pods_returns_event_that_pods_require(
    maintenance: Object, pods: list[Object], expected: str
) -> None:
    """X-3: a pass is due if a pod may be evicted, or if the drain is complete but the status does not report that."""
    assert find_due_event(observe_pods(maintenance, *pods)) == expected


REPORTED_POD = {"namespace": "ns", "name": "pod", "reason": "Force", "message": "", "budget": ""}
WITHOUT_FORCE = {"force": False}


def build_draining_maintenance(
    drain: Object, *blocked: Object, phase: str = "Running", observed_generation: int = 1
) -> Object:
    """Build a maintenance of generation 1 with this `spec.drain` and `observedGeneration`."""
    conditions = [
        *CORDONED_CONDITIONS,
        {"type": "Drained", "status": "False", "observedGeneration": observed_generation},
    ]
    maintenance = make_maintenance({"phase": phase, "blockedPods": list(blocked), "conditions": conditions})
    return {**maintenance, "spec": {**maintenance["spec"], "drain": drain}}


@pytest.mark.parametrize(
    ("maintenance", "pods", "expected"),
    [
        pytest.param(build_draining_maintenance(WITHOUT_FORCE, REPORTED_POD), [make_pod()], "", id="reported"),
        pytest.param(build_draining_maintenance(WITHOUT_FORCE), [make_pod()], events.NODE_TAINTED, id="not reported"),
        pytest.param(build_draining_maintenance({}, REPORTED_POD), [make_pod()], events.NODE_TAINTED, id="allowed now"),
        pytest.param(
            build_draining_maintenance(WITHOUT_FORCE, REPORTED_POD, observed_generation=0),
            [make_pod()],
            events.NODE_TAINTED,
            id="spec changed",
        ),
        pytest.param(
            build_draining_maintenance(WITHOUT_FORCE, REPORTED_POD),
            [make_pod(), make_pod("web", owner="Job")],
            events.NODE_TAINTED,
            id="other pod due",
        ),
        pytest.param(
            build_draining_maintenance(WITHOUT_FORCE, REPORTED_POD),
            [make_pod(), make_pod("web", owner="Job", deletionTimestamp="2026-01-02T03:04:06Z")],
            "",
            id="other pod terminating",
        ),
        pytest.param(
            build_draining_maintenance({"podSelector": "a=b"}, REPORTED_POD),
            [make_pod()],
            events.NODE_TAINTED,
            id="reported pod no longer selected",
        ),
        pytest.param(
            build_draining_maintenance({"podSelector": "a=b"}, phase="Succeeded", observed_generation=0),
            [make_pod()],
            "",
            id="no pod selected",
        ),
        pytest.param(
            build_draining_maintenance({"podSelector": "a="}, phase="Succeeded"), [make_pod()], "", id="drained"
        ),
    ],
)
def test_no_event_is_due_for_reported_pod_that_drain_flag_blocks(
    maintenance: Object, pods: list[Object], expected: str
) -> None:
    """DRN-1a, design rule 8: no pass is due for a blocked pod that the status reports, unless the spec has changed."""
    assert find_due_event(observe_pods(maintenance, *pods)) == expected


@pytest.mark.parametrize(
    ("action", "grace_seconds", "flags", "expected"),
    [
        ("Delete", 30, {}, ""),
        ("DeleteNow", 30, {}, events.NODE_TAINTED),
        ("DeleteNow", 0, {}, ""),
        ("DeleteNow", 30, WITHOUT_FORCE, ""),
    ],
)
def test_pass_is_due_for_terminating_pod_only_if_escalation_shortens_its_grace_period(
    action: str, grace_seconds: int, flags: Object, expected: str
) -> None:
    """Design rule 11: a tick repeats the escalation step `DeleteNow` for a terminating pod that the step may delete."""
    step = {"action": action, "after": "1m"}
    maintenance = build_draining_maintenance({**flags, "escalation": [step]})
    times = {"startTime": "2026-01-02T03:00:00Z", "escalation": {**step, "time": "2026-01-02T03:01:00Z"}}
    pod = make_pod(deletionTimestamp="2026-01-02T03:04:06Z", deletionGracePeriodSeconds=grace_seconds)

    observation = observe_pods({**maintenance, "status": {**maintenance["status"], **times}}, pod)

    assert find_due_event(observation) == expected


def test_no_event_is_due_for_reported_pod_of_deleted_daemonset() -> None:
    """DRN-1a, NMO-7: no pass is due for a blocked orphaned DaemonSet pod until the spec allows its eviction."""
    reported_pod = {**REPORTED_POD, "name": "agent"}

    assert (
        find_due_event(
            observe_pods(build_draining_maintenance(WITHOUT_FORCE, reported_pod), make_pod("agent", owner="DaemonSet"))
        )
        == ""
    )
    assert (
        find_due_event(observe_pods(build_draining_maintenance({}, reported_pod), make_pod("agent", owner="DaemonSet")))
        == events.NODE_TAINTED
    )


@pytest.mark.parametrize("last_update", ["yesterday", "2026-01-02T03:03:00.5+00:00", 7])
def test_last_update_in_unexpected_format_does_not_stop_tick(last_update: object) -> None:
    """X-3: a `lastUpdate` in an unexpected format does not stop the tick."""
    maintenance = make_maintenance({"phase": "Running", "lastUpdate": last_update})

    snapshot = build_snapshot(maintenance, build_lease(maintenance), NODE_IN_MAINTENANCE)

    assert find_due_event(Observation(maintenance, snapshot, NOW)) is RequiredRead.PODS


@pytest.mark.parametrize("field", ["spec", "status"])
def test_malformed_maintenance_does_not_stop_tick(field: str) -> None:
    """X-3: a maintenance whose spec or status is not an object does not stop the tick for other maintenances."""
    malformed = {**OTHER, field: "x"}
    snapshot = ResyncSnapshot([malformed, BEGUN], {"node-1": NODE_IN_MAINTENANCE}, {"node-1": build_lease(BEGUN)})

    MaintenanceCollector().update(snapshot.maintenances)

    assert find_due_event(Observation(BEGUN, snapshot, NOW)) is RequiredRead.PODS
    assert find_nodes_of_missing_maintenances(snapshot) == []
    assert isinstance(find_due_event(Observation(malformed, snapshot, NOW)), str | RequiredRead)


WITHOUT_OWNER = {**BEGUN, "metadata": {**BEGUN["metadata"], "ownerReferences": []}}
SUCCESSOR = {**FAILED, "metadata": {**FAILED["metadata"], "finalizers": BEGUN["metadata"]["finalizers"]}}
OTHER_NODE_OWNER = {**BEGUN, "metadata": {**BEGUN["metadata"], "ownerReferences": [{"kind": "Node", "uid": "old"}]}}
OVERDUE = set_passed_deadline(make_maintenance({"phase": "Running"}))
CORDONED_NODE, UNLABELLED_NODE = make_node(cordoned=True), make_node(*DRAIN_TAINTS, cordoned=True)
TERMINATING_POD = make_pod(deletionTimestamp="2026-01-02T03:04:06Z")
OBSERVATIONS = {
    "events are in flight, and the Lease is due": observe_node(
        IN_FLIGHT, make_node(), build_lease(IN_FLIGHT, OVERDUE_AGE)
    ),
    "events are in flight, and the drain": observe_node(set_passed_deadline(RUNNING), make_node()),
    "events are in flight": observe_node(IN_FLIGHT, make_node(), build_lease(IN_FLIGHT)),
    "released": observe_node(OTHER_RELEASED, make_node()),
    "deleted": observe_node(OTHER_DELETED, make_node()),
    "created": observe_node(NEW, make_node()),
    "Lease lost: ": Observation(LEASE_LOST, build_snapshot(LEASE_LOST, None, NODE_IN_MAINTENANCE), NOW),
    "Lease lost, ": observe_node(LEASE_LOST, make_node()),
    "not begun: another": observe_node(FAILED, make_node(), FOREIGN_LEASE),
    "begun, but another client removed the finalizer or the counts, and the node no longer": observe_node(
        REMOVED_METADATA, None
    ),
    "rejected: the node does not exist": observe_node(FAILED, None),
    "begun, and the node no longer exists": observe_node(BEGUN, None),
    "begun, but another client removed the finalizer or the counts": observe_node(REMOVED_METADATA, make_node()),
    "successor": observe_node(SUCCESSOR, make_node()),
    "rejected or waiting": observe_node(FAILED, make_node()),
    "begun, and the node was recreated": observe_node(OTHER_NODE_OWNER, make_node()),
    "begun, and the node's Lease is missing": observe_node(BEGUN, make_node()),
    "begun, and another client holds the node's Lease": observe_node(BEGUN, make_node(), FOREIGN_LEASE),
    "begun, and the node's Lease is due": observe_node(BEGUN, make_node(), build_lease(BEGUN, OVERDUE_AGE)),
    "begun, and holds the node's Lease again": observe_node(LEASE_REGAINED, make_node(), build_lease(LEASE_REGAINED)),
    "begun, but another client removed the owner": observe_node(WITHOUT_OWNER, make_node(), build_lease(WITHOUT_OWNER)),
    "begun, and the node is not cordoned": observe_node(BEGUN, make_node(), build_lease(BEGUN)),
    "node cordoned and not tainted": observe_node(BEGUN, CORDONED_NODE, build_lease(BEGUN)),
    "node cordoned and tainted, but another client removed the label": observe_node(
        BEGUN, UNLABELLED_NODE, build_lease(BEGUN)
    ),
    "node cordoned and tainted, and the drain": Observation(
        OVERDUE, build_snapshot(OVERDUE, build_lease(OVERDUE), NODE_IN_MAINTENANCE), NOW
    ),
    "drained, but `lastError`": observe_pods(SUCCEEDED_WITH_ERROR),
    "the node is drained, and the status reports that": observe_pods(BEGUN),
    "node cordoned and tainted, no pod left": observe_pods(make_maintenance({"phase": "Running"})),
    "pods left, and the spec has changed": observe_pods(build_draining_maintenance(WITHOUT_FORCE), make_pod()),
    "pods left, of which none may be evicted now, but": observe_pods(UNCORDONED, TERMINATING_POD),
    "pods left, of which none may be evicted now: ": observe_pods(BEGUN, TERMINATING_POD),
    "pods left that may be evicted now": observe_pods(BEGUN, make_pod()),
}
"""A sample `Observation` for each state of a maintenance, by the first words of the state's name."""


def test_each_state_has_one_sample_observation() -> None:
    """Design rule 11: the samples contain one `Observation` for each state in the table."""
    assert len(OBSERVATIONS) == len(STATES) == len({state.name for state in STATES})


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_state_is_found_for_its_sample_observation(name: str) -> None:
    """Design rule 11: each state is found for its sample, so no earlier state in the table hides it."""
    state = find_state(OBSERVATIONS[name])

    assert isinstance(state, State)
    assert state.name.startswith(name)
    assert state is STATES[list(OBSERVATIONS).index(name)]


def test_states_page_contains_current_state_table() -> None:
    """Design rule 11: docs/states.md contains the table of states that `resync` reads."""
    page = PAGE.read_text()

    assert page == update_page(page)
