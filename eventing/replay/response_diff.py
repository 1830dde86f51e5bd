"""Compares a function's response to a replayed event with its response when the event was recorded. No I/O.

Functions act on the live cluster, so some responses must differ after the cluster has changed: a drained node has no
pods left to evict. A change to the objects that the response names explains such a difference. A difference without an
explanation is a fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from eventing import events
from eventing.event_types import shorten_type
from eventing.journal.entries import Attempt, StructuredEvent
from eventing.object_extensions import EXTENSION_OF_KIND
from eventing.replay.object_changes import (
    GONE_CHANGES,
    MAINTENANCE_KIND,
    MUTEX_OBJECT_KINDS,
    NODE_KIND,
    ObjectChange,
    ObjectChanges,
)
from eventing.replay.pod_explanations import explain_missing_reply, explain_pod_difference, explain_reply_difference
from kube.mutex.objects import RUN_KIND

VOLATILE_ATTRIBUTES = ("id", "time", "signature", "traceparent", "tracestate", "replay", "dryrun")
"""Event attributes that differ on every execution of a function."""
NODE_FIELDS = ("node", "partitionkey", "data.node")
"""Event attributes and data fields that contain the node's name."""
HAS_PROGRESSED = "has progressed since"
VOLATILE_DATA_FIELDS = ("podsVersion", "budgetsVersion", "maintenanceVersion", "left", "closed", "begun", "after")
"""Event data fields that differ on every execution of a function."""
RESPONSE_FIELD = "answer"
"""`Difference.field` if the event types differ, or if only one of the responses contains an event."""
SILENT_WHEN_SUCCEEDED = ("begin", "evict", "resync")
"""Functions that emit no event about a maintenance in phase Succeeded."""
SURVEY_FUNCTIONS = ("resync", "resync-runs")
"""Functions that emit an event about every object that waits for an event."""
COALESCING_FUNCTIONS = ("evict", "guard", "migrate")
"""Functions that coalesce hints: their response is empty if another pass handles the hint (rule 8).

A replay always runs a separate pass.
"""
WRITE_REPORTING_FUNCTION = "protect"
"""The function that emits events only about the objects that it had to write."""
POD_DEPENDENT_FUNCTION = "evict"
"""The function whose reply depends on the existing pods."""


class Response(Protocol):
    """A function's response: an `Attempt`, or the response to a replay."""

    @property
    def status(self) -> int:
        """Return the HTTP status."""

    @property
    def replies(self) -> tuple[StructuredEvent, ...]:
        """Return the complete events in the response."""

    @property
    def error(self) -> str:
        """Return the text of an error response, "" on success."""


@dataclass(frozen=True)
class Difference:
    """One difference between the recorded and the current response.

    Attributes:
        event: Id of the event.
        function: Name of the function.
        field: `status`, `answer` (an event's type, None for no event), or the name of an attribute or of a field of
            the data, such as `data.blocked[default/a].reason`.
        then, now: The recorded and the current value, None if absent.
        explained: The change to an object that explains the difference, "" if there is none.
    """

    event: str
    function: str
    field: str
    then: Any
    now: Any
    explained: str = ""


def compare_responses(recorded: Attempt, current: Response, changes: ObjectChanges) -> list[Difference]:
    """Return all differences between the recorded attempt and the current response."""
    return [
        Difference(recorded.event, recorded.function, *fields)
        for fields in _iter_differences(recorded, current, changes)
    ]


def _iter_differences(
    recorded: Attempt, current: Response, changes: ObjectChanges
) -> Iterator[tuple[str, Any, Any, str]]:
    """Yield field, recorded value, current value and explanation of each difference."""
    if recorded.failed or current.status >= 400:
        if _format_status(recorded) != _format_status(current):
            yield "status", _format_status(recorded), _format_status(current), ""
        return
    before, after = _index_by_object(recorded.replies), _index_by_object(current.replies)
    for key in {**before, **after}:
        yield from _compare_replies(recorded.function, before.get(key), after.get(key), changes)


def _format_status(response: Response) -> str:
    """Format status and error text in one line."""
    return " ".join(f"{response.status} {response.error}".split())


def _index_by_object(replies: tuple[StructuredEvent, ...]) -> dict[tuple[str, int], StructuredEvent]:
    """Index replies by the uid of their object and a number.

    A function emits at most one event about each object; the number distinguishes further events.
    """
    indexed: dict[tuple[str, int], StructuredEvent] = {}
    for reply in replies:
        uid = next((str(reply[extension]) for extension in EXTENSION_OF_KIND.values() if reply.get(extension)), "")
        indexed[uid, sum(key == uid for key, _ in indexed)] = reply
    return indexed


def _compare_replies(
    function: str, before: StructuredEvent | None, after: StructuredEvent | None, changes: ObjectChanges
) -> Iterator[tuple[str, Any, Any, str]]:
    old_type, new_type = before and before["type"], after and after["type"]
    if before is None or after is None or old_type != new_type:
        yield RESPONSE_FIELD, old_type, new_type, _explain_different_type(function, before, after, changes)
        return
    for field, then, now in _compare_fields("", _strip_volatile_fields(before), _strip_volatile_fields(after)):
        yield field, then, now, _explain_field(field, before, after, changes)


def _strip_volatile_fields(reply: StructuredEvent) -> dict[str, Any]:
    """Return the reply without the attributes and fields that differ on every execution."""
    data = reply.get("data")
    if isinstance(data, Mapping):
        data = {name: value for name, value in data.items() if name not in VOLATILE_DATA_FIELDS}
    return {**{name: value for name, value in reply.items() if name not in VOLATILE_ATTRIBUTES}, "data": data}


