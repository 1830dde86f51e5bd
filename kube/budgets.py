"""Disruption budgets: which pods one pass may evict, by the eviction subresource's rules. Pure functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kube.paths import segment
from kube.pods import NODE_MAINTENANCE, DrainOptions, Pod, is_ready, is_terminating, name_of, uid
from kube.selectors import matches
from kube.text_limits import shortened

Budget = Mapping[str, Any]
BUDGETS = "/apis/policy/v1/poddisruptionbudgets"
"""Path of the budgets of all namespaces."""
LISTED_APART = 3
"""Maximum number of namespaces to list one by one; for more, one list of all namespaces is cheaper."""
LONGEST_NAMES = 600
"""Maximum characters for the names of one pod's budgets: there may be hundreds."""
WAITS = "nodemaintenance.dev/waits-"
"""Prefix of the annotations in which a virt-launcher pod's budget states why the pod waits.

The names after the prefix are `reason`, `message` and `node`, the node that the pod is leaving.
"""
WAITS_FOR_KUBEVIRT = "WaitsForKubeVirt"
LAUNCHER_REASONS = ("Migrating", "NotMigratable", "WaitsForSlot", "MigrationFailed", WAITS_FOR_KUBEVIRT)
"""Reasons for which a virt-launcher pod can wait."""
AT_WORK = ("Migrating", "WaitsForSlot")
"""The `LAUNCHER_REASONS` that indicate normal progress instead of a problem."""
LONGEST_WORDS = 600
"""Maximum characters kept of such an annotation's message.

The messages that this project writes are shorter, but every client with write access can change them.
"""
CREATED_BY = "kubevirt.io/created-by"
"""Label of a virt-launcher pod: the uid of its VirtualMachineInstance."""
TARGET = "kubevirt.io/migrationJobUID"
"""Label of a migration's target virt-launcher pod: the uid of the migration."""
UNCOUNTED_PHASES = ("Pending", "Succeeded", "Failed")
"""Pod phases for which the eviction subresource checks no budget."""


@dataclass(frozen=True)
class Blocked:
    """A pod that cannot be evicted now.

    Attributes:
        pod: The pod as `{namespace, name, uid}`.
        reason: One word, for example DisruptionBudget, MultipleBudgets, NamespaceTerminating, Forbidden or Error.
        message: Explanation for the administrator, naming what would unblock the pod.
        budget: Name of the budget, several names for MultipleBudgets, "" if no budget is the reason.
        healthy, needed: The budget's numbers of healthy and of required pods, None if unknown.
        allows_none: Whether the budget admits no eviction, however many pods are ready.
        retry_after: RFC 3339 time of the next attempt, "" if an event triggers it.
    """

    pod: dict[str, str]
    reason: str
    message: str
    budget: str = ""
    healthy: int | None = None
    needed: int | None = None
    allows_none: bool = False
    retry_after: str = ""

    @property
    def key(self) -> str:
        """Return `namespace/name` of the pod."""
        return f"{self.pod['namespace']}/{self.pod['name']}"

    def as_data(self) -> dict[str, Any]:
        """Return the form used in event data; unknown counts and unset options are left out."""
        fields = {"reason": self.reason, "message": self.message, "budget": self.budget}
        counts = {"healthy": self.healthy, "needed": self.needed}
        closed = {"allowsNone": True} if self.allows_none else {}
        later = {"retryAfter": self.retry_after} if self.retry_after else {}
        return {
            **self.pod,
            **fields,
            **closed,
            **later,
            **{name: count for name, count in counts.items() if count is not None},
        }


@dataclass(frozen=True)
class Plan:
    """The evictions that one pass may send.

    Attributes:
        free: Pods that no budget covers; they are evicted concurrently.
        queues: Pods to evict one after another, per budget (`namespace/name`). Concurrent evictions under one budget
            conflict in the API server.
        blocked: Pods that are not evicted now.
        budgets: The budgets of `queues`.
        options: The grace period, and whether pods are deleted instead of evicted.
    """

    free: list[Pod] = field(default_factory=list)
    queues: dict[str, list[Pod]] = field(default_factory=dict)
    blocked: list[Blocked] = field(default_factory=list)
    budgets: dict[str, Budget] = field(default_factory=dict)
    options: DrainOptions = NODE_MAINTENANCE


