"""Reads from recorded events who started and who ended a maintenance, when, why, and with which outcome. No I/O.

Only the API server's events contain the NodeMaintenance. `docs/admission.md` describes how reliable the annotations
are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from cloudevents.core.base import BaseCloudEvent

from eventing.events import NODE_DRAINED, NODE_RESTORED, RESOURCE_DELETED
from kube.maintenance.objects import ENDER_ANNOTATION, FAILED, REQUESTER_ANNOTATION, SUCCEEDED
from kube.paths import Object
from kube.text_limits import format_count, truncate
from kube.times import format_seconds, parse_time_or_none

MAX_ORIGIN_CHARACTERS = 300
"""Maximum length, in characters, of each user name and of the reason; the event itself contains them in full."""


@dataclass(frozen=True)
class Origin:
    """The users who started and ended a maintenance, and the reason; a field is "" if it is unknown.

    Attributes:
        progress_at_deletion: How long the drain had taken, and how many pods remained, when the maintenance was
            deleted; "" if its status reported an end of the drain.
        has_drain_ended: Whether an event reports that the node is drained or no longer exists.
        is_node_deleted: Whether an event reports that the node no longer exists.
        phase: The latest phase in the status.
        created, deleted: The object's creationTimestamp and deletionTimestamp.
    """

    requester: str = ""
    reason: str = ""
    ender: str = ""
    progress_at_deletion: str = ""
    has_drain_ended: bool = False
    is_node_deleted: bool = False
    phase: str = ""
    created: str = ""
    deleted: str = ""

    @property
    def given_up(self) -> str:
        """Return the progress of a drain that was given up, which means that the deletion ended it; "" otherwise."""
        return "" if self.has_drain_ended or not self.progress_at_deletion else f"given up {self.progress_at_deletion}"

    @property
    def remaining_pods(self) -> str:
        """Return how many pods remained when the maintenance was deleted, "" if that is unknown."""
        return self.progress_at_deletion.partition(": ")[2]

    def format(self) -> str:
        """Format everything that is known as one sentence, "" if nothing is known."""
        texts = (
            self.requester and f"requested by {self.requester}",
            self.reason and f"reason: {self.reason}",
            self.ender and f"ended by {self.ender}",
            self.given_up,
        )
        text = "; ".join(filter(None, texts))
        return text[:1].upper() + text[1:]


def select_origin_fields(maintenance: Mapping[str, Any]) -> tuple[Object, Object, Object]:
    """Return the fields of a NodeMaintenance's metadata, spec and status that `read_origin` needs, each truncated."""
    metadata, spec = _as_mapping(maintenance.get("metadata")), _as_mapping(maintenance.get("spec"))
    names = _select_texts(_as_mapping(metadata.get("annotations")), REQUESTER_ANNOTATION, ENDER_ANNOTATION)
    times = _select_texts(metadata, "creationTimestamp", "deletionTimestamp")
    status = _as_mapping(maintenance.get("status"))
    counts = {name: status[name] for name in ("evictionPods", "pendingCount") if isinstance(status.get(name), int)}
    return (
        {**({"annotations": names} if names else {}), **times},
        _select_texts(spec, "reason"),
        {**_select_texts(status, "phase"), **counts},
    )


def find_origin(events: Iterable[BaseCloudEvent]) -> Origin:
    """Return who started and ended the maintenance that these events are about, why, and whether it was given up."""
    return reduce(read_origin, events, Origin())


def read_origin(known: Origin, event: BaseCloudEvent) -> Origin:
    """Return the known origin, updated with what this event reports; the order of the events is that of arrival.

    The user who ended the maintenance counts only if the object is deleted. `stop` sets the annotation before the
    deletion, which may fail.
    """
    if is_restored_without_node(event):
        return replace(known, has_drain_ended=True, is_node_deleted=True)
    if event.get_type() == NODE_DRAINED:
        return replace(known, has_drain_ended=True)
    if event.get_extension("kind") != "NodeMaintenance":
        return known
    metadata, spec, status = select_origin_fields(_as_mapping(event.get_data()))
    annotations = metadata.get("annotations", {})
    is_deleted = event.get_type() == RESOURCE_DELETED or "deletionTimestamp" in metadata
    return replace(
        known,
        requester=annotations.get(REQUESTER_ANNOTATION, known.requester),
        reason=spec.get("reason", known.reason),
        ender=annotations.get(ENDER_ANNOTATION, known.ender) if is_deleted else known.ender,
        progress_at_deletion=known.progress_at_deletion or _describe_unfinished_drain(metadata, status),
        phase=status.get("phase", known.phase),
        created=metadata.get("creationTimestamp", known.created),
        deleted=metadata.get("deletionTimestamp", known.deleted),
    )


def is_restored_without_node(event: BaseCloudEvent) -> bool:
    """Return whether the event reports that the maintenance has ended and its node no longer exists."""
    return event.get_type() == NODE_RESTORED and bool(_as_mapping(event.get_data()).get("nodeDeleted"))


def _describe_unfinished_drain(metadata: Object, status: Object) -> str:
    """Describe the drain of a deleted maintenance; "" if the object is not deleted, or the drain succeeded or failed.

    The functions no longer change the phase and the counts after the deletion.
    """
    start, end = (parse_time_or_none(metadata.get(name)) for name in ("creationTimestamp", "deletionTimestamp"))
    if start is None or end is None or status.get("phase") in (SUCCEEDED, FAILED):
        return ""
    duration = f"after {format_seconds(int((end - start).total_seconds()))}"
    if not {"evictionPods", "pendingCount"} <= status.keys():
        return duration
    return f"{duration}: {status['pendingCount']} of {format_count(status['evictionPods'], 'pod')} remained"


def _as_mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _select_texts(fields: Mapping[str, Any], *names: str) -> dict[str, str]:
    """Return those of the named fields that are not empty, as truncated strings."""
    return {name: truncate(str(fields[name]), MAX_ORIGIN_CHARACTERS) for name in names if fields.get(name)}
