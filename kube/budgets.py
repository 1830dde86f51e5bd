"""PodDisruptionBudget (PDB) rules as pure functions: covered pods, allowed evictions, and reasons of blocked pods."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kube.paths import encode_path_segment
from kube.pods import Pod, build_name_reference, get_uid, is_ready
from kube.selectors import matches
from kube.text_limits import truncate

Budget = Mapping[str, Any]
BUDGETS_PATH = "/apis/policy/v1/poddisruptionbudgets"
"""API path of the PodDisruptionBudgets in all namespaces."""
MAX_NAMESPACED_LISTS = 3
"""Maximum number of namespaces whose PDBs are listed one by one; for more, one cluster-wide list is cheaper."""
MAX_NAMES_CHARACTERS = 600
"""Maximum length, in characters, of the list of PDB names in the message about a pod, which many PDBs may cover."""
WAIT_ANNOTATION_PREFIX = "nodemaintenance.dev/waits-"
"""Prefix of annotations on a virt-launcher pod's PodDisruptionBudget that explain why the pod is not evicted yet.

The suffixes are `reason`, `message` and `node` (the node that the pod is leaving).
"""
WAITS_FOR_KUBEVIRT = "WaitsForKubeVirt"
VIRT_LAUNCHER_REASONS = ("Migrating", "NotMigratable", "WaitsForSlot", "MigrationFailed", WAITS_FOR_KUBEVIRT)
"""Reasons why the eviction of a virt-launcher pod may have to wait."""
PROGRESSING_REASONS = ("Migrating", "WaitsForSlot")
"""The reasons in `VIRT_LAUNCHER_REASONS` that indicate progress rather than a problem."""
ESCALATION_REASON = "Escalation"
"""Reason of a blocked pod that a step in `spec.drain.escalation` may not delete."""
MAX_WAIT_MESSAGE_CHARACTERS = 600
"""Maximum length, in characters, of the message in a PDB's `WAIT_ANNOTATION_PREFIX` annotation.

This project writes shorter messages, but every client with write access to PDBs can change the annotation.
"""
CREATED_BY_LABEL = "kubevirt.io/created-by"
"""Label on a virt-launcher pod; its value is the uid of the pod's VirtualMachineInstance."""
MIGRATION_UID_LABEL = "kubevirt.io/migrationJobUID"
"""Label on the target virt-launcher pod of a live migration; its value is the uid of the migration object."""
ALWAYS_ALLOW = "unhealthyPodEvictionPolicy=AlwaysAllow"
"""Field and value in a PodDisruptionBudget's spec that allow the eviction of unready pods."""
LOOSER_BUDGET_PATTERN = re.compile(rf"(minAvailable|maxUnavailable)=[0-9]{{1,10}}|{ALWAYS_ALLOW}")
"""Matches the valid values of `BlockedPod.looser_budget`."""
MAX_ADDED_REPLICAS = 10
"""Maximum number of replicas to suggest in addition to the present ones."""
UNCOUNTED_PHASES = ("Pending", "Succeeded", "Failed")
"""Phases in which the API server evicts a pod without checking PodDisruptionBudgets."""


@dataclass(frozen=True)
class BlockedPod:
    """A pod that cannot be evicted now, and the reason.

    Attributes:
        pod: The pod as `{namespace, name, uid}`.
        reason: Reason in CamelCase, for example DisruptionBudget, MultipleBudgets, NamespaceTerminating or Error.
        message: Explanation for the administrator, which names what would unblock the pod.
        budget: Name of the PodDisruptionBudget (PDB) that blocks the pod, several names for MultipleBudgets, "" if no
            PDB blocks the pod.
        healthy, needed: Number of healthy pods, and number of healthy pods that the PDB requires; None if unknown.
        never_allows_disruption: Whether the PDB allows no eviction at any number of replicas.
        looser_budget: Field and value in the PDB's spec that would allow the eviction, such as `minAvailable=1`; "" if
            unknown.
        retry_after: RFC 3339 time of the next eviction attempt, "" if an event triggers that attempt.
    """

    pod: dict[str, str]
    reason: str
    message: str
    budget: str = ""
    healthy: int | None = None
    needed: int | None = None
    never_allows_disruption: bool = False
    looser_budget: str = ""
    retry_after: str = ""

    @property
    def key(self) -> str:
        """Return `namespace/name` of the pod."""
        return f"{self.pod['namespace']}/{self.pod['name']}"

    @property
    def budget_key(self) -> str:
        """Return `namespace/name` of the PodDisruptionBudget; valid only if `budget` contains a single name."""
        return f"{self.pod['namespace']}/{self.budget}"

    def as_data(self) -> dict[str, Any]:
        """Return the blocked pod as event data, without unknown counts and unset fields."""
        optional = {
            "healthy": self.healthy,
            "needed": self.needed,
            "allowsNone": self.never_allows_disruption or None,
            "looserBudget": self.looser_budget or None,
            "retryAfter": self.retry_after or None,
        }
        known = {name: value for name, value in optional.items() if value is not None}
        return {**self.pod, "reason": self.reason, "message": self.message, "budget": self.budget, **known}


