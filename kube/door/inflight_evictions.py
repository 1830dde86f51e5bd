"""The evictions of this process that are under way: each goes on until it is answered, whoever waits for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Literal, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

from kube.budgets import Blocked, identity
from kube.door.api import Api, absent_ok
from kube.door.api_errors import ApiError, Conflict, NotFound
from kube.door.deadline import within
from kube.door.eviction_pace import Lane, Usual, Window, pace
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
"""An admission webhook may take this long (ten seconds, unless it says otherwise), three attempts included."""
KEPT_SECONDS = 60.0
"""A refusal that no batch has asked for in this time is forgotten: the next look sees the pod as it is."""
GRANTED_SECONDS = 2.0
"""A list from the API server's cache may be so old that it shows a pod as it was before its eviction was granted."""
LATELY_SECONDS = 5.0
"""For so long the pod that this process runs in waits for what becomes of evictions from other nodes."""
ATTEMPTS = 3
"""How often a pod that keeps changing is tried before it is left to the next batch."""
STALE_SECONDS = 1.0
"""An answer that took longer may find the maintenance over: the next look, which reads it, sends the eviction anew."""
OUTDATED = ("DisruptionBudget", "MultipleBudgets", "Busy", "Changing")
"""Refusals that say nothing of another attempt: the budget may have opened, the server come to rest. What a webhook or
a policy refused stands, and is told; asked anew at each look, a slow one would never be heard."""
LONGEST_REST = 10.0
"""Seconds that a busy server may ask for; the next batch asks it again."""


class Sent(NamedTuple):
    """An eviction that was sent: `at` by `time.monotonic()`, of a `pod` as in `pods.evicted`; known until `expiry`."""

    task: asyncio.Task[Outcome]
    at: float
    expiry: asyncio.TimerHandle
    pod: dict[str, str]
    node: str

    @property
    def is_granted(self) -> bool:
        """Whether it was answered, and the pod let go."""
        return self.task.done() and self.task.result() == "evicted"

    def is_refused(self, *reasons: str) -> bool:
        """Whether it was answered, and refused for one of these reasons."""
        outcome = self.task.result() if self.task.done() else None
        return isinstance(outcome, Blocked) and outcome.reason in reasons


class Sending:
    """Evictions through one client. `Sending.of` gives the one of the client and the running loop.

    Attributes:
        late: called with node and pods that were granted, and that nobody has taken for `KEPT_SECONDS`.
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
        """The one that this client has; a client for dry runs has one of its own, for one batch."""
        if api.is_dry_run:
            return cls(api)
        if api not in _sendings:
            _sendings[api] = cls(api)
        return _sendings[api]

    async def send(
        self, pod: Pod, until: float, budget: str = "", options: DrainOptions = NODE_MAINTENANCE
    ) -> Sent | None:
        """The pod's eviction: one that is under way, or one sent now; None when its turn did not come in time.

        Behind a `budget` (namespace/name) it has a turn there, else among those that no budget holds. The options may
        make a deletion of it (DRN-1a).
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
        """Whether its turn came in time, behind its budget or in the window of the others."""
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
        """Whether its eviction is under way, or was answered in a way that stands."""
        known = self._sent.get(uid(pod))
        return known is not None and not known.is_refused(*OUTDATED)

    def is_held(self, budget: str) -> bool:
        """Whether evictions under this budget have no answer yet."""
        lane = self._lanes.get(budget)
        return lane is not None and lane.is_held

    def lane(self, budget: str) -> Lane:
        """The budget's; it lasts as long as somebody waits in it, or for an answer."""
        lane = self._lanes.get(budget)
        if lane is None:
            lane = self._lanes[budget] = Lane(self._usual)
        return lane

    def was_granted(self, pod: Pod) -> bool:
        """Whether its eviction was granted a moment ago, whatever an older list shows."""
        return uid(pod) in self._granted

    def forget(self, of: str) -> None:
        """The outcome of the pod with this uid was taken."""
        sent = self._drop(of)
        if sent and sent.is_granted:
            self._granted.add(of)
            asyncio.get_running_loop().call_later(GRANTED_SECONDS, self._granted.discard, of)

    def take_granted(self, node: str) -> list[dict[str, str]]:
        """Take the outcomes of evictions from a node that were granted behind their batches: no plan has those pods."""
        granted = [sent.pod for sent in self._sent.values() if sent.node == node and sent.is_granted]
        for pod in granted:
            self.forget(pod["uid"])
        return granted

    def awaits(self, node: str = "") -> bool:
        """Whether evictions from a node, or lately from any, have no answer yet, or one that nobody has taken."""
        if node:
            return any(sent.node == node and not sent.task.done() for sent in self._sent.values())
        now = time.monotonic()
        untold = (sent for sent in self._sent.values() if not sent.task.done() or sent.is_granted)
        return any(now - sent.at < LATELY_SECONDS for sent in untold)

    def nodes(self) -> set[str]:
        """Those from which pods were sent whose outcome nobody has taken."""
        return {sent.node for sent in self._sent.values()}

    async def answered(self, seconds: float) -> None:
        """Wait until all that was sent is answered, for so long at most."""
        if tasks := [sent.task for sent in self._sent.values()]:
            await asyncio.wait(tasks, timeout=seconds)

    def _expired(self, of: str) -> None:
        """Nobody has asked for its outcome: those of its node that were granted are told together."""
        sent = self._sent[of]
        if sent.is_granted and self.late:
            self.late(sent.node, self.take_granted(sent.node))
        self._drop(of)

    def _drop(self, of: str) -> Sent | None:
        """Its timer knows the uid alone and goes with it: thousands would keep their outcomes in memory."""
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
                pod = fresh  # something else about it changed: it is still to go
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
    """Why it was not done. A server that is busy by its own account is left in peace by all."""
    if not error.status:
        return Blocked(identity(pod), "NoAnswer", "no answer to its eviction: the API server or a webhook is away")
    reading = refusal_of_deletion if options.disable_eviction else refusal_of
    refusal = reading(pod, error.status, error.message, error.body)
    if refusal.reason == "Busy":
        asked = (error.body.get("details") or {}).get("retryAfterSeconds") or 1
        pace().rest(min(float(asked), LONGEST_REST))
    return refusal
