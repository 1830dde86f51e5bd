"""Rules of disruption budgets: which pods a budget covers and admits, and why a pod is blocked. Pure functions."""

from __future__ import annotations

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
"""Maximum number of namespaces to list one by one; for more, one list of all namespaces is cheaper."""
MAX_NAMES_CHARACTERS = 600
"""Maximum length of the list of one pod's budgets in a message, in characters: there may be hundreds of budgets."""
WAIT_ANNOTATION_PREFIX = "nodemaintenance.dev/waits-"
"""Prefix of the annotations in which a virt-launcher pod's budget states why the pod waits.

The names after the prefix are `reason`, `message` and `node`, the node that the pod is leaving.
"""
WAITS_FOR_KUBEVIRT = "WaitsForKubeVirt"
VIRT_LAUNCHER_REASONS = ("Migrating", "NotMigratable", "WaitsForSlot", "MigrationFailed", WAITS_FOR_KUBEVIRT)
"""Reasons why a virt-launcher pod may have to wait."""
PROGRESSING_REASONS = ("Migrating", "WaitsForSlot")
"""The `VIRT_LAUNCHER_REASONS` that indicate normal progress instead of a problem."""
ESCALATION_REASON = "Escalation"
"""Reason of a pod that an escalation step may not delete."""
MAX_WAIT_MESSAGE_CHARACTERS = 600
"""Maximum length of the message in a budget's `WAIT_ANNOTATION_PREFIX` annotation, in characters.

The messages that this project writes are shorter, but every client with write access to budgets can change them.
"""
CREATED_BY_LABEL = "kubevirt.io/created-by"
"""Label of a virt-launcher pod: the uid of its VirtualMachineInstance."""
MIGRATION_UID_LABEL = "kubevirt.io/migrationJobUID"
"""Label of a migration's target virt-launcher pod: the uid of the migration."""
ALWAYS_ALLOW = "unhealthyPodEvictionPolicy=AlwaysAllow"
"""Field and value of a budget's spec that admits the eviction of unready pods."""
LOOSER_BUDGET_PATTERN = re.compile(rf"(minAvailable|maxUnavailable)=[0-9]{{1,10}}|{ALWAYS_ALLOW}")
"""Matches a valid `BlockedPod.looser_budget`."""
UNCOUNTED_PHASES = ("Pending", "Succeeded", "Failed")
"""Phases of pods for which the eviction subresource does not check budgets."""


@dataclass(frozen=True)
class BlockedPod:
    """A pod that cannot be evicted now.

    Attributes:
        pod: The pod as `{namespace, name, uid}`.
        reason: One word, for example DisruptionBudget, MultipleBudgets, NamespaceTerminating, Forbidden or Error.
        message: Explanation for the administrator, naming what would unblock the pod.
        budget: Name of the budget, several names for MultipleBudgets, "" if no budget is the reason.
        healthy, needed: The budget's numbers of healthy and required pods, None if unknown.
        never_allows_disruption: Whether the budget admits no eviction, however many pods are ready.
        looser_budget: Field and value of the budget's spec that would admit the pod, such as `minAvailable=1`; "" if
            unknown.
        retry_after: RFC 3339 time of the next attempt, "" if an event triggers it.
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
        """Return `namespace/name` of the budget, if `budget` is one name."""
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


def build_budget_paths(pods: Iterable[Pod]) -> list[str]:
    """Return the API paths whose lists contain every budget that may cover one of these pods."""
    namespaces = sorted({pod["metadata"]["namespace"] for pod in pods})
    if len(namespaces) > MAX_NAMESPACED_LISTS:
        return [BUDGETS_PATH]
    return [build_budgets_path(namespace) for namespace in namespaces]


def build_budgets_path(namespace: str) -> str:
    """Return the API path of the budgets in a namespace."""
    return f"/apis/policy/v1/namespaces/{encode_path_segment(namespace)}/poddisruptionbudgets"


def format_budget_key(budget: Budget) -> str:
    """Return `namespace/name` of the budget."""
    return f"{budget['metadata']['namespace']}/{budget['metadata']['name']}"


def covers(budget: Budget, pod: Pod) -> bool:
    """Return whether the budget applies to the pod.

    The pod must be in the budget's namespace, match its selector, and be in a phase for which the API server checks
    budgets. The phase of a pod to which a VMI is about to migrate does not matter.
    """
    if budget["metadata"]["namespace"] != pod["metadata"]["namespace"]:
        return False
    if (pod.get("status") or {}).get("phase") in UNCOUNTED_PHASES and not is_migration_target(pod):
        return False
    return matches(budget["spec"].get("selector"), pod["metadata"].get("labels") or {})


def is_migration_target(pod: Pod) -> bool:
    """Return whether a VMI is about to migrate to this pod.

    The API server does not check budgets for a pod in phase Pending. The eviction plan protects a migration's target
    pod anyway, because its eviction would make the migration fail.
    """
    labels = pod["metadata"].get("labels") or {}
    return MIGRATION_UID_LABEL in labels and (pod.get("status") or {}).get("phase") == "Pending"


def split_admitted_pods(budget: Budget, pods: Iterable[Pod]) -> tuple[list[Pod], list[Pod]]:
    """Split the pods under one budget into the pods that may be evicted now and the pods that must wait."""
    status = budget.get("status") or {}
    if not has_current_status(budget):
        return [], list(pods)
    uncounted: list[Pod] = []
    counted: list[Pod] = []
    for pod in pods:
        (uncounted if may_evict_as_unready(budget, pod) else counted).append(pod)
    allowed = max(0, status.get("disruptionsAllowed", 0))
    return uncounted + counted[:allowed], counted[allowed:]


def may_evict_as_unready(budget: Budget, pod: Pod) -> bool:
    """Return whether a pod may be evicted without using one of the budget's allowed disruptions.

    An unready pod may be evicted this way if the budget specifies AlwaysAllow, or if enough other pods are healthy
    (`unhealthyPodEvictionPolicy`, KEP-3017). The caller must check first that the budget's status is current.
    """
    status, spec = budget.get("status") or {}, budget["spec"]
    healthy, needed = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
    allows_unready = spec.get("unhealthyPodEvictionPolicy") == "AlwaysAllow" or 0 < needed <= healthy
    return allows_unready and not is_ready(pod) and not is_migration_target(pod)


def build_blocked_by_budget(budget: Budget, pod: Pod, leaving_healthy: int = 0) -> BlockedPod:
    """Build the `BlockedPod` of a pod that waits for this budget.

    `leaving_healthy` is the number of healthy pods that are about to be evicted.
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
        _find_looser_budget(budget, healthy, is_pod_ready=is_ready(pod)),
    )


