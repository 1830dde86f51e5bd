"""Executes eviction plans without waiting for pods to terminate (NMO-6).

Pods without a PodDisruptionBudget (PDB) are evicted concurrently. Evictions under different PDBs are also concurrent.

The end of an execution does not cancel the evictions that it sent. The API server may already have counted an evicted
pod against its PDB. If the eviction were cancelled, that pod would use up one allowed disruption for two minutes. The
eviction therefore continues, and the next pass collects its outcome.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from kube.budgets import (
    BlockedPod,
    Budget,
    build_blocked_by_budget,
    build_object_reference,
    format_budget_key,
    list_paths_of_covering_budgets,
)
from kube.client.api import Api, gather_all
from kube.client.api_errors import Unavailable
from kube.client.deadline import get_seconds_left
from kube.client.paging import ListResult
from kube.evictions.planner import EvictionPlan
from kube.evictions.requests import BUDGET_REASON, Removal
from kube.evictions.tracker import EvictionTracker, InFlightEviction, LateEvictionReporter
from kube.pods import DrainOptions, Pod
from kube.resource_versions import find_oldest_resource_version

PASS_SECONDS = 1.0
"""Seconds after which a pass starts no further evictions; the next pass evicts the remaining pods."""
REPLY_MARGIN_SECONDS = 0.1
"""Seconds that a pass reserves for its work after the evictions, such as its response."""
RESPONSE_WAIT_SECONDS = 0.6
"""Seconds for which a pass waits for the responses to its last evictions.

