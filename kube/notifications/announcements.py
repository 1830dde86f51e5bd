"""Announcements of blocked drains: which are due, which are over, and the Kubernetes Events that announce them.

Each announcement is recorded as an Event on its NodeMaintenance, whose annotation contains an `AnnouncementRecord`.
These Events are the only memory of `notify-owners`: an announcement that has a record is not repeated. The name of a
record's Event follows from its content, so that of two processes only one creates it. Pure functions.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from kube.budgets import ESCALATION_REASON, PROGRESSING_REASONS
from kube.kubernetes_events import NORMAL_TYPE, WARNING_TYPE, EventNotice, build_event
from kube.maintenance.blocked_groups import BlockedGroup, group_blocked_pods
from kube.maintenance.blocked_pods import get_cause
from kube.maintenance.escalation import (
    DELETABLE_BUDGET_REASONS,
    DELETE,
    DELETE_NOW,
    DELETE_UNREADY,
    compute_deadline,
    find_next_step,
    get_start_time,
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
"""Reasons of the Events on the NodeMaintenance, on the disruption budget, and on the workloads."""
SENT_REASON = "NotificationSent"
"""Reason of the Event on the NodeMaintenance that records a post to `spec.notify.url`."""
RECORD_REASONS = (BLOCKED_REASON, UNBLOCKED_REASON, SENT_REASON)
RECORD_ANNOTATION = "nodemaintenance.dev/announcement"
"""Annotation of an Event that contains the `AnnouncementRecord`, as JSON."""
REPEAT_DELAY = timedelta(minutes=10)
"""Minimum time between two announcements that the same cause blocks the same drain."""
MAX_NAMED_PODS = 3
"""Maximum number of pods that an announcement names."""
STEP_EFFECTS = {
    DELETE_UNREADY: "the pods that are not ready are deleted regardless of their budget",
    DELETE: "these pods are deleted regardless of their budget",
    DELETE_NOW: "these pods are deleted regardless of their budget, with grace period 0",
}
"""Action of an escalation step → what it does with the pods of a budget that blocks the drain."""
MAX_CAUSE_CHARACTERS = 300
"""Maximum length of the cause in a message, in characters, so that the remedy also fits into an Event."""
Reference = Mapping[str, str]
"""Reference to an object, with the fields of `involvedObject`."""
OBJECT_FIELDS = ("apiVersion", "kind", "namespace", "name", "uid")
"""Fields of the reference to a budget or workload."""


@dataclass(frozen=True)
class Blockage:
    """A cause that blocks the drain of one maintenance.

    Attributes:
        key: The reason and the budget, such as `DisruptionBudget shop/web`; the same while the blockage lasts.
    """

    maintenance: Maintenance
    key: str
    group: BlockedGroup

    @property
    def uid(self) -> str:
        """Return the uid of the maintenance."""
        return str(self.maintenance["metadata"]["uid"])

    def is_overdue(self, min_duration: timedelta, now: datetime) -> bool:
        """Return whether the cause has blocked the drain for at least `min_duration`."""
        since = parse_time_or_none(self.group.since)
        return since is not None and now - since >= min_duration


@dataclass(frozen=True)
class AnnouncementRecord:
    """What the Event on a NodeMaintenance records.

    Attributes:
        reason: One of `RECORD_REASONS`.
        maintenance: Reference to the NodeMaintenance.
        node: Name of the node.
        key: The key of the `Blockage`, or the id of the notification that was sent.
        since: Time since which the cause had blocked the drain when it was announced; "" for `SENT_REASON`.
        objects: The budget and the workloads that got the announcement, too.
        recorded_at: Time of the Event, None before it is written.
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
        """Return what a blockage and its end have in common."""
        return self.uid, self.key, self.since


class RecordLog:
    """The records of one or all maintenances."""

    def __init__(self, records: Iterable[AnnouncementRecord] = ()) -> None:
        self._records = list(records)

    def add(self, record: AnnouncementRecord) -> None:
        """Add a record that was written after the log had been read."""
        self._records.append(record)

    def select(self, reason: str, uid: str = "") -> list[AnnouncementRecord]:
        """Return the records with this reason, and if `uid` is given, only those of this maintenance."""
        return [item for item in self._records if item.reason == reason and uid in ("", item.uid)]

    def list_open(self) -> list[AnnouncementRecord]:
        """Return the announced blockages whose end is not announced."""
        ended = {item.blockage_id for item in self.select(UNBLOCKED_REASON)}
        return [item for item in self.select(BLOCKED_REASON) if item.blockage_id not in ended]

    def may_announce(self, blockage: Blockage, now: datetime) -> bool:
        """Return whether the blockage is not announced, and was not announced within `REPEAT_DELAY`."""
        earlier = [item for item in self.select(BLOCKED_REASON, blockage.uid) if item.key == blockage.key]
        is_recent = any(item.recorded_at is None or now - item.recorded_at < REPEAT_DELAY for item in earlier)
        return not is_recent and not any(item in self.list_open() for item in earlier)

    def is_sent(self, notification_id: str) -> bool:
        """Return whether the notification with this id was sent."""
        return any(item.key == notification_id for item in self.select(SENT_REASON))


