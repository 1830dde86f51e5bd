"""Formats maintenances, nodes and durations as text, for the terminal and the web console.

The functions are pure, except `parse_time_or_age`, which reads the clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone, tzinfo
from difflib import SequenceMatcher, get_close_matches
from typing import Any

from kube.maintenance.escalation import ACTION_EFFECTS, DEADLINE_EXCEEDED, find_current_escalation_step
from kube.maintenance.groups import DRAIN_TAINTS
from kube.maintenance.objects import (
    RUNNING,
    SUCCEEDED,
    Maintenance,
    format_full_name,
    get_condition,
    get_finalizers,
    get_lease_error_count,
    get_phase,
    get_spec,
    get_status,
    is_deleting,
    is_reported_uncordoned,
)
from kube.nodes import is_cordoned, is_tainted
from kube.paths import Object

STATE_GONE = "gone"
STATE_SCHEDULABLE = "schedulable"
STATE_CORDONED = "cordoned, takes no new pods"
PHASE_WAITING = "Waiting"
"""Shown if the status has no phase, because no function has processed the maintenance or a tool holds the node's Lease.
"""
PHASE_FAILING = "Failing"
"""Shown instead of Running if the latest step failed, for example because a request was denied; `resync` retries it."""
PHASE_CORDONING = "Cordoning"
"""Shown instead of Running or Succeeded while the status reports that the cordon or a taint is missing."""
AGE_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
AGE_PATTERN = re.compile(r"(\d{1,6})([smhd])")


def strip_managed_fields(obj: Object) -> Object:
    """Return the object without `metadata.managedFields`, which kubectl omits by default, too."""
    return {**obj, "metadata": {key: value for key, value in obj["metadata"].items() if key != "managedFields"}}


def get_phase_label(maintenance: Maintenance) -> str:
    """Return the phase, `Waiting` if the status has no phase, or `Ending` if the maintenance is being deleted.

    `Failing` and `Cordoning` replace the phase if the phase alone would hide a problem.
    """
    phase = get_phase(maintenance)
    if is_deleting(maintenance):
        return "Ending"
    if is_step_failing(maintenance):
        return PHASE_FAILING
    if phase in (RUNNING, SUCCEEDED) and is_reported_uncordoned(maintenance):
        return PHASE_CORDONING
    return phase or PHASE_WAITING


def is_step_failing(maintenance: Maintenance) -> bool:
    """Return whether the drain is running but its latest step failed, so that it makes no progress.

    A failed renewal of the node's Lease does not count, because the drain continues until the Lease is lost.
    """
    is_running = get_phase(maintenance) == RUNNING and not get_lease_error_count(maintenance)
    return is_running and bool(find_error_not_in_blocked_pods(get_status(maintenance)))


def find_error_not_in_blocked_pods(status: Mapping[str, Any]) -> str:
    """Return `lastError`, or "" if it starts with the name of a blocked pod and thus only repeats `blockedPods`."""
    error = str(status.get("lastError") or "")
    names = [f"{pod['namespace']}/{pod['name']}" for pod in status.get("blockedPods") or []]
    return "" if any(error.startswith((f"{name}:", f"{name},")) for name in names) else error


def describe_escalation(maintenance: Maintenance, now: datetime) -> str:
    """Return text about the drain's passed deadline and its current escalation step, or "" if there is neither."""
    drain, parts = get_spec(maintenance).get("drain"), []
    if get_condition(maintenance, "Drained").get("reason") == DEADLINE_EXCEEDED and isinstance(drain, dict):
        parts.append(f"Not drained within the deadline of {drain.get('deadline')}")
    if step := find_current_escalation_step(maintenance):
        age = format_age(get_status(maintenance)["escalation"]["time"], now)
        parts.append(f"Step {step.action} of the escalation for {age}: {ACTION_EFFECTS[step.action]}")
    return "; ".join(parts)


def explain_released_maintenance(maintenance: Maintenance) -> str:
    """Return a sentence that explains why a released maintenance still exists: the remaining finalizers."""
    finalizers = ", ".join(get_finalizers(maintenance))
    return f"{format_full_name(maintenance)} is released, but exists until these finalizers are removed: {finalizers}"


def suggest_similar(name: str, known_names: Iterable[str], remedy: str) -> str:
    """Return `remedy`, preceded by `did you mean "NAME"?` if a single known name is the most similar to `name`."""
    similar_names = get_close_matches(name, set(known_names), n=2)
    ratios = [SequenceMatcher(None, item, name).ratio() for item in similar_names]
    if not ratios or ratios.count(max(ratios)) > 1:
        return remedy
    return f'did you mean "{similar_names[0]}"? {remedy[0].upper()}{remedy[1:]}'


def format_age(since: str, now: datetime) -> str:
    """Return the time from `since` to `now` in a single unit, such as `5m`, as in kubectl's AGE column."""
    seconds = max(0, int((now - datetime.fromisoformat(since.replace("Z", "+00:00"))).total_seconds()))
    if seconds < 120:
        return f"{seconds}s"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if minutes < 120:
        return f"{minutes}m"
    return f"{hours}h" if hours < 48 else f"{days}d"


def parse_time_or_age(text: str, zone: tzinfo | None = None) -> datetime:
    """Parse an age such as `10m`, `2h` or `1d`, or an ISO 8601 time, and return the timezone-aware time.

    A time without a UTC offset is in `zone`, or in the local time zone if `zone` is None. Raises `ValueError` with a
    message for the user.
    """
    try:
        if match := AGE_PATTERN.fullmatch(text):
            return datetime.now(timezone.utc) - timedelta(**{AGE_UNITS[match[2]]: int(match[1])})
        time = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return time.replace(tzinfo=time.tzinfo or zone).astimezone()
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is neither an age, such as 10m, 2h or 1d, nor a time, such as 2026-03-01T12:00"
        ) from None


def build_node_report(node_name: str, node: Object | None) -> Object:
    """Return the report `{node, schedulable, state}` on a node, which is None if the node does not exist."""
    if node is None:
        return {"node": node_name, "schedulable": False, "state": STATE_GONE}
    schedulable = not is_cordoned(node)
    tainted = " and ".join(sorted(key for key in DRAIN_TAINTS if is_tainted(node, key)))
    state = f"{STATE_SCHEDULABLE}, except for the taint {tainted}" if tainted else STATE_SCHEDULABLE
    return {"node": node_name, "schedulable": schedulable, "state": state if schedulable else STATE_CORDONED}


def summarize_blockers(status: Mapping[str, Any]) -> str:
    """Return a sentence about what blocks the drain, or "": the failed step's error, or else the first blocked pod."""
    blocked = status.get("blockedPods") or []
    if error := find_error_not_in_blocked_pods(status):
        return error
    if not blocked:
        return ""
    first = blocked[0]
    more = f" (and {len(blocked) - 1} more)" if len(blocked) > 1 else ""
    return f"{first['namespace']}/{first['name']}: {first.get('message') or first['reason']}{more}"
