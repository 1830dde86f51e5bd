"""Explains by changes in the cluster why the reply to a replay differs from the recorded reply. No I/O.

`CAUSES` lists the causes of a missing event, a new event, or an event of a different type.

The pods in a reply of `evict` depend on the other pods and on their PodDisruptionBudgets. A deleted pod does not
explain a difference in another pod that a PDB blocked. If a pod was blocked for a different reason, such as the order
of evictions, the reply does not contain the pod that it waited for. Any changed pod may then be the cause.
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
"""Event attributes and data fields that contain a node's name."""
POD_FIELDS = ("more", "data.evicted", "data.blocked", "data.error")
"""Fields of `pods.evicted` whose value depends on the pods and their PodDisruptionBudgets."""
HAS_PROGRESSED = "has progressed since"


class ReplyDifference(Enum):
    """How a function's reply about one object differs from the recorded reply."""

    MISSING = "the function no longer emits an event"
    NEW = "the function emits an event that was not recorded"
    OTHER_TYPE = "the function emits an event of a different type"


@dataclass(frozen=True)
class ReplyPair:
    """The recorded and the current reply about one object (None if there is none), and the changes in the cluster."""

    function: str
    before: StructuredEvent | None
    after: StructuredEvent | None
    changes: ObjectChanges

    @property
    def reply(self) -> StructuredEvent:
        """Return the recorded reply, or the current one if no reply was recorded."""
        return self.before or self.after or {}

    @property
    def difference(self) -> ReplyDifference:
        """Return how the replies differ; call this only if their types differ."""
        if self.before is None:
            return ReplyDifference.NEW
        return ReplyDifference.MISSING if self.after is None else ReplyDifference.OTHER_TYPE


Explain = Callable[[ReplyPair], str]
"""Function that describes why two replies differ, or returns "" if its cause does not apply."""


def _explain_by_maintenance(*changes: ObjectChange) -> Explain:
    """Return a function that describes the maintenance's change if that is one of `changes`."""

    def explain(pair: ReplyPair) -> str:
        change = pair.changes.get_change(MAINTENANCE_KIND, str(pair.reply.get("maintenance") or ""))
        return f"nodemaintenance {pair.reply.get('subject')} {change.value}" if change in changes and change else ""

    return explain


def _explain_by_node(*changes: ObjectChange, before: str = "", after: str = "") -> Explain:
    """Return a function that describes the node's change if that is one of `changes`.

    If `before` or `after` is set, the recorded or the current reply must have this event type.
    """

    def explain(pair: ReplyPair) -> str:
        change = pair.changes.get_change(NODE_KIND, str(pair.reply.get("node") or ""))
        has_types = _has_reply_type(pair.before, before) and _has_reply_type(pair.after, after)
        return f"node {pair.reply['node']} {change.value}" if has_types and change in changes and change else ""

    return explain


def _has_reply_type(reply: StructuredEvent | None, event_type: str) -> bool:
    return not event_type or (reply is not None and reply["type"] == event_type)


def _explain_by_mutex_object(pair: ReplyPair) -> str:
    """Describe how the upgrade mutex object of the reply has changed."""
    kind, uid = _find_mutex_object(pair.reply)
    change = pair.changes.get_change(kind, uid)
    return f"{kind} {pair.reply.get('subject')} {change.value}" if change else ""


def _explain_by_run(pair: ReplyPair) -> str:
    """Describe that the run of the reply has progressed since, unless the MutexRunConfig itself has changed."""
    kind, uid = _find_mutex_object(pair.reply)
    is_unchanged_run = uid in pair.changes.runs and not pair.changes.get_change(kind, uid)
    return f"{kind} {pair.reply.get('subject')} {HAS_PROGRESSED}" if is_unchanged_run else ""


def _explain_by_awaited_event(pair: ReplyPair) -> str:
    """Describe that the run has progressed, if it no longer waits for a recorded event or now waits for a new one."""
    run = pair.changes.runs.get(_find_mutex_object(pair.reply)[1])
    is_awaited = run is not None and shorten_type(str(pair.reply["type"])) == run.awaited_event_type
    return _explain_by_run(pair) if is_awaited is (pair.before is None) else ""


def _find_mutex_object(reply: StructuredEvent) -> tuple[str, str]:
    """Return the kind and uid of the upgrade mutex object of a reply; both are "" if there is none."""
    uids = ((name, reply.get(EXTENSION_OF_KIND[kind])) for kind, name in MUTEX_OBJECT_KINDS.items())
    return next(((name, str(uid)) for name, uid in uids if uid), ("", ""))


def _explain_by_all_pods(pair: ReplyPair) -> str:
    """Describe how the pods in the recorded reply have changed if all of them have changed."""
    pods = parse_pods(pair.reply.get("data"))
    has_each_changed = all(pair.changes.get_change(POD_KIND, pod["uid"]) for pod in pods)
    return _summarize_pod_changes(pair.reply, pair.changes) if has_each_changed else ""


