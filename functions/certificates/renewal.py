"""Renews the certificates in all namespaces, component by component, one write at a time.

A pass ends when no renewal is due or its deadline has passed. Private keys are never logged, recorded in Events, or
returned. Logs and Events contain only names, serial numbers, annotation values and API errors.

This module is imported on the first event, because importing the cryptography library is slow and would delay the start
of the other functions.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from http import HTTPStatus
from itertools import chain
from math import inf
from typing import NamedTuple

from functions.certificates.metrics import FAILURES, RENEWALS, CertificateDates
from functions.certificates.settings import Settings
from functions.event_recorder import EVENT_RECORDER
from functions.round_robin import RoundRobin
from kube.certificates import component_state, key_pairs, lookup, objects, server_names
from kube.certificates.component_state import ComponentState
from kube.certificates.components import CLOCK_SKEW, COMPONENT_LABEL
from kube.certificates.objects import (
    NO_NAMES_REASON,
    NOT_RENEWED_REASON,
    RENEWED_REASON,
    build_certificate_event,
)
from kube.certificates.planning import (
    BUNDLE_INJECTED,
    CA_ACTIVATED,
    CA_CREATED,
    CERTIFICATE_ISSUED,
    Write,
    apply_response,
    plan_next_write,
)
from kube.client.api import Api, gather_all
from kube.client.api_errors import ApiError, Conflict, Denied, NotFound, Rejected, Unavailable
from kube.client.deadline import has_seconds_left
from kube.kubernetes_events import KubernetesEvent
from kube.paths import Object

PUBLISH_MARGIN = timedelta(seconds=2)
"""Added to the propagation delay, because a CA is published up to two seconds after its recorded publication time.

One second covers the pass's clock, which advances in whole seconds; the other covers the write itself.
"""
MAX_READS = 5
"""Maximum number of attempts per component in one pass; a conflict with another client's write causes a retry."""
MIN_SECOND_PASS_SECONDS = 0.3
"""Minimum seconds that must remain before the deadline to start a second pass for the same PingSource event."""
ROTATION_WITHOUT_TARGETS, ROTATION_WITH_TARGETS = RoundRobin(), RoundRobin()
"""Round-robin positions that select a pass's first component, for passes without and with known CA injection targets.

A PingSource event may trigger one pass of each type. With one shared position and an even number of components, the
second pass would always start with the same component. Each process has its own positions.
"""
EVENT_MESSAGES = {
    CA_CREATED: "created a new CA",
    CERTIFICATE_ISSUED: "issued a certificate",
    CA_ACTIVATED: "the new CA signs certificates from now on",
}
"""Map from a write's reason to the message of its Event; writes with other reasons are follow-ups and get no Event."""
WRITE_TIMEOUT_SECONDS = 0.5
"""Initial timeout of a write, halved whenever a write to the same kind of object times out.

If a webhook hangs, all writes to one kind therefore time out within one second in total. A pass has 1.6 seconds.
"""
EVENT_TIMEOUT_SECONDS = 0.3
"""Timeout for recording Events."""
INJECTION_COOLDOWN_SECONDS = 10.0
"""Seconds after a CA bundle injection during which only a PingSource event repeats the injection into the same object.

Without this cooldown, the function and a client that keeps removing the bundle would undo each other's writes in a
tight loop.
"""
INJECTED_AT: dict[tuple[str, str, str], float] = {}
"""Map from an object's namespace, kind and name to the monotonic time of this process's last CA bundle injection."""
log = logging.getLogger("functions")


@dataclass
class LastTick:
    """Outcome of the last PingSource event in this process.

    Attributes:
        ran_out_of_time: Whether the CA injection targets were listed too late for a second pass. For the next
            PingSource event, the function then waits for the list without a timeout and makes a single pass.
    """

    ran_out_of_time: bool = False


LAST_TICK = LastTick()


class PassContext(NamedTuple):
    """Parameters of a pass over all namespaces; `is_tick` is whether a PingSource event triggered the pass."""

    api: Api
    propagation_delay: timedelta
    clock: Callable[[], datetime]
    is_tick: bool


