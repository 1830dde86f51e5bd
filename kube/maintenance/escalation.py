"""The deadline of a drain and the escalation steps: which step is due, and which pods it deletes. Pure functions.

`spec.drain.deadline` and the steps in `spec.drain.escalation` are relative to `status.startTime`. The function `status`
records a step in `status.escalation` before the function `evict` executes it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Any, NamedTuple

from kube.budgets import CREATED_BY_LABEL, BlockedPod
from kube.maintenance.blocked_pods import is_recreated_on_node
from kube.maintenance.objects import SUCCEEDED, Maintenance, get_blocked_pods, get_condition, get_spec, get_status
from kube.paths import Object
from kube.pods import DrainOptions, Pod, format_key, get_uid, is_daemonset_pod, is_ready, is_terminating
from kube.text_limits import truncate
from kube.times import format_time, parse_time_or_none

DELETE_UNREADY, DELETE, DELETE_NOW = "DeleteUnready", "Delete", "DeleteNow"
ACTION_EFFECTS = {
    DELETE_UNREADY: "pods that are not ready, and that a disruption budget blocks, are deleted",
    DELETE: "pods that cannot be evicted are deleted, regardless of their disruption budgets",
    DELETE_NOW: "pods that cannot be evicted, and terminating pods, are deleted with grace period 0",
}
"""Effect of each step's action. The actions are in ascending order: each action includes the previous ones."""
ACTIONS = tuple(ACTION_EFFECTS)
DEADLINE_EXCEEDED = "DeadlineExceeded"
"""Reason of the condition Drained after the deadline has passed."""
DELETABLE_BUDGET_REASONS = ("DisruptionBudget", "MultipleBudgets")
"""Reasons of pods that a PDB blocks, without the reasons of virt-launcher pods, which wait for KubeVirt."""
REFUSAL_PATTERN = re.compile("webhook|denied request")
"""Matches the message of an `Error` if a webhook or a policy refused the eviction; other errors may be temporary."""
DURATION_PATTERN = re.compile(r"(?:([0-9]{1,5})h)?(?:([0-9]{1,5})m)?(?:([0-9]{1,5})s)?")
"""Matches the durations that the CRD allows, which are a subset of those of Go's `time.ParseDuration`."""
LATEST_TIME = datetime(9900, 1, 1, tzinfo=timezone.utc)
"""Upper bound of the times in a status; a later time comes from another client and could cause an overflow."""
MAX_VALUE_CHARACTERS = 40
"""Maximum length, in characters, of an invalid value that an error message quotes."""


@dataclass(frozen=True)
class EscalationStep:
    """A step in `spec.drain.escalation`.

    Attributes:
        action: One of `ACTIONS`.
        after: The time since the start of the drain, as in the spec.
        delay: The time in `after`, parsed.
    """

    action: str
    after: str
    delay: timedelta

    def as_data(self) -> dict[str, str]:
        """Return the step as in `spec.drain.escalation`."""
        return {"action": self.action, "after": self.after}

    def build_status_fields(self, now: datetime) -> Object:
        """Return the value of `status.escalation` for a step that begins now."""
        return {**self.as_data(), "time": format_time(now)}


@dataclass(frozen=True)
class DrainSchedule:
    """The deadline and the escalation steps in `spec.drain`; if they are invalid, only `error` is set."""

    deadline: timedelta | None = None
    steps: tuple[EscalationStep, ...] = ()
    error: str = ""


class NextStep(NamedTuple):
    """The escalation step after the current one, and the time when it is due."""

    step: EscalationStep
    due_at: datetime


def parse_duration(value: object) -> timedelta:
    """Parse a positive duration, such as 1h30m. Raises `ValueError` for any other value."""
    match = DURATION_PATTERN.fullmatch(value) if isinstance(value, str) else None
    hours, minutes, seconds = (int(number or 0) for number in match.groups()) if match else (0, 0, 0)
    if not (hours or minutes or seconds):
        raise ValueError(
            f"{_quote_value(value)} is not a positive duration: write hours, minutes and seconds, as in 1h30m"
        )
    return timedelta(hours=hours, minutes=minutes, seconds=seconds)