class Cause(NamedTuple):
    """A cause of differences: which differences it explains, a description, and the functions to which it applies.

    If `functions` is empty, the cause applies to all functions except for those in `exempt`.
    """

    differences: Collection[ReplyDifference]
    explain: Explain | str
    functions: Collection[str] = ()
    exempt: Collection[str] = ()


MISSING, NEW, OTHER_TYPE = ReplyDifference
SURVEY_FUNCTIONS = ("resync", "resync-runs")
"""Functions that emit an event for every object that waits for one."""
CAUSES = (
    # If a run waits for the recorded event, the replay must emit it, too.
    Cause([MISSING], _explain_by_mutex_object),
    Cause([MISSING, NEW, OTHER_TYPE], _explain_by_awaited_event),
    Cause([MISSING], _explain_by_run, SURVEY_FUNCTIONS),
    # `protect` emits events only about the objects that it has written.
    Cause([MISSING], "the recorded write is still in place", ["protect"]),
    Cause([NEW], "the state that the function writes has changed since", ["protect"]),
    # Functions that coalesce hints emit nothing if another pass handles the hint (rule 8); a replay makes its own pass.
    # `evict` emits nothing for a tick of the PingSource if its pass changes nothing; a replay always emits an event.
    Cause([NEW], "another pass may have handled the event at that time", ["guard", "migrate"]),
    Cause([NEW], "another pass handled the event at that time, or nothing had changed", ["evict"]),
    Cause([NEW], "the recorded response did not include this object", SURVEY_FUNCTIONS),
    # `status` begins each escalation step only once, when the step is due.
    Cause([MISSING], "the recorded step of the escalation has already begun", ["status"]),
    Cause([NEW], "a step of the escalation is due now", ["status"]),
    Cause([MISSING], _explain_by_maintenance(*GONE_CHANGES)),
    Cause([MISSING], _explain_by_maintenance(ObjectChange.TERMINATING), exempt=["restore"]),
    Cause([MISSING], _explain_by_maintenance(ObjectChange.SUCCEEDED), ["begin", "evict", "resync"]),
    Cause([MISSING], _explain_by_node(*GONE_CHANGES)),
    Cause([OTHER_TYPE], _explain_by_node(*GONE_CHANGES, after=events.MAINTENANCE_STEP_FAILED)),
    Cause([MISSING, OTHER_TYPE], _explain_by_node(ObjectChange.CORDONED_AND_TAINTED, before=events.NODE_DRIFTED)),
    # The event that `evict` emits depends on the existing pods.
    Cause([MISSING, OTHER_TYPE], _explain_by_all_pods, ["evict"]),
)
"""Causes of a missing or new event, or of an event of a different type; the first applicable one explains it."""


def explain_reply(pair: ReplyPair) -> str:
    """Explain why an event is missing, new or of a different type; return "" if no cause applies."""
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
    """Explain why a field differs in two replies of the same type; return "" if no change explains it.

    The pods that `evict` reports depend on the other pods and on their PodDisruptionBudgets. The node in an event about
    a run depends on the run's progress.
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
    """Explain why the replies differ in the pod `namespace/name`; return "" if no known change explains it."""
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
    """Explain a difference by any changed PodDisruptionBudget or pod in the reply; return "" if none has changed."""
    explanations = (_explain_budget(pod, changes) for pod in parse_blocked_pods(recorded_reply.get("data")))
    return next(filter(None, explanations), "") or _summarize_pod_changes(recorded_reply, changes)


def _find_pod_uid(reply: StructuredEvent, pod_name: str) -> str:
    """Return the uid of the pod `namespace/name` in a reply, "" if the reply does not contain that pod."""
    pods = parse_pods(reply.get("data"))
    return next((pod["uid"] for pod in pods if f"{pod['namespace']}/{pod['name']}" == pod_name), "")


def _explain_budget(blocked_pod: Mapping[str, Any], changes: ObjectChanges, *, is_still_blocked: bool = True) -> str:
    """Describe how the PodDisruptionBudget that blocked a pod has changed; return "" if it is unchanged or unknown.

    `is_still_blocked` is true if the current reply also reports the pod as blocked.
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
    """Return whether exactly one PodDisruptionBudget (PDB) blocked the pod.

    The PDB then admitted no pod, even if its counts seem to allow one: another node's pass used its allowed evictions.
    """
    return blocked_pod.get("reason") == "DisruptionBudget" and parse_blocking_budget(blocked_pod) is not None


def _have_counts_changed(blocked_pod: Mapping[str, Any], counts: BudgetCounts, *, is_still_blocked: bool) -> bool:
    """Return whether the PDB's counts differ from those in the recorded reply.

    The recorded reply has no counts if the PDB was new or the API server refused the eviction. If the pod is still
    blocked, the current reply has counts, which is a difference.
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
