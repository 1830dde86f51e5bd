"""Renews the certificates of one component, one write at a time, until nothing is due or the time runs out.

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

from functions.certificates.metrics import FAILURES, RENEWALS
from functions.event_recorder import EVENT_RECORDER
from kube.certificates import certificate_objects, lookup, planning
from kube.certificates.certificate_objects import NO_NAMES_REASON, NOT_RENEWED_REASON, RENEWED_REASON, build_notice
from kube.certificates.components import COMPONENT_LABEL
from kube.certificates.state import ComponentState, find_invalid_names, find_secrets_without_dns_names, is_bundle_full
from kube.certificates.writes import BUNDLE_INJECTED, CA_ACTIVATED, CA_CREATED, CERTIFICATE_ISSUED, Write
from kube.client.api import Api
from kube.client.api_errors import ApiError, Conflict, Denied, Rejected, Unavailable
from kube.kubernetes_events import EventNotice
from kube.paths import Object

EVENT_MESSAGES = {
    CA_CREATED: "created a new CA",
    CERTIFICATE_ISSUED: "issued a certificate",
    CA_ACTIVATED: "the new CA signs certificates from now on",
}
"""Reason of a write → message of its Event. Writes with other reasons follow from these writes, and get no Event."""
WRITE_TIMEOUT_SECONDS = 0.5
"""Initial time limit of a write, halved after each timeout of a write to the same kind of object.

If a webhook hangs, all writes to one kind therefore take less than one second, out of the 1.6 s that a pass has.
"""
EVENT_TIMEOUT_SECONDS = 0.3
"""Time limit for recording Events."""
INJECTION_COOLDOWN_SECONDS = 10.0
"""Seconds after injecting the CA bundle into an object during which only a tick injects the bundle again.

Otherwise this function and a client that keeps removing the bundle would undo each other's writes in a tight loop.
"""
INJECTED_AT: dict[tuple[str, str, str], float] = {}
"""Namespace, kind and name of an object → when this process last wrote a CA bundle to it.

