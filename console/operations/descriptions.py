"""Texts about maintenances, nodes and blocked pods, for the terminal and the web console. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from kube.maintenance.groups import DRAIN_TAINTS
from kube.maintenance.objects import Maintenance, finalizers, is_deleting, phase
from kube.nodes import is_cordoned, is_tainted
from kube.paths import Object
from kube.times import moment_or_none

GONE = "gone"
SCHEDULABLE = "schedulable"
CORDONED = "cordoned, takes no new pods"
WAITING = "Waiting"
"""Shown before the first phase: no function has processed the maintenance, or another tool holds the node's lease."""


def full_name(maintenance: Maintenance) -> str:
    """Return `kind.group/name`, the form that kubectl prints and accepts."""
    group = maintenance["apiVersion"].split("/")[0]
    return f"nodemaintenance.{group}/{maintenance['metadata']['name']}"


def plain(item: Object) -> Object:
    """Return the object without `metadata.managedFields`, as kubectl shows it."""
    return {**item, "metadata": {key: value for key, value in item["metadata"].items() if key != "managedFields"}}


def phase_word(maintenance: Maintenance) -> str:
    """Return the phase, `Waiting` before the first phase, or `Ending` once deletion is requested."""
    return "Ending" if is_deleting(maintenance) else phase(maintenance) or WAITING


def kept(maintenance: Maintenance) -> str:
    """Explain why a released maintenance still exists."""
    keepers = ", ".join(finalizers(maintenance))
    return f"{full_name(maintenance)} is over, and stays until its finalizers are taken off: {keepers}"


def age(since: str, now: datetime) -> str:
    """Return the time since `since` in one unit, as kubectl's AGE column shows it."""
    seconds = max(0, int((now - datetime.fromisoformat(since.replace("Z", "+00:00"))).total_seconds()))
    if seconds < 120:
        return f"{seconds}s"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if minutes < 120:
        return f"{minutes}m"
    return f"{hours}h" if hours < 48 else f"{days}d"


def node_report(name: str, node: Object | None) -> Object:
    """Return the node's `{node, schedulable, state}`; a schedulable node accepts new pods."""
    if node is None:
        return {"node": name, "schedulable": False, "state": GONE}
    schedulable = not is_cordoned(node)
    tainted = " and ".join(sorted(key for key in DRAIN_TAINTS if is_tainted(node, key)))
    state = f"{SCHEDULABLE}, but for the taint {tainted}" if tainted else SCHEDULABLE
    return {"node": name, "schedulable": schedulable, "state": state if schedulable else CORDONED}


def held_up(status: Mapping[str, Any]) -> str:
    """Return what blocks a drain, in one sentence, or "" if nothing does."""
    blocked = status.get("blockedPods") or []
    if not blocked:
        return str(status.get("lastError") or "")
    first = blocked[0]
    more = f" (and {len(blocked) - 1} more)" if len(blocked) > 1 else ""
    return f"{first['namespace']}/{first['name']}: {first.get('message') or first['reason']}{more}"


def remedy(item: Mapping[str, Any]) -> str:
    """Return what would unblock a pod, and the time of the next attempt if one is scheduled."""
    after = moment_or_none(item.get("retryAfter"))
    return f"{_remedy(item)}; tried again at {after:%H:%M:%S} UTC" if after else _remedy(item)


def _remedy(item: Mapping[str, Any]) -> str:
    budget, namespace = item.get("budget"), item["namespace"]
    if item["reason"] == "DisruptionBudget" and budget:
        loosen = f"a looser budget: kubectl -n {namespace} edit pdb {budget}"
        if item.get("allowsNone"):
            return f"{loosen} (this one lets no pod go, however many are ready)"
        lacking = max(1, item.get("needed", 0) + 1 - item.get("healthy", 0))
        more = f"{lacking} more ready pod{'s' if lacking > 1 else ''} under this budget"
        return f"{more}, or {loosen}"
    return str(item.get("message") or "see the events of the pod")
