"""Tracks this process's evictions in flight; an eviction continues until its response, even if no task awaits it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Literal, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

from kube.budgets import BlockedPod, build_object_reference
from kube.client.api import Api, get_or_none
from kube.client.api_errors import ApiError, Conflict, NotFound
from kube.client.deadline import set_deadline
from kube.client.eviction_limits import ConcurrencyLimiter, MedianLatency, SerialQueue, get_rate_limiter
from kube.evictions import (
    build_eviction,
    build_eviction_path,
    build_grace_options,
    build_pod_path,
    interpret_deletion_error,
    interpret_eviction_error,
)
from kube.pods import DEFAULT_DRAIN_OPTIONS, DrainOptions, Pod, get_node_name, get_uid, is_terminating

EvictionOutcome = BlockedPod | Literal["evicted", "gone"]
EVICTION_TIMEOUT_SECONDS = 30.0
"""Time limit for an eviction: an admission webhook may take 10 s by default, and there are up to three attempts."""
OUTCOME_TTL_SECONDS = 60.0
"""Seconds for which an outcome that no batch has collected is kept, after the eviction's time limit.

After the outcome is dropped, the next pass reads the pod's current state.
"""
GRANTED_TTL_SECONDS = 2.0
"""Seconds for which a granted eviction is remembered, because a cached list may be older than the eviction."""
RECENT_SECONDS = 5.0
"""Seconds for which the eviction of this process's own pod waits for the outcomes of evictions from other nodes."""
MAX_ATTEMPTS = 3
"""Maximum number of attempts to evict a pod that keeps changing; after that, the pod is left to the next batch."""
MAX_RETRY_SECONDS = 1.0
"""Seconds after which an eviction that conflicts is not retried, because the maintenance may have ended.

The next pass reads the maintenance and evicts the pod again.
"""
RETRIABLE_REASONS = ("DisruptionBudget", "MultipleBudgets", "Busy", "Changing")
"""Refusals after which another attempt may succeed, for example because the budget admits the pod again.

Refusals by a webhook or a policy are kept until they are reported. If every pass resent these evictions, a slow
webhook's refusal would never be reported.
"""
MAX_BACKOFF_SECONDS = 10.0
"""Maximum pause in seconds that a busy API server can request; the next batch retries after the pause."""


class InFlightEviction(NamedTuple):
    """An eviction that was sent.

    Attributes:
        task: The request, whose result is the outcome.
        sent_at: Time of sending by `time.monotonic()`.
        expiry_timer: Timer that drops this record.
        pod_reference: The pod as `{namespace, name, uid}`.
        node_name: Name of the pod's node.
    """

    task: asyncio.Task[EvictionOutcome]
    sent_at: float
    expiry_timer: asyncio.TimerHandle
    pod_reference: dict[str, str]
    node_name: str

    @property
    def is_granted(self) -> bool:
        """Return whether the eviction was answered and granted."""
        return self.task.done() and self.task.result() == "evicted"

    def is_refused(self, *reasons: str) -> bool:
        """Return whether the eviction was answered and refused for one of these reasons."""
        outcome = self.task.result() if self.task.done() else None
        return isinstance(outcome, BlockedPod) and outcome.reason in reasons


