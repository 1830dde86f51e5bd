"""Emits `pods.gone` when pods left a node under maintenance, `budget.opened` when a budget admits an eviction again.

The one long-running part of the product, and stateless: it watches the NodeMaintenance objects, the pods of nodes
whose drain is running and, while there is such a node, the budgets. An idle cluster costs three quiet watches.

Touches: nodemaintenances list, watch; pods list, watch; poddisruptionbudgets list, watch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from eventing import events
from eventing.events import Reference
from eventing.podsource.sender import Sender
from kube.budgets import BUDGETS, Budget, budget_key, covers, plan
from kube.door.api import Api
from kube.door.errors import NotFound
from kube.door.following import follow
from kube.maintenance import objects as m
from kube.maintenance.groups import GROUPS, Group
from kube.paths import Object, pods_on
from kube.pods import Pod, is_terminating, sort, uid

ABSENT_SECONDS = 2.0
"""How often to look whether the CRD of an absent group was installed."""


class DrainingNode:
    """One node whose drain is running: its maintenances and pods as the watches last showed them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.maintenances: dict[str, Object] = {}
        self.pods: dict[str, Pod] = {}
        self.task: asyncio.Task[None] | None = None

    def references(self) -> Iterable[Reference]:
        """What its events are about: all its maintenances, as the watch that shows which has begun may lag behind."""
        return [Reference.of(item) for item in self.maintenances.values()]

    def has_begun(self) -> bool:
        """Whether one of its maintenances may have evicted pods already."""
        return any(m.has_begun(item) for item in self.maintenances.values())

    def pending(self) -> list[Pod]:
        """The pods that are still to leave the node."""
        return sort(self.pods.values()).leaving


class PodSource:
    """Watches through `api`, emits through `sender`."""

    def __init__(self, api: Api, sender: Sender) -> None:
        self._api, self._sender = api, sender
        self._nodes: dict[str, DrainingNode] = {}
        self._budgets: dict[str, Budget] = {}
        self._budget_task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Watch until cancelled."""
        await asyncio.gather(*(self._maintenances(group) for group in GROUPS.values()))

    async def _maintenances(self, group: Group) -> None:
        while True:
            try:
                async for change in follow(self._api, group.path):
                    if change.kind != "SYNCED":
                        item = {**change.object, "apiVersion": group.api_version}
                        self._update(item, gone=change.kind == "DELETED")
            except NotFound:
                await asyncio.sleep(ABSENT_SECONDS)

    def _update(self, item: Object, *, gone: bool) -> None:
        """Watch a node while one of its maintenances is at work, and not longer."""
        name, key = m.node_name(item), item["metadata"]["uid"]
        if not gone and not m.is_deleting(item) and m.phase(item) not in (m.SUCCEEDED, m.FAILED):
            node = self._nodes.setdefault(name, DrainingNode(name))
            node.maintenances[key] = item
            node.task = node.task or asyncio.create_task(self._pods(node))
        elif name in self._nodes:
            node = self._nodes[name]
            node.maintenances.pop(key, None)
            if not node.maintenances:
                self._drop(node)
        self._watch_budgets()

    def _drop(self, node: DrainingNode) -> None:
        del self._nodes[node.name]
        self._sender.discard(node.name)
        if node.task:
            node.task.cancel()

    async def _pods(self, node: DrainingNode) -> None:
        path, fields = pods_on(node.name)
        async for change in follow(self._api, path, fields=fields):
            version = change.object["metadata"]["resourceVersion"]
            if change.kind == "SYNCED":
                if node.has_begun():  # pods may have gone before this watch was there
                    self._emit_gone(node, version)
            elif change.kind == "DELETED":
                self._remove(node, change.object, version)
            else:
                node.pods[uid(change.object)] = change.object

    def _remove(self, node: DrainingNode, pod: Pod, version: str) -> None:
        node.pods.pop(uid(pod), None)
        if sort([pod]).leaving:
            self._emit_gone(node, version)

    def _emit_gone(self, node: DrainingNode, version: str) -> None:
        """Emit `pods.gone`: together with others that go soon after, at once when it was the last one.

        While all pods that are left are terminating, it concerns the status alone.
        """
        pending = node.pending()
        flag = "progress" if pending and all(map(is_terminating, pending)) else "more"
        for reference in node.references():
            data = {"podsVersion": version}
            self._sender.enqueue(events.PODS_GONE, reference, node.name, data, urgent=not pending, flags=(flag,))

    def _watch_budgets(self) -> None:
        """Budgets are watched exactly while a drain is running."""
        if self._nodes and self._budget_task is None:
            self._budget_task = asyncio.create_task(self._follow_budgets())
        elif not self._nodes and self._budget_task is not None:
            self._budget_task.cancel()
            self._budget_task = None
            self._budgets.clear()

    async def _follow_budgets(self) -> None:
        synced = False
        async for change in follow(self._api, BUDGETS):
            if change.kind == "SYNCED":
                synced = True
                continue
            key = budget_key(change.object)
            if change.kind == "DELETED":
                self._budgets.pop(key, None)
            else:
                self._budgets[key] = change.object
            if synced:
                self._emit_opened(change.object)

    def _emit_opened(self, budget: Budget) -> None:
        """Emit `budget.opened` for every node with a pod that this budget now admits."""
        for node in list(self._nodes.values()):
            covered = [pod for pod in node.pending() if not is_terminating(pod) and covers(budget, pod)]
            admitted = plan(covered, self._budgets.values())
            if admitted.free or admitted.queues:
                data = {"budget": budget_key(budget), "budgetsVersion": budget["metadata"]["resourceVersion"]}
                for reference in node.references():
                    self._sender.enqueue(events.BUDGET_OPENED, reference, node.name, data, urgent=True)
