"""Registry of the steps: the decorator `step` declares, next to a step's function, how the step is served."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from cloudevents.core.base import BaseCloudEvent

from functions.failures import raise_retry
from functions.work_queue import HintPolicy
from kube.client.sync_client import SyncClient

Step = Callable[[BaseCloudEvent, SyncClient], list[BaseCloudEvent]]
"""Takes an event and returns the events that the step emits."""
FailureHandler = Callable[[str, BaseCloudEvent, str], list[BaseCloudEvent]]
"""Takes the step's name, the event and the error, and returns the failure event.

Raises `Retry` if the step has no failure event.
"""


class LateReplies(Protocol):
    """Source of replies that a step produces after its response; only the journal gets them, as another attempt."""

    def set_publisher(self, publish: Callable[[BaseCloudEvent, list[BaseCloudEvent]], None]) -> None:
        """Set the function that publishes late replies; it takes the event and its late replies."""

    def close(self) -> None:
        """Publish the remaining replies before the process ends."""


@dataclass(frozen=True)
class Function:
    """A step and how it is served; its route, its Trigger and its ServiceAccount have the same name.

    Attributes:
        consumes: Event types that the step processes, () for all; any other event gets a 204, so that no broker retries
            it.
        emits: Event types that the step may return.
        kind: The only kind of object that the step processes in API server events; "" for any kind.
        on_failure: Handles an event that the step cannot process.
        coalescing: How the events coalesce if they are only hints; None if they carry facts (rule 8).
        late_replies: Source of replies that follow the response, if any.
        requires_signature: Whether the function rejects events that this install has not signed. Without a signature,
            any sender could put text into a status, or receive the replies to all hints that a pass coalesces.
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
        """Return whether the step processes this event."""
        kind = event.get_extension("kind")
        if self.consumes and event.get_type() not in self.consumes:
            return False
        return not (self.kind and kind and kind != self.kind)


REGISTERED_FUNCTIONS: dict[str, Function] = {}
"""The functions of all modules that are imported so far, by name; `functions.app` imports all modules with steps."""


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
    """Register the decorated function as the step `name`; `Function` describes the other arguments."""

    def register(function: Step) -> Step:
        REGISTERED_FUNCTIONS[name] = Function(
            name, function, consumes, emits, kind, on_failure, coalescing, late_replies, requires_signature
        )
        return function

    return register
