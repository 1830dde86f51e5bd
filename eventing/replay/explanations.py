"""Explains why the reply to a replay differs from the recorded reply: by changes in the cluster since then. No I/O.

`CAUSES` lists what explains a missing event, a new event, or an event of a different type. The pods in a reply of
`evict` depend on the other pods and budgets. A deleted pod does not explain a difference in another pod that a budget
blocked. If a pod was blocked for a different reason, such as the order of evictions, the reply does not show which pod
it waited for. Any changed pod may then be the cause.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from eventing import events
from eventing.events import shorten_type
from eventing.extensions import EXTENSION_OF_KIND
from eventing.journal.entries import StructuredEvent
from eventing.replay.object_changes import (
    BUDGET_KIND,
    GONE_CHANGES,
    MAINTENANCE_KIND,
    MUTEX_OBJECT_KINDS,
    NODE_KIND,
    POD_KIND,
    BudgetCounts,
    ObjectChange,
    ObjectChanges,
    parse_blocked_pods,
    parse_blocking_budget,
    parse_pods,
)
from kube.mutex.objects import RUN_KIND
from kube.text_limits import format_count

NODE_FIELDS = ("node", "partitionkey", "data.node")
"""Event attributes and data fields that contain the node's name."""
POD_FIELDS = ("more", "data.evicted", "data.blocked", "data.error")
"""Fields of `pods.evicted` that depend on the pods and budgets."""
HAS_PROGRESSED = "has progressed since"


class ReplyDifference(Enum):
    """How a function's reply about one object differs."""

    MISSING = "the function no longer emits an event"
    NEW = "the function emits an event that was not recorded"
    OTHER_TYPE = "the function emits an event of a different type"


@dataclass(frozen=True)
class ReplyPair:
    """The recorded and the current reply about one object, None if there is none, and what has changed since."""

    function: str
    before: StructuredEvent | None
    after: StructuredEvent | None
    changes: ObjectChanges

    @property
    def reply(self) -> StructuredEvent:
        """Return the recorded reply, or else the current one."""
        return self.before or self.after or {}

    @property
    def difference(self) -> ReplyDifference:
        """Return how the replies differ, if their types differ."""
        if self.before is None:
            return ReplyDifference.NEW
        return ReplyDifference.MISSING if self.after is None else ReplyDifference.OTHER_TYPE


Explain = Callable[[ReplyPair], str]
"""Function that describes a cause of the difference between two replies, or returns "" if the cause does not exist."""


def _explain_by_maintenance(*changes: ObjectChange) -> Explain:
    """Return a function that describes the maintenance's change if it is one of `changes`."""

    def explain(pair: ReplyPair) -> str:
        change = pair.changes.get_change(MAINTENANCE_KIND, str(pair.reply.get("maintenance") or ""))
        return f"nodemaintenance {pair.reply.get('subject')} {change.value}" if change in changes and change else ""

    return explain


def _explain_by_node(*changes: ObjectChange, before: str = "", after: str = "") -> Explain:
    """Return a function that describes the node's change if it is one of `changes`.

    With `before` or `after`, only if that reply has this type.
    """

    def explain(pair: ReplyPair) -> str:
        change = pair.changes.get_change(NODE_KIND, str(pair.reply.get("node") or ""))
        has_types = _has_type(pair.before, before) and _has_type(pair.after, after)
        return f"node {pair.reply['node']} {change.value}" if has_types and change in changes and change else ""

    return explain


def _has_type(reply: StructuredEvent | None, event_type: str) -> bool:
    return not event_type or (reply is not None and reply["type"] == event_type)


def _explain_by_mutex_object(pair: ReplyPair) -> str:
    """Describe how the upgrade mutex object that the reply is about has changed."""
    kind, uid = _find_mutex_object(pair.reply)
    change = pair.changes.get_change(kind, uid)
    return f"{kind} {pair.reply.get('subject')} {change.value}" if change else ""


def _explain_by_run(pair: ReplyPair) -> str:
    """Describe that the run that the reply is about has received an event since, unless its object has changed."""
    kind, uid = _find_mutex_object(pair.reply)
    is_unchanged_run = uid in pair.changes.runs and not pair.changes.get_change(kind, uid)
    return f"{kind} {pair.reply.get('subject')} {HAS_PROGRESSED}" if is_unchanged_run else ""


def _explain_by_awaited_event(pair: ReplyPair) -> str:
    """Describe that the run has progressed, unless it waits for the recorded event, or not for the new event."""
    run = pair.changes.runs.get(_find_mutex_object(pair.reply)[1])
    is_awaited = run is not None and shorten_type(str(pair.reply["type"])) == run.awaited_event_type
    return _explain_by_run(pair) if is_awaited is (pair.before is None) else ""


