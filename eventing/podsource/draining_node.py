"""A node that is being drained, as the watches report it, and which of its pods a PodDisruptionBudget admits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from eventing.events import ObjectReference
from eventing.podsource.hint_scheduler import BudgetCapacity
from kube.budgets import Budget, covers, may_evict_unready_pod, split_admitted_pods
from kube.evictions.planner import plan_evictions
from kube.maintenance import drain_flags
from kube.maintenance import objects as m
from kube.paths import Object
from kube.pods import DrainOptions, Pod, PodClassification, get_uid, is_terminating
from kube.selectors import matches


class DrainingNode:
    """A node under maintenance, with its NodeMaintenances and its pods.

    `is_synced` is true once all existing pods are known. `pods_version` is the newest resourceVersion of the node's pod
    watch.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.maintenances: dict[str, Object] = {}
        self.is_synced = False
        self.pods_version = ""
        self._pods: dict[str, Pod] = {}
        self._waiting_by_namespace: dict[str, list[Pod]] | None = None

    def update_maintenance(self, maintenance: Object) -> bool:
        """Add or update a NodeMaintenance; return whether this changes the node's drain options."""
        before = self._drain_options
        self.maintenances[maintenance["metadata"]["uid"]] = maintenance
        self._waiting_by_namespace = None
        return self._drain_options != before

    @property
    def _drain_options(self) -> DrainOptions:
        """Return the drain options of the node's maintenance, preferring a maintenance that has begun."""
        return drain_flags.parse_drain_options(max(self.maintenances.values(), key=m.has_begun, default={}))

    def list_references(self) -> list[ObjectReference]:
        """Return references to all maintenances of the node; each of them gets the events about the node.

        The watch may not have reported yet which of them has begun.
        """
        return [ObjectReference.from_object(maintenance) for maintenance in self.maintenances.values()]

    def has_begun(self) -> bool:
        """Return whether one of the node's maintenances has begun, so that pods may already have been evicted."""
        return any(map(m.has_begun, self.maintenances.values()))

    @property
    def may_evict(self) -> bool:
        """Return whether the node's pods are known and may be evicted."""
        return self.is_synced and self.has_begun()

    def update_pod(self, pod: Pod) -> Pod | None:
        """Add or update a pod; return its previous state, None if the pod is new."""
        before = self._pods.get(get_uid(pod))
        self._pods[get_uid(pod)] = pod
        self._waiting_by_namespace = None
        return before

    def remove_pod(self, pod: Pod) -> Pod | None:
        """Remove a pod that no longer exists; return its last state, None if the pod was unknown."""
        self._waiting_by_namespace = None
        return self._pods.pop(get_uid(pod), None)

    def classify_pods(self, pods: Iterable[Pod] | None = None) -> PodClassification:
        """Classify these pods, by default all pods on the node, as `spec.drain` specifies (DRN-1a)."""
        listed = self._pods.values() if pods is None else pods
        return drain_flags.classify_for_drain(listed, self._drain_options, datetime.now(timezone.utc))

    def list_leaving_pods(self) -> list[Pod]:
        """Return the pods that must still leave the node; DaemonSet pods are included only if `spec.drain` does."""
        return self.classify_pods().leaving

    def list_evictable_pods(self, classification: PodClassification) -> list[Pod]:
        """Return the pods that must still leave the node, except for those that `spec.drain` refuses to evict."""
        return drain_flags.select_evictable_pods(classification, self._drain_options)

    def list_waiting_pods(self, namespace: str) -> list[Pod]:
        """Return the pods in a namespace that must leave the node and are not terminating yet.

        If no other pod is left, they include DaemonSet pods, because the pods of a deleted DaemonSet leave last
        (NMO-7). They exclude pods that `spec.drain` refuses to evict, because no change of a PodDisruptionBudget allows
        their eviction.
        """
        if self._waiting_by_namespace is None:
            classification, self._waiting_by_namespace = self.classify_pods(), defaultdict(list)
            evictable = self.list_evictable_pods(classification)
            for pod in evictable if classification.leaving else classification.daemonset_pods:
                if not is_terminating(pod):
                    self._waiting_by_namespace[pod["metadata"]["namespace"]].append(pod)
        return self._waiting_by_namespace.get(namespace, [])

    def list_namespaces(self) -> Iterable[str]:
        """Return the namespaces of all pods on the node."""
        return {pod["metadata"]["namespace"] for pod in self._pods.values()}


def compute_capacity(
    budget: Budget, waiting: Sequence[Pod], namespace_budgets: Iterable[Budget]
) -> BudgetCapacity | None:
    """Return which evictions of waiting pods the PodDisruptionBudget admits; None if it covers none of these pods.

    `namespace_budgets` are all PDBs in the namespace. A pod that two PDBs cover cannot be evicted, even if both admit
    it.
    """
    covered = [pod for pod in waiting if covers(budget, pod)]
    if not covered:
        return None
    others = [other for other in namespace_budgets if other is not budget]
    admitted, _ = split_admitted_pods(
        budget, [pod for pod in covered if not any(covers(other, pod) for other in others)]
    )
    is_uncounted = [may_evict_unready_pod(budget, pod) for pod in admitted]
    return BudgetCapacity(counted=not all(is_uncounted), uncounted=any(is_uncounted))


def admits_any_pod(
    budget_versions: Iterable[Budget], waiting_pods: Sequence[Pod], namespace_budgets: Iterable[Budget]
) -> bool:
    """Return whether the namespace's PDBs admit a waiting pod that one of the given versions of a PDB covers."""
    covered = [pod for pod in waiting_pods if any(covers(version, pod) for version in budget_versions)]
    plan = plan_evictions(covered, namespace_budgets)
    return bool(plan.admitted)


def selects_pod(budget: Budget, pod: Pod) -> bool:
    """Return whether the PodDisruptionBudget's selector matches the pod, regardless of the pod's phase.

    In contrast, `covers` ignores pods in phases that do not count, such as pods that have terminated.
    """
    labels: Mapping[str, Any] = pod["metadata"].get("labels") or {}
    return budget["metadata"]["namespace"] == pod["metadata"]["namespace"] and matches(
        budget["spec"].get("selector"), labels
    )
