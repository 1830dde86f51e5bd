"""Determines which event a maintenance waits for, from the objects that `resync` has read; sends no requests.

`STATES` lists all states of a NodeMaintenance. docs/states.md contains the same table, and a test compares both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from eventing import events
from functions.maintenance.event_objects import NAME_PATTERN
from functions.maintenance.observation import Observation, ReadRequired, RequiredRead, ResyncSnapshot
from kube.maintenance import leases
from kube.maintenance import objects as m
from kube.maintenance.groups import GROUPS, MEDIK8S
from kube.nodes import get_maintenance_uid, has_maintenance_label, is_cordoned, is_labelled_with_maintenance

DueEvent = str | RequiredRead
"""Type of the event that is due, "" if no event is due, or the object that `resync` must read first."""


@dataclass(frozen=True)
class State:
    """A state of a NodeMaintenance; a row of `STATES`.

    Attributes:
        name: Description of the state, as text for docs/states.md.
        next_event: The event that ends the state, and the function that it triggers, as text for docs/states.md.
        condition: Function that returns whether a maintenance is in this state, if no earlier state applies.
        due_event: Type of the event that `resync` emits, "" for none.
        note: What happens after the due event, or why no event is due, as text for docs/states.md.
    """

    name: str
    next_event: str
    condition: Callable[[Observation], bool]
    due_event: str = ""
    note: str = ""


STATES = (
    State(
        "events are in flight, and the Lease is due for renewal",
        "these events",
        lambda o: o.is_in_flight and o.is_renewal_due_of_held_lease,
        events.MAINTENANCE_PENDING,
        "; `begin` renews the Lease",
    ),
    State(
        "events are in flight, and the drain has passed its deadline, or the time of the next step of its escalation, "
        "but the status does not report this",
        "these events",
        lambda o: o.is_in_flight and o.has_unreported_escalation,
        events.DRAIN_OVERDUE,
        "; `status` reports the deadline, or the step",
    ),
    State("events are in flight", "these events", lambda o: o.is_in_flight),
    State(
        "released; the finalizer of another controller keeps the object",
        "no event of this product",
        lambda o: m.is_released(o.maintenance),
    ),
    State(
        "deleted",
        "`apiserver.resource.update`, which calls `restore`. No event after `lastError` reports a failure of "
        "`restore`: each status write would call `restore` again",
        lambda o: m.is_deleting(o.maintenance),
        events.MAINTENANCE_RESTORE_PENDING,
    ),
    State(
        "created, and no function has acted on it",
        "`apiserver.resource.add`, which calls `begin`",
        lambda o: o.is_new,
        events.MAINTENANCE_PENDING,
    ),
    State(
        "Lease lost: more than three renewals in a row failed; `Failed`, and the node has the label",
        "`apiserver.resource.update`, which calls `restore`",
        lambda o: (
            m.has_lost_lease(o.maintenance)
            and is_labelled_with_maintenance(o.labelled_node, o.maintenance["metadata"]["uid"])
        ),
        events.MAINTENANCE_RESTORE_PENDING,
    ),
    State(
        "Lease lost, and the node does not have the label",
        "none; `lastError` states the remedy. If only the label is missing, the deletion of the maintenance restores "
        "the node",
        lambda o: m.has_lost_lease(o.maintenance),
    ),
    State(
        "not begun: another maintenance or another tool holds the node or its Lease. Without a phase if another tool "
        "holds it, else rejected",
        "`maintenance.pending`, when the other maintenance is released; none for another tool. `lastError` names the "
        "holder",
        lambda o: not o.has_begun and not o.may_maintenance_begin,
        note=", until no other maintenance or tool holds the node, and its Lease is released or has expired",
    ),
    State(
        "begun, but another client removed the finalizer or the counts, and the node no longer exists",
        "none; without the owner reference, the garbage collector does not delete the maintenance",
        lambda o: o.node is None and o.has_lost_metadata,
        events.MAINTENANCE_PENDING,
        "; `begin` reports the missing node",
    ),
    State(
        "rejected: the node does not exist",
        "none; `lastError` names the node",
        lambda o: o.node is None and not o.has_begun,
        note=", until the node exists",
    ),
    State(
        "begun, and the node no longer exists",
        "`apiserver.resource.delete` of the Node, which calls `guard`",
        lambda o: o.node is None,
        note="; the garbage collector deletes the maintenances that the node owns",
    ),
    State(
        "begun, but another client removed the finalizer or the counts",
        "none",
        lambda o: o.has_lost_metadata,
        events.MAINTENANCE_PENDING,
        "; `begin` writes the missing fields again, with the counts from the status",
    ),
    State(
        "successor: has the finalizer, and has not begun",
        "`maintenance.pending`, which calls `begin`",
        lambda o: not o.has_begun and m.has_finalizer(o.maintenance),
        events.MAINTENANCE_PENDING,
    ),
    State(
        "rejected or waiting, and the cause may have ended: the node was created, its holder is gone, etcd would lose "
        "its quorum, or the API server refused a request before or after the Lease was acquired",
        "none; `lastError` names the cause that must end first, or contains the API server's message",
        lambda o: not o.has_begun,
        events.MAINTENANCE_PENDING,
        ", whenever a tick reads the node",
    ),
    State(
        "begun, and the node was recreated with the same name",
        "`apiserver.resource.delete` of the Node, which calls `guard`",
        lambda o: o.node is not None and not m.has_begun_on(o.maintenance, o.node),
        note="; the product does not change the new node",
    ),
    State(
        "begun, and the node's Lease is missing",
        "none",
        lambda o: o.lease is None,
        events.MAINTENANCE_PENDING,
        "; `begin` acquires the Lease. Another maintenance that waits for the node cannot acquire the Lease",
    ),
    State(
        "begun, and another client holds the node's Lease",
        "none",
        lambda o: not o.is_holder,
        events.MAINTENANCE_PENDING,
        "; `begin` counts the failed renewal in `errorOnLeaseCount`",
    ),
    State(
        "begun, and the node's Lease is due for renewal: 30 to 45 minutes after the last renewal, depending on the "
        "holder's uid",
        "none",
        lambda o: o.is_renewal_due,
        events.MAINTENANCE_PENDING,
        "; `begin` renews the Lease",
    ),
    State(
        "begun, and holds the node's Lease again, but the status still counts failed renewals",
        "`maintenance.begun`, which calls `status`",
        lambda o: m.get_lease_error_count(o.maintenance) > 0,
        events.MAINTENANCE_PENDING,
        "; `begin` emits `maintenance.begun` again",
    ),
    State(
        "begun, but another client removed the owner reference",
        "none",
        lambda o: not m.has_node_owner(o.maintenance),
        events.MAINTENANCE_PENDING,
        "; `begin` writes the owner reference again",
    ),
    State(
        "begun, and the node is not cordoned, or another client uncordoned it",
        "`maintenance.begun`, which calls `cordon`; `apiserver.resource.update` of the Node, which calls `guard`",
        lambda o: o.node is not None and not is_cordoned(o.node),
        events.NODE_DRIFTED,
    ),
    State(
        "node cordoned and not tainted, or another client removed a taint",
        "`node.cordoned`, which calls `taint`; `apiserver.resource.update` of the Node, which calls `guard`",
        lambda o: not o.has_cordoned_and_tainted_node,
        events.NODE_DRIFTED,
    ),
    State(
        "node cordoned and tainted, but another client removed the label",
        "`apiserver.resource.delete` of the Node, which calls `guard`",
        lambda o: o.node is not None and not has_maintenance_label(o.node),
        events.NODE_DRIFTED,
    ),
    State(
        "node cordoned and tainted, and the drain has passed its deadline, or the time of the next step of its "
        "escalation, but the status does not report this",
        "none",
        lambda o: o.has_unreported_escalation,
        events.DRAIN_OVERDUE,
        "; `status` reports the deadline, or the step; `drain.escalated` then calls `evict`, which performs the step",
    ),
    State(
        "drained, but `lastError` shows a failed renewal, for example because the failure was reported after a later "
        "success",
        "none",
        lambda o: m.get_phase(o.maintenance) == m.SUCCEEDED and bool(m.get_last_error(o.maintenance)),
        events.MAINTENANCE_PENDING,
        "; `begin` renews the Lease, and `status` clears the error if the renewal succeeds",
    ),
    State(
        "the node is drained, and the status reports that",
        "none; if a pod is added later, `pods.added` calls `evict`",
        lambda o: not o.classification.leaving and m.is_reported_drained(o.maintenance),
    ),
    State(
        "node cordoned and tainted, no pod left, but the status does not report that the node is drained",
        "`pods.gone` or `node.drained`, which calls `status`",
        lambda o: not o.classification.leaving,
        events.NODE_TAINTED,
    ),
    State(
        "pods left, and the spec has changed, or the status does not name a pod that a field of `spec.drain` blocks",
        "none",
        lambda o: o.has_unreported_spec,
        events.NODE_TAINTED,
    ),
    State(
        "pods left, of which none may be evicted now, but the status shows the node as schedulable",
        "`node.tainted`, which calls `evict`",
        lambda o: o.is_waiting and m.is_reported_uncordoned(o.maintenance),
        events.NODE_TAINTED,
    ),
    State(
        "pods left, of which none may be evicted now: each terminates within its grace period, waits until "
        "`retryAfter`, or is blocked by a field of `spec.drain`",
        "`pods.gone`; otherwise none, and `blockedPods` states the reason",
        lambda o: o.is_waiting,
        note=", until a grace period or a pause ends, the spec changes, or a step of the escalation is due",
    ),
    State(
        "pods left that may be evicted now, that wait for a budget, or that are stuck",
        "`node.tainted`, `pods.added`, `pods.gone`, `budget.opened` or `drain.escalated`, which calls `evict`",
        lambda _: True,
        events.NODE_TAINTED,
    ),
)
"""All states of a NodeMaintenance, in order: the first state whose condition is true applies."""


def find_state(observation: Observation) -> State | RequiredRead:
    """Return the state of a maintenance, or the object that must be read to determine the state."""
    try:
        return next(state for state in STATES if state.condition(observation))
    except ReadRequired as required:
        return required.read


def find_due_event(observation: Observation) -> DueEvent:
    """Return the type of the event that a maintenance waits for, or the object that must be read to determine it."""
    state = find_state(observation)
    return state.due_event if isinstance(state, State) else state


def find_nodes_of_missing_maintenances(snapshot: ResyncSnapshot) -> list[tuple[events.ObjectReference, str]]:
    """Return the orphaned nodes: nodes with the label or the Lease of a maintenance that no longer exists.

    Each result is a reference to the missing maintenance and the node's name. Late writes and removed finalizers cause
    orphaned nodes. A node is not orphaned if another maintenance waits for it, or if its maintenance has yet to restore
    it. The result is empty if any list is missing or incomplete.
    """
    if not snapshot.is_complete or snapshot.nodes is None or snapshot.leases is None:
        return []
    claimed_nodes = {m.get_node_name(item) for item in snapshot.maintenances if m.owns_or_awaits_node(item)}
    lease_lost_uids = {
        item["metadata"]["uid"] for item in snapshot.maintenances if m.has_lost_lease(item) and not m.is_released(item)
    }
    uids = {name: get_maintenance_uid(node) for name, node in snapshot.nodes.items()}
    references = {
        name: _build_reference(MEDIK8S.api_version, uid or "-", uid or "-")
        for name, uid in uids.items()
        if uid not in lease_lost_uids
    }
    holders = {name: holder for name, lease in snapshot.leases.items() if (holder := leases.parse_holder(lease))}
    references |= {name: _build_reference(*holder) for name, holder in holders.items() if holder.api_version in GROUPS}
    return [(reference, name) for name, reference in sorted(references.items()) if name not in claimed_nodes]


def _build_reference(api_version: str, name: str, uid: str) -> events.ObjectReference:
    """Return a reference to a deleted maintenance, with the name "unknown" if `name` is not a valid object name.

    The name in a Lease can be invalid, because other clients can write Leases. A node's label contains only the uid,
    so the caller passes the uid as the name.
    """
    return events.ObjectReference(api_version, name if NAME_PATTERN.fullmatch(name) else "unknown", uid)