def _find_mutex_object(reply: StructuredEvent) -> tuple[str, str]:
    """Return kind and uid of the upgrade mutex object that a reply is about, or two empty strings."""
    uids = ((name, reply.get(EXTENSION_OF_KIND[kind])) for kind, name in MUTEX_OBJECT_KINDS.items())
    return next(((name, str(uid)) for name, uid in uids if uid), ("", ""))


def _explain_by_all_pods(pair: ReplyPair) -> str:
    """Describe how the pods in the recorded reply have changed, if all of them have changed."""
    pods = parse_pods(pair.reply.get("data"))
    has_each_changed = all(pair.changes.get_change(POD_KIND, pod["uid"]) for pod in pods)
    return _summarize_pod_changes(pair.reply, pair.changes) if has_each_changed else ""


class Cause(NamedTuple):
    """One cause: the differences that it explains, its description, and the functions that it concerns.

    Without `functions`, it concerns all functions except those in `exempt`.
    """

    differences: Collection[ReplyDifference]
    explain: Explain | str
    functions: Collection[str] = ()
    exempt: Collection[str] = ()


MISSING, NEW, OTHER_TYPE = ReplyDifference
SURVEY_FUNCTIONS = ("resync", "resync-runs")
"""Functions that emit an event about every object that waits for an event."""
CAUSES = (
    # While a run waits for the recorded event, the reply must be the same.
    Cause([MISSING], _explain_by_mutex_object),
    Cause([MISSING, NEW, OTHER_TYPE], _explain_by_awaited_event),
    Cause([MISSING], _explain_by_run, SURVEY_FUNCTIONS),
    # `protect` emits events only about the objects that it had to write.
    Cause([MISSING], "the recorded write is still in place", ["protect"]),
    Cause([NEW], "the state that the function writes has changed since", ["protect"]),
    # Functions that coalesce hints reply nothing if another pass handles the hint (rule 8); a replay runs its own pass.
    # `evict` replies nothing to a tick whose pass changes nothing; a replay always replies.
    Cause([NEW], "another pass may have handled the event at that time", ["guard", "migrate"]),
    Cause([NEW], "another pass handled the event at that time, or nothing had changed", ["evict"]),
    Cause([NEW], "the recorded response did not include this object", SURVEY_FUNCTIONS),
    # `status` begins each step of an escalation once, when the step is due.
    Cause([MISSING], "the recorded step of the escalation has already begun", ["status"]),
    Cause([NEW], "a step of the escalation is due now", ["status"]),
    Cause([MISSING], _explain_by_maintenance(*GONE_CHANGES)),
    Cause([MISSING], _explain_by_maintenance(ObjectChange.TERMINATING), exempt=["restore"]),
    Cause([MISSING], _explain_by_maintenance(ObjectChange.SUCCEEDED), ["begin", "evict", "resync"]),
    Cause([MISSING], _explain_by_node(*GONE_CHANGES)),
    Cause([OTHER_TYPE], _explain_by_node(*GONE_CHANGES, after=events.MAINTENANCE_STEP_FAILED)),
    Cause([MISSING, OTHER_TYPE], _explain_by_node(ObjectChange.CORDONED_AND_TAINTED, before=events.NODE_DRIFTED)),
    # The reply of `evict` depends on the existing pods.
    Cause([MISSING, OTHER_TYPE], _explain_by_all_pods, ["evict"]),
)
"""The causes of a missing or new event, or of an event of a different type; the first that exists explains it."""


def explain_reply(pair: ReplyPair) -> str:
    """Explain why an event is missing, new or of a different type; return "" if nothing explains it."""
    causes = (
        cause
        for cause in CAUSES
        if pair.difference in cause.differences
        and (pair.function in cause.functions or not cause.functions)
        and pair.function not in cause.exempt
    )
    explanations = (cause.explain if isinstance(cause.explain, str) else cause.explain(pair) for cause in causes)
    return next(filter(None, explanations), "")


def explain_field(field: str, pair: ReplyPair) -> str:
    """Explain why a field of two replies of the same type differs; return "" if nothing explains it.

    The pods that `evict` reports depend on the other pods and budgets. The node that an event names depends on the
    progress of its run.
    """
    recorded_reply, current_reply = pair.before or {}, pair.after or {}
    run = pair.changes.runs.get(str(recorded_reply.get("run") or ""))
    if run is not None and run.current_node != recorded_reply.get("node") and field in NODE_FIELDS:
        return f"{MUTEX_OBJECT_KINDS[RUN_KIND]} {recorded_reply.get('subject')} {HAS_PROGRESSED}"
    name, *rest = field.split("[", 1)
    if recorded_reply["type"] != events.PODS_EVICTED or name not in POD_FIELDS:
        return ""
    if not rest:
        return _explain_reply_difference(recorded_reply, pair.changes)
    return _explain_pod_difference(rest[0].split("]")[0], recorded_reply, current_reply, pair.changes)


