"""Compares a function's response to a replayed event with the recorded response. No I/O.

Functions act on the current cluster, so some responses must differ after the cluster has changed: a drained node has no
pods left to evict. Such a difference is explained by a change of the objects in the response. A difference without an
explanation indicates a defect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from eventing.extensions import EXTENSION_OF_KIND
from eventing.journal.entries import Attempt, StructuredEvent
from eventing.replay.explanations import ReplyPair, explain_field, explain_reply
from eventing.replay.object_changes import ObjectChanges

VOLATILE_ATTRIBUTES = ("id", "time", "signature", "traceparent", "tracestate", "replay", "dryrun")
"""Event attributes that differ in every execution of a function."""
VOLATILE_DATA_FIELDS = ("podsVersion", "budgetsVersion", "maintenanceVersion", "left", "closed", "begun", "after")
"""Event data fields that differ in every execution of a function."""
RESPONSE_FIELD = "answer"
"""Value of `Difference.field` if the event types differ, or if only one of the responses contains an event."""


class Response(Protocol):
    """A function's response, which is an `Attempt` or the response to a replay."""

    @property
    def status(self) -> int:
        """Return the HTTP status of the response."""

    @property
    def replies(self) -> tuple[StructuredEvent, ...]:
        """Return the complete events in the response."""

    @property
    def error(self) -> str:
        """Return the text of an error response, "" on success."""


@dataclass(frozen=True)
class Difference:
    """A difference between the recorded and the current response.

    Attributes:
        event: Id of the replayed event.
        function: Name of the function.
        field: `status`, `answer` (the type of the emitted event, None for no event), or the path of an attribute or a
            data field, such as `data.blocked[default/a].reason`.
        then, now: The recorded and the current value, None if it is missing.
        explained: The change of an object that explains the difference, "" if there is none.
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
    """Yield the field, the recorded value, the current value and the explanation of each difference."""
    if recorded.failed or current.status >= 400:
        if _format_status(recorded) != _format_status(current):
            yield "status", _format_status(recorded), _format_status(current), ""
        return
    before, after = _index_by_object(recorded.replies), _index_by_object(current.replies)
    for key in {**before, **after}:
        yield from _compare_replies(ReplyPair(recorded.function, before.get(key), after.get(key), changes))


def _format_status(response: Response) -> str:
    """Format the HTTP status and the error text in one line."""
    return " ".join(f"{response.status} {response.error}".split())


def _index_by_object(replies: tuple[StructuredEvent, ...]) -> dict[tuple[str, int], StructuredEvent]:
    """Index replies by their object's uid and a number.

    A function usually emits one event about each object; the number distinguishes further ones.
    """
    indexed: dict[tuple[str, int], StructuredEvent] = {}
    for reply in replies:
        uid = next((str(reply[extension]) for extension in EXTENSION_OF_KIND.values() if reply.get(extension)), "")
        indexed[uid, sum(key == uid for key, _ in indexed)] = reply
    return indexed


def _compare_replies(pair: ReplyPair) -> Iterator[tuple[str, Any, Any, str]]:
    before, after = pair.before, pair.after
    old_type, new_type = before and before["type"], after and after["type"]
    if before is None or after is None or old_type != new_type:
        yield RESPONSE_FIELD, old_type, new_type, explain_reply(pair)
        return
    for field, then, now in _compare_fields("", _strip_volatile_fields(before), _strip_volatile_fields(after)):
        yield field, then, now, explain_field(field, pair)


def _strip_volatile_fields(reply: StructuredEvent) -> dict[str, Any]:
    """Return the reply without the attributes and data fields that differ in every execution."""
    data = reply.get("data")
    if isinstance(data, Mapping):
        data = {name: value for name, value in data.items() if name not in VOLATILE_DATA_FIELDS}
    return {**{name: value for name, value in reply.items() if name not in VOLATILE_ATTRIBUTES}, "data": data}


def _compare_fields(name: str, recorded: Any, current: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the innermost fields that differ, with their values.

    The order of pods in a list is ignored, because pods are evicted in arbitrary order.
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
    """Return a list of pods as a mapping by `namespace/name`; None for any other value."""
    if not isinstance(value, list) or not all(isinstance(pod, Mapping) and "namespace" in pod for pod in value):
        return None
    return {f"{pod['namespace']}/{pod.get('name')}": pod for pod in value}
