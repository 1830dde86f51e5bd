"""Renews the certificates of one component, write by write, for as long as there is something to do and time to do it.

Nothing of a Secret is ever logged, announced or answered but its name.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime, timedelta

from functions.certificates.metrics import FAILURES, RENEWALS
from kube.certificates import announcements, holders, lookup, planning
from kube.certificates.announcements import FAILED, NAMELESS, RENEWED, Notice
from kube.certificates.planning import ISSUED, MADE, TAKEN, Write
from kube.certificates.state import State, nameless, relies, without
from kube.door.api import Api
from kube.door.api_errors import ApiError, Conflict, Denied
from kube.paths import Object

TEXTS = {
    MADE: "made a new authority",
    ISSUED: "issued a certificate",
    TAKEN: "the new authority signs from now on",
}
"""What of the writes is announced; the others only follow from these."""
log = logging.getLogger("functions")


class Renewal:
    """One look at one component: what it finds out is kept, and read by the metrics."""

    def __init__(self, api: Api, state: State, now: datetime, pause: timedelta) -> None:
        self.state = state
        self._api, self._now, self._pause = api, now, pause

    async def run(self) -> None:
        """Do all that is to be done now. Raises `Conflict` and `NotFound` when somebody else was there first."""
        await announce(self._api, self.state.namespace, map(_nameless, nameless(self.state)), self._now)
        while write := planning.next_write(self.state, self._now, self._pause):
            await self._do(write)
            if self._api.is_dry_run:
                return  # nothing is kept, so what would follow rests on nothing

    async def read(self) -> bool:
        """Take the newest state; False where nothing of the component is left."""
        before = self.state
        found = await lookup.found(self._api, before.namespace, await lookup.carriers(self._api))
        self.state = next((state for state in found.states if state.component == before.component), before)
        return self.state is not before

    async def _do(self, write: Write) -> None:
        try:
            answer = await self._write(write)
        except Denied as error:
            if write.of[0] in ("Secret", "ConfigMap") or relies(self.state, write.of):
                raise
            await self._failed(write.of, error)
            self.state = without(self.state, write.of)
            return
        self.state = planning.after(self.state, write, answer)
        if not self._api.is_dry_run:
            await self._tell(write)

    async def _write(self, write: Write) -> Object:
        if write.creates:
            return await self._api.create(write.path, write.body)
        return await self._api.patch(write.path, write.body)

    async def _tell(self, write: Write) -> None:
        component, (kind, name) = self.state.component.name, write.of
        fields = {"component": component, "namespace": self.state.namespace, "kind": kind, "name": name}
        log.info("certificates: %s", write.reason, extra={"fields": fields})
        if write.reason in (MADE, ISSUED):
            RENEWALS.labels(component).inc()
        if write.reason in TEXTS:
            serial = _serial(self.state, name)
            message = f"{TEXTS[write.reason]}{f', serial {serial}' if serial else ''}"
            await announce(self._api, self.state.namespace, [Notice(write.of, RENEWED, message)], self._now)

    async def _failed(self, of: tuple[str, str], error: ApiError) -> None:
        """The bundle is due in an object that we may not write, and that works without it."""
        FAILURES.labels(self.state.component.name).inc()
        log.error("certificates: %s %s gets no CA bundle: %s", *of, error.message)
        notice = Notice(
            ("ConfigMap", self.state.component.publication),
            FAILED,
            f"{' '.join(of)} gets no CA bundle: {error.message}",
        )
        await announce(self._api, self.state.namespace, [notice], self._now)


async def announce(api: Api, namespace: str, notices: Iterable[Notice], now: datetime) -> None:
    """Write an Event for each; one that is there is left as it is. A certificate is worth more than its announcement:
    an API error is logged, not raised."""
    for notice in notices:
        try:
            await api.create(announcements.events_path(namespace), announcements.event(namespace, notice, now))
        except Conflict:
            continue
        except ApiError as error:
            log.warning("the Event %s could not be written: %s", notice.reason, error.message)


def _nameless(name: str) -> Notice:
    return Notice(("Secret", name), NAMELESS, f"say in the annotation {holders.NAMES} what its server is reached by")


def _serial(state: State, name: str) -> str:
    found = next((secret for secret in state.secrets if holders.name_of(secret) == name), None)
    return holders.held(found, state.known, state.component).serial if found else ""
