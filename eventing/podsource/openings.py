"""All budgets as the watch last showed them, and which node is to be told of which. No input/output: `now` is given."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from eventing.podsource.draining_node import DrainingNode, lets_go, room, selects
from eventing.podsource.turns import Told, Turns
from kube.budgets import Budget, budget_key, covers
from kube.pods import Pod, is_terminating


class Openings:
    """Looks again at what a change concerns, and at nothing else: budgets are many, and so are pods.

    In: `nodes`, whose owner says here what changes there. `version` is the newest of a budget that was seen.
    """

    def __init__(self, nodes: Mapping[str, DrainingNode]) -> None:
        self.version = 0
        self._nodes = nodes
        self._turns = Turns()
        self._synced = False
        self._budgets: dict[str, dict[str, Budget]] = defaultdict(dict)
        self._changed: set[tuple[str, str]] = set()

    def clear(self) -> None:
        """Budgets are not watched any more."""
        self._synced = False
        self._budgets.clear()
        self._changed.clear()

    def listed(self) -> None:
        """All that was there has come, for the first time or anew."""
        if not self._synced:
            self._synced = True
            for node in self._nodes.values():
                self.node_changed(node)
        self._turns.relisted()

    def put(self, budget: Budget) -> None:
        """A budget is there, or has changed."""
        before = self._exchange(budget, budget)
        if before is not None and before["spec"].get("selector") == budget["spec"].get("selector"):
            self._mark(budget_key(budget))
            return
        self._mark_beside(budget)
        if before is not None:
            self._released(before, budget)

    def drop(self, budget: Budget) -> None:
        """A budget is gone."""
        before = self._exchange(budget, None)
        self._mark(budget_key(budget))
        self._mark_beside(budget)
        if before is not None:
            self._released(before)

    def node_changed(self, node: DrainingNode) -> None:
        """All pods of the node are to be looked at: it was not, or differently, concerned until now."""
        for namespace in node.namespaces():
            self._changed.update((key, node.name) for key in self._budgets.get(namespace, ()))

    def pod_changed(self, node: DrainingNode, pod: Pod) -> None:
        """A pod is there, or has changed."""
        self._changed.update((key, node.name) for key in self._over(pod))

    def pod_freed(self, node: DrainingNode, before: Pod, pod: Pod) -> None:
        """A pod has changed: tell it if budgets kept it before and none does now, since it has run to its end, or has
        other labels."""
        known = self._budgets.get(pod["metadata"]["namespace"], {})
        kept_by = [key for key, budget in known.items() if covers(budget, before)]
        freed = node.is_ours and not is_terminating(pod) and not any(covers(budget, pod) for budget in known.values())
        for key in kept_by if freed else ():
            self._turns.once(key, node.name)

    def pod_acted(self, node: DrainingNode, pod: Pod, now: float) -> None:
        """A pod turned terminating."""
        for key in self._over(pod):
            self._turns.acted(key, node.name, now)

    def pod_left(self, node: DrainingNode, pod: Pod) -> None:
        """A pod is gone."""
        for key in self._over(pod):
            self._turns.left(key, node.name)

    def pass_begins(self, node: DrainingNode, now: float) -> None:
        """A pass over the node is on its way, of which nobody need be told."""
        self._turns.pass_begins(node.name, now)

    def forget(self, node: DrainingNode) -> None:
        """The node is drained."""
        self._turns.forget(node.name)

    def take(self, now: float) -> list[Told]:
        """Who is to be told of what now."""
        if self._synced:
            changed, self._changed = self._changed, set()
            for key, name in changed:
                self._look(key, name)
        return self._turns.take(now)

    def next(self, now: float) -> float:
        """When `take` will have something if nothing happens before."""
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
        """Put `now` in the place of a budget; returns it as it was."""
        self.version = max(self.version, int(budget["metadata"]["resourceVersion"]))
        known, key = self._budgets[budget["metadata"]["namespace"]], budget_key(budget)
        before = known.pop(key, None)
        if now is not None:
            known[key] = now
        return before

    def _mark(self, key: str) -> None:
        """The budget is to be looked at, for all nodes that have pods to wait for it."""
        if self._synced:
            names = [node.name for node in self._nodes.values() if node.waiting(namespace_of(key))]
            self._changed.update((key, name) for name in names)

    def _mark_beside(self, budget: Budget) -> None:
        """A pod that two budgets cover, neither lets go: all of the namespace are concerned when one comes or goes."""
        for key in self._budgets[budget["metadata"]["namespace"]] if self._synced else ():
            self._mark(key)

    def _released(self, *versions: Budget) -> None:
        """Tell the nodes with pods that may go now that the budget is about others, or is gone."""
        key, namespace = budget_key(versions[0]), versions[0]["metadata"]["namespace"]
        for node in self._nodes.values():
            if node.is_ours and lets_go(versions, node.waiting(namespace), self._budgets[namespace].values()):
                self._turns.once(key, node.name)

    def _over(self, pod: Pod) -> Iterator[str]:
        known = self._budgets.get(pod["metadata"]["namespace"], {})
        return (key for key, budget in known.items() if selects(budget, pod))


def namespace_of(key: str) -> str:
    """Of a budget's key, `namespace/name`."""
    return key.partition("/")[0]
