"""Compares a function's response to a replayed event with its response when the event was recorded. No I/O.

Functions act on the live cluster, so some responses must differ after the cluster has changed: a drained node has no
pods left to evict. A change of the objects that the response names explains such a difference. A difference without an
explanation is a fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from eventing import events
from eventing.event_types import short
from eventing.journal.entries import Attempt, Structured
from eventing.replay.object_changes import LOST, MAINTENANCE, MUTEX, NODE, Change, Changes
from eventing.replay.pod_explanations import why_all_pods, why_pod, why_pods
from eventing.object_extensions import SUBJECTS
from kube.mutex.objects import RUN

VOLATILE = ("id", "time", "signature", "traceparent", "tracestate", "replay", "dryrun")
"""Attributes that differ in every execution."""
BY_NODE = ("node", "partitionkey", "data.node")
"""Attributes and fields that contain an event's node."""
GONE_ON = "has gone on since"
VERSIONS = ("podsVersion", "budgetsVersion", "maintenanceVersion", "left", "closed", "begun", "after")
"""Data fields that differ in every execution."""
ANSWER = "answer"
"""Field name of a difference between two event types, or between an event and none."""
SILENT_WHEN_SUCCEEDED = ("begin", "evict", "resync")
"""Functions that emit nothing about a maintenance that has Succeeded."""
SURVEYS = ("resync", "resync-runs")
"""Functions that report every object that currently waits for something."""
ABSORBS = ("evict", "guard", "migrate")
"""Functions that coalesce hints: they reply with nothing if another pass covers the hint (rule 8).

A replay always runs a pass of its own.
"""
SPEAKS_OF_WRITES = "protect"
"""The function that replies only if it had to write something."""
BY_PODS = "evict"
"""The function whose reply depends on the pods that exist."""


class Answered(Protocol):
    """A function's response: an `Attempt`, or the response to a replay."""

    @property
    def status(self) -> int:
        """Return the HTTP status."""

    @property
    def replies(self) -> tuple[Structured, ...]:
        """Return the events in the response, complete."""

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
        explained: The change of an object that explains the difference, "" if there is none.
    """

    event: str
    function: str
    field: str
    then: Any
    now: Any
    explained: str = ""


def compare(then: Attempt, now: Answered, changes: Changes) -> list[Difference]:
    """Return all differences between the recorded attempt and the current response."""
    return [Difference(then.event, then.function, *fields) for fields in _differing(then, now, changes)]


def _differing(then: Attempt, now: Answered, changes: Changes) -> Iterator[tuple[str, Any, Any, str]]:
    """Yield field, recorded value, current value and explanation of each difference."""
    if then.failed or now.status >= 400:
        if _status(then) != _status(now):
            yield "status", _status(then), _status(now), ""
        return
    before, after = _by_subject(then.replies), _by_subject(now.replies)
    for key in {**before, **after}:
        yield from _of_reply(then.function, before.get(key), after.get(key), changes)


def _status(answer: Answered) -> str:
    """Return status and error text in one line."""
    return " ".join(f"{answer.status} {answer.error}".split())


def _by_subject(replies: tuple[Structured, ...]) -> dict[tuple[str, int], Structured]:
    """Index replies by the uid of their object and a number.

    A function emits at most one event about each object; the number distinguishes any further one.
    """
    found: dict[tuple[str, int], Structured] = {}
    for reply in replies:
        uid = next((str(reply[word]) for word in SUBJECTS.values() if reply.get(word)), "")
        found[uid, sum(key == uid for key, _ in found)] = reply
    return found


def _of_reply(
    function: str, before: Structured | None, after: Structured | None, changes: Changes
) -> Iterator[tuple[str, Any, Any, str]]:
    was, is_now = before and before["type"], after and after["type"]
    if before is None or after is None or was != is_now:
        yield ANSWER, was, is_now, _why_other(function, before, after, changes)
        return
    for field, then, now in _fields("", _lasting(before), _lasting(after)):
        yield field, then, now, _why_field(field, before, after, changes)


def _lasting(reply: Structured) -> dict[str, Any]:
    """Return the reply without what differs in every execution."""
    data = reply.get("data")
    if isinstance(data, Mapping):
        data = {name: value for name, value in data.items() if name not in VERSIONS}
    return {**{name: value for name, value in reply.items() if name not in VOLATILE}, "data": data}


def _fields(name: str, then: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the innermost fields that differ.

    The order of a list of pods is ignored, because pods are evicted in arbitrary order.
    """
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        for key in {**then, **now}:
            yield from _fields(f"{name}.{key}" if name else str(key), then.get(key), now.get(key))
    elif (pods := _pods(then)) is not None and (others := _pods(now)) is not None:
        for key in {**pods, **others}:
            yield from _fields(f"{name}[{key}]", pods.get(key), others.get(key))
    elif then != now:
        yield name, then, now


