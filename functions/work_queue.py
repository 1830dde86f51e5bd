"""Work queue of a function whose events are only hints: one pass per key runs at a time (design rule 8).

A hint is an event that reports only that an object may have changed. A pass is one execution of the function: it reads
the current state and does what can be done now. As in client-go's work queue, a key is idle, running, or running and
dirty. A hint for an idle key starts a pass in the hint's own request. A hint for a running key makes the key dirty: its
request waits, and then starts the next pass. A newer hint for a dirty key replaces the waiting hint, which is
acknowledged, because the next pass handles both. A crash loses no hint: the broker redelivers the event whose request
was running or waiting, and the new pass reads newer state than all coalesced hints reported.

A hint that reports state which a pass has already read is acknowledged without another pass. Otherwise a broker with
ordered delivery would cause one pass per late hint. The event that started a pass is an exception, because its response
may have been lost. While that pass is running, a redelivery of the event is rejected, so that the broker retries later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from cloudevents.core.base import BaseCloudEvent

from functions.bounded_cache import BoundedCache
from functions.failures import Busy
from kube.client.deadline import get_seconds_left, has_seconds_left
from kube.resource_versions import find_newest_resource_version

Replies = list[BaseCloudEvent]
"""The events that one pass returns."""
ResourceVersions = Mapping[str, str]
"""The resourceVersions that a pass has read, by the names of their fields in event data."""
MAX_REMEMBERED_KEYS = 1000
"""Maximum number of keys for which the state read by the last pass is remembered."""
MIN_PASS_SECONDS = 0.7
"""Minimum seconds that must remain before the deadline to start a pass for a hint that has waited."""


class WorkKey(NamedTuple):
    """Key of a pass: passes with the same `serial_key` run one after another; hints with the same key share a pass.

    `serial_key` names the state that the pass reads, such as `node n1`.
    """

    serial_key: str
    coalesce_key: str = ""


class HintPolicy:
    """Policy that determines how a function's hints coalesce.

    Attributes:
        build_key: Function that returns the work queue key of an event. Raises `BadEvent` if the event lacks a field of
            the key.
    """

    def __init__(self, build_key: Callable[[BaseCloudEvent], WorkKey]) -> None:
        self.build_key = build_key

    def may_replace(self, waiting: BaseCloudEvent, newer: BaseCloudEvent) -> bool:
        """Return whether `newer` may replace the waiting hint: only if its object is not older."""
        version = _get_object_version(newer)
        return find_newest_resource_version((_get_object_version(waiting), version)) in (version, "")

    def merge_hints(self, hints: Sequence[BaseCloudEvent]) -> BaseCloudEvent:
        """Return one hint for a pass that handles all of `hints`; the last one is the hint whose request waited."""
        return hints[-1]

    def read_versions(self, _replies: Replies) -> ResourceVersions:
        """Return the resourceVersions that a pass with these replies has read; by default none."""
        return {}

    def has_seen(self, _versions: ResourceVersions, _hint: BaseCloudEvent) -> bool:
        """Return whether a pass that has read `versions` makes a pass for the hint unnecessary; by default False."""
        return False


def _get_object_version(hint: BaseCloudEvent) -> str:
    """Return the resourceVersion of the Kubernetes object in the hint's data, or "" if there is none."""
    data = hint.get_data()
    metadata = data.get("metadata") if isinstance(data, dict) else None
    return str(metadata.get("resourceVersion") or "") if isinstance(metadata, dict) else ""


class LastPassState(NamedTuple):
    """Source and id of the event that started a pass, and the resourceVersions that the pass has read."""

    event_id: tuple[str, str]
    versions: ResourceVersions


class WorkQueue:
    """Work queue that runs and coalesces one function's passes in this process. Thread-safe."""

    def __init__(self, policy: HintPolicy) -> None:
        self._policy = policy
        self._changed = threading.Condition()
        self._running: dict[str, tuple[str, str]] = {}
        """Map from a serial key to the source and id of the event whose pass is running."""
        self._waiting: dict[WorkKey, list[BaseCloudEvent]] = {}
        """Map from a key to the waiting hint, preceded by the acknowledged hints that its pass will also handle."""
        self._last_seen = BoundedCache[WorkKey, LastPassState](MAX_REMEMBERED_KEYS)

    def handle_hint(self, event: BaseCloudEvent, run_pass: Callable[[BaseCloudEvent], Replies]) -> Replies:
        """Run a pass for the hint and return its replies, or return [] if another pass handles the hint.

        Raises `Busy` if another pass with the same serial key runs for too long, or if a pass of the same event is
        still running.
        """
        key = self._policy.build_key(event)
        hints = self._start_or_coalesce(key, event)
        if not hints:
            return []
        try:
            replies = run_pass(self._policy.merge_hints(hints) if len(hints) > 1 else event)
            seen = LastPassState(_get_event_id(event), self._policy.read_versions(replies))
            with self._changed:
                self._last_seen[key] = seen
            return replies
        finally:
            with self._changed:
                del self._running[key.serial_key]
                self._changed.notify_all()

    def _start_or_coalesce(self, key: WorkKey, event: BaseCloudEvent) -> list[BaseCloudEvent]:
        """Wait until no pass with the serial key is running, mark the key as running, and return the pass's hints.

        Returns an empty list if another pass handles the event.
        """
        event_id = _get_event_id(event)
        with self._changed:
            if self._has_last_pass_read_reported_state(key, event):
                return []
            earlier = self._waiting.get(key, [])
            # If the redelivered event were coalesced, its pass's reply, which may trigger the next step, could be lost.
            if event_id in (self._running.get(key.serial_key), *map(_get_event_id, earlier)):
                raise Busy("the pass of this event is still in progress")
            if earlier and not self._policy.may_replace(earlier[-1], event):
                earlier.insert(0, event)
                return []
            hints = [*earlier, event]
            if not self._wait_until_idle(key, hints) or all(
                self._has_last_pass_read_reported_state(key, hint) for hint in hints
            ):
                return []
            self._running[key.serial_key] = event_id
            return hints

    def _wait_until_idle(self, key: WorkKey, hints: list[BaseCloudEvent]) -> bool:
        """Wait until no pass with the serial key is running; return False if a newer hint has replaced these hints.

        The caller holds the lock. Raises `Busy` if the deadline is too close for a pass.
        """
        if key.serial_key not in self._running and key not in self._waiting:
            return True
        if not has_seconds_left(MIN_PASS_SECONDS):
            raise Busy("the deadline is too close for a pass")
        seconds_left = get_seconds_left()
        self._waiting[key] = hints
        self._changed.notify_all()
        try:
            is_free = self._changed.wait_for(
                lambda: self._waiting.get(key) is not hints or key.serial_key not in self._running, seconds_left
            )
            if self._waiting.get(key) is not hints:
                return False
        finally:
            if self._waiting.get(key) is hints:
                del self._waiting[key]
        if not is_free or not has_seconds_left(MIN_PASS_SECONDS):
            raise Busy(f"another pass over {key.serial_key} is still in progress")
        return True

    def _has_last_pass_read_reported_state(self, key: WorkKey, hint: BaseCloudEvent) -> bool:
        """Return whether the key's last pass, started by another event, has read the state that the hint reports."""
        seen = self._last_seen.get(key)
        return seen is not None and seen.event_id != _get_event_id(hint) and self._policy.has_seen(seen.versions, hint)


def _get_event_id(event: BaseCloudEvent) -> tuple[str, str]:
    return event.get_source(), event.get_id()
