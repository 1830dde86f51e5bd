"""Work queue of a function whose events are only hints: one pass per key runs at a time (design rule 8).

A hint is an event that reports only that something may have changed. A pass is one execution of the function: it reads
the current state and does what can be done now. As in client-go's work queue, a key is idle, running, or running and
dirty. A hint for an idle key starts a pass in the hint's own request. A hint for a running key waits in its request,
which makes the key dirty, and starts the next pass. A newer hint for a dirty key takes its place, and the hint that
waited before is acknowledged: the next pass handles both. A crash loses no hint, because the event that started or
awaits a pass is redelivered, and its new pass sees newer state than all coalesced hints.

A hint may arrive after a pass that has already seen its state. Such a hint is acknowledged without another pass,
because a broker that keeps order delivers late hints one by one. The event that started a pass is an exception, because
its response may have been lost. While that pass is in progress, the redelivered event is rejected, so that the broker
retries it later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from cloudevents.core.base import BaseCloudEvent

from functions.bounded_cache import BoundedCache
from functions.failures import Busy
from kube.client.deadline import get_seconds_left, has_seconds_left
from kube.resource_versions import find_newest

Replies = list[BaseCloudEvent]
"""The events that one pass returns."""
ResourceVersions = Mapping[str, str]
"""The resourceVersions that a pass has seen, keyed by their field names in event data."""
MAX_REMEMBERED_KEYS = 1000
"""Maximum number of keys whose last pass is remembered."""
MIN_PASS_SECONDS = 0.7
"""Minimum seconds for a pass whose hint has waited; with less time left, the pass would achieve nothing."""


class WorkKey(NamedTuple):
    """Key of a pass: passes with the same `serial_key` run one after another; hints with the same key share a pass.

    `serial_key` names the state that the pass reads, such as `node n1`.
    """

    serial_key: str
    coalesce_key: str = ""


class HintPolicy:
    """How a function's hints coalesce.

    Attributes:
        build_key: Returns the key of the pass that an event requires. Raises `BadEvent` if the event lacks the key's
            fields.
    """

    def __init__(self, build_key: Callable[[BaseCloudEvent], WorkKey]) -> None:
        self.build_key = build_key

    def may_replace(self, waiting: BaseCloudEvent, newer: BaseCloudEvent) -> bool:
        """Return whether a hint may take the place of a waiting hint: not if its object is older."""
        version = _get_object_version(newer)
        return find_newest((_get_object_version(waiting), version)) in (version, "")

    def merge_hints(self, hints: Sequence[BaseCloudEvent]) -> BaseCloudEvent:
        """Return the hint for a pass that handles all of these; the last one is the hint that has waited."""
        return hints[-1]

    def read_versions(self, _replies: Replies) -> ResourceVersions:
        """Return the versions that a pass with these replies has seen; none here, because every hint needs a pass."""
        return {}

    def has_seen(self, _versions: ResourceVersions, _hint: BaseCloudEvent) -> bool:
        """Return whether a pass that has seen `versions` makes a pass for the hint unnecessary."""
        return False


def _get_object_version(hint: BaseCloudEvent) -> str:
    """Return the resourceVersion of the object that the hint carries, "" if there is none."""
    data = hint.get_data()
    metadata = data.get("metadata") if isinstance(data, dict) else None
    return str(metadata.get("resourceVersion") or "") if isinstance(metadata, dict) else ""


class SeenState(NamedTuple):
    """Source and id of the event that started a pass, and the resourceVersions that the pass has seen."""

    event_id: tuple[str, str]
    versions: ResourceVersions


class WorkQueue:
    """All passes of one function in a process. Thread-safe."""

    def __init__(self, policy: HintPolicy) -> None:
        self._policy = policy
        self._changed = threading.Condition()
        self._running: dict[str, tuple[str, str]] = {}
        """Serial key → source and id of the event whose pass is in progress."""
        self._waiting: dict[WorkKey, list[BaseCloudEvent]] = {}
        """Key → the hint that waits for its turn, preceded by the hints that its pass also handles."""
        self._last_seen = BoundedCache[WorkKey, SeenState](MAX_REMEMBERED_KEYS)

    def handle_hint(self, event: BaseCloudEvent, run_pass: Callable[[BaseCloudEvent], Replies]) -> Replies:
        """Run the pass for a hint and return its replies; none if another pass handles the hint.

        Raises `Busy` if the serial key is busy for too long, or if the event's own pass is in progress.
        """
        key = self._policy.build_key(event)
        hints = self._start_or_coalesce(key, event)
        if not hints:
            return []
        try:
            replies = run_pass(self._policy.merge_hints(hints) if len(hints) > 1 else event)
            seen = SeenState(_get_event_id(event), self._policy.read_versions(replies))
            with self._changed:
                self._last_seen[key] = seen
            return replies
        finally:
            with self._changed:
                del self._running[key.serial_key]
                self._changed.notify_all()

    def _start_or_coalesce(self, key: WorkKey, event: BaseCloudEvent) -> list[BaseCloudEvent]:
        """Mark the key as running once its serial key is free, and return the hints for the pass.

        Returns an empty list if another pass handles the event.
        """
        event_id = _get_event_id(event)
        with self._changed:
            if self._has_seen(key, event):
                return []
            earlier = self._waiting.get(key, [])
            # The redelivered event would not receive its pass's reply, which may trigger the next step.
            if event_id in (self._running.get(key.serial_key), *map(_get_event_id, earlier)):
                raise Busy("the pass of this event is still in progress")
            if earlier and not self._policy.may_replace(earlier[-1], event):
                earlier.insert(0, event)
                return []
            hints = [*earlier, event]
            if not self._wait_for_turn(key, hints) or all(self._has_seen(key, hint) for hint in hints):
                return []
            self._running[key.serial_key] = event_id
            return hints

    def _wait_for_turn(self, key: WorkKey, hints: list[BaseCloudEvent]) -> bool:
        """Wait until the serial key is free; return False if a newer hint has taken the place of these hints.

        The caller holds the lock. Raises `Busy` if too little time is left for a pass.
        """
        if key.serial_key not in self._running and key not in self._waiting:
            return True
        if not has_seconds_left(MIN_PASS_SECONDS):
            raise Busy("no time is left for a pass")
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

    def _has_seen(self, key: WorkKey, hint: BaseCloudEvent) -> bool:
        """Return whether the key's last pass, which another event started, has seen the state that the hint reports."""
        seen = self._last_seen.get(key)
        return seen is not None and seen.event_id != _get_event_id(hint) and self._policy.has_seen(seen.versions, hint)


def _get_event_id(event: BaseCloudEvent) -> tuple[str, str]:
    return event.get_source(), event.get_id()
