"""Emits `pods.gone` and `pods.came` for the pods of nodes under maintenance, and `budget.opened` for their budgets.

PodSource is the only long-running part of the product, and it is stateless. It watches the NodeMaintenance objects and
the pods of nodes whose drain is running. While there is such a node, it also watches the budgets. An idle cluster costs
three idle watches.

Touches: nodemaintenances list, watch; pods list, watch; poddisruptionbudgets list, watch.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable
from contextlib import aclosing

from eventing import events
from eventing.podsource.draining_node import DrainingNode
from eventing.podsource.metrics import NODES, Counted, Relisted
from eventing.podsource.budget_tracker import Openings
from eventing.podsource.sender import Sender
from eventing.podsource.task_supervisor import Tasks
from eventing.podsource.hint_scheduler import Told
from kube.backoff import pauses
from kube.budgets import BUDGETS
from kube.client.api import Api
from kube.client.api_errors import NotFound
from kube.client.list_watch import follow
from kube.maintenance import objects as m
from kube.maintenance.groups import GROUPS, Group
from kube.paths import Object, pods_on
from kube.pods import Pod, is_terminating
from kube.trimming import trimmed_budget, trimmed_pod

EMITS = (events.PODS_GONE, events.PODS_CAME, events.BUDGET_OPENED)
FIRST_LOOK, LONGEST_LOOK = 2.0, 60.0
"""Initial and maximum seconds between checks for a NodeMaintenance CRD that is not installed, doubling.