The clock is `time.monotonic`.
"""
log = logging.getLogger("functions")


class PassContext(NamedTuple):
    """Parameters of a pass over all namespaces; `is_tick` is False if an event about an object triggered the pass."""

    api: Api
    propagation_delay: timedelta
    clock: Callable[[], datetime]
    is_tick: bool


class Renewal:
    """One renewal pass over the certificates of one component.

    Attributes:
        state: The component's state, which each write updates; the metrics use the final state.
        errors: The API errors of the objects that the pass could not write.
    """

    def __init__(self, context: PassContext, state: ComponentState) -> None:
        self.state = state
        self.errors: list[ApiError] = []
        self._api, self._propagation_delay, self._clock, self._is_tick = context
        self._conflicting: set[tuple[str, str]] = set()
        self._write_timeouts = defaultdict[str, float](lambda: WRITE_TIMEOUT_SECONDS)

    async def run(self) -> None:
        """Make all changes that are due. Raises `Conflict` or `NotFound` if another client wrote an object first."""
        await record_notices(self._api, _build_notices(self.state, self._clock()))
        applied = set[tuple[str, tuple[str, str]]]()
        while write := planning.plan_next_write(self.state, self._clock(), self._propagation_delay):
            if (write.reason, write.target) in applied:
                await self._exclude_object(
                    write.target,
                    Rejected(0, "the stored object differs from what was written: check for a webhook that changes it"),
                )
                continue
            if write.reason == BUNDLE_INJECTED and not self._may_inject_bundle(write.target):
                return
            if write.reason == CA_ACTIVATED:
                # After the switch to the new CA, objects may need the same write again.
                applied.clear()
            applied.add((write.reason, write.target))
            await self._apply_write(write)
            if self._api.is_dry_run:
                return  # A dry run stores nothing, so no further write can build on this one.

    def _may_inject_bundle(self, target: tuple[str, str]) -> bool:
        injected_at = INJECTED_AT.get((self.state.namespace, *target), -inf)
        return self._is_tick or time.monotonic() - injected_at > INJECTION_COOLDOWN_SECONDS

    async def reload(self) -> bool:
        """Read the latest state; return False if the component no longer has any objects.

        The next pass handles objects that have requested the CA bundle during this pass. Listing all injection targets
        again may take more time than this pass has.
        """
        before = self.state
        targets = (
            None if before.are_targets_unknown else await lookup.reread_targets(self._api, before.injection_targets)
        )
        snapshot = await lookup.read_snapshot(self._api, before.namespace, targets)
        latest = next((state for state in snapshot.states if state.component == before.component), None)
        self.state = replace(latest or before, unwritable=before.unwritable)
        return latest is not None

    async def _apply_write(self, write: Write) -> None:
        try:
            written = await self._send_write(write)
        except (Denied, Rejected) as error:
            await self._exclude_object(write.target, error)
        except asyncio.TimeoutError:  # The write may still succeed; the next pass reads the result.
            self._write_timeouts[write.target[0]] /= 2
            await self._exclude_object(write.target, Unavailable(0, "no response in time"))
        except Unavailable as error:
            if error.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                raise  # After a missing response or a 429, other requests would fail as well.
            await self._exclude_object(write.target, error)  # The error may be specific to this object.
        except Conflict:
            if not write.is_create or write.target not in self._conflicting:
                self._conflicting.add(write.target)
                raise
            label = f"{COMPONENT_LABEL}={self.state.component.name}"
            message = f"it already exists without the label {label}: add the label, or delete the {write.target[0]}"
            await self._exclude_object(write.target, Rejected(HTTPStatus.CONFLICT, message))
        else:
            self.state = planning.apply_response(self.state, write, written)
            if not self._api.is_dry_run:
                await self._report_write(write)
                if write.reason == BUNDLE_INJECTED:
                    INJECTED_AT[(self.state.namespace, *write.target)] = time.monotonic()

    async def _send_write(self, write: Write) -> Object:
        write_object = self._api.create if write.is_create else self._api.patch
        return await asyncio.wait_for(write_object(write.path, write.body), self._write_timeouts[write.target[0]])

    async def _report_write(self, write: Write) -> None:
        component, (kind, name) = self.state.component.name, write.target
        fields = {"component": component, "namespace": self.state.namespace, "kind": kind, "name": name}
        log.info("certificates: %s", write.reason, extra={"fields": fields})
        if write.reason in (CA_CREATED, CERTIFICATE_ISSUED):
            RENEWALS.labels(component).inc()
        if write.reason in EVENT_MESSAGES:
            serial = _find_serial_number(self.state, name)
            message = f"{EVENT_MESSAGES[write.reason]}{f', serial {serial}' if serial else ''}"
            notice = build_notice(self.state.namespace, write.target, RENEWED_REASON, message)
            await record_notices(self._api, [notice])

    async def _exclude_object(self, target: tuple[str, str], error: ApiError) -> None:
        """Exclude an object that cannot be written now, so that the pass continues with the remaining objects."""
        self.errors.append(error)
        self.state = replace(self.state, unwritable=self.state.unwritable | {target})
        FAILURES.labels(self.state.component.name).inc()
        message = f'cannot write {target[0]} "{target[1]}": {error.message}'
        log.error("certificates: %s", message)
        bundle = "ConfigMap", self.state.component.bundle_configmap_name
        await record_notices(self._api, [build_notice(self.state.namespace, bundle, NOT_RENEWED_REASON, message)])


async def record_notices(api: Api, notices: Iterable[EventNotice]) -> None:
    """Record an Event for each notice within `EVENT_TIMEOUT_SECONDS`, because a renewal matters more than its Event."""
    try:
        await asyncio.wait_for(EVENT_RECORDER.record(api, notices), EVENT_TIMEOUT_SECONDS)
    except asyncio.TimeoutError:
        log.warning("cannot record Events: no response in time")


def _build_notices(state: ComponentState, now: datetime) -> Iterator[EventNotice]:
    """Yield a notice for each problem of the component's Secrets that an administrator must solve."""
    annotation, invalid_names = certificate_objects.DNS_NAMES_ANNOTATION, find_invalid_names(state)
    for name, names in invalid_names.items():
        text = f"annotation {annotation} contains invalid DNS names or IP addresses: {', '.join(names)}"
        yield build_notice(state.namespace, ("Secret", name), NO_NAMES_REASON, text)
    for name in find_secrets_without_dns_names(state) - invalid_names.keys():
        text = f"annotation {annotation} has no server name: list the server's DNS names and IP addresses"
        yield build_notice(state.namespace, ("Secret", name), NO_NAMES_REASON, text)
    if state.is_truncated:
        limit = f"only {lookup.MAX_SERVER_SECRETS} of them are created again"
        text = f"{certificate_objects.STATUS_ENTRY} names too many Secrets that do not exist: {limit}"
        yield build_notice(
            state.namespace, ("ConfigMap", state.component.bundle_configmap_name), NOT_RENEWED_REASON, text
        )
    if state.ca_secret and certificate_objects.is_renewal_requested(state.ca_secret) and is_bundle_full(state, now):
        remedy = f"wait until a CA expires, or remove one from {certificate_objects.CA_ENTRY}"
        text = f"cannot renew the CA, because the bundle has the maximum number of CAs: {remedy}"
        yield build_notice(state.namespace, ("Secret", state.component.ca_secret_name), NOT_RENEWED_REASON, text)


def _find_serial_number(state: ComponentState, name: str) -> str:
    matching = next((secret for secret in state.secrets if certificate_objects.get_name(secret) == name), None)
    return certificate_objects.build_summary(matching, state.summaries, state.component).serial if matching else ""
