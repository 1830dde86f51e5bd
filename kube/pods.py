"""Classifies a node's pods by the rules of `kubectl drain`, on plain dicts (NMO-6 to NMO-9, DRN-1 to DRN-5)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Pod = Mapping[str, Any]
MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
CLAIM_SOURCE = "persistentVolumeClaim"
FINISHED_PHASES = ("Succeeded", "Failed")


@dataclass(frozen=True)
class DrainOptions:
    """The options of a drain, named after the flags of `kubectl drain`; a NodeMaintenance can override them (DRN-1a).

    Attributes:
        force: Also evict pods that no controller would recreate (DRN-4).
        ignore_daemonsets: Leave DaemonSet pods on the node instead of refusing the drain (DRN-3).
        delete_emptydir_data: Also evict pods with emptyDir volumes (DRN-2).
        pod_selector: Label selector of the pods to evict (DRN-5). The caller applies it when it lists the pods.
        grace_period_seconds: Grace period for all pods; None uses each pod's own.
        disable_eviction: Delete pods without checking PodDisruptionBudgets.
        skip_wait_seconds: Do not wait for a terminating pod whose grace period ended more than this many seconds ago; 0
            waits for all pods.
        escalation_action: Action of the escalation step that deletes the pods; "" if no step deletes them.
    """

    force: bool = True
    ignore_daemonsets: bool = True
    delete_emptydir_data: bool = True
    pod_selector: str = ""
    grace_period_seconds: int | None = None
    disable_eviction: bool = False
    skip_wait_seconds: int = 0
    escalation_action: str = ""


@dataclass(frozen=True)
class DrainRefusal:
    """kubectl's reason to refuse a drain, and the pods that cause the refusal."""

    reason: str
    pods: list[str]


@dataclass(frozen=True)
class PodClassification:
    """The pods on a node, grouped by what a drain does with them.

    Attributes:
        leaving: Pods to evict, and terminating pods. DaemonSet pods are included unless the options ignore them.
        daemonset_pods: DaemonSet pods; also in `leaving` unless the options ignore them.
        bare: Pods in `leaving` that no controller would recreate.
        with_local_storage: Pods in `leaving` whose emptyDir data will be lost.
        refusals: Reasons why a drain with these options must not start, empty if it may.
    """

    leaving: list[Pod] = field(default_factory=list)
    daemonset_pods: list[Pod] = field(default_factory=list)
    bare: list[Pod] = field(default_factory=list)
    with_local_storage: list[Pod] = field(default_factory=list)
    refusals: list[DrainRefusal] = field(default_factory=list)


DEFAULT_DRAIN_OPTIONS = DrainOptions()
UNMANAGED_MESSAGE = "deleting Pods not managed by ReplicationController, ReplicaSet, Job, DaemonSet or StatefulSet"
"""kubectl's former wording, which the operators that this project replaces log."""


def format_key(pod: Pod) -> str:
    """Return `namespace/name` of the pod."""
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def build_name_reference(pod: Pod) -> dict[str, str]:
    """Return the pod's `{namespace, name}`, as used in status and events."""
    return {"namespace": pod["metadata"]["namespace"], "name": pod["metadata"]["name"]}


def get_uid(pod: Pod) -> str:
    """Return the pod's `metadata.uid`."""
    return str(pod["metadata"]["uid"])


def get_node_name(pod: Pod) -> str:
    """Return the name of the node that the pod is bound to, "" if it is not bound."""
    return str((pod.get("spec") or {}).get("nodeName") or "")


def get_controller(pod: Pod) -> Mapping[str, Any] | None:
    """Return the owner reference of the controller that would recreate this pod, None if there is none."""
    owners = pod["metadata"].get("ownerReferences") or []
    return next((owner for owner in owners if owner.get("controller")), None)


def is_mirror_pod(pod: Pod) -> bool:
    """Return whether the pod is the mirror of a static pod, which only the kubelet can stop (NMO-9)."""
    return MIRROR_ANNOTATION in (pod["metadata"].get("annotations") or {})


def is_daemonset_pod(pod: Pod) -> bool:
    """Return whether a DaemonSet owns the pod."""
    return (get_controller(pod) or {}).get("kind") == "DaemonSet"


def is_finished(pod: Pod) -> bool:
    """Return whether the pod succeeded or failed, so that removing it loses no work."""
    return (pod.get("status") or {}).get("phase") in FINISHED_PHASES