Until a check finds the CRD, only ticks drive its objects.
"""


class PodSource:
    """Watches through `api`, which must not limit its connections (see `run`), and emits through `sender`.

    `tasks` runs the watches and reports a failed one to its owner.
    """

    def __init__(self, api: Api, sender: Sender, tasks: Tasks, clock: Callable[[], float] = time.monotonic) -> None:
        self._api, self._sender, self._tasks, self._clock = api, sender, tasks, clock
        self._nodes: dict[str, DrainingNode] = {}
        self._openings = Openings(self._nodes)
        self._budget_task: asyncio.Task[None] | None = None
        self._unlisted = set(GROUPS)
        self._wake = asyncio.Event()

    @property
    def ready(self) -> bool:
        """Return whether all NodeMaintenance objects that existed at the start are known."""
        return not self._unlisted

    async def run(self) -> None:
        """Watch until cancelled, or until a task fails; raise the error of that task.

        Each node under maintenance has its own watch and connection. The cost therefore grows with the number of these
        nodes. That of a watch of all pods would grow with the cluster.
        """
        for group in GROUPS.values():
            self._tasks.start(self._maintenances(group))
        self._tasks.start(self._tell())
        await self._tasks.failure()

    async def _maintenances(self, group: Group) -> None:
        for pause in pauses(FIRST_LOOK, LONGEST_LOOK):
            try:
                await self._follow_maintenances(group)
            except NotFound:
                self._absent(group)
            await asyncio.sleep(pause)

    async def _follow_maintenances(self, group: Group) -> None:
        listed, witness = False, Counted("nodemaintenances")
        async with aclosing(follow(self._api, group.path, keep=m.trimmed, witness=witness)) as changes:
            async for change in changes:
                if change.kind == "SYNCED":
                    listed = True
                    self._unlisted.discard(group.api_version)
                    continue
                item = {**change.object, "apiVersion": group.api_version}
                self._update(item, gone=change.kind == "DELETED", seen_before=not listed)

    def _absent(self, group: Group) -> None:
        """Remove all objects of a group whose CRD is not installed or was deleted."""
        self._unlisted.discard(group.api_version)
        for node in list(self._nodes.values()):
            for item in list(node.maintenances.values()):
                if m.group(item) is group:
                    self._update(item, gone=True)

    def _update(self, item: Object, *, gone: bool, seen_before: bool = False) -> None:
        """Watch a node while one of its maintenances is active, and no longer.

        `seen_before` means that the maintenance existed before this process started. If it has begun, changes may have
        been missed, so that hints are due at once. If a maintenance begins later, a pass is about to start anyway.
        """
        name, key = m.node_name(item), item["metadata"]["uid"]
        if not gone and not m.is_deleting(item) and m.phase(item) not in (m.SUCCEEDED, m.FAILED):
            node = self._nodes.setdefault(name, DrainingNode(name))
            had_begun = node.has_begun()
            differs = node.maintain(item)
            node.task = node.task or self._tasks.start(self._pods(node))
            if node.has_begun() and not had_begun:
                self._begin(node, seen_before)
            elif differs:
                self._openings.node_changed(node)
                self._wake.set()
        elif name in self._nodes:
            node = self._nodes[name]
            node.maintenances.pop(key, None)
            if not node.maintenances:
                self._drop(node, but=(events.PODS_CAME,) if not gone and m.phase(item) == m.SUCCEEDED else ())
        NODES.set(len(self._nodes))
        self._watch_budgets()

    def _begin(self, node: DrainingNode, seen_before: bool) -> None:
        if not seen_before:
            self._openings.pass_begins(node, self._clock())
        self._openings.node_changed(node)
        self._wake.set()

    def _drop(self, node: DrainingNode, but: tuple[str, ...]) -> None:
        """Stop watching the node, and drop its hints except those of the types in `but`.

        `pods.came` must still be sent for pods that arrived just before the status reported that none is left.
        """
        del self._nodes[node.name]
        self._openings.forget(node)
        self._sender.discard(node.name, but)
        if node.task:
            node.task.cancel()

    async def _pods(self, node: DrainingNode) -> None:
        path, fields = pods_on(node.name)
        stream = follow(self._api, path, fields=fields, streamed=True, keep=trimmed_pod, witness=Counted("pods"))
        async with aclosing(stream) as changes:
            async for change in changes:
                node.version = version = str(change.object["metadata"]["resourceVersion"])
                if change.kind == "SYNCED":
                    self._sync(node, version)
                elif change.kind == "DELETED":
                    self._remove(node, change.object, version)
                else:
                    self._put(node, change.object)
                self._wake.set()

    def _sync(self, node: DrainingNode, version: str) -> None:
        node.synced = True
        self._openings.node_changed(node)
        if node.has_begun():  # pods may have gone before this watch started
            self._emit_gone(node, version)

    def _put(self, node: DrainingNode, pod: Pod) -> None:
        before = node.put(pod)
        if is_terminating(pod) and before is not None and not is_terminating(before):
            self._openings.pod_acted(node, pod, self._clock())
        if before is not None:
            self._openings.pod_freed(node, before, pod)
        elif node.is_ours and not is_terminating(pod) and node.told_apart([pod]).leaving:
            self._emit(node, events.PODS_CAME, str(pod["metadata"]["resourceVersion"]), "more")
        for state in (pod,) if before is None else (before, pod):  # its labels may have changed
            self._openings.pod_changed(node, state)

    def _remove(self, node: DrainingNode, pod: Pod, version: str) -> None:
        before = node.drop(pod)
        if before is not None and not is_terminating(before):  # deleted without a grace period
            self._openings.pod_acted(node, pod, self._clock())
        self._openings.pod_left(node, pod)
        self._openings.pod_changed(node, pod)
        found, empty = node.told_apart([pod]), not node.leaving()
        if empty:
            self._openings.node_changed(node)
        if found.leaving or (found.daemons and empty and node.has_begun()):
            self._emit_gone(node, version)

    def _emit_gone(self, node: DrainingNode, version: str) -> None:
        """Emit `pods.gone`: at once for the last pod, otherwise coalesced with those of other pods.

        While all remaining pods are terminating, it concerns only the status. DaemonSet pods count if no other pod is
        left: the pod may have been the last one whose DaemonSet is deleted (NMO-7).
        """
        found = node.told_apart()
        pending, going = found.leaving, node.going(found)
        flag = "progress" if going and all(map(is_terminating, going)) else "more"
        if not pending:
            self._openings.pass_begins(node, self._clock())
        self._emit(node, events.PODS_GONE, version, flag, urgent=not pending)

    def _emit(self, node: DrainingNode, kind: str, version: str, flag: str, *, urgent: bool = False) -> None:
        for reference in node.references():
            self._sender.enqueue(kind, reference, node.name, {"podsVersion": version}, urgent=urgent, flags=(flag,))

    def _watch_budgets(self) -> None:
        """Watch budgets exactly while a drain is running."""
        if self._nodes and self._budget_task is None:
            self._budget_task = self._tasks.start(self._follow_budgets())
        elif not self._nodes and self._budget_task is not None:
            self._budget_task.cancel()
            self._budget_task = None
            self._openings.clear()

    async def _follow_budgets(self) -> None:
        witness = Relisted("poddisruptionbudgets", self._relisted)
        stream = follow(self._api, BUDGETS, streamed=True, keep=trimmed_budget, witness=witness)
        async with aclosing(stream) as changes:
            async for change in changes:
                if change.kind == "SYNCED":
                    continue
                if change.kind == "DELETED":
                    self._openings.drop(change.object)
                else:
                    self._openings.put(change.object)
                self._wake.set()

    def _relisted(self) -> None:
        self._openings.listed()
        self._wake.set()

    async def _tell(self) -> None:
        """Emit the hints that are due; then sleep until the next is due or something changes."""
        while True:
            self._wake.clear()
            now = self._clock()
            for told in self._openings.take(now):
                self._emit_opened(told)
            rest = self._openings.next(now) - now
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), None if math.isinf(rest) else rest)

    def _emit_opened(self, told: Told) -> None:
        """Emit `budget.opened` to a node with a pod that this budget admits.

        A first hint includes the version of the pods. `evict` can therefore skip the hint if a pass has read budgets
        and pods at least as new. A repeated hint leaves the version out, so that it always causes a pass.
        """
        node, data = self._nodes[told.node], {"budget": told.budget, "budgetsVersion": str(self._openings.version)}
        if not told.again:
            data["podsVersion"] = node.version
        for reference in node.references():
            kind = events.BUDGET_OPENED
            self._sender.enqueue(kind, reference, told.node, data, urgent=True, again=told.again)
