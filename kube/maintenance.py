"""NodeMaintenance objects: what they ask for, how far they are, and the status that says so truthfully. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from kube import pods as podrules
from kube.api import Object
from kube.groups import GROUPS, Group
from kube.nodes import Node, in_maintenance
from kube.pods import Pod

Maintenance = Mapping[str, Any]
FINALIZER = "nodemaintenance.dev/restore"
LEGACY_FINALIZERS = ("foregroundDeleteNodeMaintenance",)
"""Left on objects by the old operator; taken off with ours, so that those objects can be deleted (NMO-16)."""
OURS = (FINALIZER, *LEGACY_FINALIZERS)
"""All that we take off once the node is restored."""
SNAPSHOT = "nodemaintenance.dev/snapshot"
"""Annotation with the counts taken before anything was evicted; written with the finalizer, in one patch (NMO-11)."""
REQUESTER = "nodemaintenance.dev/requested-by"
"""Annotation with the user who asked, as the command line and the console know him. A claim, not a proof."""
RUNNING, SUCCEEDED, FAILED = "Running", "Succeeded", "Failed"


@dataclass(frozen=True)
class Report:
    """What an event tells the status beside what can be read from the cluster.

    Attributes:
        error: latest error; "" after a clean step, which clears `lastError` (NMO-13).
        blocked: pods that may not go now, as in `pods.evicted`; None when the event says nothing of them.
        drained: a fresh list showed nothing left to evict.
        restoring: the error is of giving the node back, and so the one that matters while the object is deleted.
    """

    error: str = ""
    blocked: list[Object] | None = None
    drained: bool = False
    restoring: bool = False


def group(maintenance: Maintenance) -> Group:
    """The API group the object belongs to."""
    return GROUPS[maintenance["apiVersion"]]


def path(maintenance: Maintenance) -> str:
    """Path of the object."""
    return f"{group(maintenance).path}/{maintenance['metadata']['name']}"


def node_name(maintenance: Maintenance) -> str:
    """`spec.nodeName`, "" when an old schema let an object without one in."""
    return str((maintenance.get("spec") or {}).get("nodeName") or "")


def is_deleting(maintenance: Maintenance) -> bool:
    """Deletion was requested."""
    return bool(maintenance["metadata"].get("deletionTimestamp"))


def finalizers(maintenance: Maintenance) -> list[str]:
    """All finalizers of the object."""
    return list(maintenance["metadata"].get("finalizers") or [])


def is_held(maintenance: Maintenance) -> bool:
    """One of our finalizers holds the object until its node is restored."""
    return bool(set(OURS) & set(finalizers(maintenance)))


def has_begun(maintenance: Maintenance) -> bool:
    """Finalizer and snapshot are in place: the node is ours to change, and ours to give back."""
    return FINALIZER in finalizers(maintenance) and snapshot(maintenance) is not None


def phase(maintenance: Maintenance) -> str:
    """`status.phase`, "" before the first status."""
    return str((maintenance.get("status") or {}).get("phase") or "")


def requester(maintenance: Maintenance) -> str:
    """Who asked for it: the user who is named on it, else the program that wrote its spec; "" when neither is known."""
    metadata = maintenance["metadata"]
    user = (metadata.get("annotations") or {}).get(REQUESTER)
    programs = [item.get("manager") for item in metadata.get("managedFields") or [] if "f:spec" in item["fieldsV1"]]
    return str(user or next((f"the program {name}" for name in programs if name), ""))


def snapshot(maintenance: Maintenance) -> Object | None:
    """`{totalpods, evictionPods}` as counted when the maintenance began; None before."""
    annotations = maintenance["metadata"].get("annotations") or {}
    try:
        counts = json.loads(annotations.get(SNAPSHOT, "null"))
        return {"totalpods": int(counts["totalpods"]), "evictionPods": int(counts["evictionPods"])}
    except (ValueError, TypeError, KeyError):
        return None


def begin_patch(maintenance: Maintenance, node: Node, counts: Mapping[str, int]) -> Object:
    """Merge patch that begins: finalizer, owner reference (NMO-20) and snapshot, if nobody wrote meanwhile."""
    metadata = maintenance["metadata"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": node["metadata"]["name"], "uid": node["metadata"]["uid"]}
    others = [item for item in metadata.get("ownerReferences") or [] if item["uid"] != owner["uid"]]
    return {
        "metadata": {
            "resourceVersion": metadata["resourceVersion"],
            "finalizers": [*(f for f in finalizers(maintenance) if f != FINALIZER), FINALIZER],
            "ownerReferences": [*others, owner],
            "annotations": {SNAPSHOT: json.dumps(dict(counts), sort_keys=True)},
        }
    }


def release_patch(maintenance: Maintenance) -> Object:
    """Merge patch that takes our finalizer off, and the old operator's."""
    kept = [name for name in finalizers(maintenance) if name not in OURS]
    return {"metadata": {"resourceVersion": maintenance["metadata"]["resourceVersion"], "finalizers": kept}}