def _find_looser_budget(budget: Budget, healthy: int, *, is_pod_ready: bool) -> str:
    """Return the smallest change of the budget's spec that admits one more eviction, as `field=value`.

    An unready pod needs no allowed disruption if the budget's policy is AlwaysAllow. Without the number of expected
    pods, the change of a `maxUnavailable` is unknown.
    """
    if not is_pod_ready:
        return ALWAYS_ALLOW
    spec, expected = budget["spec"], (budget.get("status") or {}).get("expectedPods", 0)
    if spec.get("minAvailable") is not None:
        return f"minAvailable={max(0, healthy - 1)}"
    return f"maxUnavailable={expected - healthy + 1}" if expected >= healthy > 0 else ""


def parse_wait_reason(budget: Budget) -> tuple[str, str] | None:
    """Return the reason and message from the wait annotations of a virt-launcher pod's budget, None without them.

    An empty reason means that the node had no drain taint when the budget was last updated. The annotations count only
    on a virt-launcher pod's budget, because many users may create other budgets, even for other users' pods.
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
    """Return whether the budget covers only the virt-launcher pods of the VMI that owns it.

    This is true for the budgets that this project and KubeVirt create for VMIs.
    """
    vmi_uid = ((budget["spec"].get("selector") or {}).get("matchLabels") or {}).get(CREATED_BY_LABEL)
    owners = budget["metadata"].get("ownerReferences") or []
    return any(owner["uid"] == vmi_uid for owner in owners)


def has_current_status(budget: Budget) -> bool:
    """Return whether the budget's status is up to date with its spec."""
    status = budget.get("status") or {}
    return bool(status.get("observedGeneration", 0) >= budget["metadata"].get("generation", 0))


def requires_all_pods(budget: Budget) -> bool:
    """Return whether all expected pods must be healthy: `maxUnavailable: 0`, or a `minAvailable` of all replicas."""
    status = budget.get("status") or {}
    return bool(0 < status.get("expectedPods", 0) <= status.get("desiredHealthy", 0))


def never_allows_disruption(budget: Budget) -> bool:
    """Return whether the budget requires all of its pods to be healthy, at any number of replicas.

    This is true for a `maxUnavailable` of 0 or 0 %, or a `minAvailable` of 100 %. Other budgets that admit no eviction
    would admit one with more replicas.
    """
    spec = budget["spec"]
    return requires_all_pods(budget) and (spec.get("maxUnavailable") in (0, "0%") or spec.get("minAvailable") == "100%")


def build_object_reference(pod: Pod) -> dict[str, str]:
    """Return `{namespace, name, uid}` of the pod."""
    return {**build_name_reference(pod), "uid": get_uid(pod)}


def build_blocked_by_several_budgets(pod: Pod, budgets: list[Budget]) -> BlockedPod:
    """Build the `BlockedPod` of a pod that several budgets cover.

    If a virt-launcher pod's budget has wait annotations, the annotated reason takes precedence over MultipleBudgets.
    """
    for budget in budgets:
        if (wait := parse_wait_reason(budget)) is not None:
            return BlockedPod(build_object_reference(pod), *wait, budget=budget["metadata"]["name"])
    names = truncate(", ".join(sorted(budget["metadata"]["name"] for budget in budgets)), MAX_NAMES_CHARACTERS)
    message = (
        f"budgets {names} cover this pod, but the API server supports only one per pod: delete or narrow one of them"
    )
    return BlockedPod(build_object_reference(pod), "MultipleBudgets", message, names)