def budget_paths(pods: Iterable[Pod]) -> list[str]:
    """Return the paths of the lists that contain every budget of these pods; empty without pods."""
    namespaces = sorted({pod["metadata"]["namespace"] for pod in pods})
    if len(namespaces) > LISTED_APART:
        return [BUDGETS]
    return [budgets_in(namespace) for namespace in namespaces]


def budgets_in(namespace: str) -> str:
    """Return the path of the budgets in a namespace."""
    return f"/apis/policy/v1/namespaces/{segment(namespace)}/poddisruptionbudgets"


def budget_key(budget: Budget) -> str:
    """Return `namespace/name` of the budget."""
    return f"{budget['metadata']['namespace']}/{budget['metadata']['name']}"


def covers(budget: Budget, pod: Pod) -> bool:
    """Return whether the budget applies to the pod.

    It applies if both have the same namespace and the selector matches. The pod must also be in a phase for which the
    API server checks budgets, unless a VMI is about to migrate to it.
    """
    if budget["metadata"]["namespace"] != pod["metadata"]["namespace"]:
        return False
    if (pod.get("status") or {}).get("phase") in UNCOUNTED_PHASES and not is_awaited(pod):
        return False
    return matches(budget["spec"].get("selector"), pod["metadata"].get("labels") or {})


def is_awaited(pod: Pod) -> bool:
    """Return whether a VMI is about to migrate to this pod.

    The API server checks no budget for such a pending pod. The plan protects it anyway, because its eviction would fail
    the migration.
    """
    labels = pod["metadata"].get("labels") or {}
    return TARGET in labels and (pod.get("status") or {}).get("phase") == "Pending"


def plan(leaving: Iterable[Pod], budgets: Iterable[Budget], options: DrainOptions = NODE_MAINTENANCE) -> Plan:
    """Decide which pods may be evicted now.

    Terminating pods are leaving already and do not appear in the plan. Deletions (`disable_eviction`) ignore budgets.
    """
    known = [] if options.disable_eviction else list(budgets)
    result = Plan(options=options)
    behind: dict[str, list[Pod]] = defaultdict(list)
    for pod in leaving:
        if is_terminating(pod):
            continue
        over = [budget for budget in known if covers(budget, pod)]
        if not over:
            result.free.append(pod)
        elif len(over) > 1:
            result.blocked.append(_between(pod, over))
        else:
            behind[budget_key(over[0])].append(pod)
            result.budgets[budget_key(over[0])] = over[0]
    for name, pods in behind.items():
        going, waiting = admitted(result.budgets[name], pods)
        if going:
            result.queues[name] = going
        going_ready = sum(is_ready(pod) for pod in going)
        result.blocked.extend(refused_by(result.budgets[name], pod, going_ready) for pod in waiting)
    return result


def admitted(budget: Budget, pods: Iterable[Pod]) -> tuple[list[Pod], list[Pod]]:
    """Split the pods under one budget into those that it admits now and those that must wait."""
    status = budget.get("status") or {}
    if not is_counted(budget):
        return [], list(pods)
    free: list[Pod] = []
    counted: list[Pod] = []
    for pod in pods:
        (free if goes_beside(budget, pod) else counted).append(pod)
    allowed = max(0, status.get("disruptionsAllowed", 0))
    return free + counted[:allowed], counted[allowed:]


def goes_beside(budget: Budget, pod: Pod) -> bool:
    """Return whether a pod may be evicted without using one of the budget's allowed disruptions.

    This holds for an unready pod if the budget specifies AlwaysAllow, or has enough healthy pods without it
    (`unhealthyPodEvictionPolicy`, KEP-3017). The caller must check first that the budget's status is current.
    """
    status, spec = budget.get("status") or {}, budget["spec"]
    healthy, needed = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
    beside = spec.get("unhealthyPodEvictionPolicy") == "AlwaysAllow" or 0 < needed <= healthy
    return beside and not is_ready(pod) and not is_awaited(pod)