def _pods(value: Any) -> dict[str, Any] | None:
    """Return a list of pods as a mapping by name, or None for any other value."""
    if not isinstance(value, list) or not all(isinstance(item, Mapping) and "namespace" in item for item in value):
        return None
    return {f"{item['namespace']}/{item.get('name')}": item for item in value}


def _why_other(function: str, before: Structured | None, after: Structured | None, changes: Changes) -> str:
    """Explain why the function now replies with nothing, or with an event of another type."""
    if said := _why_mutex(function, before, after, changes):
        return said
    if function == SPEAKS_OF_WRITES and (before is None or after is None):
        return "what it wrote then stands" if after is None else "what it writes has changed since"
    if before is None:
        return _why_new(function)
    maintenance = changes.of(MAINTENANCE, str(before.get("maintenance") or ""))
    node = changes.of(NODE, str(before.get("node") or ""))
    explanation = f"nodemaintenance {before.get('subject')} {maintenance.value}" if maintenance else ""
    if after is None and maintenance and _silences(function, maintenance):
        return explanation
    if node in LOST and (after is None or after["type"] == events.MAINTENANCE_FAILED):
        return f"node {before['node']} {node.value}"
    if before["type"] == events.NODE_DRIFTED and node is Change.PREPARED:
        return f"node {before['node']} {node.value}"
    return why_all_pods(before, changes) if function == BY_PODS else ""


def _why_new(function: str) -> str:
    """Explain a reply where the recording has none."""
    if function in ABSORBS:
        return "another look may have seen then what the event tells of"
    return "the recording does not speak of it" if function in SURVEYS else ""


def _why_mutex(function: str, before: Structured | None, after: Structured | None, changes: Changes) -> str:
    """Explain a different reply about an object of the upgrade mutex; return "" if nothing explains it.

    If a run still waits for the event that was recorded, the reply must be the same. A function that reports all
    waiting runs leaves out a run that has received an event since.
    """
    reply = before or after or {}
    kind = next((kind for kind in MUTEX if reply.get(SUBJECTS[kind])), "")
    if not kind:
        return ""
    uid, name = str(reply[SUBJECTS[kind]]), f"{MUTEX[kind]} {reply.get('subject')}"
    if change := changes.of(MUTEX[kind], uid):
        return f"{name} {change.value}" if after is None else ""
    run = changes.runs.get(uid)
    if run is None:
        return ""
    is_heard = function in SURVEYS and after is None
    has_gone_on = _short(before) != run.event if before else after is not None and _short(after) == run.event
    return f"{name} {GONE_ON}" if is_heard or has_gone_on else ""


def _short(reply: Structured) -> str:
    return short(str(reply["type"]))


def _silences(function: str, change: Change) -> bool:
    """Return whether the function emits nothing about a maintenance with this change."""
    if change is Change.SUCCEEDED:
        return function in SILENT_WHEN_SUCCEEDED
    return change in LOST or (change is Change.TERMINATING and function != "restore")


def _why_field(field: str, before: Structured, after: Structured, changes: Changes) -> str:
    """Explain why a field differs; return "" if nothing explains it.

    What `evict` reports about pods depends on the other pods and budgets. Which node an event names depends on the
    progress of its run.
    """
    run = changes.runs.get(str(before.get("run") or ""))
    if run is not None and run.node != before.get("node") and field in BY_NODE:
        return f"{MUTEX[RUN]} {before.get('subject')} {GONE_ON}"
    if before["type"] != events.PODS_EVICTED or not (field == "more" or field.startswith("data.")):
        return ""
    name, *rest = field.split("[", 1)
    if name not in ("more", "data.evicted", "data.blocked", "data.error"):
        return ""
    return why_pod(rest[0].split("]")[0], before, after, changes) if rest else why_pods(before, changes)