class PassResult(NamedTuple):
    """Result of a pass: the components' final states, the API errors, and the namespaces that could not be read."""

    states: list[ComponentState]
    errors: list[ApiError]
    unread_namespaces: list[str]

    def merge_later_result(self, later: PassResult) -> PassResult:
        """Return the combined result of this pass and the later pass with the result `later`.

        For namespaces that the later pass could not read, the combined result contains the states from this pass.
        """
        kept = [state for state in self.states if state.namespace in later.unread_namespaces]
        unread = [namespace for namespace in later.unread_namespaces if namespace in self.unread_namespaces]
        return PassResult([*later.states, *kept], later.errors, unread)


async def renew_all(api: Api, settings: Settings, now: datetime, *, is_tick: bool = True) -> PassResult:
    """Renew the certificates that are due at `now` in every namespace.

    While the CA injection targets are unknown, a pass renews certificates but does not activate a new CA. If the
    targets are listed late and `is_tick` is true, the function makes a second pass with them, unless the deadline is
    too close.
    """
    started_at, namespaces = time.monotonic(), settings.namespaces

    def get_time() -> datetime:
        return now + timedelta(seconds=int(time.monotonic() - started_at))

    context = PassContext(api, settings.propagation_delay + PUBLISH_MARGIN, get_time, is_tick)
    list_task = asyncio.create_task(_find_injection_targets(api, namespaces))
    try:
        must_wait = is_tick and LAST_TICK.ran_out_of_time
        await asyncio.wait([list_task], timeout=None if must_wait else lookup.LIST_TIMEOUT_SECONDS)
        is_late = not list_task.done()
        result = await _renew_namespaces(context, namespaces, None if is_late else list_task.result())
        if not is_tick:
            return result
        late_targets = await list_task if is_late else None
        LAST_TICK.ran_out_of_time = late_targets is not None and not has_seconds_left(MIN_SECOND_PASS_SECONDS)
        if late_targets is None or LAST_TICK.ran_out_of_time:
            return result
        return result.merge_later_result(await _renew_namespaces(context, namespaces, late_targets))
    finally:
        list_task.cancel()


async def _find_injection_targets(api: Api, namespaces: Collection[str]) -> list[Object] | None:
    """Return the CA injection targets; log an API error and return None.

    The error triggers no retry of the event, because the next PingSource event lists the targets again.
    """
    try:
        return await lookup.list_injection_targets(api, namespaces)
    except ApiError as error:
        _log_read_error("the CA injection targets", error)
        return None


async def _renew_namespaces(
    context: PassContext, namespaces: Collection[str], targets: list[Object] | None
) -> PassResult:
    """Read all namespaces concurrently, and renew the certificates of their components one after another.

    Passes start with different components by round robin, so that a hanging write to one component cannot block the
    other components forever.
    """
    result = PassResult([], [], [])
    states_by_namespace = await gather_all(
        *(_read_namespace(context, namespace, targets, result) for namespace in namespaces)
    )
    rotation = ROTATION_WITHOUT_TARGETS if targets is None else ROTATION_WITH_TARGETS
    for state in rotation.rotate(chain.from_iterable(states_by_namespace), _build_rotation_key):
        renewal = Renewal(context, state)
        await renewal.run()
        result.errors.extend(renewal.errors)
        result.states.append(renewal.state)
    return result


async def _read_namespace(
    context: PassContext, namespace: str, targets: list[Object] | None, result: PassResult
) -> tuple[ComponentState, ...]:
    """Return the states of a namespace's components; on an API error, add the error to `result` and return ()."""
    try:
        snapshot = await lookup.read_snapshot(context.api, namespace, targets)
    except ApiError as error:
        result.errors.append(_log_read_error(f'the certificates in namespace "{namespace}"', error))
        result.unread_namespaces.append(namespace)
        return ()
    await _record_events(context.api, snapshot.skipped_events)
    return snapshot.states


def _build_rotation_key(state: ComponentState) -> str:
    """Return a hash of the component's name.

    Each process starts at a random position. Since hashes are spread evenly, each component is equally likely to be
    the first.
    """
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{state.namespace}/{state.component.name}"))


def _log_read_error(description: str, error: ApiError) -> ApiError:
    FAILURES.labels("").inc()
    log.error("cannot read %s: %s", description, error.message)
    return error


