"""Announcements of blocked drains: decides which blockages to announce, and builds the Kubernetes Events for it.

Each announcement is recorded as an Event on its NodeMaintenance; an annotation of that Event contains an
`AnnouncementRecord`. These Events are the only state of `notify-owners`: an announcement with a record is not repeated.
The name of a record's Event is derived from its content, so that only one of two concurrent processes can create it.
Pure functions.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from kube.budgets import ESCALATION_REASON, PROGRESSING_REASONS
from kube.kubernetes_events import NORMAL_TYPE, WARNING_TYPE, KubernetesEvent, build_event
from kube.maintenance.blocked_groups import BlockedGroup, group_blocked_pods
from kube.maintenance.blocked_pods import get_blocking_cause
from kube.maintenance.escalation import (
    DELETABLE_BUDGET_REASONS,
    DELETE,
    DELETE_NOW,
    DELETE_UNREADY,
    compute_drain_deadline,
    find_next_escalation_step,
    get_drain_start_time,
)
from kube.maintenance.objects import (
    Maintenance,
    format_full_name,
    get_blocked_pods,
    get_node_name,
    has_lost_lease,
    is_deleting,
)
from kube.paths import Object
from kube.text_limits import format_count, truncate
from kube.times import parse_time_or_none

BLOCKED_REASON, UNBLOCKED_REASON = "DrainBlocked", "DrainUnblocked"
"""Reasons of the Events on the NodeMaintenance, on the PodDisruptionBudget and on the workloads."""
SENT_REASON = "NotificationSent"
"""Reason of the Event on the NodeMaintenance which records that a notification was sent to `spec.notify.url`."""
RECORD_REASONS = (BLOCKED_REASON, UNBLOCKED_REASON, SENT_REASON)
RECORD_ANNOTATION = "nodemaintenance.dev/announcement"
"""Annotation on an Event that contains the `AnnouncementRecord`, as JSON."""
REPEAT_DELAY = timedelta(minutes=10)
"""Minimum time between two announcements of the same cause for the same maintenance."""
MAX_NAMED_PODS = 3
"""Maximum number of pods that an announcement names."""
STEP_EFFECTS = {
    DELETE_UNREADY: "the pods that are not ready are deleted regardless of their budget",
    DELETE: "these pods are deleted regardless of their budget",
    DELETE_NOW: "these pods are deleted regardless of their budget, with grace period 0",
}
"""Text about the effect of each escalation step's action on the pods of a PDB that blocks the drain."""
MAX_CAUSE_CHARACTERS = 300
"""Maximum length of the cause in a message, in characters, so that an Event also has space for the remedy."""
Reference = Mapping[str, str]
"""Reference to an object, with the fields of `involvedObject`."""
OBJECT_FIELDS = ("apiVersion", "kind", "namespace", "name", "uid")
"""Fields of a reference to a PodDisruptionBudget or a workload."""


@dataclass(frozen=True)
class Blockage:
    """A cause that blocks the drain of one maintenance.

    Attributes:
        key: The reason and the PodDisruptionBudget, such as `DisruptionBudget shop/web`; it stays the same while the
            blockage lasts.
    """

    maintenance: Maintenance
    key: str
    group: BlockedGroup

    @property
    def uid(self) -> str:
        """Return the uid of the maintenance."""
        return str(self.maintenance["metadata"]["uid"])

    def is_overdue(self, min_duration: timedelta, now: datetime) -> bool:
        """Return whether this cause has blocked the drain for at least `min_duration`."""
        since = parse_time_or_none(self.group.since)
        return since is not None and now - since >= min_duration


