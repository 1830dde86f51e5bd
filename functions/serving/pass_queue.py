"""Work queue that runs one pass per subject at a time; a hint during a pass triggers another pass (rule 8).

The hint is answered immediately, and the next pass sees the state that the hint reports. A crash during a pass loses no
hint: the event that started the pass is redelivered, and its new pass sees newer state than all coalesced hints.

A hint may arrive after a pass that has already seen its state. Such a hint is answered without another pass, because a
broker that keeps order delivers late hints one by one. The event that started a pass is an exception, because its
response may have been lost. While that pass is in progress, the redelivered event is rejected, so that the broker
retries it later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from cloudevents.core.base import BaseCloudEvent

from eventing.http_binding import BadEvent
from functions.bounded_cache import BoundedCache
from functions.failures import Busy, Retry
from functions.pass_strategies import PassKey, PassStrategy, Replies, ResourceVersions
from kube.client.deadline import get_seconds_left, has_seconds_left

T = TypeVar("T")
MAX_REMEMBERED_KEYS = 1000
"""Maximum number of subjects whose last pass, or whose unsent replies, are remembered."""
PASSES_PER_REQUEST = 2
"""Maximum number of passes in one request, if the reply can request another pass."""
MAX_PASSES_PER_REQUEST = 4
"""Maximum number of passes in one request, if the reply cannot request another pass.

A hint that arrives during the last pass is rejected and redelivered.
"""
MIN_PASS_SECONDS = 0.7
"""Minimum seconds for a pass; with less time left, the pass would achieve nothing.