def parse_drain_schedule(maintenance: Maintenance) -> DrainSchedule:
    """Parse the deadline and the escalation steps; the `error` of the result names an invalid field and the remedy.

    A value can be invalid only if the CRD's schema did not validate the object.
    """
    drain = get_spec(maintenance).get("drain")
    if not isinstance(drain, dict):
        return DrainSchedule()
    try:
        return DrainSchedule(_parse_deadline(drain), tuple(_parse_escalation_steps(drain)))
    except ValueError as error:
        return DrainSchedule(error=str(error))


def _parse_deadline(drain: Mapping[str, Any]) -> timedelta | None:
    deadline = drain.get("deadline")
    return None if deadline is None else _parse_duration_field("spec.drain.deadline", deadline)


def _parse_escalation_steps(drain: Mapping[str, Any]) -> list[EscalationStep]:
    """Parse the escalation steps, which must be in ascending order of time and of action."""
    items = drain.get("escalation")
    if not isinstance(items, list | None):
        raise ValueError("spec.drain.escalation is not a list: write steps, as in {after: 30m, action: Delete}")
    steps = [_parse_escalation_step(f"spec.drain.escalation[{index}]", item) for index, item in enumerate(items or [])]
    for index, (before, step) in enumerate(pairwise(steps), start=1):
        name = f"spec.drain.escalation[{index}]"
        if ACTIONS.index(step.action) <= ACTIONS.index(before.action):
            raise ValueError(f"{name}.action {step.action} does not follow {before.action}: use {', '.join(ACTIONS)}")
        if step.delay <= before.delay:
            raise ValueError(f"{name}.after {step.after} is not later than {before.after}: sort the steps by time")
    return steps


def _parse_escalation_step(name: str, item: object) -> EscalationStep:
    if not isinstance(item, dict):
        raise ValueError(f"{name} is not an object: write a step, as in {{after: 30m, action: Delete}}")
    action, after = item.get("action"), item.get("after")
    if action not in ACTIONS:
        raise ValueError(f"{name}.action {_quote_value(action)} is unknown: use {', '.join(ACTIONS)}")
    return EscalationStep(action, str(after), _parse_duration_field(f"{name}.after", after))


def _parse_duration_field(name: str, value: object) -> timedelta:
    try:
        return parse_duration(value)
    except ValueError as error:
        raise ValueError(f"{name} {error}") from None


def _quote_value(value: object) -> str:
    return f'"{truncate(str(value), MAX_VALUE_CHARACTERS)}"'


def get_drain_start_time(maintenance: Maintenance) -> datetime | None:
    """Return the time when the drain began, None if the status does not contain a valid time."""
    return _parse_status_time(get_status(maintenance).get("startTime"))


def _parse_status_time(value: object) -> datetime | None:
    time = parse_time_or_none(value)
    return time if time is not None and time < LATEST_TIME else None


def compute_drain_deadline(maintenance: Maintenance, start: datetime | None) -> datetime | None:
    """Return the deadline of a drain that began at `start`, None if the spec has no deadline."""
    deadline = parse_drain_schedule(maintenance).deadline
    return None if deadline is None or start is None else start + deadline


def has_passed_drain_deadline(maintenance: Maintenance, start: datetime | None, now: datetime) -> bool:
    """Return whether the deadline of a drain that began at `start` has passed."""
    deadline = compute_drain_deadline(maintenance, start)
    return deadline is not None and now >= deadline


def find_current_escalation_step(maintenance: Maintenance) -> EscalationStep | None:
    """Return the escalation step in `status.escalation`, None if the spec does not contain that step."""
    recorded = _get_recorded_step(maintenance)
    steps = parse_drain_schedule(maintenance).steps
    return next((step for step in steps if step.as_data().items() <= recorded.items()), None)


def _get_recorded_step(maintenance: Maintenance) -> Mapping[str, Any]:
    recorded = get_status(maintenance).get("escalation")
    return recorded if isinstance(recorded, dict) else {}


def find_due_escalation_step(maintenance: Maintenance, now: datetime) -> EscalationStep | None:
    """Return the escalation step after the current one if that step is due, otherwise None."""
    following = find_next_escalation_step(maintenance, now)
    return following.step if following and now >= following.due_at else None