def _compare_fields(name: str, recorded: Any, current: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the innermost fields that differ.

    The order of a list of pods is ignored, because pods are evicted in arbitrary order.
    """
    if isinstance(recorded, Mapping) and isinstance(current, Mapping):
        for key in {**recorded, **current}:
            yield from _compare_fields(f"{name}.{key}" if name else str(key), recorded.get(key), current.get(key))
    elif (pods := _index_pods(recorded)) is not None and (others := _index_pods(current)) is not None:
        for key in {**pods, **others}:
            yield from _compare_fields(f"{name}[{key}]", pods.get(key), others.get(key))
    elif recorded != current:
        yield name, recorded, current


def _index_pods(value: Any) -> dict[str, Any] | None:
    """Return a list of pods as a mapping by name, or None for any other value."""
    if not isinstance(value, list) or not all(isinstance(pod, Mapping) and "namespace" in pod for pod in value):
        return None
    return {f"{pod['namespace']}/{pod.get('name')}": pod for pod in value}


def _explain_different_type(
    function: str, before: StructuredEvent | None, after: StructuredEvent | None, changes: ObjectChanges
) -> str:
    """Explain why the function no longer emits an event, or emits an event of a different type."""
    if reason := _explain_mutex_object(function, before, after, changes):
        return reason
    if function == WRITE_REPORTING_FUNCTION and (before is None or after is None):
        return (
            "the recorded write is still in place"
            if after is None
            else "the state that the function writes has changed since"
        )
    if before is None:
        return _explain_new_reply(function)
    maintenance = changes.get_change(MAINTENANCE_KIND, str(before.get("maintenance") or ""))
    node = changes.get_change(NODE_KIND, str(before.get("node") or ""))
    explanation = f"nodemaintenance {before.get('subject')} {maintenance.value}" if maintenance else ""
    if after is None and maintenance and _emits_nothing(function, maintenance):
        return explanation
    if node in GONE_CHANGES and (after is None or after["type"] == events.MAINTENANCE_STEP_FAILED):
        return f"node {before['node']} {node.value}"
    if before["type"] == events.NODE_DRIFTED and node is ObjectChange.CORDONED_AND_TAINTED:
        return f"node {before['node']} {node.value}"
    return explain_missing_reply(before, changes) if function == POD_DEPENDENT_FUNCTION else ""


def _explain_new_reply(function: str) -> str:
    """Explain an event that the recorded response did not contain."""
    if function in COALESCING_FUNCTIONS:
        return "another pass may have handled the event at that time"
    return "the recorded response did not include this object" if function in SURVEY_FUNCTIONS else ""


def _explain_mutex_object(
    function: str, before: StructuredEvent | None, after: StructuredEvent | None, changes: ObjectChanges
) -> str:
    """Explain a different reply about an object of the upgrade mutex; return "" if nothing explains it.

    If a run still waits for the event that was recorded, the reply must be the same. A function that reports all
    waiting runs omits a run that has received an event since then.
    """
    reply = before or after or {}
    kind = next((kind for kind in MUTEX_OBJECT_KINDS if reply.get(EXTENSION_OF_KIND[kind])), "")
    if not kind:
        return ""
    uid, name = str(reply[EXTENSION_OF_KIND[kind]]), f"{MUTEX_OBJECT_KINDS[kind]} {reply.get('subject')}"
    if change := changes.get_change(MUTEX_OBJECT_KINDS[kind], uid):
        return f"{name} {change.value}" if after is None else ""
    run = changes.runs.get(uid)
    if run is None:
        return ""
    is_omitted = function in SURVEY_FUNCTIONS and after is None
    has_progressed = (
        _shorten_reply_type(before) != run.awaited_event_type
        if before
        else after is not None and _shorten_reply_type(after) == run.awaited_event_type
    )
    return f"{name} {HAS_PROGRESSED}" if is_omitted or has_progressed else ""


def _shorten_reply_type(reply: StructuredEvent) -> str:
    return shorten_type(str(reply["type"]))


def _emits_nothing(function: str, change: ObjectChange) -> bool:
    """Return whether the function emits nothing about a maintenance with this change."""
    if change is ObjectChange.SUCCEEDED:
        return function in SILENT_WHEN_SUCCEEDED
    return change in GONE_CHANGES or (change is ObjectChange.TERMINATING and function != "restore")


def _explain_field(
    field: str, recorded_reply: StructuredEvent, current_reply: StructuredEvent, changes: ObjectChanges
) -> str:
    """Explain why a field differs; return "" if nothing explains it.

    The pods that `evict` reports depend on the other pods and budgets. The node that an event names depends on the
    progress of its run.
    """
    run = changes.runs.get(str(recorded_reply.get("run") or ""))
    if run is not None and run.current_node != recorded_reply.get("node") and field in NODE_FIELDS:
        return f"{MUTEX_OBJECT_KINDS[RUN_KIND]} {recorded_reply.get('subject')} {HAS_PROGRESSED}"
    if recorded_reply["type"] != events.PODS_EVICTED or not (field == "more" or field.startswith("data.")):
        return ""
    name, *rest = field.split("[", 1)
    if name not in ("more", "data.evicted", "data.blocked", "data.error"):
        return ""
    return (
        explain_pod_difference(rest[0].split("]")[0], recorded_reply, current_reply, changes)
        if rest
        else explain_reply_difference(recorded_reply, changes)
    )
