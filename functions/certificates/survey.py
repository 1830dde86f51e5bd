"""One look at all certificates: of all namespaces, component by component.

Imported at the first event: it takes the library that makes keys, which no start of another function should wait for.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from typing import NamedTuple

from functions.certificates.metrics import FAILURES, Dates
from functions.certificates.renewal import Looking, Renewal, announce
from functions.certificates.settings import Settings
from functions.rotation import Turns
from kube.certificates import holders, lookup
from kube.certificates.announcements import FAILED, Notice
from kube.certificates.components import issued
from kube.certificates.state import State
from kube.door.api import Api
from kube.door.api_errors import ApiError, Conflict, NotFound, Unavailable
from kube.door.concurrent_requests import together
from kube.door.deadline import has_time
from kube.paths import Object

TAKES = timedelta(seconds=2)
"""What is published is there so much later than the moment that is noted with it, and no more: the clock of a look goes
on by whole seconds, and the rest is for the write itself."""
READINGS = 5
"""Of a namespace in one look: so often may somebody else write first."""
AGAIN_SECONDS = 0.3
"""A second look in a tick that has less time than this gets nothing done."""
BLIND_TURNS, SEEING_TURNS = Turns(), Turns()
"""Which component is the first: in looks that cannot tell who asks for a CA bundle, and in those that can. With the
same for both, where components are even in number, each second look of a tick would begin with the same one. Each
process has its own."""
log = logging.getLogger("functions")


@dataclass
class LastTick:
    """What this process keeps of a tick for the next one: whether its time ran out before it could look once more with
    the lists, which had come."""

    ran_out: bool = False

    @property
    def patience(self) -> float | None:
        """For how many seconds to wait for the lists before a look without; None for as long as they may take."""
        return None if self.ran_out else lookup.PATIENCE_SECONDS


LAST_TICK = LastTick()


class Outcome(NamedTuple):
    """How things stand after a look, what went wrong with certificates, and the namespaces that could not be read."""

    states: list[State]
    errors: list[ApiError]
    unread: list[str]

    def followed_by(self, later: Outcome) -> Outcome:
        """As a later look found all, and this one what that could not read any more."""
        kept = [state for state in self.states if state.namespace in later.unread]
        unread = [namespace for namespace in later.unread if namespace in self.unread]
        return Outcome([*later.states, *kept], later.errors, unread)


async def renewed(api: Api, settings: Settings, now: datetime, *, is_tick: bool = True) -> Outcome:
    """Do what is due at `now` in every namespace.

    While it cannot be told who asks for a CA bundle, certificates are mended, and no other authority follows. That is
    for a tick to do: one that could not tell in time looks once more when it can. Where its time is over by then, the
    next one waits until it can tell, and looks once.
    """
    looking = Looking(api, settings.pause + TAKES, partial(_later, now, time.monotonic()), is_tick)
    reading = asyncio.create_task(_asking(api, settings.namespaces))
    try:
        await asyncio.wait([reading], timeout=LAST_TICK.patience if is_tick else lookup.PATIENCE_SECONDS)
        is_late = not reading.done()
        outcome = await _everywhere(looking, settings.namespaces, None if is_late else reading.result())
        if not is_tick:
            return outcome
        asking = await reading if is_late else None
        LAST_TICK.ran_out = asking is not None and not has_time(AGAIN_SECONDS)
        if asking is None or LAST_TICK.ran_out:
            return outcome
        return outcome.followed_by(await _everywhere(looking, settings.namespaces, asking))
    finally:
        reading.cancel()


async def _asking(api: Api, namespaces: Collection[str]) -> list[Object] | None:
    """Who asks for a CA bundle; None where nobody can tell. No event is worth another try for that: the tick looks."""
    try:
        return await lookup.carriers(api, namespaces)
    except ApiError as error:
        _unread("who asks for a CA bundle", error)
        return None


async def _everywhere(looking: Looking, namespaces: Collection[str], asking: list[Object] | None) -> Outcome:
    """All namespaces are read at once, and each look of its kind begins with another component: what hangs before one
    of them keeps no other waiting for ever."""
    outcome = Outcome([], [], [])
    found = await together(*(_read(looking, namespace, asking, outcome) for namespace in namespaces))
    turns = BLIND_TURNS if asking is None else SEEING_TURNS
    for state in turns.begin(chain.from_iterable(found), _turn):
        renewal = Renewal(looking, state)
        try:
            await _until_done(renewal)
        except ApiError as error:
            await _failed(looking, renewal.state, error)
            outcome.errors.append(error)
        outcome.errors.extend(renewal.errors)
        outcome.states.append(renewal.state)
    return outcome


async def _read(looking: Looking, namespace: str, asking: list[Object] | None, outcome: Outcome) -> tuple[State, ...]:
    """The components of a namespace; where it cannot be read none, and the outcome says so."""
    try:
        found = await lookup.found(looking.api, namespace, asking)
    except ApiError as error:
        outcome.errors.append(_unread(f"the certificates in {namespace}", error))
        outcome.unread.append(namespace)
        return ()
    await announce(looking.api, namespace, found.skipped, looking.clock())
    return found.states


def _turn(state: State) -> str:
    """What a component has its turn by: spread evenly, as names are not, since a process may begin anywhere."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{state.namespace}/{state.component.name}"))


def _later(now: datetime, began: float) -> datetime:
    return now + timedelta(seconds=int(time.monotonic() - began))


def _unread(what: str, error: ApiError) -> ApiError:
    FAILURES.labels("").inc()
    log.error("%s cannot be read: %s", what, error.message)
    return error


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
