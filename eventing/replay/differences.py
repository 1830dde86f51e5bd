"""Compares what a function answers to a replayed event with what it answered when the event was recorded. Pure.

Functions act on the live cluster, so that some answers must differ when the cluster has changed: a drained node has no
pods to evict again. Such a difference is explained by a change of the objects that the answer names, and is no fault;
every other one is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from eventing import events
from eventing.event_types import short
from eventing.journal.entries import Attempt, Structured
from eventing.replay.changes import LOST, MAINTENANCE, MUTEX, NODE, Change, Changes
from eventing.replay.pod_changes import why_all_pods, why_pod, why_pods
from eventing.subjects import SUBJECTS
from kube.mutex.objects import RUN

VOLATILE = ("id", "time", "signature", "traceparent", "tracestate", "replay", "dryrun")
"""Attributes that differ each time."""
BY_NODE = ("node", "partitionkey", "data.node")
"""Attributes and fields with the node of an event."""
GONE_ON = "has gone on since"
VERSIONS = ("podsVersion", "budgetsVersion", "maintenanceVersion", "left", "closed", "begun", "after")
"""So do these, in the data."""
ANSWER = "answer"
"""The field of a difference in what was answered at all: nothing, or an event of another type."""
SILENT_WHEN_SUCCEEDED = ("begin", "evict", "resync")
"""Functions that emit nothing about a maintenance that has Succeeded."""
SURVEYS = ("resync", "resync-runs")
"""Functions that speak of whatever waits for something now."""
ABSORBS = ("evict", "guard", "migrate")
"""Functions that answer a hint with nothing where another look sees what it tells of (rule 8); a replay has its own."""
SPEAKS_OF_WRITES = "protect"
"""The function that answers where it had to write something, and is silent where that stands."""
BY_PODS = "evict"
"""The function whose answer depends on the pods that are there."""


class Answered(Protocol):
    """What a function answered; an `Attempt` is one, and the answer to a replay."""

    @property
    def status(self) -> int:
        """The HTTP status."""

    @property
    def replies(self) -> tuple[Structured, ...]:
        """The events that it answered, whole."""

    @property
    def error(self) -> str:
        """What it answered where that did not work, "" where it did."""


@dataclass(frozen=True)
class Difference:
    """One thing that is not as it was.

    Attributes:
        event: id of the event.
        function: who answered.
        field: `status`, `answer` (an event's type, None for no event), or the name of an attribute or of a field of
            the data, such as `data.blocked[default/a].reason`.
        then, now: its values, None where it is not there.
        explained: the change of an object that explains it; "" when none does.
    """

    event: str
    function: str
    field: str
    then: Any
    now: Any
    explained: str = ""


def compare(then: Attempt, now: Answered, changes: Changes) -> list[Difference]:
    """All differences between the recorded attempt and the answer of now."""
    return [Difference(then.event, then.function, *fields) for fields in _differing(then, now, changes)]


def _differing(then: Attempt, now: Answered, changes: Changes) -> Iterator[tuple[str, Any, Any, str]]:
    """(field, then, now, explanation)."""
    if then.failed or now.status >= 400:
        if _status(then) != _status(now):
            yield "status", _status(then), _status(now), ""
        return
    before, after = _by_subject(then.replies), _by_subject(now.replies)
    for key in {**before, **after}:
        yield from _of_reply(then.function, before.get(key), after.get(key), changes)


def _status(answer: Answered) -> str:
    """Its number and what it says, in one line."""
    return " ".join(f"{answer.status} {answer.error}".split())


def _by_subject(replies: tuple[Structured, ...]) -> dict[tuple[str, int], Structured]:
    """A function emits at most one event about each object; a further one has a number of its own."""
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
    """The reply without what differs each time."""
    data = reply.get("data")
    if isinstance(data, Mapping):
        data = {name: value for name, value in data.items() if name not in VERSIONS}
    return {**{name: value for name, value in reply.items() if name not in VOLATILE}, "data": data}


def _fields(name: str, then: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    """The innermost fields that differ. A list of pods has no order: who is evicted first is chance."""
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        for key in {**then, **now}:
            yield from _fields(f"{name}.{key}" if name else str(key), then.get(key), now.get(key))
    elif (pods := _pods(then)) is not None and (others := _pods(now)) is not None:
        for key in {**pods, **others}:
            yield from _fields(f"{name}[{key}]", pods.get(key), others.get(key))
    elif then != now:
        yield name, then, now


def _pods(value: Any) -> dict[str, Any] | None:
    """A list of pods by their names, None for anything else."""
    if not isinstance(value, list) or not all(isinstance(item, Mapping) and "namespace" in item for item in value):
        return None
    return {f"{item['namespace']}/{item.get('name')}": item for item in value}


def _why_other(function: str, before: Structured | None, after: Structured | None, changes: Changes) -> str:
    """What explains that nothing, or an event of another type, is answered now."""
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
    """What explains an answer where there was none."""
    if function in ABSORBS:
        return "another look may have seen then what the event tells of"
    return "the recording does not speak of it" if function in SURVEYS else ""


def _why_mutex(function: str, before: Structured | None, after: Structured | None, changes: Changes) -> str:
    """What explains another answer about an object of the upgrade mutex: what it was then is over, or is to come.

    A run that waits for the very event that was answered then has to be answered the same; who looks at all runs says
    nothing of one that somebody has heard of since.
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
    """Whether a function emits nothing about a maintenance that has changed like that."""
    if change is Change.SUCCEEDED:
        return function in SILENT_WHEN_SUCCEEDED
    return change in LOST or (change is Change.TERMINATING and function != "restore")


def _why_field(field: str, before: Structured, after: Structured, changes: Changes) -> str:
    """What explains that a field differs: what `evict` reports of pods depends on what else is there, and on a run's
    progress which node an event about it names."""
    run = changes.runs.get(str(before.get("run") or ""))
    if run is not None and run.node != before.get("node") and field in BY_NODE:
        return f"{MUTEX[RUN]} {before.get('subject')} {GONE_ON}"
    if before["type"] != events.PODS_EVICTED or not (field == "more" or field.startswith("data.")):
        return ""
    name, *rest = field.split("[", 1)
    if name not in ("more", "data.evicted", "data.blocked", "data.error"):
        return ""
    return why_pod(rest[0].split("]")[0], before, after, changes) if rest else why_pods(before, changes)
