"""One look at all certificates: namespace by namespace, component by component.

Imported at the first event: it takes the library that makes keys, which no start of another function should wait for.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import datetime, timedelta

from functions.certificates.metrics import FAILURES, Dates
from functions.certificates.renewal import Renewal, announce
from functions.certificates.settings import Settings
from kube.certificates import holders, lookup
from kube.certificates.announcements import FAILED, Notice
from kube.certificates.components import issued
from kube.certificates.state import State
from kube.door.api import Api
from kube.door.api_errors import ApiError, Conflict, NotFound, Unavailable
from kube.paths import Object

TAKES = timedelta(seconds=2)
"""The moment of a look is that of its beginning: what it publishes may be so much later, and no more."""
READINGS = 5
"""Of a namespace in one look: so often may somebody else write first."""
log = logging.getLogger("functions")


async def renewed(api: Api, settings: Settings, now: datetime) -> tuple[list[State], list[ApiError]]:
    """Do what is due at `now` in every namespace; how things stand then, and what went wrong.

    Raises `ApiError` when it cannot be told who asks for a CA bundle: without it nobody may be given another one.
    """
    asking = await lookup.carriers(api)
    states: list[State] = []
    errors: list[ApiError] = []
    for namespace in settings.namespaces:
        try:
            found, failures = await _in_namespace(api, namespace, asking, settings.pause, now)
        except ApiError as error:
            FAILURES.labels("").inc()
            log.error("the certificates in %s cannot be read: %s", namespace, error.message)
            errors.append(error)
            continue
        states += found
        errors += failures
    return states, errors


async def _in_namespace(
    api: Api, namespace: str, asking: list[Object], pause: timedelta, now: datetime
) -> tuple[list[State], list[ApiError]]:
    found = await lookup.found(api, namespace, asking)
    await announce(api, namespace, found.skipped, now)
    states, errors = [], []
    for state in found.states:
        renewal = Renewal(api, state, now, pause + TAKES)
        try:
            await _until_done(renewal)
        except ApiError as error:
            await _failed(api, renewal.state, error, now)
            errors.append(error)
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


async def _failed(api: Api, state: State, error: ApiError, now: datetime) -> None:
    FAILURES.labels(state.component.name).inc()
    fields = {"component": state.component.name, "namespace": state.namespace}
    log.error("certificates are not renewed: %s", error.message, extra={"fields": fields})
    if not isinstance(
        error, Conflict | NotFound | Unavailable
    ):  # those pass, as a rule before anybody has read of them
        notice = Notice(("ConfigMap", state.component.publication), FAILED, error.message)
        await announce(api, state.namespace, [notice], now)


def dates(states: list[State]) -> Iterator[Dates]:
    """When each certificate was issued and when it ends, for the metrics."""
    for state in states:
        for secret in state.secrets:
            if pair := holders.current(secret):
                key = state.component.name, state.namespace, holders.name_of(secret)
                yield key, issued(pair.parsed.not_valid_before_utc), pair.parsed.not_valid_after_utc
