"""Work queue of a function whose events are only hints: one pass per key runs at a time (design rule 8).

A hint is an event that reports only that something may have changed. A pass is one execution of the function: it reads
the current state and does what can be done now. As in client-go's work queue, a key is idle, running, or running and
dirty. A hint for an idle key starts a pass in the hint's own request. A hint for a running key is acknowledged
immediately and makes the key dirty; the running request then executes one more pass. A crash loses no hint: the event
that started the pass is redelivered, and its new pass sees newer state than all coalesced hints.

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

from eventing.extensions import EXTENSION_OF_KIND
from eventing.http_binding import BadEvent
from functions.bounded_cache import BoundedCache
from functions.event_data import get_metadata
from functions.failures import Busy, Retry
from kube.client.deadline import get_seconds_left, has_seconds_left
from kube.resource_versions import find_newest

Replies = list[BaseCloudEvent]
"""The events that one pass returns."""
ResourceVersions = Mapping[str, str]
"""The resourceVersions that a pass has seen, keyed by their field names in event data."""
MAX_REMEMBERED_KEYS = 1000
"""Maximum number of keys whose last pass is remembered."""
PASSES_PER_REQUEST = 2
"""Maximum number of passes in one request, if the reply can request another pass."""
MAX_PASSES_PER_REQUEST = 4
"""Maximum number of passes in one request, if the reply cannot request another pass.

A hint that arrives during the last pass is rejected and redelivered.
"""
IDENTIFYING_EXTENSIONS = (*EXTENSION_OF_KIND.values(), "node")
"""The extensions that identify the object of a reply: objects in different namespaces may have the same name."""
MIN_PASS_SECONDS = 0.7
"""Minimum seconds for a pass; with less time left, the pass would achieve nothing.

The reply then requests another pass, if it can.
"""


class WorkKey(NamedTuple):
    """Key of a pass: passes with the same `serial_key` run one after another; hints with the same key share a pass.

    `serial_key` names the state that the pass reads, such as `node n1`.
    """

    serial_key: str
    coalesce_key: str = ""


class HintPolicy:
    """How a function's hints coalesce and how the replies of its passes are merged.

    By default, a pass returns events only about its own results: a later pass returns no event for an object that an
    earlier pass changed.

    Attributes:
        build_key: Returns the key of the pass that an event requires. Raises `BadEvent` if the event lacks the key's
            fields.
    """

    def __init__(self, build_key: Callable[[BaseCloudEvent], WorkKey]) -> None:
        self.build_key = build_key

    def merge_hints(self, hints: Sequence[BaseCloudEvent]) -> BaseCloudEvent:
        """Return the hint with the newest object; if no hint carries an object, the last hint received."""
        latest = find_newest(_get_object_version(hint) for hint in hints)
        return next((hint for hint in hints if latest and _get_object_version(hint) == latest), hints[-1])

    def read_versions(self, _replies: Replies) -> ResourceVersions:
        """Return the versions that a pass with these replies has seen; none here, because every hint needs a pass."""
        return {}

    def has_seen(self, _versions: ResourceVersions, _hint: BaseCloudEvent) -> bool:
        """Return whether a pass that has seen `versions` makes a pass for the hint unnecessary."""
        return False

    def merge_replies(
        self, _event: BaseCloudEvent, pass_replies: Sequence[Replies], *, has_more_hints: bool
    ) -> Replies | None:
        """Merge the replies of all passes into the response to the event that started them.

        If `has_more_hints` is true, further hints have arrived since the last pass; the result is then None if no reply
        can request another pass. Of several replies with the same type, object and node, only the last one is returned.
        """
        if has_more_hints:
            return None
        return list({_build_reply_key(reply): reply for replies in pass_replies for reply in replies}.values())


class LatestStatePolicy(HintPolicy):
    """Policy of a function whose replies follow from the current state alone: only the last pass's replies still hold.

    A later pass repeats each reply of an earlier pass that is still due.
    """

    def merge_replies(
        self, _event: BaseCloudEvent, pass_replies: Sequence[Replies], *, has_more_hints: bool
    ) -> Replies | None:
        """Return the last pass's replies, or None if further hints have arrived since."""
        return None if has_more_hints else pass_replies[-1]


def _get_object_version(hint: BaseCloudEvent) -> str:
    return str(get_metadata(hint).get("resourceVersion") or "")


def _build_reply_key(reply: BaseCloudEvent) -> tuple[object, ...]:
    return reply.get_type(), reply.get_subject(), *map(reply.get_extension, IDENTIFYING_EXTENSIONS)


class SeenState(NamedTuple):
    """Source and id of the event that started a pass, and the resourceVersions that the pass has seen."""

    event_id: tuple[str, str]
    versions: ResourceVersions


class RunningKey:
    """A key whose pass is in progress or waits for its serial key; dirty if hints have been coalesced meanwhile."""

    def __init__(self, key: WorkKey, event: BaseCloudEvent) -> None:
        self.key, self.event_id = key, _get_event_id(event)
        self.hints: list[BaseCloudEvent] = []
        self.is_last_pass = False


