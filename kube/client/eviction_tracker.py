"""Tracks this process's evictions in flight; each continues until its response, even if no task waits for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Literal, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

from kube.budgets import Blocked, identity
from kube.client.api import Api, absent_ok
from kube.client.api_errors import ApiError, Conflict, NotFound
from kube.client.deadline import within
from kube.client.eviction_limits import Lane, Usual, Window, pace
from kube.evictions import (
    eviction_of,
    eviction_path,
    grace_of,
    pod_path,
    refusal_of,
    refusal_of_deletion,
)
from kube.pods import NODE_MAINTENANCE, DrainOptions, Pod, is_terminating, node_of, uid

Outcome = Blocked | Literal["evicted", "gone"]
ANSWERED_SECONDS = 30.0
"""Time limit of an eviction: an admission webhook takes 10 s by default, and there are up to three attempts."""
KEPT_SECONDS = 60.0
"""Time that an outcome is kept for a batch to take it, after the time limit of the eviction.

When it is dropped, the next pass sees the pod's current state.
"""
GRANTED_SECONDS = 2.0
"""Time that a granted eviction is remembered: a cached list can be that old and still show the pod as before."""
LATELY_SECONDS = 5.0
"""Time that the pod of this process waits for the outcomes of evictions from other nodes."""
ATTEMPTS = 3
"""Number of attempts to evict a pod that keeps changing, before it is left to the next batch."""
STALE_SECONDS = 1.0
"""Time after which a conflict causes no further attempt, because the maintenance may have ended.

The next pass reads the maintenance and evicts the pod again.
"""
OUTDATED = ("DisruptionBudget", "MultipleBudgets", "Busy", "Changing")
"""Refusals after which another attempt may succeed, for example because the budget admits the pod again.