def _explain_pod_difference(
    pod_name: str, recorded_reply: StructuredEvent, current_reply: StructuredEvent, changes: ObjectChanges
) -> str:
    """Explain why the replies differ for the pod `namespace/name`; return "" if no known change explains it."""
    recorded_uid = _find_pod_uid(recorded_reply, pod_name)
    if not recorded_uid:
        return ""
    if change := changes.get_change(POD_KIND, recorded_uid):
        return f"the pod {change.value}"
    blocked = next((pod for pod in parse_blocked_pods(recorded_reply.get("data")) if pod["uid"] == recorded_uid), None)
    if blocked is None or not _find_pod_uid(current_reply, pod_name):
        return ""
    if not _is_blocked_by_budget(blocked):
        return _summarize_pod_changes(recorded_reply, changes)
    blocked_uids = {pod["uid"] for pod in parse_blocked_pods(current_reply.get("data"))}
    return _explain_budget(blocked, changes, is_still_blocked=recorded_uid in blocked_uids)


def _explain_reply_difference(recorded_reply: StructuredEvent, changes: ObjectChanges) -> str:
    """Explain why the replies differ as a whole, by any changed budget or pod; return "" if none has changed."""
    explanations = (_explain_budget(pod, changes) for pod in parse_blocked_pods(recorded_reply.get("data")))
    return next(filter(None, explanations), "") or _summarize_pod_changes(recorded_reply, changes)


def _find_pod_uid(reply: StructuredEvent, pod_name: str) -> str:
    """Return the uid of the pod `namespace/name` in a reply, "" if the reply does not contain the pod."""
    pods = parse_pods(reply.get("data"))
    return next((pod["uid"] for pod in pods if f"{pod['namespace']}/{pod['name']}" == pod_name), "")


def _explain_budget(blocked_pod: Mapping[str, Any], changes: ObjectChanges, *, is_still_blocked: bool = True) -> str:
    """Describe how the budget that blocked a pod has changed; return "" if the budget is unchanged or unknown.

    `is_still_blocked` is whether the current reply also reports the pod as blocked.
    """
    budget = parse_blocking_budget(blocked_pod)
    if not budget:
        return ""
    name = "/".join(budget)
    if change := changes.get_change(BUDGET_KIND, name):
        return f"{BUDGET_KIND} {name} {change.value}"
    counts = changes.budgets.get(name)
    if counts is None or not (
        counts.allowed or _have_counts_changed(blocked_pod, counts, is_still_blocked=is_still_blocked)
    ):
        return ""
    allowance = f", and allows {format_count(counts.allowed, 'eviction')}" if counts.allowed else ""
    return f"{BUDGET_KIND} {name} needs {counts.needed} healthy pods and has {counts.healthy} now{allowance}"


def _is_blocked_by_budget(blocked_pod: Mapping[str, Any]) -> bool:
    """Return whether exactly one budget blocks the pod.

    The budget then admitted no pod, even if its counts suggest otherwise: another node's pass used its evictions.
    """
    return blocked_pod.get("reason") == "DisruptionBudget" and parse_blocking_budget(blocked_pod) is not None


def _have_counts_changed(blocked_pod: Mapping[str, Any], counts: BudgetCounts, *, is_still_blocked: bool) -> bool:
    """Return whether the budget's counts differ from those in the recorded reply.

    The reply has no counts for a new budget, or for a rejection by the API server. If the pod is still blocked, the
    current reply has counts, which is a difference.
    """
    healthy, needed = blocked_pod.get("healthy"), blocked_pod.get("needed")
    return is_still_blocked if healthy is None else (healthy, needed) != (counts.healthy, counts.needed)


def _summarize_pod_changes(recorded_reply: StructuredEvent, changes: ObjectChanges) -> str:
    """Describe in one line how the pods in the recorded reply have changed; return "" if none has changed."""
    changed = list(_iter_pod_changes(recorded_reply, changes))
    return changed[0] + (f" (one of {len(changed)} changed pods)" if len(changed) > 1 else "") if changed else ""


def _iter_pod_changes(recorded_reply: StructuredEvent, changes: ObjectChanges) -> Iterator[str]:
    for pod in parse_pods(recorded_reply.get("data")):
        if change := changes.get_change(POD_KIND, pod["uid"]):
            yield f"pod {pod['namespace']}/{pod['name']} {change.value}"