class WorkQueue:
    """All passes of one function in a process. Thread-safe."""

    def __init__(self, policy: HintPolicy) -> None:
        self._policy = policy
        self._changed = threading.Condition()
        self._running: dict[WorkKey, RunningKey] = {}
        self._busy_serial_keys: set[str] = set()
        self._last_seen = BoundedCache[WorkKey, SeenState](MAX_REMEMBERED_KEYS)

    def handle_hint(self, event: BaseCloudEvent, run_pass: Callable[[BaseCloudEvent], Replies]) -> Replies:
        """Run the passes for a hint and return their replies; none if another pass handles the hint.

        Raises `Retry` if the serial key is busy for too long, or if the passes end without a reply. The replies of
        earlier passes of this request are then lost, and the tick repairs what they would have caused (design rule 4).
        """
        running = self._start_or_coalesce(self._policy.build_key(event), event)
        if running is None:
            return []
        try:
            replies = self._run_until_clean(running, event, run_pass)
            seen = SeenState(running.event_id, self._policy.read_versions(replies))
            with self._changed:
                self._last_seen[running.key] = seen
            return replies
        finally:
            with self._changed:
                self._release(running)

    def _run_until_clean(
        self, running: RunningKey, event: BaseCloudEvent, run_pass: Callable[[BaseCloudEvent], Replies]
    ) -> Replies:
        """Run passes until the key is clean or a limit is reached, and merge their replies."""
        passes = [run_pass(event)]
        while hints := self._take_hints(running, event, passes):
            final_replies = self._policy.merge_replies(event, passes, has_more_hints=True)
            if final_replies is not None and (
                len(passes) >= PASSES_PER_REQUEST or not has_seconds_left(MIN_PASS_SECONDS)
            ):
                return final_replies
            try:
                passes.append(run_pass(self._policy.merge_hints(hints)))
            except (Retry, BadEvent) as error:
                return self._merge_until_request(event, passes, error)
        return self._policy.merge_replies(event, passes, has_more_hints=False) or []

    def _merge_until_request(self, event: BaseCloudEvent, passes: list[Replies], error: Exception) -> Replies:
        """Return the replies up to the last pass whose reply can request another pass, after the next pass failed.

        Raises `Retry` if there is no such pass: the redelivered event then covers the hints.
        """
        for count in range(len(passes), 0, -1):
            replies = self._policy.merge_replies(event, passes[:count], has_more_hints=True)
            if replies is not None:
                return replies
        raise Retry(f"the pass for the coalesced hints failed: {error}") from error

    def _start_or_coalesce(self, key: WorkKey, hint: BaseCloudEvent) -> RunningKey | None:
        """Mark the key as running once its serial key is free; return None if another pass handles the hint.

        Raises `Busy` if the serial key stays busy for too long, or if the pass in progress is the last one of its
        request. Also raises `Busy` while the event's own pass is in progress: the redelivered event would not receive
        that pass's reply, which may trigger the next step.
        """
        timeout_seconds, event_id = get_seconds_left(), _get_event_id(hint)
        with self._changed:
            seen = self._last_seen.get(key)
            if seen is not None and seen.event_id != event_id and self._policy.has_seen(seen.versions, hint):
                return None
            if (running := self._running.get(key)) is not None:
                if running.event_id == event_id:
                    raise Busy("the pass of this event is still in progress")
                if running.is_last_pass:
                    raise Busy("the pass in progress is the last one of its request")
                running.hints.append(hint)
                return None
            running = self._running[key] = RunningKey(key, hint)
            if not self._changed.wait_for(lambda: key.serial_key not in self._busy_serial_keys, timeout_seconds):
                del self._running[key]
                raise Busy(f"another pass over {key.serial_key} is still in progress")
            self._busy_serial_keys.add(key.serial_key)
            return running

    def _take_hints(
        self, running: RunningKey, event: BaseCloudEvent, passes: Sequence[Replies]
    ) -> list[BaseCloudEvent]:
        """Return the hints that arrived during the last pass; if there are none, release the key under the same lock.

        No hint can therefore be lost in between. If the reply cannot request another pass, the last pass of a request
        coalesces no hints: the broker redelivers the hints that arrive during that pass.
        """
        is_limit_reached = len(passes) + 1 >= MAX_PASSES_PER_REQUEST or not has_seconds_left(MIN_PASS_SECONDS)
        is_last = is_limit_reached and self._policy.merge_replies(event, passes, has_more_hints=True) is None
        with self._changed:
            hints, running.hints, running.is_last_pass = running.hints, [], is_last
            if not hints:
                self._release(running)
            return hints

    def _release(self, running: RunningKey) -> None:
        """Make the key idle, so that the next pass can start; the caller holds the lock. A second call does nothing."""
        if self._running.get(running.key) is running:
            del self._running[running.key]
            self._busy_serial_keys.discard(running.key.serial_key)
            self._changed.notify_all()


def _get_event_id(event: BaseCloudEvent) -> tuple[str, str]:
    return event.get_source(), event.get_id()