def progress(eviction_pods: int, pending: int, before: int = 0) -> int:
    """Percent done, 0 to 100: `(evictionPods - pending) * 100 // evictionPods`; never less than `before` (NMO-10)."""
    if eviction_pods <= 0:
        return 100
    return max(before, min(100, max(0, (eviction_pods - pending) * 100 // eviction_pods)))


def status_patch(
    maintenance: Maintenance, node: Node | None, pods: Iterable[Pod], report: Report, now: datetime
) -> Object | None:
    """Merge patch for the status subresource; None when nothing but the time would change (NMO-12).

    `pods` are those of the node, read after `maintenance` was. The patch holds only if nobody wrote since.
    """
    before = dict(maintenance.get("status") or {})
    if is_deleting(maintenance):
        after = {"lastError": report.error} if report.restoring else {}
    elif has_begun(maintenance):
        after = _status_begun(maintenance, node, list(pods), report, now)
    elif report.error:
        after = _status_failed(maintenance, report, now)
    else:
        return None
    changed = {key: value for key, value in after.items() if before.get(key) != value}
    if not changed:
        return None
    changed["lastUpdate"] = timestamp(now)
    return {"metadata": {"resourceVersion": maintenance["metadata"]["resourceVersion"]}, "status": changed}


def _status_failed(maintenance: Maintenance, report: Report, now: datetime) -> Object:
    """Never begun: unknown node, or another maintenance holds it (NMO-19, NMO-22)."""
    conditions = [_condition(maintenance, "Drained", False, FAILED, report.error, now)]
    return {"phase": FAILED, "lastError": report.error, "conditions": conditions}


def _status_begun(
    maintenance: Maintenance, node: Node | None, pods: list[Pod], report: Report, now: datetime
) -> Object:
    before = maintenance.get("status") or {}
    counts = snapshot(maintenance) or {}
    pending = podrules.sort(pods).leaving
    done = not pending and (report.drained or before.get("phase") == SUCCEEDED)
    blocked = _blocked(before.get("blockedPods") or [], pending, report, now)
    return {
        "phase": SUCCEEDED if done else RUNNING,
        "drainProgress": 100
        if done
        else progress(counts["evictionPods"], len(pending), before.get("drainProgress") or 0),
        "evictionPods": counts["evictionPods"],
        "totalpods": counts["totalpods"],
        "totalPods": counts["totalpods"],  # both spellings (C1)
        "pendingPods": [pod["metadata"]["name"] for pod in pending],
        "pendingPodsRefs": [podrules.name_of(pod) for pod in pending],
        "pendingCount": len(pending),
        "blockedPods": blocked,
        "lastError": None if done else report.error or _still_true(before, report, blocked),
        "conditions": _conditions(maintenance, node, done, len(pending), blocked, now),
    }


def _still_true(before: Mapping[str, Any], report: Report, blocked: list[Object]) -> str | None:
    """The error of before, where a clean step said nothing of the pods that are blocked: it would come back at once."""
    return before.get("lastError") if report.blocked is None and blocked else None


def _blocked(before: list[Object], pending: list[Pod], report: Report, now: datetime) -> list[Object]:
    """Blocked pods that are still there, each with the time since when it is blocked for this reason."""
    said = before if report.blocked is None else report.blocked
    waiting = {podrules.key(pod) for pod in pending if not podrules.is_terminating(pod)}
    items = [{k: v for k, v in item.items() if k != "uid"} for item in said]
    items = [item for item in items if f"{item['namespace']}/{item['name']}" in waiting]
    items += [stuck for stuck in (_stuck(pod, now) for pod in pending) if stuck]
    since = {why_blocked(item): item.get("since") for item in before}
    dated = [{**item, "since": since.get(why_blocked(item)) or timestamp(now)} for item in items]
    return sorted(dated, key=lambda item: (item["namespace"], item["name"]))


def why_blocked(item: Mapping[str, Any]) -> tuple[Any, ...]:
    """What makes a blocked pod the same as before: it, and the reason for which it waits."""
    return tuple(item.get(key) for key in ("namespace", "name", "reason", "budget"))


def _stuck(pod: Pod, now: datetime) -> Object | None:
    """A pod whose grace period is over and that is still there (the API server puts the end into deletionTimestamp)."""
    metadata = pod["metadata"]
    if not metadata.get("deletionTimestamp") or timestamp(now) <= metadata["deletionTimestamp"]:
        return None
    held = metadata.get("finalizers") or []
    reason = "Finalizers" if held else "Terminating"
    message = (
        f"finalizers {', '.join(held)} hold the deleted pod: their owner must take them off"
        if held
        else "its grace period is over and the kubelet has not ended it: look at the node"
    )
    return {**podrules.name_of(pod), "reason": reason, "message": message, "budget": ""}


def _conditions(
    maintenance: Maintenance, node: Node | None, done: bool, pending: int, blocked: list[Object], now: datetime
) -> list[Object]:
    ready = node is not None and in_maintenance(node, group(maintenance).drain_taint)
    cordoned = ("Cordoned", "the node takes no new pods") if ready else ("NotCordoned", "cordon or taints are missing")
    if done:
        drained = ("Drained", "no pod is left to evict")
    elif blocked:
        drained = ("Blocked", f"{pending} pods left, {len(blocked)} of them blocked")
    else:
        drained = ("Draining", f"{pending} pods left")
    return [
        _condition(maintenance, "Cordoned", ready, *cordoned, now),
        _condition(maintenance, "Drained", done, *drained, now),
    ]


def _condition(maintenance: Maintenance, kind: str, true: bool, reason: str, message: str, now: datetime) -> Object:
    """A condition of the Kubernetes kind; its transition time moves with its status only."""
    status = "True" if true else "False"
    before = condition(maintenance, kind)
    moved = before.get("lastTransitionTime") if before.get("status") == status else None
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "observedGeneration": maintenance["metadata"].get("generation", 0),
        "lastTransitionTime": moved or timestamp(now),
    }


def condition(maintenance: Maintenance, kind: str) -> Object:
    """The condition of that type, {} when there is none."""
    conditions = (maintenance.get("status") or {}).get("conditions") or []
    return next((dict(item) for item in conditions if item.get("type") == kind), {})


def timestamp(moment: datetime) -> str:
    """RFC 3339 in UTC with seconds, as Kubernetes writes times."""
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def moment(timestamp: str) -> datetime:
    """The moment that a time of Kubernetes' names."""
    return datetime.strptime(timestamp, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
