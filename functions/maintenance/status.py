"""Write the status of a NodeMaintenance, unless only its timestamp would change (NMO-10 to NMO-13, KNM-2, 3).

No other step writes the status.

In: `maintenance.begun`, `pods.evicted`, `pods.gone` flagged `progress`, `drain.overdue`, `node.drained`,
`maintenance.step_failed`.
Out: `drain.escalated`.
Touches: nodemaintenances get; nodemaintenances/status patch; nodes get; pods list;
leases get in medik8s-leases; events list, create, patch in default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import NamedTuple

from cloudevents.core.base import BaseCloudEvent

from eventing import events, extensions
from functions.event_data import parse_resource_version, require_data
from functions.event_recorder import EVENT_RECORDER
from functions.failures import Retry
from functions.installs import is_active_install
from functions.maintenance import metrics
from functions.maintenance.event_objects import log_about, read_maintenance
from functions.maintenance.eviction_reports import parse_blocked_pods, parse_snapshot
from functions.steps import step
from kube.client.api import get_or_none
from kube.client.api_errors import Conflict, NotFound
from kube.client.sync_client import SyncClient
from kube.maintenance import objects as m
from kube.maintenance.escalation import DEADLINE_EXCEEDED, EscalationStep, find_current_escalation_step
from kube.maintenance.kubernetes_events import (
    BEGIN_REASON,
    CORDON_REASON,
    DEADLINE_REASON,
    FAIL_REASON,
    SUCCEED_REASON,
    build_escalation_events,
    build_node_kubernetes_event,
    build_progress_events,
)
from kube.maintenance.lookup import list_pods_on_node
from kube.maintenance.node_snapshot import NodeSnapshot, StepSnapshot
from kube.maintenance.status_patch import StatusInput, build_status_patch
from kube.nodes import build_node_path
from kube.paths import Object

MAX_ATTEMPTS = 5
"""Maximum number of attempts to write a status after conflicts with other clients.

