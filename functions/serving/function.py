"""A step as it is served, and its invocation with one event, which returns the reply events."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from cloudevents.core.base import BaseCloudEvent

from eventing import replay_extensions
from eventing.signatures import require_ours
from functions.failures import Busy, Failed, Retry, retry
from functions.serving.failure_tracker import Failing
from functions.serving.pass_queue import Looks
from kube.client.api_errors import ApiError, Conflict, Unavailable
from kube.client.sync_client import Cluster

log = logging.getLogger("functions")
Step = Callable[[BaseCloudEvent, Cluster], list[BaseCloudEvent]]
Fail = Callable[[str, BaseCloudEvent, str], list[BaseCloudEvent]]
"""Takes the step's name, the event and the error, and returns the failure event.

It raises `Retry` if the step has no such event.
"""


class Late(Protocol):
    """Source of replies that a step produces after its response; they are published as another reply to the event."""

    def publish_by(self, publish: Callable[[BaseCloudEvent, list[BaseCloudEvent]], None]) -> None:
        """Set the function that publishes late replies; it takes the event and these replies."""

    def close(self) -> None:
        """Publish the remaining replies because the process ends."""


@dataclass(frozen=True)
class Function:
    """One step; its name is also that of its route, its Trigger and its ServiceAccount.

    Attributes:
        step: Takes an event and returns events.
        consumes: Event types that it processes, () for all; others get a 204, so that no broker retries them.
        emits: Event types that it may return.
        kind: The only kind that it processes in events of the API server; "" for any kind.
        fail: Handles an event that the step cannot process.
        looks: Work queue that coalesces events if they are only hints; None if they carry facts (rule 8).
        failing: The events that have failed repeatedly.
        late: Source of replies after the response, if there is one.
        ours_alone: Whether it rejects events that no program of this install has signed. Otherwise any sender could put
            text into a status, or receive the replies to all hints that a pass coalesces.
    """

    name: str
    step: Step
    consumes: tuple[str, ...]
    emits: tuple[str, ...]
    kind: str = ""
    fail: Fail = retry
    looks: Looks | None = None
    failing: Failing = field(default_factory=Failing)
    late: Late | None = None
    ours_alone: bool = False

    def is_for(self, event: BaseCloudEvent) -> bool:
        """Return whether the step processes this event."""
        kind = event.get_extension("kind")
        if self.consumes and event.get_type() not in self.consumes:
            return False
        return not (self.kind and kind and kind != self.kind)


def invoke(function: Function, event: BaseCloudEvent, cluster: Cluster) -> list[BaseCloudEvent]:
    """Run the step and return its reply events; a permanent error becomes the component's failure event.

    So does an error that has lasted for some time (`lasting_failures`). A replay has its own pass, which coalesces no
    hints and is not coalesced. Raises `Retry` if a retry may succeed, and `BadEvent` if the event is invalid. Its
    subclass `Forged` means that a required signature is missing or wrong. A dry run writes nothing, so its event may
    come from another install.
    """
    if not function.is_for(event):
        return []
    if function.ours_alone and not replay_extensions.is_dry_run(event):
        require_ours(event)
    if replay_extensions.is_replay(event):
        return _step(function, event, cluster)
    try:
        replies = _looked(function, event, cluster)
    except Retry as error:
        if not function.failing.lasts(event, busy=isinstance(error, Busy)):
            raise
        return _failed(function, event, str(error))
    function.failing.passed(event)
    return replies


def _looked(function: Function, event: BaseCloudEvent, cluster: Cluster) -> list[BaseCloudEvent]:
    if function.looks is None:
        return _step(function, event, cluster)
    return function.looks.look(event, lambda hint: _step(function, hint, cluster))


def _step(function: Function, event: BaseCloudEvent, cluster: Cluster) -> list[BaseCloudEvent]:
    try:
        return function.step(event, cluster)
    except (Conflict, Unavailable) as error:
        raise Retry(error.message) from error
    except Failed as error:
        return _failed(function, event, str(error))
    except ApiError as error:  # forbidden or rejected: a retry changes nothing
        return _failed(function, event, error.message)


def _failed(function: Function, event: BaseCloudEvent, error: str) -> list[BaseCloudEvent]:
    log.error(error, extra={"fields": {"function": function.name, "event": event.get_id()}})
    return function.fail(function.name, event, error)