class Renewal:
    """One pass that renews one component's certificates.

    Attributes:
        state: The component's state, updated after each write; the metrics use the final state.
        errors: The API errors of the failed writes, and the error that ended the pass, if any.
    """

    def __init__(self, context: PassContext, state: ComponentState) -> None:
        self.state = state
        self.errors: list[ApiError] = []
        self._api, self._propagation_delay, self._clock, self._is_tick = context
        self._conflicting: set[tuple[str, str]] = set()
        self._write_timeouts = defaultdict[str, float](lambda: WRITE_TIMEOUT_SECONDS)

    async def run(self) -> None:
        """Send all writes that are due; if another client changed an object first, read the state again and retry."""
        try:
            for _ in range(MAX_READS - 1):
                with suppress(Conflict, NotFound):
                    return await self._send_due_writes()
                if not await self._reload_state():
                    return None
            await self._send_due_writes()
        except ApiError as error:
            await self._report_pass_failure(error)

    async def _send_due_writes(self) -> None:
        """Send all writes that are due. Raises `Conflict` or `NotFound` if another client changed an object first."""
        await _record_events(self._api, _build_problem_events(self.state, self._clock()))
        applied = set[tuple[str, tuple[str, str]]]()
        while write := plan_next_write(self.state, self._clock(), self._propagation_delay):
            if (write.reason, write.target) in applied:
                message = "the stored object differs from what was written: check for a webhook that changes it"
                await self._exclude_unwritable_object(write.target, Rejected(0, message))
                continue
            if write.reason == BUNDLE_INJECTED and not self._may_inject_bundle(write.target):
                return
            if write.reason == CA_ACTIVATED:
                applied.clear()  # After the activation of the new CA, an object may need the same write again.
            applied.add((write.reason, write.target))
            await self._send_write(write)
            if self._api.is_dry_run:
                return  # A dry run stores no object, so a later write cannot depend on this one.

    def _may_inject_bundle(self, target: tuple[str, str]) -> bool:
        injected_at = INJECTED_AT.get((self.state.namespace, *target), -inf)
        return self._is_tick or time.monotonic() - injected_at > INJECTION_COOLDOWN_SECONDS

    async def _reload_state(self) -> bool:
        """Read the component's latest state; return False if the component no longer has any objects.

        The function reads only the known CA injection targets again. Listing all of them may take too long for this
        pass, so the next pass finds targets that were added in the meantime.
        """
        before = self.state
        targets = (
            None
            if before.are_targets_unknown
            else await lookup.reread_injection_targets(self._api, before.injection_targets)
        )
        snapshot = await lookup.read_snapshot(self._api, before.namespace, targets)
        latest = next((state for state in snapshot.states if state.component == before.component), None)
        self.state = replace(latest or before, unwritable=before.unwritable)
        return latest is not None

    async def _send_write(self, write: Write) -> None:
        """Send a write and apply the response to the state; after an error of this object alone, exclude the object.

        Raises any other `ApiError`, which ends the pass for this component.
        """
        send, kind = self._api.create if write.is_create else self._api.patch, write.target[0]
        try:
            written = await asyncio.wait_for(send(write.path, write.body), self._write_timeouts[kind])
        except asyncio.TimeoutError:  # The write may still succeed; the next pass reads the result.
            self._write_timeouts[kind] /= 2
            await self._exclude_unwritable_object(write.target, Unavailable(0, "no response in time"))
        except (Denied, Rejected) as error:
            await self._exclude_unwritable_object(write.target, error)
        except Unavailable as error:
            if error.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                raise  # After a missing response or a 429, writes to other objects would fail as well.
            await self._exclude_unwritable_object(write.target, error)  # A 5xx error may be specific to this object.
        except Conflict:
            if not write.is_create or write.target not in self._conflicting:
                self._conflicting.add(write.target)
                raise
            label = f"{COMPONENT_LABEL}={self.state.component.name}"
            message = f"it already exists without the label {label}: add the label, or delete the {kind}"
            await self._exclude_unwritable_object(write.target, Rejected(HTTPStatus.CONFLICT, message))
        else:
            self.state = apply_response(self.state, write, written)
            if not self._api.is_dry_run:
                await self._report_write(write)

    async def _report_write(self, write: Write) -> None:
        """Log and count a write, and record its Event; for a CA bundle injection, start the cooldown."""
        component, namespace, (kind, name) = self.state.component, self.state.namespace, write.target
        fields = {"component": component.name, "namespace": namespace, "kind": kind, "name": name}
        log.info("certificates: %s", write.reason, extra={"fields": fields})
        if write.reason == BUNDLE_INJECTED:
            INJECTED_AT[namespace, kind, name] = time.monotonic()
        if write.reason in (CA_CREATED, CERTIFICATE_ISSUED):
            RENEWALS.labels(component.name).inc()
        if write.reason in EVENT_MESSAGES:
            secret = next(item for item in self.state.secrets if objects.get_name(item) == name)
            pair, message = component_state.get_current_key_pair(secret), EVENT_MESSAGES[write.reason]
            serial_text = f", serial {key_pairs.format_serial(pair.parsed_certificate)}" if pair else ""
            kubernetes_event = build_certificate_event(
                namespace, write.target, RENEWED_REASON, f"{message}{serial_text}"
            )
            await _record_events(self._api, [kubernetes_event])

    async def _exclude_unwritable_object(self, target: tuple[str, str], error: ApiError) -> None:
        """Exclude an object whose write failed, so that the pass continues with the component's other objects."""
        self.errors.append(error)
        self.state = replace(self.state, unwritable=self.state.unwritable | {target})
        FAILURES.labels(self.state.component.name).inc()
        message = f'cannot write {target[0]} "{target[1]}": {error.message}'
        log.error("certificates: %s", message)
        await self._record_failure_event(message)

    async def _report_pass_failure(self, error: ApiError) -> None:
        """Report an error that ended the pass for this component."""
        self.errors.append(error)
        component, namespace = self.state.component.name, self.state.namespace
        FAILURES.labels(component).inc()
        fields = {"component": component, "namespace": namespace}
        log.error("cannot renew certificates: %s", error.message, extra={"fields": fields})
        # Transient errors are usually resolved before an administrator reads the Event.
        if not isinstance(error, Conflict | NotFound | Unavailable):
            await self._record_failure_event(error.message)

    async def _record_failure_event(self, message: str) -> None:
        target = ("ConfigMap", self.state.component.bundle_configmap_name)
        kubernetes_event = build_certificate_event(self.state.namespace, target, NOT_RENEWED_REASON, message)
        await _record_events(self._api, [kubernetes_event])


