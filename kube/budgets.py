"""Disruption budgets: which pods one pass may evict, by the eviction subresource's own rules. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kube.paths import segment
from kube.pods import NODE_MAINTENANCE, DrainOptions, Pod, is_ready, is_terminating, name_of, uid
from kube.selectors import matches
from kube.words import shortened

Budget = Mapping[str, Any]
BUDGETS = "/apis/policy/v1/poddisruptionbudgets"
"""Path of all budgets of all namespaces."""
LISTED_APART = 3
"""Namespaces whose budgets are listed by themselves; of more, one list of all namespaces costs less."""
LONGEST_NAMES = 600
"""Characters of the names of the budgets over one pod: there may be hundreds."""
WAITS = "nodemaintenance.dev/waits-"
"""Beginning of the annotations by which a budget says what the launcher pod under it waits for: of `reason` and
`message`, and of the `node` that it leaves."""
WAITS_FOR_KUBEVIRT = "WaitsForKubeVirt"
LAUNCHER_REASONS = ("Migrating", "NotMigratable", "WaitsForSlot", "MigrationFailed", WAITS_FOR_KUBEVIRT)
"""What the launcher pod of a virtual machine can wait for."""
AT_WORK = ("Migrating", "WaitsForSlot")
"""Of these what nothing is wrong with."""
LONGEST_WORDS = 600
"""Characters of what such a budget says that are kept: it says less, and whoever may write it may say anything."""
CREATED_BY = "kubevirt.io/created-by"
"""Label of a launcher pod: the uid of its VirtualMachineInstance."""
TARGET = "kubevirt.io/migrationJobUID"
"""Label of the launcher pod that a virtual machine migrates to: the uid of the migration."""
UNCOUNTED_PHASES = ("Pending", "Succeeded", "Failed")
"""The eviction subresource asks no budget about pods in these phases."""


@dataclass(frozen=True)
class Blocked:
    """One pod that may not go now.

    Attributes:
        pod: `{namespace, name, uid}`.
        reason: one word, e.g. DisruptionBudget, MultipleBudgets, NamespaceTerminating, Forbidden, Error.
        message: the sentence for a person, naming what would unblock it.
        budget: name of the budget, "" when none is the reason.
        healthy, needed: its counts, None when unknown.
        allows_none: the budget lets no pod go, however many are ready.
        retry_after: no eviction before then, as Kubernetes writes times; "" where an event says when.
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
        """`namespace/name` of the pod."""
        return f"{self.pod['namespace']}/{self.pod['name']}"

    def as_data(self) -> dict[str, Any]:
        """The form that travels in event data; absent counts are left out."""
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
    """What one pass may evict.

    Attributes:
        free: no budget stands in the way; all at once.
        queues: per budget (namespace/name), one after another: evictions under one budget collide in the server.
        blocked: not sent at all.
        budgets: the budgets of `queues`.
        options: with which grace period, and whether by deletion.
    """

    free: list[Pod] = field(default_factory=list)
    queues: dict[str, list[Pod]] = field(default_factory=dict)
    blocked: list[Blocked] = field(default_factory=list)
    budgets: dict[str, Budget] = field(default_factory=dict)
    options: DrainOptions = NODE_MAINTENANCE


def budget_paths(pods: Iterable[Pod]) -> list[str]:
    """The collections that hold every budget of these pods: none without pods."""
    namespaces = sorted({pod["metadata"]["namespace"] for pod in pods})
    if len(namespaces) > LISTED_APART:
        return [BUDGETS]
    return [budgets_in(namespace) for namespace in namespaces]


def budgets_in(namespace: str) -> str:
    """Path of the budgets in a namespace."""
    return f"/apis/policy/v1/namespaces/{segment(namespace)}/poddisruptionbudgets"


def budget_key(budget: Budget) -> str:
    """`namespace/name`."""
    return f"{budget['metadata']['namespace']}/{budget['metadata']['name']}"


def covers(budget: Budget, pod: Pod) -> bool:
    """Whether the budget speaks about the pod: same namespace, selector matches, and the pod's phase counts."""
    if budget["metadata"]["namespace"] != pod["metadata"]["namespace"]:
        return False
    if (pod.get("status") or {}).get("phase") in UNCOUNTED_PHASES and not is_awaited(pod):
        return False
    return matches(budget["spec"].get("selector"), pod["metadata"].get("labels") or {})