The reply then requests another pass, if it can.
"""


class SeenState(NamedTuple):
    """Source and id of the event that started a pass, and the resourceVersions that the pass has seen."""

    event_id: tuple[str, str]
    versions: ResourceVersions


class Pass:
    """A pass that is in progress or waits for its serial key, and the hints that were coalesced during the pass."""

    def __init__(self, key: PassKey, event: BaseCloudEvent) -> None:
        self.key = key
        self.event_id = _get_event_id(event)
        self.hints: list[BaseCloudEvent] = []
        self.is_last = False


class PassQueue:
    """All passes of one function in a process. Thread-safe."""

    def __init__(self, strategy: PassStrategy) -> None:
        self._strategy = strategy
        self._changed = threading.Condition()
        self._in_flight: dict[PassKey, Pass] = {}
        self._busy_serial_keys: set[str] = set()
        self._last_seen = BoundedCache[PassKey, SeenState](MAX_REMEMBERED_KEYS)
        self._undelivered = BoundedCache[PassKey, Replies](MAX_REMEMBERED_KEYS)

    def handle_hint(self, event: BaseCloudEvent, run_pass: Callable[[BaseCloudEvent], Replies]) -> Replies:
        """Run the passes for a hint and return their replies; none if another pass handles the hint.

        Raises `Retry` if the serial key is busy for too long, or if the passes end without a reply.
        """
        current = self._start_or_coalesce(self._strategy.build_key(event), event)
        if current is None:
            return []
        try:
            replies = self._collect_replies(current, event, run_pass)
            self._store_in_cache(
                self._last_seen, current.key, SeenState(_get_event_id(event), self._strategy.read_versions(replies))
            )
            return replies
        finally:
            self._finish_pass(current)

    def _collect_replies(
        self, current: Pass, event: BaseCloudEvent, run_pass: Callable[[BaseCloudEvent], Replies]
    ) -> Replies:
        """Run the passes and return their merged replies.

        If the passes fail after making changes, the next pass for the same subject reports these changes.
        """
        undelivered, passes = self._undelivered.pop(current.key, []), list[Replies]()
        select_replies = self._strategy.select_unrepeated_replies
        is_complete = False
        try:
            replies = self._run_passes(current, event, run_pass, passes)
            is_complete = True
        finally:
            if not is_complete and (
                carried_over := [
                    *undelivered,
                    *(reply for pass_replies in passes for reply in select_replies(pass_replies)),
                ]
            ):
                self._store_in_cache(self._undelivered, current.key, carried_over)
        return (
            (self._strategy.merge(event, [undelivered, replies], has_more_hints=False) or [])
            if undelivered
            else replies
        )

    def _run_passes(
        self, current: Pass, event: BaseCloudEvent, run_pass: Callable[[BaseCloudEvent], Replies], passes: list[Replies]
    ) -> Replies:
        strategy = self._strategy
        passes.append(run_pass(event))
        while hints := self._take_coalesced_hints(current, is_last=self._is_last_pass(event, passes)):
            final_replies = strategy.merge(event, passes, has_more_hints=True)
            if final_replies is not None and (
                len(passes) >= PASSES_PER_REQUEST or not has_seconds_left(MIN_PASS_SECONDS)
            ):
                return final_replies
            try:
                passes.append(run_pass(strategy.select_newest(hints)))
            except (Retry, BadEvent) as error:
                merged = (
                    strategy.merge(event, passes[:count], has_more_hints=True) for count in range(len(passes), 0, -1)
                )
                replies = next((candidate for candidate in merged if candidate is not None), None)
                if replies is None:
                    raise Retry(f"the pass for the coalesced hints failed: {error}") from error
                return replies
        return strategy.merge(event, passes, has_more_hints=False) or []

    def _is_last_pass(self, event: BaseCloudEvent, passes: list[Replies]) -> bool:
        """Return whether the next pass must be the last one of this request.

        The next pass is the last one if the reply cannot request another pass, and the maximum number of passes or the
        time limit is reached.
        """
        is_limit_reached = len(passes) + 1 >= MAX_PASSES_PER_REQUEST or not has_seconds_left(MIN_PASS_SECONDS)
        return is_limit_reached and self._strategy.merge(event, passes, has_more_hints=True) is None

    def _start_or_coalesce(self, key: PassKey, hint: BaseCloudEvent) -> Pass | None:
        """Return a new pass once its serial key is free; None if another pass coalesces the hint or has seen its state.

        Raises `Busy` if the serial key stays busy for too long, or if the pass in progress is the last one of its
        request. Also raises `Busy` while the event's own pass is in progress: the redelivered event would not receive
        that pass's reply, which may trigger the next step.
        """
        timeout_seconds = get_seconds_left()
        with self._changed:
            if self._has_seen(key, hint):
                return None
            if (running := self._in_flight.get(key)) is not None:
                if running.event_id == _get_event_id(hint):
                    raise Busy("the pass of this event is still in progress")
                if running.is_last:
                    raise Busy("the pass in progress is the last one of its request")
                running.hints.append(hint)
                return None
            new_pass = self._in_flight[key] = Pass(key, hint)
            if not self._changed.wait_for(lambda: key.serial_key not in self._busy_serial_keys, timeout_seconds):
                del self._in_flight[key]
                raise Busy(f"another pass over {key.serial_key} is still in progress")
            self._busy_serial_keys.add(key.serial_key)
            return new_pass

    def _has_seen(self, key: PassKey, hint: BaseCloudEvent) -> bool:
        seen = self._last_seen.get(key)
        return (
            seen is not None and seen.event_id != _get_event_id(hint) and self._strategy.has_seen(seen.versions, hint)
        )

    def _store_in_cache(self, cache: BoundedCache[PassKey, T], key: PassKey, value: T) -> None:
        """Store a value for a subject in a cache, which evicts its oldest value at its limit."""
        with self._changed:
            cache[key] = value

    def _take_coalesced_hints(self, current: Pass, *, is_last: bool) -> list[BaseCloudEvent]:
        """Return the hints that arrived during the pass; if there are none, end the pass under the same lock.

        No hint can therefore be lost in between. If `is_last` is true, the next pass coalesces no hints: the broker
        redelivers the hints that arrive during that pass.
        """
        with self._changed:
            hints, current.hints, current.is_last = current.hints, [], is_last
            if not hints:
                self._release_keys(current)
            return hints

    def _finish_pass(self, current: Pass) -> None:
        with self._changed:
            self._release_keys(current)

    def _release_keys(self, current: Pass) -> None:
        """Free the keys of the pass, so that the next pass can start; a second call does nothing."""
        if self._in_flight.get(current.key) is current:
            del self._in_flight[current.key]
            self._busy_serial_keys.discard(current.key.serial_key)
            self._changed.notify_all()


def _get_event_id(event: BaseCloudEvent) -> tuple[str, str]:
    return event.get_source(), event.get_id()
