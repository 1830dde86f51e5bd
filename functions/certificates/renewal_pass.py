"""One pass over all certificates: in all namespaces, component by component.

This module is imported on the first event, because the cryptography library is slow to import, and the other functions
must start without that delay.
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

from functions.certificates.metrics import FAILURES, CertificateDates
from functions.certificates.renewal import PassContext, Renewal, record_notices
from functions.certificates.settings import Settings
from functions.round_robin import RoundRobin
from kube.certificates import certificate_objects, lookup
from kube.certificates.certificate_objects import NOT_RENEWED_REASON, build_notice
from kube.certificates.components import compute_issue_time
from kube.certificates.state import ComponentState
from kube.client.api import Api, gather_all
from kube.client.api_errors import ApiError, Conflict, NotFound, Unavailable
from kube.client.deadline import has_seconds_left
from kube.paths import Object

PUBLISH_MARGIN = timedelta(seconds=2)
"""Maximum time from the publication time that a write records to the end of this write.

One second allows for the pass's clock, which advances in whole seconds, and one second for the write.
"""
MAX_READS = 5
"""Maximum number of attempts per component in one pass; only another client's write causes a further attempt."""
MIN_SECOND_PASS_SECONDS = 0.3
"""Minimum seconds for a second pass in a tick; with less time left, the pass would achieve nothing."""
ROTATION_WITHOUT_TARGETS, ROTATION_WITH_TARGETS = RoundRobin(), RoundRobin()
"""Rotations that select a pass's first component: for passes without and with known CA injection targets.

With a single rotation and an even number of components, each second pass of a tick would start with the same component.
Each process has its own positions.
"""
log = logging.getLogger("functions")


@dataclass
class LastTick:
    """State that this process keeps between two ticks.

    Attributes:
        ran_out_of_time: Whether the CA injection targets were listed too late for a second pass.
    """

    ran_out_of_time: bool = False

    @property
    def list_timeout_seconds(self) -> float | None:
        """Return the seconds to wait for the list of CA injection targets before a pass without it; None: no limit."""
        return None if self.ran_out_of_time else lookup.LIST_TIMEOUT_SECONDS


LAST_TICK = LastTick()


class PassResult(NamedTuple):
    """Result of a pass: the final states, the errors, and the namespaces that could not be read."""

    states: list[ComponentState]
    errors: list[ApiError]
    unread_namespaces: list[str]

    def merge_later_result(self, later: PassResult) -> PassResult:
        """Return the combined result of this pass and of the pass with the result `later`.

        For namespaces that the later pass could not read, the result contains the states from this pass.
        """
        kept = [state for state in self.states if state.namespace in later.unread_namespaces]
        unread = [namespace for namespace in later.unread_namespaces if namespace in self.unread_namespaces]
        return PassResult([*later.states, *kept], later.errors, unread)


async def renew_all(api: Api, settings: Settings, now: datetime, *, is_tick: bool = True) -> PassResult:
    """Make the changes that are due at `now` in every namespace.

    While the CA injection targets are unknown, a pass renews certificates but does not switch to another CA. If the
    targets are listed late, a tick makes a second pass with them. If no time is left for a second pass, the next tick
    waits for the list and makes one pass.
    """
    context = PassContext(
        api, settings.propagation_delay + PUBLISH_MARGIN, partial(_advance_clock, now, time.monotonic()), is_tick
    )
    targets_task = asyncio.create_task(_find_injection_targets(api, settings.namespaces))
    try:
        await asyncio.wait(
            [targets_task], timeout=LAST_TICK.list_timeout_seconds if is_tick else lookup.LIST_TIMEOUT_SECONDS
        )
        is_late = not targets_task.done()
        outcome = await _renew_namespaces(context, settings.namespaces, None if is_late else targets_task.result())
        if not is_tick:
            return outcome
        late_targets = await targets_task if is_late else None
        LAST_TICK.ran_out_of_time = late_targets is not None and not has_seconds_left(MIN_SECOND_PASS_SECONDS)
        if late_targets is None or LAST_TICK.ran_out_of_time:
            return outcome
        return outcome.merge_later_result(await _renew_namespaces(context, settings.namespaces, late_targets))
    finally:
        targets_task.cancel()


