"""Tracks the evictions in flight; an eviction continues until its response, even if no pass awaits it.

A pass collects the responses to its own evictions. It also collects late responses: those to earlier evictions from its
node that arrived after their pass had ended. If no pass
collects a granted eviction, the tracker reports it to the pass that sent it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias
from weakref import WeakKeyDictionary

from kube.budgets import BlockedPod, build_object_reference
from kube.client.api import Api
from kube.client.api_errors import ApiError
from kube.client.deadline import set_deadline
from kube.evictions.limiters import EvictionLimiter
from kube.evictions.requests import Removal, interpret_error, send_eviction
from kube.pods import DEFAULT_DRAIN_OPTIONS, DrainOptions, Pod, get_node_name, get_uid, is_terminating

LateEvictionReporter: TypeAlias = Callable[[list[dict[str, str]]], None]
"""Function that receives a pass's granted evictions that no pass collected, as pods `{namespace, name, uid}`."""
EVICTION_TIMEOUT_SECONDS = 30.0
"""Timeout of an eviction: an admission webhook may take 10 s by default, and there are up to three attempts."""
OUTCOME_TTL_SECONDS = 60.0
"""Seconds for which an uncollected outcome is kept after the eviction's timeout.

Once the outcome is dropped, the next pass reads the pod's current state.
"""
GRANTED_TTL_SECONDS = 2.0
"""Seconds for which a granted eviction is remembered, because a cached pod list may be older than the eviction."""
RECENT_SECONDS = 5.0
"""Maximum age, in seconds, of the other evictions whose outcome the eviction of this process's own pod waits for."""
SHUTDOWN_WAIT_SECONDS = 2.0
"""Maximum seconds for which a terminating process waits for the responses to its evictions.

A response takes milliseconds unless an admission webhook is slow.
"""
RETRIABLE_REASONS = ("DisruptionBudget", "MultipleBudgets", "Busy", "Changing")
"""Reasons of refusals after which another attempt may succeed, for example because the PDB admits the pod again.

Other refusals, such as a webhook's, are kept until they are reported. If every pass resent these evictions, a slow
webhook's refusal would never be reported.
"""
MAX_BACKOFF_SECONDS = 10.0
"""Maximum pause in seconds after a 429 response, whatever `retryAfterSeconds` it contains."""


@dataclass(frozen=True)
class InFlightEviction:
    """An eviction that was sent and whose outcome no pass has collected yet.

    Attributes:
        task: The task that sends the request; its result is the outcome.
        sent_at: The time of sending, by `time.monotonic()`.
        expiry_timer: Timer that drops this record.
        pod_reference: The pod as `{namespace, name, uid}`.
        node_name: Name of the pod's node.
        late_eviction_reporter: The `LateEvictionReporter` of the pass that sent the eviction,
            None if an outcome after the end of that pass needs no report.
        escalation_action: Action of the escalation step that deletes the pod, "" for an eviction.
    """

    task: asyncio.Task[Removal | BlockedPod]
    sent_at: float
    expiry_timer: asyncio.TimerHandle
    pod_reference: dict[str, str]
    node_name: str
    late_eviction_reporter: LateEvictionReporter | None
    escalation_action: str = ""

    @property
    def removed_pod(self) -> dict[str, str]:
        """Return the pod as `{namespace, name, uid}`, with `action` if an escalation step deletes the pod."""
        return {**self.pod_reference, **({"action": self.escalation_action} if self.escalation_action else {})}

    @property
    def outcome(self) -> Removal | BlockedPod | None:
        """Return the eviction's outcome, None if it has no response yet."""
        return self.task.result() if self.task.done() else None

    def is_refused(self, *reasons: str) -> bool:
        """Return whether the eviction was refused for one of these reasons."""
        return isinstance(self.outcome, BlockedPod) and self.outcome.reason in reasons


