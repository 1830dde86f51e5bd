"""Tracks PodDisruptionBudgets, and decides which hints PodSource sends about them. No I/O, no clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from eventing.podsource.draining_node import DrainingNode, admits_any_pod, compute_capacity, selects_pod
from eventing.podsource.hint_scheduler import DueHint, HintScheduler
from kube.budgets import Budget, covers, format_budget_key
from kube.pods import Pod, is_terminating


class BudgetTracker:
    """The current PodDisruptionBudgets (PDBs), and the state of the hints that PodSource sends about them.

    A cluster may have many PDBs and pods, so the tracker evaluates only those that a change affects. The owner of
    `nodes` must report each change of a node. `latest_version` is the newest resourceVersion of any reported PDB.
    """

    def __init__(self, nodes: Mapping[str, DrainingNode]) -> None:
        self.latest_version = 0
        self._nodes = nodes
        self._scheduler = HintScheduler()
        self._is_synced = False
        self._budgets: dict[str, dict[str, Budget]] = defaultdict(dict)
        self._changed_pairs: set[tuple[str, str]] = set()

    def clear(self) -> None:
        """Forget all PodDisruptionBudgets, because their watch has ended."""
        self._is_synced = False
        self._budgets.clear()
        self._changed_pairs.clear()

    def mark_budgets_listed(self) -> None:
        """Record that all PodDisruptionBudgets have been listed, and reset the delays between hints."""
        if not self._is_synced:
            self._is_synced = True
            for node in self._nodes.values():
                self.mark_node_changed(node)
        self._scheduler.reset_after_relist()

    def update_budget(self, budget: Budget) -> None:
        """Add or update a PodDisruptionBudget."""
        before = self._replace_budget(budget, budget)
        if before is not None and before["spec"].get("selector") == budget["spec"].get("selector"):
            self._mark_budget_changed(format_budget_key(budget))
            return
        self._mark_namespace_changed(budget)
        if before is not None:
            self._request_hints_after_change(before, budget)

    def remove_budget(self, budget: Budget) -> None:
        """Remove a PodDisruptionBudget that was deleted."""
        before = self._replace_budget(budget, None)
        self._mark_budget_changed(format_budget_key(budget))
        self._mark_namespace_changed(budget)
        if before is not None:
            self._request_hints_after_change(before)

    def mark_node_changed(self, node: DrainingNode) -> None:
        """Mark the PodDisruptionBudgets of all pods on the node as changed, after a change of the node's drain."""
        for namespace in node.list_namespaces():
            self._changed_pairs.update((key, node.name) for key in self._budgets.get(namespace, ()))

    def mark_pod_changed(self, node: DrainingNode, pod: Pod) -> None:
        """Mark the PodDisruptionBudgets that select a new or changed pod as changed."""
        self._changed_pairs.update((key, node.name) for key in self._list_selecting_budgets(pod))

    def request_hint_if_uncovered(self, node: DrainingNode, before: Pod, pod: Pod) -> None:
        """Request a hint if PodDisruptionBudgets covered the pod before its change, and none covers it now.

        This happens when the pod's containers have terminated, or when its labels have changed.
        """
        budgets = self._budgets.get(pod["metadata"]["namespace"], {})
        covering_keys = [key for key, budget in budgets.items() if covers(budget, before)]
        is_uncovered = (
            node.may_evict and not is_terminating(pod) and not any(covers(budget, pod) for budget in budgets.values())
        )
        for key in covering_keys if is_uncovered else ():
            self._scheduler.force_hint(key, node.name)

    def record_eviction(self, node: DrainingNode, pod: Pod, now: float) -> None:
        """Record that a pod on the node became terminating."""
        for key in self._list_selecting_budgets(pod):
            self._scheduler.record_eviction(key, node.name, now)

    def record_pod_gone(self, node: DrainingNode, pod: Pod) -> None:
        """Record that a pod on the node no longer exists."""
        for key in self._list_selecting_budgets(pod):
            self._scheduler.record_pod_gone(key, node.name)

    def drop_node(self, node: DrainingNode) -> None:
        """Forget the hints about a node whose pod watch has ended."""
        self._scheduler.drop_node(node.name)

    def take_due_hints(self, now: float) -> list[DueHint]:
        """Return the hints that are due now, and record them as sent."""
        if self._is_synced:
            changed, self._changed_pairs = self._changed_pairs, set()
            for key, name in changed:
                self._update_capacity(key, name)
        return self._scheduler.take_due_hints(now)

    def get_next_due_time(self, now: float) -> float:
        """Return the time of the next hint if nothing changes until then; infinity if there is none."""
        return self._scheduler.get_next_due_time(now)

    def _update_capacity(self, budget_key: str, node_name: str) -> None:
        namespace, node = parse_namespace(budget_key), self._nodes.get(node_name)
        budgets = self._budgets.get(namespace, {})
        budget = budgets.get(budget_key)
        if node is None:
            return
        if budget is None or not node.may_evict:
            self._scheduler.update_capacity(budget_key, node_name, None, 0)
            return
        allowed = (budget.get("status") or {}).get("disruptionsAllowed", 0)
        self._scheduler.update_capacity(
            budget_key,
            node_name,
            compute_capacity(budget, node.list_waiting_pods(namespace), budgets.values()),
            allowed,
        )

    def _replace_budget(self, budget: Budget, replacement: Budget | None) -> Budget | None:
        """Replace a PodDisruptionBudget, or remove it if `replacement` is None; return its previous state."""
        self.latest_version = max(self.latest_version, int(budget["metadata"]["resourceVersion"]))
        budgets, key = self._budgets[budget["metadata"]["namespace"]], format_budget_key(budget)
        before = budgets.pop(key, None)
        if replacement is not None:
            budgets[key] = replacement
        return before

    def _mark_budget_changed(self, budget_key: str) -> None:
        """Mark the PodDisruptionBudget as changed for all nodes with waiting pods in its namespace."""
        if self._is_synced:
            namespace = parse_namespace(budget_key)
            names = [node.name for node in self._nodes.values() if node.list_waiting_pods(namespace)]
            self._changed_pairs.update((budget_key, name) for name in names)

    def _mark_namespace_changed(self, budget: Budget) -> None:
        """Mark all PodDisruptionBudgets in the namespace as changed, after one of them was added or removed.

        A pod that two PDBs cover cannot be evicted, so the number of PDBs that cover a pod matters.
        """
        for key in self._budgets[budget["metadata"]["namespace"]] if self._is_synced else ():
            self._mark_budget_changed(key)

    def _request_hints_after_change(self, *budget_versions: Budget) -> None:
        """Request hints for the nodes with pods that may be evicted since the PDB was changed or deleted."""
        key, namespace = format_budget_key(budget_versions[0]), budget_versions[0]["metadata"]["namespace"]
        for node in self._nodes.values():
            if node.may_evict and admits_any_pod(
                budget_versions, node.list_waiting_pods(namespace), self._budgets[namespace].values()
            ):
                self._scheduler.force_hint(key, node.name)

    def _list_selecting_budgets(self, pod: Pod) -> Iterator[str]:
        budgets = self._budgets.get(pod["metadata"]["namespace"], {})
        return (key for key, budget in budgets.items() if selects_pod(budget, pod))


def parse_namespace(budget_key: str) -> str:
    """Return the namespace in a PodDisruptionBudget's key, `namespace/name`."""
    return budget_key.partition("/")[0]