async def _record_events(api: Api, kubernetes_events: Iterable[KubernetesEvent]) -> None:
    """Record the Events, for at most `EVENT_TIMEOUT_SECONDS`, so that slow Events do not delay the renewals."""
    try:
        await asyncio.wait_for(EVENT_RECORDER.record(api, kubernetes_events), EVENT_TIMEOUT_SECONDS)
    except asyncio.TimeoutError:
        log.warning("cannot record Events: no response in time")


def _build_problem_events(state: ComponentState, now: datetime) -> Iterator[KubernetesEvent]:
    """Build an Event for each problem with the component's Secrets that an administrator must fix."""
    annotation = objects.DNS_NAMES_ANNOTATION
    for server in state.server_secrets:
        target = ("Secret", objects.get_name(server))
        if invalid_names := server_names.select_unusable_names(objects.get_annotated_names(server)):
            text = f"annotation {annotation} contains invalid DNS names or IP addresses: {', '.join(invalid_names)}"
            yield build_certificate_event(state.namespace, target, NO_NAMES_REASON, text)
        elif not component_state.find_server_names(server, state.summaries):
            text = f"annotation {annotation} has no server name: list the server's DNS names and IP addresses"
            yield build_certificate_event(state.namespace, target, NO_NAMES_REASON, text)
    if state.is_truncated:
        limit = f"only {lookup.MAX_SERVER_SECRETS} of them are created again"
        text = f"{objects.STATUS_ENTRY} names too many Secrets that do not exist: {limit}"
        target = ("ConfigMap", state.component.bundle_configmap_name)
        yield build_certificate_event(state.namespace, target, NOT_RENEWED_REASON, text)
    if state.ca_secret and objects.is_renewal_requested(state.ca_secret) and state.has_too_many_cas(now):
        remedy = f"wait until a CA expires, or remove one from {objects.CA_ENTRY}"
        text = f"cannot renew the CA, because the bundle has the maximum number of CAs: {remedy}"
        target = ("Secret", state.component.ca_secret_name)
        yield build_certificate_event(state.namespace, target, NOT_RENEWED_REASON, text)


def list_certificate_dates(states: list[ComponentState]) -> Iterator[CertificateDates]:
    """Yield the issue and expiry times of each certificate, for the metrics."""
    for state in states:
        for secret in state.secrets:
            if pair := component_state.get_current_key_pair(secret):
                key = state.component.name, state.namespace, objects.get_name(secret)
                certificate = pair.parsed_certificate
                yield key, certificate.not_valid_before_utc + CLOCK_SKEW, certificate.not_valid_after_utc
