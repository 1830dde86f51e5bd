"""Describes how a step is served, and invokes it for one event."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from cloudevents.core.base import BaseCloudEvent

from eventing import replay_extensions
from eventing.signatures import require_valid_signature
from functions.failures import Busy, Failed, Retry, raise_retry
from functions.serving.failure_tracker import FailureTracker
from functions.serving.pass_queue import PassQueue
from kube.client.api_errors import ApiError, Conflict, Unavailable
from kube.client.sync_client import SyncClient

log = logging.getLogger("functions")
Step = Callable[[BaseCloudEvent, SyncClient], list[BaseCloudEvent]]
FailureHandler = Callable[[str, BaseCloudEvent, str], list[BaseCloudEvent]]
"""Function that takes the step's name, the event and the error, and returns the failure event.

Raises `Retry` if the step has no failure event.
"""


class LateReplies(Protocol):
    """Source of replies that a step produces after its response; they are published as another reply to the event."""

    def set_publisher(self, publish: Callable[[BaseCloudEvent, list[BaseCloudEvent]], None]) -> None:
        """Set the function that publishes late replies; it takes the event and its late replies."""

    def close(self) -> None:
        """Publish the remaining replies before the process ends."""


@dataclass(frozen=True)
class Function:
    """A step and how it is served; its route, its Trigger and its ServiceAccount have the same name.

    Attributes:
        step: Takes an event and returns events.
        consumes: Event types that the step processes, () for all; any other event gets a 204, so that no broker retries
            it.
        emits: Event types that the step may return.
        kind: The only kind of object that the step processes in API server events; "" for any kind.
        on_failure: Handles an event that the step cannot process.
        pass_queue: Work queue that coalesces the events if they are only hints; None if they carry facts (rule 8).
        failure_tracker: Detects events that fail repeatedly.
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
    pass_queue: PassQueue | None = None
    failure_tracker: FailureTracker = field(default_factory=FailureTracker)
    late_replies: LateReplies | None = None
    requires_signature: bool = False

    def accepts(self, event: BaseCloudEvent) -> bool:
        """Return whether the step processes this event."""
        kind = event.get_extension("kind")
        if self.consumes and event.get_type() not in self.consumes:
            return False
        return not (self.kind and kind and kind != self.kind)


def invoke(function: Function, event: BaseCloudEvent, client: SyncClient) -> list[BaseCloudEvent]:
    """Run the step and return its reply events; a permanent error becomes the component's failure event.

    A transient error that persists becomes the failure event as well (`failure_tracker`). A replay runs a separate
    pass, which neither coalesces hints nor is coalesced. Raises `Retry` if a retry may succeed, `BadEvent` if the event
    is invalid, and its subclass `InvalidSignature` if a required signature is missing or wrong. A dry run writes
    nothing, so its event needs no signature and may come from another install.
    """
    if not function.accepts(event):
        return []
    if function.requires_signature and not replay_extensions.is_dry_run(event):
        require_valid_signature(event)
    if replay_extensions.is_replay(event):
        return _run_step(function, event, client)
    try:
        replies = _run_step_coalesced(function, event, client)
    except Retry as error:
        if not function.failure_tracker.record_failure(event, busy=isinstance(error, Busy)):
            raise
        return _handle_failure(function, event, str(error))
    function.failure_tracker.record_success(event)
    return replies


def _run_step_coalesced(function: Function, event: BaseCloudEvent, client: SyncClient) -> list[BaseCloudEvent]:
    if function.pass_queue is None:
        return _run_step(function, event, client)
    return function.pass_queue.handle_hint(event, lambda hint: _run_step(function, hint, client))


def _run_step(function: Function, event: BaseCloudEvent, client: SyncClient) -> list[BaseCloudEvent]:
    try:
        return function.step(event, client)
    except (Conflict, Unavailable) as error:
        raise Retry(error.message) from error
    except Failed as error:
        return _handle_failure(function, event, str(error))
    except ApiError as error:  # A retry of a forbidden or rejected request would not help.
        return _handle_failure(function, event, error.message)


def _handle_failure(function: Function, event: BaseCloudEvent, error: str) -> list[BaseCloudEvent]:
    log.error(error, extra={"fields": {"function": function.name, "event": event.get_id()}})
    return function.on_failure(function.name, event, error)