After the last attempt, the step raises `Retry`, and the broker redelivers the event.
"""


class StatusUpdate(NamedTuple):
    """An event and the inputs for the status that were parsed from the event's data.

    `pods_version` is "" and `snapshot` is None if the event's data does not contain them.
    """

    event: BaseCloudEvent
    status_input: StatusInput
    pods_version: str
    snapshot: StepSnapshot | None


@step("status", consumes=events.TYPES_BY_FLAG["progress"], emits=(events.DRAIN_ESCALATED,), requires_signature=True)
def status(event: BaseCloudEvent, client: SyncClient) -> list[BaseCloudEvent]:
    """Update the maintenance's `.status` from the cluster and from the event's data.

    Returns `drain.escalated` if an escalation step begins. The function cannot verify the event's data in the cluster,
    so the server rejects unsigned events. Raises `Retry` if other clients keep changing the status.
    """
    if not is_active_install(client):
        return []
    update = StatusUpdate(
        event, build_status_input(event), parse_resource_version(event, "podsVersion"), parse_snapshot(event)
    )
    return _write_status(update, client)


def _write_status(update: StatusUpdate, client: SyncClient) -> list[BaseCloudEvent]:
    """Apply the update to the maintenance's status, and write the status.

    A new escalation step is written only after its Kubernetes Event has been recorded, because `evict` performs a step
    that is in the status. If the Event cannot be recorded, the step does not begin, and the next resync emits
    `drain.overdue` again.
    """
    event = update.event
    recorded_step: EscalationStep | None = None
    for _ in range(MAX_ATTEMPTS):
        maintenance = read_maintenance(event, client)
        if maintenance is None:
            return []
        patch = _build_patch(maintenance, update, client)
        if not patch:
            return []
        escalation_step = _find_new_escalation_step(maintenance, patch["status"])
        if (
            escalation_step
            and escalation_step != recorded_step
            and not _record_escalation_step(maintenance, escalation_step, client)
        ):
            update = update._replace(status_input=replace(update.status_input, due_step=None))
            continue
        recorded_step = escalation_step
        try:
            client.patch(f"{m.build_path(maintenance)}/status", patch)
        except Conflict:
            continue
        except NotFound:
            return []
        if not extensions.is_replay(event):
            metrics.observe_status_write(maintenance, patch["status"], datetime.now(timezone.utc))
        _record_changes(maintenance, patch["status"], client)
        return [_build_drain_escalated(event, maintenance, escalation_step)] if escalation_step else []
    raise Retry("other clients keep changing the status")


def _find_new_escalation_step(maintenance: m.Maintenance, status: Object) -> EscalationStep | None:
    """Return the escalation step that begins with this status change, or None."""
    return find_current_escalation_step({**maintenance, "status": status}) if status.get("escalation") else None


def _record_escalation_step(maintenance: m.Maintenance, step: EscalationStep, client: SyncClient) -> bool:
    """Record the Kubernetes Events about the escalation step, and return whether all of them were recorded."""
    kubernetes_events = build_escalation_events(maintenance, step)
    return len(client.run(EVENT_RECORDER.record(client.api, kubernetes_events))) == len(kubernetes_events)


def _build_drain_escalated(event: BaseCloudEvent, maintenance: m.Maintenance, step: EscalationStep) -> BaseCloudEvent:
    """Log the escalation step, and build `drain.escalated`."""
    log_about(f"the drain escalates to {step.action}", maintenance, after=step.after)
    reference, node = events.ObjectReference.from_object(maintenance), m.get_node_name(maintenance)
    return events.build_event(events.DRAIN_ESCALATED, "status", reference, node, cause=event, data=step.as_data())


def build_status_input(event: BaseCloudEvent) -> StatusInput:
    """Return the status input from the event's data, which cannot be read from the cluster."""
    data = require_data(event)
    drained = event.get_type() == events.NODE_DRAINED
    error, blocked = str(data.get("error") or ""), parse_blocked_pods(event)
    step = data.get("step") if event.get_type() == events.MAINTENANCE_STEP_FAILED else ""
    return StatusInput(
        error,
        [] if drained else blocked,
        is_drained=drained,
        is_restore_error=step == "restore",
        is_lease_renewal_error=step == "begin",
        is_begin_error=step == "begin" and not ("begun" in data or "leaseErrors" in data),
        is_waiting=bool(data.get("waits")),
        lease_error_count=_parse_lease_error_count(event),
        due_step=_parse_due_escalation_step(data) if event.get_type() == events.DRAIN_OVERDUE else None,
    )


def _parse_due_escalation_step(data: Mapping[str, object]) -> dict[str, object]:
    """Return the escalation step in the data of `drain.overdue`, in the format of `spec.drain.escalation`."""
    return {name: data.get(name) for name in ("action", "after")}


def _parse_lease_error_count(event: BaseCloudEvent) -> int | None:
    """Return the number of consecutive failed Lease renewals, 0 after a success; None if the event has no number."""
    count = 0 if event.get_type() == events.MAINTENANCE_BEGUN else require_data(event).get("leaseErrors")
    return count if isinstance(count, int) else None


def _build_patch(maintenance: m.Maintenance, update: StatusUpdate, client: SyncClient) -> Object | None:
    """Return the status patch, or None if only the timestamp in the status would change.

    Before the phase changes from `Succeeded` to `Running`, the function lists the pods again, because a cached list may
    still contain deleted pods.
    """
    now = datetime.now(timezone.utc)
    snapshot = _read_node_snapshot(maintenance, update, client)
    patch = build_status_patch(maintenance, snapshot, update.status_input, now)
    if patch and m.get_phase(maintenance) == m.SUCCEEDED and patch["status"].get("phase") == m.RUNNING:
        current_pods = client.run(list_pods_on_node(client.api, m.get_node_name(maintenance))).items
        return build_status_patch(maintenance, replace(snapshot, pods=current_pods), update.status_input, now)
    return patch


