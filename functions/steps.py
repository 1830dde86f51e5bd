"""Registry of the functions: the decorator `step` registers a Python function and declares how it is served."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from cloudevents.core.base import BaseCloudEvent

from functions.failures import raise_retry
from functions.work_queue import HintPolicy
from kube.client.sync_client import SyncClient

Step = Callable[[BaseCloudEvent, SyncClient], list[BaseCloudEvent]]
"""Callable that handles an event and returns the events to emit."""
FailureHandler = Callable[[str, BaseCloudEvent, str], list[BaseCloudEvent]]
"""Callable that takes a step's name, the failed event and the error, and returns the failure event to emit.

Raises `Retry` if the step has no failure event.
"""


class LateReplies(Protocol):
    """Source of replies that a step produces after its response; the journal records them as another attempt."""

    def set_publisher(self, publish: Callable[[BaseCloudEvent, list[BaseCloudEvent]], None]) -> None:
        """Set the function that publishes late replies; it takes the event and its late replies."""

    def close(self) -> None:
        """Publish the remaining late replies before the process exits."""


@dataclass(frozen=True)
class Function:
    """A step and how it is served; its HTTP route, Trigger and ServiceAccount have the same name.

    Attributes:
        consumes: Event types that the step processes, () for all types. The response to any other event is 204, so that
            the broker does not retry it.
        emits: Event types that the step may return.
        kind: The only object kind that the step processes in API server events; "" for any kind.
        on_failure: Handler that reports an event which the step cannot process.
        coalescing: Policy for coalescing the events; None if each event must be processed separately (rule 8).
        late_replies: Source of replies that are produced after the response, if any.
        requires_signature: Whether the function rejects events that this install has not signed. Otherwise any sender
            could write text into a status, or receive the replies to other senders' coalesced events.
    """

    name: str
    step: Step
    consumes: tuple[str, ...]
    emits: tuple[str, ...]
    kind: str = ""
    on_failure: FailureHandler = raise_retry
    coalescing: HintPolicy | None = None
    late_replies: LateReplies | None = None
    requires_signature: bool = False

    def accepts(self, event: BaseCloudEvent) -> bool:
        """Return whether the step processes events of this type and object kind."""
        kind = event.get_extension("kind")
        if self.consumes and event.get_type() not in self.consumes:
            return False
        return not (self.kind and kind and kind != self.kind)


REGISTERED_FUNCTIONS: dict[str, Function] = {}
"""The registered functions by name; `functions.app` imports all modules that register functions."""


def step(
    name: str,
    *,
    consumes: tuple[str, ...],
    emits: tuple[str, ...],
    kind: str = "",
    on_failure: FailureHandler = raise_retry,
    coalescing: HintPolicy | None = None,
    late_replies: LateReplies | None = None,
    requires_signature: bool = False,
) -> Callable[[Step], Step]:
    """Build a decorator that registers a Python function as the step `name`; see `Function` for the other arguments."""

    def register(function: Step) -> Step:
        REGISTERED_FUNCTIONS[name] = Function(
            name, function, consumes, emits, kind, on_failure, coalescing, late_replies, requires_signature
        )
        return function

    return register