After a conflict, the API server sleeps for 0.5 s: this time covers one such sleep, but not two. The next pass collects
later responses.
"""
SLOW_EVICTION_SECONDS = 5.0
"""Seconds after which an eviction without a response is reported as blocked; until then, it counts as in flight."""
NO_ANSWER_MESSAGE = "no response to the eviction request yet: an admission webhook may be slow"


@dataclass(frozen=True)
class EvictionOutcome:
    """The outcome of a pass, or of a part of it; outcomes can be added.

    Attributes:
        evicted: Pods whose eviction was granted, as `{namespace, name, uid}`, with `action` if an escalation step
            deleted the pod.
        already_gone: Pods that were already deleted, or evicted by another pass.
        blocked: Pods that cannot be evicted now, with the reason.
        in_flight: Pods whose eviction has no response yet, or was granted after its pass had ended. The next pass
            collects the outcome.
        deferred: Pods that the pass had no time to evict; the next pass may evict them immediately.
    """

    evicted: list[dict[str, str]] = field(default_factory=list)
    already_gone: list[dict[str, str]] = field(default_factory=list)
    blocked: list[BlockedPod] = field(default_factory=list)
    in_flight: list[dict[str, str]] = field(default_factory=list)
    deferred: list[Pod] = field(default_factory=list)

    def __add__(self, other: EvictionOutcome) -> EvictionOutcome:
        """Return the combined outcome of two parts of a pass."""
        return EvictionOutcome(
            self.evicted + other.evicted,
            self.already_gone + other.already_gone,
            self.blocked + other.blocked,
            self.in_flight + other.in_flight,
            self.deferred + other.deferred,
        )


@dataclass(frozen=True)
class ExecutionOptions:
    """Options of `execute_eviction_plan`; the defaults are those of a drain without a NodeMaintenance.

    Attributes:
        node_name: Name of the node of the maintenance. The outcome includes the node's evictions that were granted
            after earlier passes had ended.
        own_pod_name: Name of the pod that this process runs in. It is evicted alone, after all earlier evictions from
            any node have a response and are reported. An exiting process could not report their outcomes.
        is_replay: Whether this is a replay, which ignores the evictions that other passes sent.
        late_eviction_reporter: Function that receives the pods whose eviction is granted after the pass has ended,
            if no later pass collects them.
    """

    node_name: str = ""
    own_pod_name: str = ""
    is_replay: bool = False
    late_eviction_reporter: LateEvictionReporter | None = None

    def is_own_pod(self, pod: Pod) -> bool:
        """Return whether this process runs in the pod."""
        return bool(pod["metadata"]["name"] == self.own_pod_name)


DEFAULT_EXECUTION_OPTIONS = ExecutionOptions()


async def execute_eviction_plan(
    api: Api,
    plan: EvictionPlan,
    options: ExecutionOptions = DEFAULT_EXECUTION_OPTIONS,
) -> EvictionOutcome:
    """Evict the pods of the plan: concurrently without a PodDisruptionBudget, one after another within each PDB.

    No eviction is sent after `PASS_SECONDS`. Raises `Unavailable` if the deadline leaves no time for evictions, because
    the API server is slow.
    """
    seconds_left, started = get_seconds_left() - REPLY_MARGIN_SECONDS, time.monotonic()
    if seconds_left <= 0:
        raise Unavailable(0, "no time left for evictions: the API server is slow")
    tracker = EvictionTracker.for_client(api)
    outcome = EvictionOutcome(blocked=plan.blocked)
    if options.is_replay:
        sent_before = [build_object_reference(pod) for pod in plan.admitted if tracker.has_sent_eviction(pod)]
        plan, outcome = (
            plan.select(lambda pod: not tracker.has_sent_eviction(pod)),
            replace(outcome, in_flight=sent_before),
        )
    executor = _PlanExecutor(
        tracker, plan, options.late_eviction_reporter, started + min(PASS_SECONDS, seconds_left), started + seconds_left
    )
    outcome += await executor.evict(lambda pod: not options.is_own_pod(pod))
    if not options.is_replay:
        outcome += EvictionOutcome(evicted=tracker.collect_granted_evictions(options.node_name))
    is_node_waiting = tracker.has_unanswered_evictions(options.node_name)
    if outcome.evicted or outcome.already_gone or (tracker.has_recent_evictions() and not is_node_waiting):
        return outcome + EvictionOutcome(deferred=list(filter(options.is_own_pod, plan.admitted)))
    # As long as evictions from this node have no response, another pass would find the same state.
    return outcome if is_node_waiting else outcome + await executor.evict(options.is_own_pod)


@dataclass(frozen=True)
class _PlanExecutor:
    """Sends the evictions of one plan.

    Attributes:
        send_deadline: `time.monotonic()` value after which no eviction is sent.
        response_deadline: `time.monotonic()` value until which responses are awaited.
    """

    tracker: EvictionTracker
    plan: EvictionPlan
    late_eviction_reporter: LateEvictionReporter | None
    send_deadline: float
    response_deadline: float

    async def evict(self, predicate: Callable[[Pod], bool]) -> EvictionOutcome:
        """Evict those pods of the plan that `predicate` accepts."""
        plan = self.plan.select(predicate)
        outcomes = await gather_all(
            *(self._evict_queue([pod], None, plan.options) for pod in plan.unbudgeted),
            *(self._evict_queue(queue.admitted, queue.budget, plan.options) for queue in plan.queues),
            *(self._evict_queue([pod], None, plan.deletion_options) for pod in plan.deletions),
        )
        return sum(outcomes, EvictionOutcome())

    async def _evict_queue(self, pods: Sequence[Pod], budget: Budget | None, options: DrainOptions) -> EvictionOutcome:
        """Evict the pods one after another until the deadline or the PDB's first refusal, then await the responses.

        If earlier evictions without a response prevent any new one, the remaining pods are not deferred: the next event
        triggers their eviction.
        """
        started, key = time.monotonic(), format_budget_key(budget) if budget else ""
        granted = [build_object_reference(pod) for pod in pods if self.tracker.was_granted_after_list(pod)]
        pending = [pod for pod in pods if not self.tracker.was_granted_after_list(pod)]
        sent, deferred = await self._send_evictions(pending, key, options)
        if sent:
            seconds = min(RESPONSE_WAIT_SECONDS, self.response_deadline - time.monotonic())
            await asyncio.wait({eviction.task for eviction in sent}, timeout=max(0.0, seconds))
        outcome = sum(map(self._collect_outcome, sent), EvictionOutcome(in_flight=granted))
        if budget and any(item.reason == BUDGET_REASON for item in outcome.blocked):
            return outcome + EvictionOutcome(blocked=[build_blocked_by_budget(budget, pod) for pod in deferred])
        has_sent_new = any(eviction.sent_at >= started for eviction in sent)
        if self.tracker.limiter.has_evictions_in_flight(key) and not has_sent_new:
            return outcome
        return outcome + EvictionOutcome(deferred=deferred)

    async def _send_evictions(
        self, pods: Sequence[Pod], budget_key: str, options: DrainOptions
    ) -> tuple[list[InFlightEviction], list[Pod]]:
        """Return the evictions in flight, including new ones, and the pods whose eviction could not be sent.

        Evictions in flight come first. The other evictions are sent in random order, because two processes that start
        with the same pod would conflict at every pod.
        """
        sent: list[InFlightEviction] = []
        remaining = deque(sorted(random.sample(pods, len(pods)), key=self.tracker.has_sent_eviction, reverse=True))
        while remaining and not any(eviction.is_refused(BUDGET_REASON) for eviction in sent):
            eviction = await self.tracker.send_eviction_once(
                remaining[0], self.send_deadline, budget_key, options, self.late_eviction_reporter
            )
            if eviction is None:
                break
            remaining.popleft()
            sent.append(eviction)
        return sent, [*remaining]

    def _collect_outcome(self, eviction: InFlightEviction) -> EvictionOutcome:
        """Return the outcome for one pod; an eviction without a response counts as blocked only after some seconds."""
        pod, outcome = eviction.pod_reference, eviction.outcome
        if outcome is None:
            if time.monotonic() - eviction.sent_at < SLOW_EVICTION_SECONDS:
                return EvictionOutcome(in_flight=[pod])
            outcome = BlockedPod(pod, "NoAnswer", NO_ANSWER_MESSAGE)
        else:
            self.tracker.mark_outcome_collected(pod["uid"])
        if isinstance(outcome, BlockedPod):
            return EvictionOutcome(blocked=[self.plan.expected_refusals.get(pod["uid"], outcome)])
        is_evicted = outcome is Removal.EVICTED
        return EvictionOutcome(evicted=[eviction.removed_pod]) if is_evicted else EvictionOutcome(already_gone=[pod])


async def list_covering_budgets(api: Api, pods: Iterable[Pod], resource_version: str = "0") -> ListResult:
    """Return the PodDisruptionBudgets in these pods' namespaces, at least as new as `resource_version`.

    The result's resourceVersion is that of the oldest of the lists.
    """
    lists = await gather_all(
        *(api.list(path, resource_version=resource_version) for path in list_paths_of_covering_budgets(pods))
    )
    items = [budget for budget_list in lists for budget in budget_list["items"]]
    return ListResult(
        items, find_oldest_resource_version(str(budget_list["metadata"]["resourceVersion"]) for budget_list in lists)
    )


async def collect_late_evictions(api: Api, node_name: str) -> list[dict[str, str]]:
    """Return the node's pods whose eviction was granted after its pass had ended, if there is no plan to execute."""
    return EvictionTracker.for_client(api).collect_granted_evictions(node_name)