@dataclass(frozen=True)
class AnnouncementRecord:
    """The content of an Event that records an announcement on a NodeMaintenance.

    Attributes:
        reason: One of `RECORD_REASONS`.
        maintenance: Reference to the NodeMaintenance.
        node: Name of the node.
        key: The key of the `Blockage`, or, for `SENT_REASON`, the id of the notification.
        since: Time at which the announced blockage began; "" for `SENT_REASON`.
        objects: The PodDisruptionBudget and the workloads on which the blockage is announced, too.
        recorded_at: Time of the Event, None before the Event is written.
    """

    reason: str
    maintenance: Reference
    node: str
    key: str
    since: str = ""
    objects: tuple[Reference, ...] = ()
    recorded_at: datetime | None = field(default=None, compare=False)

    @property
    def uid(self) -> str:
        """Return the uid of the maintenance."""
        return self.maintenance["uid"]

    @property
    def blockage_id(self) -> tuple[str, str, str]:
        """Return the values that the records of a blockage's begin and end have in common."""
        return self.uid, self.key, self.since


class RecordLog:
    """The announcement records of one maintenance, or of all maintenances."""

    def __init__(self, records: Iterable[AnnouncementRecord] = ()) -> None:
        self._records = list(records)

    def add(self, record: AnnouncementRecord) -> None:
        """Add a record that was written after the records had been read."""
        self._records.append(record)

    def select(self, reason: str, uid: str = "") -> list[AnnouncementRecord]:
        """Return the records with this reason, limited to the maintenance `uid` if that is not empty."""
        return [item for item in self._records if item.reason == reason and uid in ("", item.uid)]

    def list_open_announcements(self) -> list[AnnouncementRecord]:
        """Return the records of announced blockages whose end is not announced yet."""
        ended = {item.blockage_id for item in self.select(UNBLOCKED_REASON)}
        return [item for item in self.select(BLOCKED_REASON) if item.blockage_id not in ended]

    def may_announce(self, blockage: Blockage, now: datetime) -> bool:
        """Return whether the blockage is not announced now, and was last announced at least `REPEAT_DELAY` ago."""
        earlier = [item for item in self.select(BLOCKED_REASON, blockage.uid) if item.key == blockage.key]
        is_recent = any(item.recorded_at is None or now - item.recorded_at < REPEAT_DELAY for item in earlier)
        return not is_recent and not any(item in self.list_open_announcements() for item in earlier)

    def is_notification_sent(self, notification_id: str) -> bool:
        """Return whether the notification with this id has been sent."""
        return any(item.key == notification_id for item in self.select(SENT_REASON))


def find_blockages(maintenance: Maintenance) -> list[Blockage]:
    """Return what blocks the drain; empty for a maintenance that is being deleted or has lost its Lease.

    Pods that wait for progress, such as a running migration, do not block a drain. Groups of blocked pods that differ
    only in their message count as one blockage.
    """
    if is_deleting(maintenance) or has_lost_lease(maintenance):
        return []
    blockages: dict[str, Blockage] = {}
    for group in group_blocked_pods(get_blocked_pods(maintenance), format_full_name(maintenance)):
        if group.reason not in PROGRESSING_REASONS:
            key = f"{get_blocking_cause(group.reason)} {group.budget_key}".rstrip()
            blockages.setdefault(key, Blockage(maintenance, key, group))
    return list(blockages.values())


def find_ended_blockages(log: RecordLog, blockages: Iterable[Blockage]) -> list[AnnouncementRecord]:
    """Return the records to write for the announced blockages that no longer exist.

    While an escalation step is refused, the status reports its pods with that reason instead of their PDBs. The
    announced blockages of that maintenance are then not considered over.
    """
    existing = list(blockages)
    current = {(item.uid, item.key) for item in existing}
    refused = {item.uid for item in existing if item.group.reason == ESCALATION_REASON}
    over = [
        item
        for item in log.list_open_announcements()
        if (item.uid, item.key) not in current and item.uid not in refused
    ]
    return [replace(item, reason=UNBLOCKED_REASON, recorded_at=None) for item in over]


def build_blocked_record(blockage: Blockage, objects: Collection[Reference] = ()) -> AnnouncementRecord:
    """Build the record of a blockage that is also announced on these objects."""
    return AnnouncementRecord(
        BLOCKED_REASON,
        build_reference(blockage.maintenance),
        get_node_name(blockage.maintenance),
        blockage.key,
        blockage.group.since,
        tuple(objects),
    )