def find_next_escalation_step(maintenance: Maintenance, now: datetime) -> NextStep | None:
    """Return the escalation step after the current one, None if no step will begin.

    The interval between two steps is at least that in the spec, even if the earlier step began late. Otherwise, after
    an outage, the milder step would have no time to take effect.

    No step is due on a drained node: the recorded start is that of the finished drain, and a new pod starts another
    drain.
    """
    steps, current, start = (
        parse_drain_schedule(maintenance).steps,
        find_current_escalation_step(maintenance),
        get_drain_start_time(maintenance),
    )
    index = steps.index(current) + 1 if current else 0
    has_ended = get_status(maintenance).get("phase") == SUCCEEDED
    if start is None or has_ended or index == len(steps):
        return None
    step = steps[index]
    due_at = start + step.delay
    if current:
        began = _parse_status_time(_get_recorded_step(maintenance).get("time")) or now
        due_at = max(due_at, began + step.delay - current.delay)
    return NextStep(step, due_at)


def has_unreported_escalation(maintenance: Maintenance, now: datetime) -> bool:
    """Return whether the status lacks the passed deadline, the due step, or the start time that both depend on."""
    schedule, start = parse_drain_schedule(maintenance), get_drain_start_time(maintenance)
    if schedule.deadline is None and not schedule.steps:
        return False
    is_deadline_reported = get_condition(maintenance, "Drained").get("reason") == DEADLINE_EXCEEDED
    return (
        start is None
        or (has_passed_drain_deadline(maintenance, start, now) and not is_deadline_reported)
        or find_due_escalation_step(maintenance, now) is not None
    )


def determine_drain_start_time(maintenance: Maintenance, now: datetime, *, is_drained: bool) -> datetime | None:
    """Return the time when the drain began: `now` for the first status, and for a new pod on a drained node.

    The result is None for a drained node whose status has no start time, because an earlier release wrote the status.
    """
    start = get_drain_start_time(maintenance)
    if get_status(maintenance).get("phase") == SUCCEEDED:
        return start if is_drained else now
    return start or now


def select_pods_to_delete(
    maintenance: Maintenance, pods: Iterable[Pod], blocked: Iterable[BlockedPod], now: datetime
) -> list[Pod]:
    """Return the pods that the current escalation step deletes.

    `pods` are the pods that the drain options allow to leave; `blocked` are those of them that may not be evicted now.
    Pods that their controller would recreate on this node stay, such as DaemonSet pods. Virt-launcher pods also stay,
    because their VMs would shut down instead of migrating.
    """
    step = find_current_escalation_step(maintenance)
    if step is None:
        return []
    reason_by_uid = {item.pod["uid"]: item.reason for item in blocked}
    refused = {
        f"{item['namespace']}/{item['name']}"
        for item in get_blocked_pods(maintenance)
        if _is_permanently_refused_eviction(item)
    }
    return [
        pod
        for pod in pods
        if not (is_daemonset_pod(pod) or CREATED_BY_LABEL in (pod["metadata"].get("labels") or {}))
        and (is_terminating(pod) or not is_recreated_on_node(pod, maintenance, now))
        and _is_deletion_due(step.action, pod, reason_by_uid.get(get_uid(pod), ""), refused)
    ]


def _is_permanently_refused_eviction(blocked_pod: Mapping[str, Any]) -> bool:
    """Return whether the API server, a webhook or a policy refused the eviction and would refuse it again."""
    reason, message = blocked_pod["reason"], str(blocked_pod.get("message") or "")
    return reason == "Forbidden" or (reason == "Error" and bool(REFUSAL_PATTERN.search(message)))


def _is_deletion_due(action: str, pod: Pod, blocked_reason: str, refused: Collection[str]) -> bool:
    """Return whether the action deletes a pod that is blocked for `blocked_reason`, "" if it is not blocked.

    A pod whose eviction was refused is deleted after its backoff. A terminating pod with grace period 0 is not deleted
    again, because only a finalizer keeps it.
    """
    if is_terminating(pod):
        is_immediate = pod["metadata"].get("deletionGracePeriodSeconds") == 0
        return action == DELETE_NOW and not blocked_reason and not is_immediate
    if blocked_reason:
        return blocked_reason in DELETABLE_BUDGET_REASONS and (action != DELETE_UNREADY or not is_ready(pod))
    return action != DELETE_UNREADY and format_key(pod) in refused


def build_deletion_options(step: EscalationStep, options: DrainOptions) -> DrainOptions:
    """Return the drain options with which this escalation step deletes pods."""
    grace_seconds = 0 if step.action == DELETE_NOW else options.grace_period_seconds
    return replace(options, disable_eviction=True, grace_period_seconds=grace_seconds, escalation_action=step.action)