def find_blockages(maintenance: Maintenance) -> list[Blockage]:
    """Return what blocks the drain; nothing for a maintenance that is being deleted or has lost its Lease.

    Pods that wait for progress, such as a running migration, do not block a drain. Groups that differ only in their
    message count as one blockage.
    """
    if is_deleting(maintenance) or has_lost_lease(maintenance):
        return []
    blockages: dict[str, Blockage] = {}
    for group in group_blocked_pods(get_blocked_pods(maintenance), format_full_name(maintenance)):
        if group.reason not in PROGRESSING_REASONS:
            key = f"{get_cause(group.reason)} {group.budget_key}".rstrip()
            blockages.setdefault(key, Blockage(maintenance, key, group))
    return list(blockages.values())


def find_over(log: RecordLog, blockages: Iterable[Blockage]) -> list[AnnouncementRecord]:
    """Return the records of the announced blockages that do not exist any longer, each with the reason of its end.

    While an escalation step is refused, its pods are blocked for that reason, although their budgets block them, too.
    """
    existing = list(blockages)
    current = {(item.uid, item.key) for item in existing}
    refused = {item.uid for item in existing if item.group.reason == ESCALATION_REASON}
    over = [item for item in log.list_open() if (item.uid, item.key) not in current and item.uid not in refused]
    return [replace(item, reason=UNBLOCKED_REASON, recorded_at=None) for item in over]


def build_blocked_record(blockage: Blockage, objects: Collection[Reference] = ()) -> AnnouncementRecord:
    """Build the record of a blockage that is announced on these objects, too."""
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
    """Return the message for the owners: what blocks the drain, until when, and what would unblock it."""
    group, node = blockage.group, get_node_name(blockage.maintenance)
    pods = f"{format_count(len(group.pods), 'pod')} ({group.format_pods(MAX_NAMED_PODS)})"
    cause = truncate(group.message, MAX_CAUSE_CHARACTERS)
    remedies = "; ".join(map(str, group.remedies))
    sentences = (
        f'{pods} cannot leave node "{node}", which is being drained: {cause}',
        _describe_schedule(blockage, now),
        f"What unblocks the drain: {remedies}" if remedies else "",
    )
    return ". ".join(filter(None, sentences))


def _describe_schedule(blockage: Blockage, now: datetime) -> str:
    """Return the deadline of the drain, and what its next escalation step does with the pods; "" without either."""
    parts = []
    if deadline := compute_deadline(blockage.maintenance, get_start_time(blockage.maintenance)):
        parts.append(f"the drain's deadline {'is' if now < deadline else 'was'} {_format_clock_time(deadline, now)}")
    following = find_next_step(blockage.maintenance, now)
    if following and blockage.group.reason in DELETABLE_BUDGET_REASONS:
        parts.append(f"at {_format_clock_time(following.due_at, now)}, {STEP_EFFECTS[following.step.action]}")
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}"


def _format_clock_time(time: datetime, now: datetime) -> str:
    """Return the time in UTC, with its day unless that is today."""
    return f"{time:%H:%M} UTC" if time.date() == now.date() else f"{time:%Y-%m-%d %H:%M} UTC"


def describe_end(record: AnnouncementRecord) -> str:
    """Return the message that an announced blockage is over."""
    return f'the drain of node "{record.node}" is no longer blocked by this cause: {record.key}'


def build_record_event(record: AnnouncementRecord, message: str, now: datetime) -> Object:
    """Build the Event on the NodeMaintenance that announces and records."""
    data = {"node": record.node, "key": record.key, "since": record.since, "objects": list(record.objects)}
    event = _build_event(record, record.maintenance, message, now)
    return {**event, "metadata": {**event["metadata"], "annotations": {RECORD_ANNOTATION: json.dumps(data)}}}


def build_owner_events(record: AnnouncementRecord, message: str, now: datetime) -> list[Object]:
    """Build the Events on the budget and on the workloads."""
    return [_build_event(record, reference, message, now) for reference in record.objects]


def _build_event(record: AnnouncementRecord, regarding: Reference, message: str, now: datetime) -> Object:
    event_type = WARNING_TYPE if record.reason == BLOCKED_REASON else NORMAL_TYPE
    series = "|".join(record.blockage_id)
    return build_event(EventNotice(regarding, record.reason, message, event_type, series), now)


def parse_record(event: Mapping[str, Any]) -> AnnouncementRecord | None:
    """Return the record in an Event; None if the Event has none, or if another client wrote a malformed one."""
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