def list_paths_of_covering_budgets(pods: Iterable[Pod]) -> list[str]:
    """Return the API paths of the lists that together contain every PodDisruptionBudget that may cover these pods."""
    namespaces = sorted({pod["metadata"]["namespace"] for pod in pods})
    if len(namespaces) > MAX_NAMESPACED_LISTS:
        return [BUDGETS_PATH]
    return [build_namespace_budgets_path(namespace) for namespace in namespaces]


def build_namespace_budgets_path(namespace: str) -> str:
    """Return the API path of the PodDisruptionBudgets in a namespace."""
    return f"/apis/policy/v1/namespaces/{encode_path_segment(namespace)}/poddisruptionbudgets"


def format_budget_key(budget: Budget) -> str:
    """Return `namespace/name` of the PodDisruptionBudget."""
    return f"{budget['metadata']['namespace']}/{budget['metadata']['name']}"


def covers(budget: Budget, pod: Pod) -> bool:
    """Return whether the PodDisruptionBudget (PDB) applies to the pod.

    The pod must be in the PDB's namespace, match its selector, and be in a phase in which the API server checks PDBs.
    The phase of a live migration's target pod does not matter.
    """
    if budget["metadata"]["namespace"] != pod["metadata"]["namespace"]:
        return False
    if (pod.get("status") or {}).get("phase") in UNCOUNTED_PHASES and not is_migration_target(pod):
        return False
    return matches(budget["spec"].get("selector"), pod["metadata"].get("labels") or {})


def is_migration_target(pod: Pod) -> bool:
    """Return whether the pod is the pending target of a VMI's live migration.

    The API server does not check PodDisruptionBudgets for a pod in phase Pending. The eviction plan nevertheless keeps
    a migration's target pod, because its eviction would make the migration fail.
    """
    labels = pod["metadata"].get("labels") or {}
    return MIGRATION_UID_LABEL in labels and (pod.get("status") or {}).get("phase") == "Pending"


def split_admitted_pods(budget: Budget, pods: Iterable[Pod]) -> tuple[list[Pod], list[Pod]]:
    """Split the pods that one PodDisruptionBudget covers into those to evict now and those that must wait."""
    if not has_current_status(budget):
        return [], list(pods)
    uncounted: list[Pod] = []
    counted: list[Pod] = []
    for pod in pods:
        (uncounted if may_evict_unready_pod(budget, pod) else counted).append(pod)
    allowed = count_allowed_disruptions(budget)
    return uncounted + counted[:allowed], counted[allowed:]


def count_allowed_disruptions(budget: Budget) -> int:
    """Return how many disruptions the PodDisruptionBudget allows now; 0 if its status does not reflect its spec."""
    allowed: int = (budget.get("status") or {}).get("disruptionsAllowed", 0) if has_current_status(budget) else 0
    return max(0, allowed)


def may_evict_unready_pod(budget: Budget, pod: Pod) -> bool:
    """Return whether a pod may be evicted without using one of the PodDisruptionBudget's allowed disruptions.

    An unready pod may be evicted this way if the PDB's policy is AlwaysAllow, or if the PDB has enough healthy pods
    (`unhealthyPodEvictionPolicy`, KEP-3017). The caller must check first that the PDB's status is current.
    """
    status, spec = budget.get("status") or {}, budget["spec"]
    healthy, needed = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
    allows_unready = spec.get("unhealthyPodEvictionPolicy") == "AlwaysAllow" or 0 < needed <= healthy
    return allows_unready and not is_ready(pod) and not is_migration_target(pod)


def build_blocked_by_budget(budget: Budget, pod: Pod, leaving_healthy: int = 0) -> BlockedPod:
    """Build the `BlockedPod` for a pod that this PodDisruptionBudget (PDB) blocks.

    `leaving_healthy` is the number of the PDB's healthy pods that are about to be evicted.
    """
    status = budget.get("status") or {}
    name = budget["metadata"]["name"]
    if is_migration_target(pod):
        return BlockedPod(
            build_object_reference(pod), "Migrating", "a virtual machine is about to migrate to this pod", name
        )
    if not has_current_status(budget):
        return BlockedPod(
            build_object_reference(pod), "DisruptionBudget", f"the status of budget {name} is not up to date yet", name
        )
    if (wait := parse_wait_reason(budget)) is not None:
        return BlockedPod(build_object_reference(pod), *wait, budget=name)
    healthy, needed = max(0, status.get("currentHealthy", 0) - leaving_healthy), status.get("desiredHealthy", 0)
    message = f"budget {name} needs {needed} healthy pods and has {healthy}"
    return BlockedPod(
        build_object_reference(pod),
        "DisruptionBudget",
        message,
        name,
        healthy,
        needed,
        never_allows_disruption(budget),
        _suggest_pdb_change(budget, healthy, is_pod_ready=is_ready(pod)),
    )