def refused_by(budget: Budget, pod: Pod, going: int = 0) -> Blocked:
    """Build the `Blocked` of a pod that waits for this budget; `going` healthy pods are about to be evicted."""
    status = budget.get("status") or {}
    name = budget["metadata"]["name"]
    if is_awaited(pod):
        return Blocked(identity(pod), "Migrating", "a virtual machine migrates to this pod, which starts", name)
    if not is_counted(budget):
        return Blocked(identity(pod), "DisruptionBudget", f"budget {name} is new and not yet counted", name)
    if (wait := waits_for(budget)) is not None:
        return Blocked(identity(pod), *wait, budget=name)
    healthy, needed = max(0, status.get("currentHealthy", 0) - going), status.get("desiredHealthy", 0)
    message = f"budget {name} needs {needed} healthy pods and has {healthy}"
    return Blocked(identity(pod), "DisruptionBudget", message, name, healthy, needed, allows_none(budget))


def waits_for(budget: Budget) -> tuple[str, str] | None:
    """Return the reason and message in a virt-launcher pod's budget, None if the budget states none.

    An empty reason means that the node had no drain taint when the budget was last updated. The annotations count only
    on a virt-launcher pod's budget: many users may create other budgets, even for pods that are not theirs.
    """
    told = budget["metadata"].get("annotations") or {}
    reason, message = told.get(f"{WAITS}reason"), told.get(f"{WAITS}message")
    if reason is None or not _is_of_launcher(budget):
        return None
    if reason == "":
        return LAUNCHER_REASONS[0], "its virtual machine migrates as soon as its node has a drain taint"
    return (reason, shortened(message, LONGEST_WORDS)) if reason in LAUNCHER_REASONS and message else None


def _is_of_launcher(budget: Budget) -> bool:
    """Return whether the budget covers only the virt-launcher pods of the VMI that owns it.

    This is true for the budgets that this project and KubeVirt create for VMIs.
    """
    of = ((budget["spec"].get("selector") or {}).get("matchLabels") or {}).get(CREATED_BY)
    owners = budget["metadata"].get("ownerReferences") or []
    return any(owner["uid"] == of for owner in owners)


def is_counted(budget: Budget) -> bool:
    """Return whether the budget's status is up to date with its spec."""
    status = budget.get("status") or {}
    return bool(status.get("observedGeneration", 0) >= budget["metadata"].get("generation", 0))


def never_admits(budget: Budget) -> bool:
    """Return whether all expected pods must be healthy: `maxUnavailable: 0`, or a `minAvailable` of all replicas."""
    status = budget.get("status") or {}
    return bool(0 < status.get("expectedPods", 0) <= status.get("desiredHealthy", 0))


def allows_none(budget: Budget) -> bool:
    """Return whether the budget requires all of its pods to be healthy, at any number of replicas.

    This is true for a `maxUnavailable` of 0 or 0 %, or a `minAvailable` of 100 %. Other budgets that admit no eviction
    would admit one with more replicas.
    """
    spec = budget["spec"]
    return never_admits(budget) and (spec.get("maxUnavailable") in (0, "0%") or spec.get("minAvailable") == "100%")


def identity(pod: Pod) -> dict[str, str]:
    """Return `{namespace, name, uid}` of the pod."""
    return {**name_of(pod), "uid": uid(pod)}


def _between(pod: Pod, budgets: list[Budget]) -> Blocked:
    """Build the `Blocked` of a pod that several budgets cover.

    If one of these budgets states what a virt-launcher pod waits for, its reason takes precedence over MultipleBudgets.
    """
    for budget in budgets:
        if (wait := waits_for(budget)) is not None:
            return Blocked(identity(pod), *wait, budget=budget["metadata"]["name"])
    names = shortened(", ".join(sorted(budget["metadata"]["name"] for budget in budgets)), LONGEST_NAMES)
    message = f"budgets {names} cover this pod, and an eviction can honour one only: delete or narrow one of them"
    return Blocked(identity(pod), "MultipleBudgets", message, names)