class EvictionTracker:
    """Tracks the evictions that one API client sends; `for_client` returns the tracker of a client.

    Attributes:
        limiter: The limits that apply to each eviction.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._evictions: dict[str, InFlightEviction] = {}
        self._granted_uids: set[str] = set()
        self.limiter = EvictionLimiter(is_dry_run=api.is_dry_run)

    @classmethod
    def for_client(cls, api: Api) -> EvictionTracker:
        """Return the client's tracker; for a dry-run client, return a new tracker with every call."""
        if api.is_dry_run:
            return cls(api)
        if api not in _trackers:
            _trackers[api] = cls(api)
        return _trackers[api]

    async def send_eviction_once(
        self,
        pod: Pod,
        deadline: float,
        budget_key: str = "",
        options: DrainOptions = DEFAULT_DRAIN_OPTIONS,
        late_eviction_reporter: LateEvictionReporter | None = None,
    ) -> InFlightEviction | None:
        """Return the pod's eviction in flight, or send a new one; return None if it cannot start before `deadline`.

        `budget_key` is `namespace/name` of the pod's PodDisruptionBudget, "" if it has none. The options may turn the
        eviction into a deletion (DRN-1a).
        """
        uid = get_uid(pod)
        if self.has_sent_eviction(pod):
            return self._evictions[uid]
        limiter = await self.limiter.acquire(get_node_name(pod), budget_key, deadline)
        if limiter is None:
            return None
        self._drop_record(uid)
        ttl_seconds = EVICTION_TIMEOUT_SECONDS + OUTCOME_TTL_SECONDS
        self._evictions[uid] = InFlightEviction(
            asyncio.create_task(self._evict(pod, options, has_budget=bool(budget_key)), name=f"eviction of {uid}"),
            time.monotonic(),
            # The timer refers to the pod only by uid, so that thousands of timers keep no outcomes in memory.
            asyncio.get_running_loop().call_later(ttl_seconds, self._handle_expiry, uid),
            build_object_reference(pod),
            get_node_name(pod),
            late_eviction_reporter,
            options.escalation_action,
        )
        limiter.track(self._evictions[uid].task)
        return self._evictions[uid]

    async def _evict(self, pod: Pod, options: DrainOptions, *, has_budget: bool) -> Removal | BlockedPod:
        """Evict the pod, and return the outcome; the API server's rate limit (429) pauses all evictions."""
        with set_deadline(EVICTION_TIMEOUT_SECONDS):
            try:
                return await send_eviction(self._api, pod, options, has_budget=has_budget)
            except ApiError as error:
                refusal = interpret_error(pod, error, options)
                if refusal.reason == "Busy":
                    retry_after = (error.body.get("details") or {}).get("retryAfterSeconds") or 1
                    self.limiter.back_off(min(float(retry_after), MAX_BACKOFF_SECONDS))
                return refusal

    def has_sent_eviction(self, pod: Pod) -> bool:
        """Return whether the pod's eviction is in flight, or has an outcome that a new attempt would not change."""
        eviction = self._evictions.get(get_uid(pod))
        return eviction is not None and not eviction.is_refused(*RETRIABLE_REASONS)

    def was_granted_after_list(self, pod: Pod) -> bool:
        """Return whether a pass recently collected the pod's granted eviction and `pod` does not show the eviction yet.

        `pod` comes from a list that may be older than the eviction. A pod that is terminating in the list shows the
        eviction, so an escalation step may delete it at once.
        """
        return get_uid(pod) in self._granted_uids and not is_terminating(pod)

    def has_unanswered_evictions(self, node_name: str) -> bool:
        """Return whether any eviction from this node has no response yet."""
        return any(sent.node_name == node_name and not sent.task.done() for sent in self._evictions.values())

    def has_recent_evictions(self) -> bool:
        """Return whether an eviction sent within `RECENT_SECONDS` has no response, or is granted but not collected."""
        earliest = time.monotonic() - RECENT_SECONDS
        return any(
            sent.sent_at > earliest and sent.outcome in (None, Removal.EVICTED) for sent in self._evictions.values()
        )

    def mark_outcome_collected(self, pod_uid: str) -> None:
        """Drop the record of an eviction whose outcome a pass has collected; remember a granted one briefly."""
        sent = self._drop_record(pod_uid)
        if sent and sent.outcome is Removal.EVICTED:
            self._granted_uids.add(pod_uid)
            asyncio.get_running_loop().call_later(GRANTED_TTL_SECONDS, self._granted_uids.discard, pod_uid)

    def _collect_granted(self, predicate: Callable[[InFlightEviction], bool]) -> list[dict[str, str]]:
        """Return the pods of granted, uncollected evictions that `predicate` accepts, and mark them as collected."""
        granted = [
            sent.removed_pod for sent in self._evictions.values() if sent.outcome is Removal.EVICTED and predicate(sent)
        ]
        for pod in granted:
            self.mark_outcome_collected(pod["uid"])
        return granted

    def collect_granted_evictions(self, node_name: str) -> list[dict[str, str]]:
        """Return the pods of the node's granted, uncollected evictions, and mark them as collected."""
        return self._collect_granted(lambda sent: sent.node_name == node_name)

    async def report_late_evictions(self) -> None:
        """Report all evictions that were granted after their pass had ended, because the process is terminating.

        The function first waits up to `SHUTDOWN_WAIT_SECONDS` for the evictions in flight.
        """
        if tasks := [sent.task for sent in self._evictions.values()]:
            await asyncio.wait(tasks, timeout=SHUTDOWN_WAIT_SECONDS)
        for late_eviction_reporter in {sent.late_eviction_reporter for sent in self._evictions.values()}:
            self._report_late_evictions_of_pass(late_eviction_reporter)

    def _report_late_evictions_of_pass(self, late_eviction_reporter: LateEvictionReporter | None) -> None:
        """Report the granted, uncollected evictions of one pass, and mark them as collected."""
        if late_eviction_reporter and (
            pods := self._collect_granted(lambda sent: sent.late_eviction_reporter is late_eviction_reporter)
        ):
            late_eviction_reporter(pods)

    def _handle_expiry(self, pod_uid: str) -> None:
        """Drop an eviction whose outcome no pass collected; first report its pass's granted evictions."""
        self._report_late_evictions_of_pass(self._evictions[pod_uid].late_eviction_reporter)
        self._drop_record(pod_uid)

    def _drop_record(self, pod_uid: str) -> InFlightEviction | None:
        """Remove and return the record of the pod's eviction, and cancel its timer."""
        sent = self._evictions.pop(pod_uid, None)
        if sent:
            sent.expiry_timer.cancel()
        return sent


_trackers: WeakKeyDictionary[Api, EvictionTracker] = WeakKeyDictionary()
