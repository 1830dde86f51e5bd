"""Which pods leave a node in a drain: `kubectl drain`'s rules on plain dicts (NMO-6 to NMO-9, DRN-1 to DRN-5)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Pod = Mapping[str, Any]
MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
FINISHED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class DrainOptions:
    """The flags of `kubectl drain`. A NodeMaintenance drains with the defaults here, unless it says otherwise (DRN-1a).

    Attributes:
        force: pods that no controller would make again leave too (DRN-4).
        ignore_daemonsets: DaemonSet pods stay without stopping the drain (DRN-3).
        delete_emptydir_data: pods with emptyDir volumes leave too (DRN-2).
        pod_selector: a label selector; only pods it selects leave (DRN-5). Whoever lists the pods applies it.
        grace_period_seconds: the time that pods have to end, None for their own.
        disable_eviction: pods are deleted, and no budget is asked.
        skip_wait_seconds: a pod that was to be gone longer ago is not waited for; 0 waits for all.
    """

    force: bool = True
    ignore_daemonsets: bool = True
    delete_emptydir_data: bool = True
    pod_selector: str = ""
    grace_period_seconds: int | None = None
    disable_eviction: bool = False
    skip_wait_seconds: int = 0


@dataclass(frozen=True)
class Refusal:
    """Pods that stop a drain, and kubectl's reason."""

    reason: str
    pods: list[str]


@dataclass(frozen=True)
class Sorted:
    """The pods of a node, sorted by what a drain does with them.

    Attributes:
        leaving: to be evicted, or on their way already; DaemonSet pods too where the options do not ignore these.
        daemons: DaemonSet pods that stay.
        bare: the ones among `leaving` that no controller will make again.
        local: the ones among `leaving` whose emptyDir data is lost.
        refusals: why a drain with these options must not start; empty when it may.
    """

    leaving: list[Pod] = field(default_factory=list)
    daemons: list[Pod] = field(default_factory=list)
    bare: list[Pod] = field(default_factory=list)
    local: list[Pod] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)


NODE_MAINTENANCE = DrainOptions()
UNMANAGED = "deleting Pods not managed by ReplicationController, ReplicaSet, Job, DaemonSet or StatefulSet"
"""As kubectl worded it when those operators were written."""


def key(pod: Pod) -> str:
    """`namespace/name`."""
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def name_of(pod: Pod) -> dict[str, str]:
    """`{namespace, name}`, as it stands in status and events."""
    return {"namespace": pod["metadata"]["namespace"], "name": pod["metadata"]["name"]}


def uid(pod: Pod) -> str:
    """`metadata.uid`."""
    return str(pod["metadata"]["uid"])


def node_of(pod: Pod) -> str:
    """The name of the node that it is bound to; "" for none."""
    return str((pod.get("spec") or {}).get("nodeName") or "")


def controller(pod: Pod) -> Mapping[str, Any] | None:
    """The owner reference of the controller that would make this pod again."""
    owners = pod["metadata"].get("ownerReferences") or []
    return next((owner for owner in owners if owner.get("controller")), None)


def is_mirror(pod: Pod) -> bool:
    """A static pod's image on the API server; the kubelet alone can end it (NMO-9)."""
    return MIRROR_ANNOTATION in (pod["metadata"].get("annotations") or {})


def is_daemon(pod: Pod) -> bool:
    """Owned by a DaemonSet."""
    return (controller(pod) or {}).get("kind") == "DaemonSet"


def is_finished(pod: Pod) -> bool:
    """Ran to its end, well or not: nothing is lost by removing it."""
    return (pod.get("status") or {}).get("phase") in FINISHED


def tolerates(pod: Pod, key: str, effect: str) -> bool:
    """Whether a taint of this key and effect, and without a value, does not keep the pod off a node."""
    return any(
        tolerance.get("key", key) == key
        and tolerance.get("effect", effect) == effect
        and (tolerance.get("operator") == "Exists" or ("key" in tolerance and not tolerance.get("value")))
        for tolerance in pod["spec"].get("tolerations") or []
    )


def tolerates_everything(pod: Pod) -> bool:
    """Whether it tolerates taints of every key."""
    everything = (tolerance for tolerance in pod["spec"].get("tolerations") or [] if not tolerance.get("key"))
    return any(tolerance.get("operator") == "Exists" for tolerance in everything)


def is_terminating(pod: Pod) -> bool:
    """Deletion was requested."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def is_ready(pod: Pod) -> bool:
    """Condition Ready is True."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def has_local_storage(pod: Pod) -> bool:
    """Uses an emptyDir volume."""
    return any("emptyDir" in volume for volume in pod["spec"].get("volumes") or [])


def stays(pod: Pod, orphans: Collection[str] = ()) -> bool:
    """Never evicted, whatever the options: mirror pods, and DaemonSet pods unless finished or orphaned."""
    return is_mirror(pod) or (is_daemon(pod) and not is_finished(pod) and uid(pod) not in orphans)


def sort(pods: Iterable[Pod], options: DrainOptions = NODE_MAINTENANCE, orphans: Collection[str] = ()) -> Sorted:
    """Tell the pods of one node apart. `orphans`: uids of DaemonSet pods whose DaemonSet is gone (NMO-7)."""
    result = Sorted()
    for pod in pods:
        if is_mirror(pod):
            continue
        if stays(pod, orphans):
            result.daemons.append(pod)
            if not options.ignore_daemonsets:
                result.leaving.append(pod)
            continue
        result.leaving.append(pod)
        if is_finished(pod):
            continue
        if controller(pod) is None or uid(pod) in orphans:
            result.bare.append(pod)
        if has_local_storage(pod):
            result.local.append(pod)
    result.refusals.extend(_refusals(result, options))
    return result


def _refusals(found: Sorted, options: DrainOptions) -> Iterable[Refusal]:
    if found.daemons and not options.ignore_daemonsets:
        yield Refusal(
            "cannot delete DaemonSet-managed Pods (use --ignore-daemonsets to ignore)", [key(p) for p in found.daemons]
        )
    if found.local and not options.delete_emptydir_data:
        yield Refusal(
            "cannot delete Pods with local storage (use --delete-emptydir-data to override)",
            [key(p) for p in found.local],
        )
    if found.bare and not options.force:
        yield Refusal(
            "cannot delete Pods that declare no controller (use --force to override)", [key(p) for p in found.bare]
        )


def warnings(found: Sorted, bare: str = "deleting Pods that declare no controller") -> list[str]:
    """What an operator is warned of once, before the first eviction (NMO-7, NMO-8); `bare` are kubectl's own words."""
    lines = []
    if found.daemons:
        lines.append("ignoring DaemonSet-managed Pods: " + ", ".join(key(pod) for pod in found.daemons))
    if found.bare:
        lines.append(f"{bare}: " + ", ".join(key(pod) for pod in found.bare))
    return lines


def warning(found: Sorted) -> str:
    """The same in the one line and the words of the operators whose place this takes, "" for none (NMO-8a)."""
    return "; ".join(warnings(found, UNMANAGED))
