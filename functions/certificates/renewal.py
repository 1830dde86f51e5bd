"""Renews the certificates of one component, write by write, until nothing is due or the time is over.

Keys are never logged, recorded in Events, or returned. Logs and Events contain only names, serial numbers, annotation
values and API errors.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from http import HTTPStatus
from math import inf
from typing import NamedTuple

from functions.kubernetes_events import refusal
from functions.certificates.metrics import FAILURES, RENEWALS
from kube.certificates import kubernetes_events, certificate_objects, lookup, planning
from kube.certificates.kubernetes_events import FAILED, NAMELESS, RENEWED, Notice
from kube.certificates.components import LABEL
from kube.certificates.state import State, is_crowded, misnamed, nameless
from kube.certificates.writes import ISSUED, MADE, SHARED, TAKEN, Write
from kube.client.api import Api
from kube.client.api_errors import ApiError, Conflict, Denied, Rejected, Unavailable
from kube.paths import Object

TEXTS = {
    MADE: "made a new authority",
    ISSUED: "issued a certificate",
    TAKEN: "the new authority signs from now on",
}
"""Messages of the writes that are recorded as Events; the other writes only follow from these."""
WRITE_SECONDS = 0.5
"""Initial time limit of a write, halved after each timeout of a write to the same kind of object.

If a webhook hangs, the writes of one kind therefore take less than one second in total, of the 1.6 s of a pass.
"""
ANNOUNCEMENT_SECONDS = 0.3
"""Time limit for recording an Event."""
SETTLED_SECONDS = 10.0
"""Cooldown after a CA bundle was written to an object; within it only a tick writes the bundle again.

Otherwise a client that keeps removing the bundle would make this function write as fast as events travel.
"""
SHARED_AT: dict[tuple[str, str, str], float] = {}
"""Namespace, kind and name of an object → when this process last wrote a CA bundle to it.

