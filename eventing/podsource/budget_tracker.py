"""All budgets as reported by the watch, and which node gets a hint about which budget. No I/O: `now` is an argument."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from eventing.podsource.draining_node import DrainingNode, lets_go, room, selects
from eventing.podsource.hint_scheduler import Told, Turns
from kube.budgets import Budget, budget_key, covers
from kube.pods import Pod, is_terminating


class Openings:
    """Tracks the budgets and the hints about them, and evaluates only what a change affects.

    There are many budgets and many pods. The owner of `nodes` must report each change to them here. `version` is the
    newest resourceVersion of any budget seen.
    """

    def __init__(self, nodes: Mapping[str, DrainingNode]) -> None:
        self.version = 0
        self._nodes = nodes
        self._turns = Turns()
        self._synced = False
        self._budgets: dict[str, dict[str, Budget]] = defaultdict(dict)
        self._changed: set[tuple[str, str]] = set()

    def clear(self) -> None:
        """Forget all budgets, because their watch has ended."""
        self._synced = False
        self._budgets.clear()
        self._changed.clear()

    def listed(self) -> None:
        """Record that a list of the budgets is complete, either the first one or a later one."""
        if not self._synced:
            self._synced = True
            for node in self._nodes.values():
                self.node_changed(node)
        self._turns.relisted()

    def put(self, budget: Budget) -> None:
        """Add or update a budget."""
        before = self._exchange(budget, budget)
        if before is not None and before["spec"].get("selector") == budget["spec"].get("selector"):
            self._mark(budget_key(budget))
            return
        self._mark_beside(budget)
        if before is not None:
            self._released(before, budget)

    def drop(self, budget: Budget) -> None:
        """Remove a deleted budget."""
        before = self._exchange(budget, None)
        self._mark(budget_key(budget))
        self._mark_beside(budget)
        if before is not None:
            self._released(before)

    def node_changed(self, node: DrainingNode) -> None:
        """Mark the budgets over all pods of the node for evaluation, after a change of the node as a whole."""
        for namespace in node.namespaces():
            self._changed.update((key, node.name) for key in self._budgets.get(namespace, ()))

    def pod_changed(self, node: DrainingNode, pod: Pod) -> None:
        """Mark the budgets over a new or changed pod for evaluation."""
        self._changed.update((key, node.name) for key in self._over(pod))

    def pod_freed(self, node: DrainingNode, before: Pod, pod: Pod) -> None:
        """Request a hint if budgets covered the changed pod before, and none covers it now.

        This happens when the pod has ended, or when its labels have changed.
        """
        known = self._budgets.get(pod["metadata"]["namespace"], {})
        kept_by = [key for key, budget in known.items() if covers(budget, before)]
        freed = node.is_ours and not is_terminating(pod) and not any(covers(budget, pod) for budget in known.values())
        for key in kept_by if freed else ():
            self._turns.once(key, node.name)

    def pod_acted(self, node: DrainingNode, pod: Pod, now: float) -> None:
        """Record that a pod became terminating."""
        for key in self._over(pod):
            self._turns.acted(key, node.name, now)

    def pod_left(self, node: DrainingNode, pod: Pod) -> None:
        """Record that a pod no longer exists."""
        for key in self._over(pod):
            self._turns.left(key, node.name)

    def pass_begins(self, node: DrainingNode, now: float) -> None:
        """Record that a pass over the node is about to start, so that it needs no hints for now."""
        self._turns.pass_begins(node.name, now)

    def forget(self, node: DrainingNode) -> None:
        """Forget a node whose watch has ended."""
        self._turns.forget(node.name)

    def take(self, now: float) -> list[Told]:
        """Return the hints that are due now."""
        if self._synced:
            changed, self._changed = self._changed, set()
            for key, name in changed:
                self._look(key, name)
        return self._turns.take(now)

    def next(self, now: float) -> float:
        """Return when `take` will return a hint if nothing changes before."""
        return self._turns.next(now)

    def _look(self, key: str, name: str) -> None:
        namespace, node = namespace_of(key), self._nodes.get(name)
        known = self._budgets.get(namespace, {})
        budget = known.get(key)
        if node is None:
            return
        if budget is None or not node.is_ours:
            self._turns.show(key, name, None, 0)
            return
        allowed = (budget.get("status") or {}).get("disruptionsAllowed", 0)
        self._turns.show(key, name, room(budget, node.waiting(namespace), known.values()), allowed)

    def _exchange(self, budget: Budget, now: Budget | None) -> Budget | None:
        """Replace a budget with `now`, or remove it if `now` is None; return its previous state."""
        self.version = max(self.version, int(budget["metadata"]["resourceVersion"]))
        known, key = self._budgets[budget["metadata"]["namespace"]], budget_key(budget)
        before = known.pop(key, None)
        if now is not None:
            known[key] = now
        return before

    def _mark(self, key: str) -> None:
        """Mark the budget for evaluation, for all nodes with waiting pods in its namespace."""
        if self._synced:
            names = [node.name for node in self._nodes.values() if node.waiting(namespace_of(key))]
            self._changed.update((key, name) for name in names)

    def _mark_beside(self, budget: Budget) -> None:
        """Mark all budgets of the namespace for evaluation, after a budget was added or removed.

        A pod that two budgets cover cannot be evicted, so the number of budgets over a pod matters.
        """
        for key in self._budgets[budget["metadata"]["namespace"]] if self._synced else ():
            self._mark(key)

    def _released(self, *versions: Budget) -> None:
        """Request hints for nodes with pods that may go now that the budget was changed or deleted."""
        key, namespace = budget_key(versions[0]), versions[0]["metadata"]["namespace"]
        for node in self._nodes.values():
            if node.is_ours and lets_go(versions, node.waiting(namespace), self._budgets[namespace].values()):
                self._turns.once(key, node.name)

    def _over(self, pod: Pod) -> Iterator[str]:
        known = self._budgets.get(pod["metadata"]["namespace"], {})
        return (key for key, budget in known.items() if selects(budget, pod))


def namespace_of(key: str) -> str:
    """Return the namespace in a budget's key, `namespace/name`."""
    return key.partition("/")[0]