def tolerates(pod: Pod, taint_key: str, effect: str) -> bool:
    """Return whether the pod tolerates a taint with this key and effect and an empty value."""
    return any(
        toleration.get("key", taint_key) == taint_key
        and toleration.get("effect", effect) == effect
        and (toleration.get("operator") == "Exists" or ("key" in toleration and not toleration.get("value")))
        for toleration in pod["spec"].get("tolerations") or []
    )


def tolerates_everything(pod: Pod) -> bool:
    """Return whether the pod has a toleration without a key, which matches every taint key."""
    keyless = (toleration for toleration in pod["spec"].get("tolerations") or [] if not toleration.get("key"))
    return any(toleration.get("operator") == "Exists" for toleration in keyless)


def is_terminating(pod: Pod) -> bool:
    """Return whether the pod's deletion was requested."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def is_ready(pod: Pod) -> bool:
    """Return whether the pod's Ready condition is True."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def has_local_storage(pod: Pod) -> bool:
    """Return whether the pod uses an emptyDir volume."""
    return any("emptyDir" in volume for volume in pod["spec"].get("volumes") or [])


def list_pvc_names(pod: Pod) -> list[str]:
    """Return the sorted names of the PersistentVolumeClaims that the pod's volumes use."""
    volumes = pod["spec"].get("volumes") or []
    return sorted({volume[CLAIM_SOURCE]["claimName"] for volume in volumes if CLAIM_SOURCE in volume})


def build_pvc_volume(claim: str) -> dict[str, Any]:
    """Build the fields of a pod volume that reference a PersistentVolumeClaim."""
    return {CLAIM_SOURCE: {"claimName": claim}}


def is_never_evicted(pod: Pod, orphan_uids: Collection[str] = ()) -> bool:
    """Return whether the pod stays on the node regardless of the drain options.

    Such pods are mirror pods, and DaemonSet pods that are neither finished nor in `orphan_uids`.
    """
    return is_mirror_pod(pod) or (is_daemonset_pod(pod) and not is_finished(pod) and get_uid(pod) not in orphan_uids)


def classify_pods(
    pods: Iterable[Pod], options: DrainOptions = DEFAULT_DRAIN_OPTIONS, orphan_uids: Collection[str] = ()
) -> PodClassification:
    """Classify the pods on one node.

    `orphan_uids` are the uids of DaemonSet pods whose DaemonSet was deleted (NMO-7).
    """
    result = PodClassification()
    for pod in pods:
        if is_mirror_pod(pod):
            continue
        if is_never_evicted(pod, orphan_uids):
            result.daemonset_pods.append(pod)
            if not options.ignore_daemonsets:
                result.leaving.append(pod)
            continue
        result.leaving.append(pod)
        if is_finished(pod):
            continue
        if get_controller(pod) is None or get_uid(pod) in orphan_uids:
            result.bare.append(pod)
        if has_local_storage(pod):
            result.with_local_storage.append(pod)
    result.refusals.extend(_find_refusals(result, options))
    return result


def _find_refusals(classification: PodClassification, options: DrainOptions) -> Iterable[DrainRefusal]:
    if classification.daemonset_pods and not options.ignore_daemonsets:
        yield DrainRefusal(
            "cannot delete DaemonSet-managed Pods (use --ignore-daemonsets to ignore)",
            [format_key(p) for p in classification.daemonset_pods],
        )
    if classification.with_local_storage and not options.delete_emptydir_data:
        yield DrainRefusal(
            "cannot delete Pods with local storage (use --delete-emptydir-data to override)",
            [format_key(p) for p in classification.with_local_storage],
        )
    if classification.bare and not options.force:
        yield DrainRefusal(
            "cannot delete Pods that declare no controller (use --force to override)",
            [format_key(p) for p in classification.bare],
        )


def build_warnings(
    classification: PodClassification, unmanaged_message: str = "deleting Pods that declare no controller"
) -> list[str]:
    """Return the warnings about these pods, to log before the first eviction (NMO-7, NMO-8).

    `unmanaged_message` is the text for pods without a controller; the default is kubectl's current wording.
    """
    lines = []
    if classification.daemonset_pods:
        lines.append(
            "ignoring DaemonSet-managed Pods: " + ", ".join(format_key(pod) for pod in classification.daemonset_pods)
        )
    if classification.bare:
        lines.append(f"{unmanaged_message}: " + ", ".join(format_key(pod) for pod in classification.bare))
    return lines


def build_warning_line(classification: PodClassification) -> str:
    """Return the warnings as one line, in the wording of the operators that this project replaces (NMO-8a).

    The line is "" if there are no warnings.
    """
    return "; ".join(build_warnings(classification, UNMANAGED_MESSAGE))
