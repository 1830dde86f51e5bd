"""A step as it is served, and its invocation: one event in, the events that answer it out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from cloudevents.core.base import BaseCloudEvent

from eventing import marks
from eventing.signatures import require_ours
from functions.failures import Busy, Failed, Retry, retry
from functions.serving.lasting_failures import Failing
from functions.serving.looks import Looks
from kube.door.api_errors import ApiError, Conflict, Unavailable
from kube.door.sync_client import Cluster

log = logging.getLogger("functions")
Step = Callable[[BaseCloudEvent, Cluster], list[BaseCloudEvent]]
Fail = Callable[[str, BaseCloudEvent, str], list[BaseCloudEvent]]
"""From step, event and error to the event of failure; raises `Retry` where there is none."""


class Late(Protocol):
    """What a step brings about behind its answers: published as one more answer to the event."""

    def publish_by(self, publish: Callable[[BaseCloudEvent, list[BaseCloudEvent]], None]) -> None:
        """Have it be published by this from now on, which takes the event and what else answers it."""

    def close(self) -> None:
        """Publish what is left: the process ends."""


@dataclass(frozen=True)
class Function:
    """One step: its name is its route, its Trigger, its ServiceAccount.

    Attributes:
        step: event in, events out.
        consumes: event types it acts on, () for all; others are answered with 204, so that no broker retries them.
        emits: event types it may answer with.
        kind: of API server events it acts on this kind only; "" for any.
        fail: what becomes of an event that the step cannot act on.
        looks: its looks, one at a time, where events are but hints to it; None where they carry facts (rule 8).
        failing: the events that it is tried with again and again.
        late: what it brings about behind its answers, where there is such a thing.
        ours_alone: whether it refuses events that none of our programs emitted, as it can where all are signed: who
            posts one would have its words told, or the answer to all hints that its look absorbs.
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
        """Whether the step acts on this event."""
        kind = event.get_extension("kind")
        if self.consumes and event.get_type() not in self.consumes:
            return False
        return not (self.kind and kind and kind != self.kind)


def invoke(function: Function, event: BaseCloudEvent, cluster: Cluster) -> list[BaseCloudEvent]:
    """The events that the step answers with; what it cannot do becomes the wing's event of failure.

    So does what it could not do for some time (`lasting_failures`). A replay is answered by a look of its own: neither
    absorbs what happens, nor is absorbed by it. Raises `Retry` for what may work later, and `BadEvent`: `Forged` where
    it has to be ours, and is not. A dry run writes nothing, and may be of another installation's event.
    """
    if not function.is_for(event):
        return []
    if function.ours_alone and not marks.is_dry_run(event):
        require_ours(event)
    if marks.is_replay(event):
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
    except ApiError as error:  # the account may not, or the server refuses: trying again changes nothing
        return _failed(function, event, error.message)


def _failed(function: Function, event: BaseCloudEvent, error: str) -> list[BaseCloudEvent]:
    log.error(error, extra={"fields": {"function": function.name, "event": event.get_id()}})
    return function.fail(function.name, event, error)