def is_awaited(pod: Pod) -> bool:
    """Whether a virtual machine is about to migrate to this pod: the server asks no budget yet, and it stays all the
    same, since without it the migration fails."""
    labels = pod["metadata"].get("labels") or {}
    return TARGET in labels and (pod.get("status") or {}).get("phase") == "Pending"


def plan(leaving: Iterable[Pod], budgets: Iterable[Budget], options: DrainOptions = NODE_MAINTENANCE) -> Plan:
    """Who may go now. Terminating pods are on their way and appear nowhere in the plan; a deletion asks no budget."""
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
    """Split the pods under one budget into those it admits now and those that wait."""
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
    """Whether a pod may go beside the budget's count, once that is up to date.

    Unready pods may when the budget says AlwaysAllow, or is met without them (`unhealthyPodEvictionPolicy`, KEP-3017).
    """
    status, spec = budget.get("status") or {}, budget["spec"]
    healthy, needed = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
    beside = spec.get("unhealthyPodEvictionPolicy") == "AlwaysAllow" or 0 < needed <= healthy
    return beside and not is_ready(pod) and not is_awaited(pod)


def refused_by(budget: Budget, pod: Pod, going: int = 0) -> Blocked:
    """The pod waits for this budget, of whose healthy pods `going` are about to go."""
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
    """Reason and message by which the budget of a launcher pod says what that waits for; None where it does not.

    One that has nothing to say was last looked at when the node had no such taint. Of any other budget the same words
    say nothing: many may write one over pods that are not theirs.
    """
    told = budget["metadata"].get("annotations") or {}
    reason, message = told.get(f"{WAITS}reason"), told.get(f"{WAITS}message")
    if reason is None or not _is_of_launcher(budget):
        return None
    if reason == "":
        return LAUNCHER_REASONS[0], "its virtual machine migrates as soon as its node has a drain taint"
    return (reason, shortened(message, LONGEST_WORDS)) if reason in LAUNCHER_REASONS and message else None


def _is_of_launcher(budget: Budget) -> bool:
    """Whether it covers the launcher pods of the instance that owns it, and no others: so do ours, and KubeVirt's."""
    of = ((budget["spec"].get("selector") or {}).get("matchLabels") or {}).get(CREATED_BY)
    owners = budget["metadata"].get("ownerReferences") or []
    return any(owner["uid"] == of for owner in owners)


def is_counted(budget: Budget) -> bool:
    """Whether its status speaks of the spec that it has now."""
    status = budget.get("status") or {}
    return bool(status.get("observedGeneration", 0) >= budget["metadata"].get("generation", 0))


def never_admits(budget: Budget) -> bool:
    """Whether it asks for all of its pods: `maxUnavailable: 0`, or a `minAvailable` of all replicas."""
    status = budget.get("status") or {}
    return bool(0 < status.get("expectedPods", 0) <= status.get("desiredHealthy", 0))


def allows_none(budget: Budget) -> bool:
    """Whether the budget asks for all of its pods, and for more when there are more: by `maxUnavailable` 0 or 0 %, or
    `minAvailable` 100 %. Of any other, pods more would do.
    """
    spec = budget["spec"]
    return never_admits(budget) and (spec.get("maxUnavailable") in (0, "0%") or spec.get("minAvailable") == "100%")


def identity(pod: Pod) -> dict[str, str]:
    """`{namespace, name, uid}`."""
    return {**name_of(pod), "uid": uid(pod)}


def _between(pod: Pod, budgets: list[Budget]) -> Blocked:
    """None of them lets it go; what one says that it waits for is more than that."""
    for budget in budgets:
        if (wait := waits_for(budget)) is not None:
            return Blocked(identity(pod), *wait, budget=budget["metadata"]["name"])
    names = shortened(", ".join(sorted(budget["metadata"]["name"] for budget in budgets)), LONGEST_NAMES)
    message = f"budgets {names} cover this pod, and an eviction can honour one only: delete or narrow one of them"
    return Blocked(identity(pod), "MultipleBudgets", message, names)