Refusals by a webhook or a policy are kept until they are reported. If every pass sent these evictions again, a slow
webhook's refusal would never be reported.
"""
LONGEST_REST = 10.0
"""Maximum pause in seconds that a busy API server can request; after it, the next batch tries again."""


class Sent(NamedTuple):
    """An eviction that was sent.

    Attributes:
        task: The request, whose result is the outcome.
        at: Time of sending by `time.monotonic()`.
        expiry: Timer that drops this record.
        pod: The pod in the form of `pods.evicted`.
        node: Name of the pod's node.
    """

    task: asyncio.Task[Outcome]
    at: float
    expiry: asyncio.TimerHandle
    pod: dict[str, str]
    node: str

    @property
    def is_granted(self) -> bool:
        """Return whether the eviction was answered and granted."""
        return self.task.done() and self.task.result() == "evicted"

    def is_refused(self, *reasons: str) -> bool:
        """Return whether the eviction was answered and refused for one of these reasons."""
        outcome = self.task.result() if self.task.done() else None
        return isinstance(outcome, Blocked) and outcome.reason in reasons


class Sending:
    """Tracker of the evictions sent through one API client; `Sending.of` returns the client's tracker.

    Attributes:
        late: Callback for a node and its granted evictions that no batch took before their records expired.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._sent: dict[str, Sent] = {}
        self._granted: set[str] = set()
        self._usual = Usual()
        self._lanes: WeakValueDictionary[str, Lane] = WeakValueDictionary()
        self._window = Window()
        self.late: Callable[[str, list[dict[str, str]]], None] | None = None

    @classmethod
    def of(cls, api: Api) -> Sending:
        """Return the client's tracker; a dry-run client gets a separate one for each batch."""
        if api.is_dry_run:
            return cls(api)
        if api not in _sendings:
            _sendings[api] = cls(api)
        return _sendings[api]

    async def send(
        self, pod: Pod, until: float, budget: str = "", options: DrainOptions = NODE_MAINTENANCE
    ) -> Sent | None:
        """Return the pod's eviction: the one in flight, or one sent now; None if its turn did not come in time.

        With a `budget` (namespace/name), the eviction waits for its turn under that budget, otherwise for a slot among
        the pods without a budget. The options may turn the eviction into a deletion (DRN-1a).
        """
        if self.has_sent(pod):
            return self._sent[uid(pod)]
        if not await self._may_start(pod, until, budget):
            return None
        lane = self.lane(budget) if budget else self._window
        work = self._evict(pod, bool(budget), options)
        self._drop(uid(pod))
        expiry = asyncio.get_running_loop().call_later(ANSWERED_SECONDS + KEPT_SECONDS, self._expired, uid(pod))
        task = asyncio.create_task(work, name=f"eviction of {uid(pod)}")
        sent = self._sent[uid(pod)] = Sent(task, time.monotonic(), expiry, identity(pod), node_of(pod))
        lane.put(sent.task)
        return sent

    async def _may_start(self, pod: Pod, until: float, budget: str) -> bool:
        """Wait for the eviction's turn under its budget, or for a slot without one; return whether it came in time."""
        node = node_of(pod)
        if budget:
            return await self._paced(node, until) and await self.lane(budget).turn(until)
        if not await self._window.turn(node, until):
            return False
        comes = False
        try:
            comes = await self._paced(node, until)
        finally:
            if not comes:
                self._window.leave()
        return comes

    async def _paced(self, node: str, until: float) -> bool:
        left = until - time.monotonic()
        return left >= 0 and (self._api.is_dry_run or await pace().turn(node, left))

    def has_sent(self, pod: Pod) -> bool:
        """Return whether the pod's eviction is in flight, or has an outcome that is still valid."""
        known = self._sent.get(uid(pod))
        return known is not None and not known.is_refused(*OUTDATED)

    def is_held(self, budget: str) -> bool:
        """Return whether evictions under this budget have no response yet."""
        lane = self._lanes.get(budget)
        return lane is not None and lane.is_held

    def lane(self, budget: str) -> Lane:
        """Return the queue of the budget's evictions, which exists as long as a task uses it."""
        lane = self._lanes.get(budget)
        if lane is None:
            lane = self._lanes[budget] = Lane(self._usual)
        return lane

    def was_granted(self, pod: Pod) -> bool:
        """Return whether the pod's eviction was granted a moment ago, although an older list may still show the pod."""
        return uid(pod) in self._granted

    def forget(self, of: str) -> None:
        """Drop the eviction of the pod with this uid, whose outcome was taken; remember a granted one briefly."""
        sent = self._drop(of)
        if sent and sent.is_granted:
            self._granted.add(of)
            asyncio.get_running_loop().call_later(GRANTED_SECONDS, self._granted.discard, of)

    def take_granted(self, node: str) -> list[dict[str, str]]:
        """Take the node's evictions that were granted after their batches ended, so that no plan has their pods."""
        granted = [sent.pod for sent in self._sent.values() if sent.node == node and sent.is_granted]
        for pod in granted:
            self.forget(pod["uid"])
        return granted

    def awaits(self, node: str = "") -> bool:
        """Return whether evictions from `node` have no response yet.

        Without a node, consider all nodes, only the last `LATELY_SECONDS`, and also granted evictions that no batch
        took.
        """
        if node:
            return any(sent.node == node and not sent.task.done() for sent in self._sent.values())
        now = time.monotonic()
        untold = (sent for sent in self._sent.values() if not sent.task.done() or sent.is_granted)
        return any(now - sent.at < LATELY_SECONDS for sent in untold)

    def nodes(self) -> set[str]:
        """Return the nodes whose evictions are in flight or have an outcome that no batch took."""
        return {sent.node for sent in self._sent.values()}

    async def answered(self, seconds: float) -> None:
        """Wait until all evictions are answered, for at most `seconds`."""
        if tasks := [sent.task for sent in self._sent.values()]:
            await asyncio.wait(tasks, timeout=seconds)

    def _expired(self, of: str) -> None:
        """Drop an eviction whose outcome no batch took; if granted, pass the node's granted ones to `late`."""
        sent = self._sent[of]
        if sent.is_granted and self.late:
            self.late(sent.node, self.take_granted(sent.node))
        self._drop(of)

    def _drop(self, of: str) -> Sent | None:
        """Remove the record of the pod with this uid, and cancel its timer.

        The timer refers to the pod by uid only, so that thousands of timers keep no outcomes in memory.
        """
        sent = self._sent.pop(of, None)
        if sent:
            sent.expiry.cancel()
        return sent

    async def _evict(self, pod: Pod, budgeted: bool, options: DrainOptions) -> Outcome:
        with within(ANSWERED_SECONDS):
            try:
                return await self._attempts(pod, budgeted, options)
            except ApiError as error:
                return _refusal(pod, error, options)

    async def _attempts(self, pod: Pod, budgeted: bool, options: DrainOptions) -> Outcome:
        began = time.monotonic()
        for _ in range(ATTEMPTS):
            try:
                await self._request(pod, budgeted, options)
            except NotFound:
                return "gone"
            except Conflict:
                fresh = await absent_ok(self._api.get(pod_path(pod)))
                if fresh is None or uid(fresh) != uid(pod) or is_terminating(fresh):
                    return "gone"
                pod = fresh  # another field changed, so the pod must still be evicted
                if time.monotonic() - began > STALE_SECONDS:
                    break
            else:
                return "evicted"
        return Blocked(identity(pod), "Changing", "the pod changed while its eviction was under way")

    async def _request(self, pod: Pod, budgeted: bool, options: DrainOptions) -> None:
        if options.disable_eviction:
            version = pod["metadata"]["resourceVersion"]
            await self._api.delete(pod_path(pod), uid=uid(pod), version=version, options=grace_of(options))
        else:
            await self._api.create(eviction_path(pod), eviction_of(pod, budgeted=budgeted, options=options))


_sendings: WeakKeyDictionary[Api, Sending] = WeakKeyDictionary()


def _refusal(pod: Pod, error: ApiError, options: DrainOptions) -> Blocked:
    """Convert an error to the reason why the pod is blocked; a busy API server pauses all evictions."""
    if not error.status:
        return Blocked(identity(pod), "NoAnswer", "no answer to its eviction: the API server or a webhook is away")
    reading = refusal_of_deletion if options.disable_eviction else refusal_of
    refusal = reading(pod, error.status, error.message, error.body)
    if refusal.reason == "Busy":
        asked = (error.body.get("details") or {}).get("retryAfterSeconds") or 1
        pace().rest(min(float(asked), LONGEST_REST))
    return refusal
