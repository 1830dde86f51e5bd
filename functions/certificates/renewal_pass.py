"""One pass over all certificates: in all namespaces, component by component.

It is imported at the first event, because the cryptography library is slow to import. No other function must wait for
that when it starts.
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
from functions.round_robin import Turns
from kube.certificates import certificate_objects, lookup
from kube.certificates.kubernetes_events import FAILED, Notice
from kube.certificates.components import issued
from kube.certificates.state import State
from kube.client.api import Api
from kube.client.api_errors import ApiError, Conflict, NotFound, Unavailable
from kube.client.concurrent_requests import together
from kube.client.deadline import has_time
from kube.paths import Object

TAKES = timedelta(seconds=2)
"""Maximum time between the timestamp that is written with a publication and the end of that write.

The clock of a pass advances in whole seconds; the rest is for the write itself.
"""
READINGS = 5
"""Maximum attempts at a component in one pass; each one after the first follows another client's write."""
AGAIN_SECONDS = 0.3
"""Minimum time for a second pass in a tick; with less, the pass would achieve nothing."""
BLIND_TURNS, SEEING_TURNS = Turns(), Turns()
"""Rotations that select the first component: for passes without and with known CA injection targets.

With a single rotation and an even number of components, each second pass of a tick would start with the same component.
Each process has its own positions.
"""
log = logging.getLogger("functions")


@dataclass
class LastTick:
    """State that this process keeps between two ticks.

    Attributes:
        ran_out: Whether the lists arrived too late for a second pass that uses them.
    """

    ran_out: bool = False

    @property
    def patience(self) -> float | None:
        """Return the seconds to wait for the lists before a pass without them; None to wait until they arrive."""
        return None if self.ran_out else lookup.PATIENCE_SECONDS


LAST_TICK = LastTick()


class Outcome(NamedTuple):
    """Result of a pass: the final states, the errors, and the namespaces that could not be read."""

    states: list[State]
    errors: list[ApiError]
    unread: list[str]

    def followed_by(self, later: Outcome) -> Outcome:
        """Return the combined result of this pass and a later one.

        For namespaces that the later pass could not read, it contains the states from this pass.
        """
        kept = [state for state in self.states if state.namespace in later.unread]
        unread = [namespace for namespace in later.unread if namespace in self.unread]
        return Outcome([*later.states, *kept], later.errors, unread)


async def renewed(api: Api, settings: Settings, now: datetime, *, is_tick: bool = True) -> Outcome:
    """Make the changes that are due at `now` in every namespace.

    While the CA injection targets are unknown, a pass renews certificates but does not switch to another CA. If the
    lists of targets are late, a tick makes a second pass when they arrive. If no time is left for that, the next tick
    waits for the lists and makes one pass.
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
    """Return the CA injection targets, or None if they cannot be read.

    An error is not a reason to retry the event, because the next tick reads them again.
    """
    try:
        return await lookup.carriers(api, namespaces)
    except ApiError as error:
        _unread("who asks for a CA bundle", error)
        return None


async def _everywhere(looking: Looking, namespaces: Collection[str], asking: list[Object] | None) -> Outcome:
    """Read all namespaces concurrently, and renew their components one after another.

    Each pass of the same kind starts with another component, so that a hanging write cannot block the others forever.
    """
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
    """Return the components of a namespace; none if it cannot be read, which is noted in `outcome`."""
    try:
        found = await lookup.found(looking.api, namespace, asking)
    except ApiError as error:
        outcome.errors.append(_unread(f"the certificates in {namespace}", error))
        outcome.unread.append(namespace)
        return ()
    await announce(looking.api, namespace, found.skipped, looking.clock())
    return found.states


def _turn(state: State) -> str:
    """Return the component's key in the rotation.

    It is a hash, because hashes are distributed evenly and names are not. That matters because each process starts at a
    random position.
    """
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{state.namespace}/{state.component.name}"))


def _later(now: datetime, began: float) -> datetime:
    return now + timedelta(seconds=int(time.monotonic() - began))


def _unread(what: str, error: ApiError) -> ApiError:
    FAILURES.labels("").inc()
    log.error("%s cannot be read: %s", what, error.message)
    return error


async def _until_done(renewal: Renewal) -> None:
    """Run the renewal; after a write by another client, read the state again and start over."""
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
    ):  # those are transient, and usually over before an administrator reads the Event
        notice = Notice(("ConfigMap", state.component.publication), FAILED, error.message)
        await announce(looking.api, state.namespace, [notice], looking.clock())


def dates(states: list[State]) -> Iterator[Dates]:
    """Yield when each certificate was issued and when it expires, for the metrics."""
    for state in states:
        for secret in state.secrets:
            if pair := certificate_objects.current(secret):
                key = state.component.name, state.namespace, certificate_objects.name_of(secret)
                yield key, issued(pair.parsed.not_valid_before_utc), pair.parsed.not_valid_after_utc