class EvictionTracker:
    """Tracker of the evictions sent through one API client; `for_client` returns the client's tracker.

    Attributes:
        on_late_evictions: Callback for a node and its granted evictions that no batch collected before their records
            expired.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._evictions: dict[str, InFlightEviction] = {}
        self._granted_uids: set[str] = set()
        self._latency = MedianLatency()
        self._queues: WeakValueDictionary[str, SerialQueue] = WeakValueDictionary()
        self._concurrency_limiter = ConcurrencyLimiter()
        self.on_late_evictions: Callable[[str, list[dict[str, str]]], None] | None = None

    @classmethod
    def for_client(cls, api: Api) -> EvictionTracker:
        """Return the client's tracker; a dry-run client gets a separate one for each batch."""
        if api.is_dry_run:
            return cls(api)
        if api not in _trackers:
            _trackers[api] = cls(api)
        return _trackers[api]

    async def send(
        self, pod: Pod, deadline: float, budget_key: str = "", options: DrainOptions = DEFAULT_DRAIN_OPTIONS
    ) -> InFlightEviction | None:
        """Return the pod's eviction in flight, or send a new one; return None if it cannot start before `deadline`.

        With a `budget_key` (namespace/name), the eviction waits for its turn under that budget, otherwise for a slot of
        the pods without a budget. The options may turn the eviction into a deletion (DRN-1a).
        """
        if self.has_sent(pod):
            return self._evictions[get_uid(pod)]
        if not await self._wait_to_start(pod, deadline, budget_key):
            return None
        limiter = self.get_queue(budget_key) if budget_key else self._concurrency_limiter
        coroutine = self._evict(pod, bool(budget_key), options)
        self._drop_record(get_uid(pod))
        expiry = asyncio.get_running_loop().call_later(
            EVICTION_TIMEOUT_SECONDS + OUTCOME_TTL_SECONDS, self._on_expiry, get_uid(pod)
        )
        task = asyncio.create_task(coroutine, name=f"eviction of {get_uid(pod)}")
        eviction = self._evictions[get_uid(pod)] = InFlightEviction(
            task, time.monotonic(), expiry, build_object_reference(pod), get_node_name(pod)
        )
        limiter.track(eviction.task)
        return eviction

    async def _wait_to_start(self, pod: Pod, deadline: float, budget_key: str) -> bool:
        """Wait for the eviction's turn under its budget, or for a slot if the pod has no budget.

        Returns False if `deadline` passes first.
        """
        node = get_node_name(pod)
        if budget_key:
            return await self._acquire_token(node, deadline) and await self.get_queue(budget_key).wait_turn(deadline)
        if not await self._concurrency_limiter.acquire(node, deadline):
            return False
        may_start = False
        try:
            may_start = await self._acquire_token(node, deadline)
        finally:
            if not may_start:
                self._concurrency_limiter.release()
        return may_start

    async def _acquire_token(self, node_name: str, deadline: float) -> bool:
        seconds_left = deadline - time.monotonic()
        return seconds_left >= 0 and (self._api.is_dry_run or await get_rate_limiter().acquire(node_name, seconds_left))

    def has_sent(self, pod: Pod) -> bool:
        """Return whether the pod's eviction is in flight or has an outcome that is still valid."""
        eviction = self._evictions.get(get_uid(pod))
        return eviction is not None and not eviction.is_refused(*RETRIABLE_REASONS)

    def has_unanswered(self, budget_key: str) -> bool:
        """Return whether evictions under this budget have no response yet."""
        queue = self._queues.get(budget_key)
        return queue is not None and queue.has_unanswered

    def get_queue(self, budget_key: str) -> SerialQueue:
        """Return the queue of the budget's evictions, which exists while a task uses it."""
        queue = self._queues.get(budget_key)
        if queue is None:
            queue = self._queues[budget_key] = SerialQueue(self._latency)
        return queue

    def was_recently_granted(self, pod: Pod) -> bool:
        """Return whether a batch collected the pod's granted eviction in the last `GRANTED_TTL_SECONDS`."""
        return get_uid(pod) in self._granted_uids

    def mark_collected(self, pod_uid: str) -> None:
        """Drop the record of an eviction whose outcome a batch has collected; remember a granted eviction briefly."""
        sent = self._drop_record(pod_uid)
        if sent and sent.is_granted:
            self._granted_uids.add(pod_uid)
            asyncio.get_running_loop().call_later(GRANTED_TTL_SECONDS, self._granted_uids.discard, pod_uid)

    def take_granted_evictions(self, node_name: str) -> list[dict[str, str]]:
        """Return the pods of the node's granted evictions that no batch has collected, and mark them as collected."""
        granted = [
            sent.pod_reference for sent in self._evictions.values() if sent.node_name == node_name and sent.is_granted
        ]
        for pod in granted:
            self.mark_collected(pod["uid"])
        return granted

    def has_pending_evictions(self, node_name: str = "") -> bool:
        """Return whether any eviction from `node_name` has no response yet.

        With an empty `node_name`, consider the evictions of all nodes that were sent in the last `RECENT_SECONDS`, and
        count granted evictions that no batch has collected as well.
        """
        if node_name:
            return any(sent.node_name == node_name and not sent.task.done() for sent in self._evictions.values())
        now = time.monotonic()
        pending = (sent for sent in self._evictions.values() if not sent.task.done() or sent.is_granted)
        return any(now - sent.sent_at < RECENT_SECONDS for sent in pending)

    def list_nodes_with_evictions(self) -> set[str]:
        """Return the nodes whose evictions are in flight or have an outcome that no batch has collected."""
        return {sent.node_name for sent in self._evictions.values()}

    async def wait_for_responses(self, timeout_seconds: float) -> None:
        """Wait until all evictions are answered, for at most `timeout_seconds`."""
        if tasks := [sent.task for sent in self._evictions.values()]:
            await asyncio.wait(tasks, timeout=timeout_seconds)

    def _on_expiry(self, pod_uid: str) -> None:
        """Drop an eviction whose outcome no batch collected.

        If the eviction was granted, pass all granted evictions of its node to `on_late_evictions`.
        """
        sent = self._evictions[pod_uid]
        if sent.is_granted and self.on_late_evictions:
            self.on_late_evictions(sent.node_name, self.take_granted_evictions(sent.node_name))
        self._drop_record(pod_uid)

    def _drop_record(self, pod_uid: str) -> InFlightEviction | None:
        """Remove and return the record of the pod with this uid, and cancel the record's timer.

        The timer refers to the pod by uid only, so that thousands of timers keep no outcomes in memory.
        """
        sent = self._evictions.pop(pod_uid, None)
        if sent:
            sent.expiry_timer.cancel()
        return sent

    async def _evict(self, pod: Pod, has_pdb: bool, options: DrainOptions) -> EvictionOutcome:
        with set_deadline(EVICTION_TIMEOUT_SECONDS):
            try:
                return await self._evict_with_retries(pod, has_pdb, options)
            except ApiError as error:
                return _build_blocked_pod(pod, error, options)

    async def _evict_with_retries(self, pod: Pod, has_pdb: bool, options: DrainOptions) -> EvictionOutcome:
        began = time.monotonic()
        for _ in range(MAX_ATTEMPTS):
            try:
                await self._send_request(pod, has_pdb, options)
            except NotFound:
                return "gone"
            except Conflict:
                latest_pod = await get_or_none(self._api.get(build_pod_path(pod)))
                if latest_pod is None or get_uid(latest_pod) != get_uid(pod) or is_terminating(latest_pod):
                    return "gone"
                pod = latest_pod  # the pod was modified but not replaced, so it must still be evicted
                if time.monotonic() - began > MAX_RETRY_SECONDS:
                    break
            else:
                return "evicted"
        return BlockedPod(
            build_object_reference(pod),
            "Changing",
            "the pod changed during its eviction; the next batch retries the eviction",
        )

    async def _send_request(self, pod: Pod, has_pdb: bool, options: DrainOptions) -> None:
        if options.disable_eviction:
            version = pod["metadata"]["resourceVersion"]
            await self._api.delete(
                build_pod_path(pod), uid=get_uid(pod), resource_version=version, options=build_grace_options(options)
            )
        else:
            await self._api.create(build_eviction_path(pod), build_eviction(pod, has_pdb=has_pdb, options=options))


_trackers: WeakKeyDictionary[Api, EvictionTracker] = WeakKeyDictionary()


def _build_blocked_pod(pod: Pod, error: ApiError, options: DrainOptions) -> BlockedPod:
    """Convert an error to the reason why the pod is blocked; a busy API server pauses all evictions."""
    if not error.status:
        return BlockedPod(
            build_object_reference(pod),
            "NoAnswer",
            "no response to the eviction request: the API server or a webhook is unavailable",
        )
    interpret = interpret_deletion_error if options.disable_eviction else interpret_eviction_error
    refusal = interpret(pod, error.status, error.message, error.body)
    if refusal.reason == "Busy":
        retry_after = (error.body.get("details") or {}).get("retryAfterSeconds") or 1
        get_rate_limiter().back_off(min(float(retry_after), MAX_BACKOFF_SECONDS))
    return refusal