def _suggest_pdb_change(budget: Budget, healthy: int, *, is_pod_ready: bool) -> str:
    """Return the smallest change to the PodDisruptionBudget's spec that allows one more eviction, as `field=value`.

    For an unready pod, the policy AlwaysAllow suffices. For `maxUnavailable`, the result is "" if the status lacks the
    number of expected pods.
    """
    if not is_pod_ready:
        return ALWAYS_ALLOW
    spec, expected = budget["spec"], (budget.get("status") or {}).get("expectedPods", 0)
    if spec.get("minAvailable") is not None:
        return f"minAvailable={max(0, healthy - 1)}"
    return f"maxUnavailable={expected - healthy + 1}" if expected >= healthy > 0 else ""


def count_missing_replicas(budget: Budget) -> int:
    """Return how many replicas a workload needs in addition so that the PodDisruptionBudget allows an eviction.

    The result is 0 if at most `MAX_ADDED_REPLICAS` do not suffice, for example if unready pods use up a
    `maxUnavailable`. The caller must check first that the PDB's status is current.
    """
    status = budget.get("status") or {}
    healthy, expected = status.get("currentHealthy", 0), status.get("expectedPods", 0)
    counts = range(1, MAX_ADDED_REPLICAS + 1)
    return next((n for n in counts if healthy + n > _count_required_pods(budget["spec"], expected + n)), 0)


def _count_required_pods(spec: Mapping[str, Any], expected: int) -> int:
    """Return how many of the expected pods must be healthy; the API server rounds all percentages up."""
    if spec.get("minAvailable") is not None:
        return _resolve_percentage(spec["minAvailable"], expected)
    return expected - _resolve_percentage(spec.get("maxUnavailable") or 0, expected)


def _resolve_percentage(value: int | str, total: int) -> int:
    return value if isinstance(value, int) else math.ceil(total * int(value.removesuffix("%")) / 100)


def parse_wait_reason(budget: Budget) -> tuple[str, str] | None:
    """Return the reason and message in the wait annotations of a virt-launcher pod's PDB, None without valid ones.

    An empty reason means that the node had no drain taint when the PDB was last updated. The annotations of other PDBs
    are ignored, because many users may create PDBs, even for other users' pods.
    """
    annotations = budget["metadata"].get("annotations") or {}
    reason, message = (
        annotations.get(f"{WAIT_ANNOTATION_PREFIX}reason"),
        annotations.get(f"{WAIT_ANNOTATION_PREFIX}message"),
    )
    if reason is None or not _is_virt_launcher_budget(budget):
        return None
    if reason == "":
        return VIRT_LAUNCHER_REASONS[0], "its virtual machine migrates once the node has a drain taint"
    return (
        (reason, truncate(message, MAX_WAIT_MESSAGE_CHARACTERS))
        if reason in VIRT_LAUNCHER_REASONS and message
        else None
    )


def _is_virt_launcher_budget(budget: Budget) -> bool:
    """Return whether the PodDisruptionBudget covers only the virt-launcher pods of the VMI that owns it.

    This project and KubeVirt create such PDBs for VMIs.
    """
    vmi_uid = ((budget["spec"].get("selector") or {}).get("matchLabels") or {}).get(CREATED_BY_LABEL)
    owners = budget["metadata"].get("ownerReferences") or []
    return any(owner["uid"] == vmi_uid for owner in owners)


def has_current_status(budget: Budget) -> bool:
    """Return whether the PodDisruptionBudget's status reflects its current spec."""
    status = budget.get("status") or {}
    return bool(status.get("observedGeneration", 0) >= budget["metadata"].get("generation", 0))


def requires_all_pods(budget: Budget) -> bool:
    """Return whether all of the PDB's pods must be healthy: `maxUnavailable: 0`, or `minAvailable` of all replicas."""
    status = budget.get("status") or {}
    return bool(0 < status.get("expectedPods", 0) <= status.get("desiredHealthy", 0))


def never_allows_disruption(budget: Budget) -> bool:
    """Return whether the PodDisruptionBudget requires all pods to be healthy, at any number of replicas.

    This is true for a `maxUnavailable` of 0 or 0 %, or a `minAvailable` of 100 %. Other PDBs that allow no eviction now
    would allow one at a higher number of replicas.
    """
    spec = budget["spec"]
    return requires_all_pods(budget) and (spec.get("maxUnavailable") in (0, "0%") or spec.get("minAvailable") == "100%")


def build_object_reference(pod: Pod) -> dict[str, str]:
    """Return `{namespace, name, uid}` of the pod."""
    return {**build_name_reference(pod), "uid": get_uid(pod)}


def build_blocked_by_several_budgets(pod: Pod, budgets: list[Budget]) -> BlockedPod:
    """Build the `BlockedPod` for a pod that several PodDisruptionBudgets cover.

    If one of them has a virt-launcher pod's wait annotations, their reason takes precedence over MultipleBudgets.
    """
    for budget in budgets:
        if (wait := parse_wait_reason(budget)) is not None:
            return BlockedPod(build_object_reference(pod), *wait, budget=budget["metadata"]["name"])
    names = truncate(", ".join(sorted(budget["metadata"]["name"] for budget in budgets)), MAX_NAMES_CHARACTERS)
    message = (
        f"budgets {names} cover this pod, but the API server supports only one per pod: delete or narrow one of them"
    )
    return BlockedPod(build_object_reference(pod), "MultipleBudgets", message, names)