def _read_node_snapshot(maintenance: m.Maintenance, update: StatusUpdate, client: SyncClient) -> NodeSnapshot:
    """Return the state of the node; read only the objects that the event does not describe reliably.

    If the event contains a valid snapshot with remaining pods, nothing is read. If only the cordon is certain, the pods
    are listed; this also verifies a snapshot without remaining pods. Otherwise, the node and its pods are read.
    """
    step_snapshot = _find_valid_snapshot(maintenance, update)
    if step_snapshot and step_snapshot.leaving:
        return NodeSnapshot(
            step_snapshot.is_cordoned_and_tainted,
            leaving=step_snapshot.leaving,
            is_unreachable=step_snapshot.is_unreachable,
        )
    name = m.get_node_name(maintenance)
    listing = list_pods_on_node(client.api, name, update.pods_version or "0")
    if _is_known_to_be_cordoned_and_tainted(maintenance, step_snapshot, update):
        is_unreachable = step_snapshot.is_unreachable if step_snapshot else None
        return NodeSnapshot(is_cordoned_and_tainted=True, pods=client.run(listing).items, is_unreachable=is_unreachable)
    node, listed = client.gather_all(get_or_none(client.api.get(build_node_path(name))), listing)
    return NodeSnapshot.from_node(maintenance, node, listed.items)


def _find_valid_snapshot(maintenance: m.Maintenance, update: StatusUpdate) -> StepSnapshot | None:
    """Return the snapshot in the event if the maintenance has not changed since, else None.

    Also returns None for a replay, and if the phase is `Succeeded`, because only a new read may revoke that phase.
    """
    version = maintenance["metadata"]["resourceVersion"]
    if update.snapshot is None or extensions.is_replay(update.event):
        return None
    is_current = update.snapshot.maintenance_version == version and m.get_phase(maintenance) != m.SUCCEEDED
    return update.snapshot if is_current else None


def _is_known_to_be_cordoned_and_tainted(
    maintenance: m.Maintenance, step_snapshot: StepSnapshot | None, update: StatusUpdate
) -> bool:
    """Return whether the node is known to be cordoned and tainted without reading the node.

    `pods.gone` contains no information about the node. For this event, the function trusts the maintenance's status,
    because `guard` reports changes of the node.
    """
    if step_snapshot:
        return step_snapshot.is_cordoned_and_tainted
    return update.event.get_type() == events.PODS_GONE and m.is_reported_cordoned(maintenance)


def _record_changes(maintenance: m.Maintenance, status: Object, client: SyncClient) -> None:
    """Log the changes of the status and record Kubernetes Events for them.

    The function is called after the status write, so that each change is recorded once and delays no eviction.
    """
    kubernetes_events = []
    if _is_newly_cordoned(maintenance, status):
        kubernetes_events.append(build_node_kubernetes_event(m.get_node_name(maintenance), CORDON_REASON, maintenance))
    phase, error = status.get("phase"), status.get("lastError") or ""
    if phase:
        log_about(f"phase is {phase} now", maintenance, phase=phase, error=error)
    if phase == m.SUCCEEDED:
        kubernetes_events += build_progress_events(SUCCEED_REASON, maintenance)
    elif phase == m.FAILED:
        kubernetes_events += build_progress_events(FAIL_REASON, maintenance, error)
    elif phase and m.get_phase(maintenance) != m.SUCCEEDED:  # A late pod may change Succeeded back to Running.
        kubernetes_events += build_progress_events(
            BEGIN_REASON, maintenance, m.get_spec(maintenance).get("reason") or ""
        )
    if _is_newly_overdue(maintenance, status):
        kubernetes_events += build_progress_events(DEADLINE_REASON, maintenance)
    client.run(EVENT_RECORDER.record(client.api, kubernetes_events))


def _is_newly_cordoned(maintenance: m.Maintenance, status: Object) -> bool:
    """Return whether `status` reports for the first time that the node is cordoned (OSV-12)."""
    before, after = (m.get_condition(item, "Cordoned").get("status") for item in (maintenance, {"status": status}))
    return after == "True" != before


def _is_newly_overdue(maintenance: m.Maintenance, status: Object) -> bool:
    """Return whether `status` reports for the first time that the drain's deadline has passed."""
    before, after = (m.get_condition(item, "Drained").get("reason") for item in (maintenance, {"status": status}))
    return after == DEADLINE_EXCEEDED != before