def build_reference(maintenance: Maintenance) -> Reference:
    """Build the reference to a NodeMaintenance."""
    metadata = maintenance["metadata"]
    return {
        "apiVersion": maintenance["apiVersion"],
        "kind": "NodeMaintenance",
        "name": metadata["name"],
        "uid": metadata["uid"],
    }


def describe_blockage(blockage: Blockage, now: datetime) -> str:
    """Return the message to the workloads' owners: what blocks the drain, when it ends, and what would unblock it."""
    group, node = blockage.group, get_node_name(blockage.maintenance)
    pods = f"{format_count(len(group.pods), 'pod')} ({group.format_pods(MAX_NAMED_PODS)})"
    cause = truncate(group.message, MAX_CAUSE_CHARACTERS)
    remedies = "; ".join(map(str, group.remedies))
    sentences = (
        f'{pods} cannot leave node "{node}", which is being drained: {cause}',
        _describe_deadline_and_next_step(blockage, now),
        f"What unblocks the drain: {remedies}" if remedies else "",
    )
    return ". ".join(filter(None, sentences))


def _describe_deadline_and_next_step(blockage: Blockage, now: datetime) -> str:
    """Return the drain's deadline, and what the next escalation step does with the pods; "" if there is neither."""
    parts = []
    if deadline := compute_drain_deadline(blockage.maintenance, get_drain_start_time(blockage.maintenance)):
        parts.append(f"the drain's deadline {'is' if now < deadline else 'was'} {_format_clock_time(deadline, now)}")
    following = find_next_escalation_step(blockage.maintenance, now)
    if following and blockage.group.reason in DELETABLE_BUDGET_REASONS:
        parts.append(f"at {_format_clock_time(following.due_at, now)}, {STEP_EFFECTS[following.step.action]}")
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}"


def _format_clock_time(time: datetime, now: datetime) -> str:
    """Return the time of day in UTC, with the date unless that is today."""
    return f"{time:%H:%M} UTC" if time.date() == now.date() else f"{time:%Y-%m-%d %H:%M} UTC"


def describe_blockage_end(record: AnnouncementRecord) -> str:
    """Return the message that an announced blockage has ended."""
    return f'the drain of node "{record.node}" is no longer blocked by this cause: {record.key}'


def build_record_event(record: AnnouncementRecord, message: str, now: datetime) -> Object:
    """Build the Event on the NodeMaintenance that announces the blockage or its end and contains the record."""
    data = {"node": record.node, "key": record.key, "since": record.since, "objects": list(record.objects)}
    event = _build_event(record, record.maintenance, message, now)
    return {**event, "metadata": {**event["metadata"], "annotations": {RECORD_ANNOTATION: json.dumps(data)}}}


def build_owner_events(record: AnnouncementRecord, message: str, now: datetime) -> list[Object]:
    """Build the Events on the PodDisruptionBudget and on the workloads."""
    return [_build_event(record, reference, message, now) for reference in record.objects]


def _build_event(record: AnnouncementRecord, regarding: Reference, message: str, now: datetime) -> Object:
    event_type = WARNING_TYPE if record.reason == BLOCKED_REASON else NORMAL_TYPE
    series = "|".join(record.blockage_id)
    return build_event(KubernetesEvent(regarding, record.reason, message, event_type, series), now)


def parse_announcement_record(event: Mapping[str, Any]) -> AnnouncementRecord | None:
    """Return the record in an Event; None if the Event has none, or has a malformed one from another client."""
    annotation = (event["metadata"].get("annotations") or {}).get(RECORD_ANNOTATION)
    if annotation is None or event.get("reason") not in RECORD_REASONS:
        return None
    try:
        data, regarding = json.loads(annotation), event["involvedObject"]
        return AnnouncementRecord(
            event["reason"],
            {name: str(regarding[name]) for name in ("apiVersion", "kind", "name", "uid")},
            str(data["node"]),
            str(data["key"]),
            str(data["since"]),
            tuple({name: str(item[name]) for name in OBJECT_FIELDS} for item in data["objects"]),
            parse_time_or_none(event.get("lastTimestamp")),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
