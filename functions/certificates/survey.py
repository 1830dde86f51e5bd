"""One look at all certificates: namespace by namespace, component by component.

Imported at the first event: it takes the library that makes keys, which no start of another function should wait for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

from functions.certificates.metrics import FAILURES, Dates
from functions.certificates.renewal import Looking, Renewal, announce
from functions.certificates.settings import Settings
from kube.certificates import holders, lookup
from kube.certificates.announcements import FAILED, Notice
from kube.certificates.components import issued
from kube.certificates.state import State
from kube.door.api import Api
from kube.door.api_errors import ApiError, Conflict, NotFound, Unavailable
from kube.paths import Object

TAKES = timedelta(seconds=2)
"""What is published is there so much later than the moment that is noted with it, and no more: the clock of a look goes
on by whole seconds, and the rest is for the write itself."""
READINGS = 5
"""Of a namespace in one look: so often may somebody else write first."""
log = logging.getLogger("functions")


class Outcome(NamedTuple):
    """How things stand after a look, what went wrong, and the namespaces that could not be read."""

    states: list[State]
    errors: list[ApiError]
    unread: list[str]


async def renewed(api: Api, settings: Settings, now: datetime, *, is_tick: bool = True) -> Outcome:
    """Do what is due at `now` in every namespace.

    Where it cannot be told who asks for a CA bundle, certificates are mended, and no other authority follows.
    """
    outcome = Outcome([], [], [])
    clock = partial(_later, now, time.monotonic())
    looking = Looking(api, settings.pause + TAKES, clock, is_tick)
    try:
        asking: list[Object] | None = await lookup.carriers(api, settings.namespaces)
    except ApiError as error:
        asking = None
        outcome.errors.append(_unread("who asks for a CA bundle", error))
    for namespace in settings.namespaces:
        try:
            states, errors = await _in_namespace(looking, namespace, asking)
        except ApiError as error:
            outcome.errors.append(_unread(f"the certificates in {namespace}", error))
            outcome.unread.append(namespace)
            continue
        outcome.states.extend(states)
        outcome.errors.extend(errors)
    return outcome


def _later(now: datetime, began: float) -> datetime:
    return now + timedelta(seconds=int(time.monotonic() - began))


def _unread(what: str, error: ApiError) -> ApiError:
    FAILURES.labels("").inc()
    log.error("%s cannot be read: %s", what, error.message)
    return error


async def _in_namespace(
    looking: Looking, namespace: str, asking: list[Object] | None
) -> tuple[list[State], list[ApiError]]:
    api, clock = looking.api, looking.clock
    found = await lookup.found(api, namespace, asking)
    await announce(api, namespace, found.skipped, clock())
    states, errors = [], list[ApiError]()
    for state in found.states:
        renewal = Renewal(looking, state)
        try:
            await _until_done(renewal)
        except ApiError as error:
            await _failed(looking, renewal.state, error)
            errors.append(error)
        errors += renewal.errors
        states.append(renewal.state)
    return states, errors


async def _until_done(renewal: Renewal) -> None:
    """Run it, and after a write of somebody else read again and decide anew."""
    for reading in range(READINGS):
        try:
            return await renewal.run()
        except (Conflict, NotFound):
            if reading == READINGS - 1:
                raise
        if not await renewal.read():
            return None
    return None


async def _failed(looking: Looking, state: State, error: ApiError) -> None:
    FAILURES.labels(state.component.name).inc()
    fields = {"component": state.component.name, "namespace": state.namespace}
    log.error("certificates are not renewed: %s", error.message, extra={"fields": fields})
    if not isinstance(
        error, Conflict | NotFound | Unavailable
    ):  # those pass, as a rule before anybody has read of them
        notice = Notice(("ConfigMap", state.component.publication), FAILED, error.message)
        await announce(looking.api, state.namespace, [notice], looking.clock())


def dates(states: list[State]) -> Iterator[Dates]:
    """When each certificate was issued and when it ends, for the metrics."""
    for state in states:
        for secret in state.secrets:
            if pair := holders.current(secret):
                key = state.component.name, state.namespace, holders.name_of(secret)
                yield key, issued(pair.parsed.not_valid_before_utc), pair.parsed.not_valid_after_utc