async def _find_injection_targets(api: Api, namespaces: Collection[str]) -> list[Object] | None:
    """Return the CA injection targets, or None if they cannot be read.

    After an error, the event needs no retry, because the next tick reads the targets again.
    """
    try:
        return await lookup.list_injection_targets(api, namespaces)
    except ApiError as error:
        _log_read_error("the CA injection targets", error)
        return None


async def _renew_namespaces(
    context: PassContext, namespaces: Collection[str], targets: list[Object] | None
) -> PassResult:
    """Read all namespaces concurrently, and renew their components one after another.

    Each pass of the same kind starts with a different component, so that a hanging write cannot block other components
    forever.
    """
    result = PassResult([], [], [])
    states_by_namespace = await gather_all(
        *(_read_namespace(context, namespace, targets, result) for namespace in namespaces)
    )
    rotation = ROTATION_WITHOUT_TARGETS if targets is None else ROTATION_WITH_TARGETS
    for state in rotation.rotate(chain.from_iterable(states_by_namespace), _build_rotation_key):
        renewal = Renewal(context, state)
        try:
            await _run_with_retry(renewal)
        except ApiError as error:
            await _report_failure(context, renewal.state, error)
            result.errors.append(error)
        result.errors.extend(renewal.errors)
        result.states.append(renewal.state)
    return result


async def _read_namespace(
    context: PassContext, namespace: str, targets: list[Object] | None, result: PassResult
) -> tuple[ComponentState, ...]:
    """Return the states of a namespace's components; add an API error to `result` and return no states."""
    try:
        snapshot = await lookup.read_snapshot(context.api, namespace, targets)
    except ApiError as error:
        result.errors.append(_log_read_error(f'the certificates in namespace "{namespace}"', error))
        result.unread_namespaces.append(namespace)
        return ()
    await record_notices(context.api, snapshot.skipped_notices)
    return snapshot.states


def _build_rotation_key(state: ComponentState) -> str:
    """Return the component's key in the rotation.

    The key is a hash, because hashes are distributed evenly and names are not. An even distribution matters because
    each process starts at a random position.
    """
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{state.namespace}/{state.component.name}"))


def _advance_clock(now: datetime, started_at: float) -> datetime:
    return now + timedelta(seconds=int(time.monotonic() - started_at))


def _log_read_error(description: str, error: ApiError) -> ApiError:
    FAILURES.labels("").inc()
    log.error("cannot read %s: %s", description, error.message)
    return error


async def _run_with_retry(renewal: Renewal) -> None:
    """Run the renewal; after a write by another client, read the state again and start over."""
    for attempt in range(MAX_READS):
        try:
            return await renewal.run()
        except (Conflict, NotFound):
            if attempt == MAX_READS - 1:
                raise
        if not await renewal.reload():
            return None
    return None


async def _report_failure(context: PassContext, state: ComponentState, error: ApiError) -> None:
    FAILURES.labels(state.component.name).inc()
    fields = {"component": state.component.name, "namespace": state.namespace}
    log.error("cannot renew certificates: %s", error.message, extra={"fields": fields})
    # Transient errors are usually resolved before an administrator reads the Event.
    if not isinstance(error, Conflict | NotFound | Unavailable):
        bundle = "ConfigMap", state.component.bundle_configmap_name
        notice = build_notice(state.namespace, bundle, NOT_RENEWED_REASON, error.message)
        await record_notices(context.api, [notice])


def list_certificate_dates(states: list[ComponentState]) -> Iterator[CertificateDates]:
    """Yield the issue and expiry times of each certificate, for the metrics."""
    for state in states:
        for secret in state.secrets:
            if pair := certificate_objects.get_current_key_pair(secret):
                key = state.component.name, state.namespace, certificate_objects.get_name(secret)
                certificate = pair.parsed_certificate
                yield key, compute_issue_time(certificate.not_valid_before_utc), certificate.not_valid_after_utc