The clock is `time.monotonic`.
"""
log = logging.getLogger("functions")


class Looking(NamedTuple):
    """Parameters of a pass over all namespaces; `is_tick` is False if an event about an object triggered it."""

    api: Api
    pause: timedelta
    clock: Callable[[], datetime]
    is_tick: bool


class Renewal:
    """One pass over one component; the metrics read its final state.

    In: the parameters of the pass; the component's state.

    Attributes:
        errors: The API errors of the objects that were left out.
    """

    def __init__(self, looking: Looking, state: State) -> None:
        self.state = state
        self.errors: list[ApiError] = []
        self._api, self._pause, self._clock, self._is_tick = looking
        self._in_the_way: set[tuple[str, str]] = set()
        self._write_seconds = defaultdict[str, float](lambda: WRITE_SECONDS)

    async def run(self) -> None:
        """Make all changes that are due. Raises `Conflict` or `NotFound` if another client was faster."""
        await announce(self._api, self.state.namespace, _remarks(self.state, self._clock()), self._clock())
        done = set[tuple[str, tuple[str, str]]]()
        while write := planning.next_write(self.state, self._clock(), self._pause):
            if (write.reason, write.of) in done:
                await self._leave_out(write.of, Rejected(0, "what was written is not what is there"))
                continue
            if write.reason == SHARED and not self._is_settled(write.of):
                return
            if write.reason == TAKEN:
                done.clear()  # the bundle counts as published from now on, and is written again
            done.add((write.reason, write.of))
            await self._do(write)
            if self._api.is_dry_run:
                return  # nothing is stored in a dry run, so further writes have no basis

    def _is_settled(self, of: tuple[str, str]) -> bool:
        shared_at = SHARED_AT.get((self.state.namespace, *of), -inf)
        return self._is_tick or time.monotonic() - shared_at > SETTLED_SECONDS

    async def read(self) -> bool:
        """Read the latest state; return False if the component has no objects any more.

        Objects that have only now requested the CA bundle are left to the next pass. Listing all of them may take more
        time than this pass has.
        """
        before = self.state
        asking = None if before.is_blind else await lookup.reread(self._api, before.carriers)
        found = await lookup.found(self._api, before.namespace, asking)
        newest = next((state for state in found.states if state.component == before.component), None)
        self.state = replace(newest or before, refused=before.refused)
        return newest is not None

    async def _do(self, write: Write) -> None:
        try:
            answer = await self._write(write)
        except (Denied, Rejected) as error:
            await self._leave_out(write.of, error)
        except asyncio.TimeoutError:  # it may still succeed: the next pass will see that
            self._write_seconds[write.of[0]] /= 2
            await self._leave_out(write.of, Unavailable(0, "no answer in its time"))
        except Unavailable as error:
            if error.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                raise  # no response or 429: other requests would fail, too
            await self._leave_out(write.of, error)  # for example, a broken webhook for this object
        except Conflict:
            if not write.creates or write.of not in self._in_the_way:
                self._in_the_way.add(write.of)
                raise
            message = f"one is there without the label {LABEL}={self.state.component.name}: label it, or delete it"
            await self._leave_out(write.of, Rejected(HTTPStatus.CONFLICT, message))
        else:
            self.state = planning.after(self.state, write, answer)
            if not self._api.is_dry_run:
                await self._tell(write)
                if write.reason == SHARED:
                    SHARED_AT[(self.state.namespace, *write.of)] = time.monotonic()

    async def _write(self, write: Write) -> Object:
        write_object = self._api.create if write.creates else self._api.patch
        return await asyncio.wait_for(write_object(write.path, write.body), self._write_seconds[write.of[0]])

    async def _tell(self, write: Write) -> None:
        component, (kind, name) = self.state.component.name, write.of
        fields = {"component": component, "namespace": self.state.namespace, "kind": kind, "name": name}
        log.info("certificates: %s", write.reason, extra={"fields": fields})
        if write.reason in (MADE, ISSUED):
            RENEWALS.labels(component).inc()
        if write.reason in TEXTS:
            serial = _serial(self.state, name)
            message = f"{TEXTS[write.reason]}{f', serial {serial}' if serial else ''}"
            await announce(self._api, self.state.namespace, [Notice(write.of, RENEWED, message)], self._clock())

    async def _leave_out(self, of: tuple[str, str], error: ApiError) -> None:
        """Leave out an object that cannot be written now, and continue with what does not depend on it."""
        self.errors.append(error)
        self.state = replace(self.state, refused=self.state.refused | {of})
        FAILURES.labels(self.state.component.name).inc()
        message = f"{of[0]} {of[1]} cannot be written: {error.message}"
        log.error("certificates: %s", message)
        notice = Notice(("ConfigMap", self.state.component.publication), FAILED, message)
        await announce(self._api, self.state.namespace, [notice], self._clock())


async def announce(api: Api, namespace: str, notices: Iterable[Notice], now: datetime) -> None:
    """Record an Event for each notice; an existing Event stays as it is.

    An API error is logged and not raised, because the certificate matters more. After a timeout, no more Events are
    recorded.
    """
    for notice in notices:
        call = refusal(api, kubernetes_events.event(namespace, notice, now))
        try:
            error = await asyncio.wait_for(call, ANNOUNCEMENT_SECONDS)
        except asyncio.TimeoutError:
            log.warning("the Event %s could not be written in its time", notice.reason)
            return
        if error:
            log.warning("the Event %s could not be written: %s", notice.reason, error.message)


def _remarks(state: State, now: datetime) -> Iterator[Notice]:
    """Yield a notice for each problem with the current Secrets that an administrator should know."""
    wrong = misnamed(state)
    for name, names in wrong.items():
        text = f"no DNS name and no address in the annotation {certificate_objects.NAMES}: {', '.join(names)}"
        yield Notice(("Secret", name), NAMELESS, text)
    for name in nameless(state) - wrong.keys():
        text = f"say in the annotation {certificate_objects.NAMES} what its server is reached by"
        yield Notice(("Secret", name), NAMELESS, text)
    if state.is_cut:
        text = f"{certificate_objects.STATUS} has more Secrets that are not there: {lookup.MOST_SECRETS} a component are made again"
        yield Notice(("ConfigMap", state.component.publication), FAILED, text)
    if state.authority and certificate_objects.is_asked_for(state.authority) and is_crowded(state, now):
        text = f"clients read enough of them: renewed again when one expires, or is taken out of {certificate_objects.TRUSTED}"
        yield Notice(("Secret", state.component.authority), FAILED, text)


def _serial(state: State, name: str) -> str:
    found = next((secret for secret in state.secrets if certificate_objects.name_of(secret) == name), None)
    return certificate_objects.held(found, state.known, state.component).serial if found else ""
