"""Emits `pods.gone` and `pods.added` for pods on nodes under maintenance, and `budget.opened` for their PDBs.

PodSource is the only long-running component, and it is stateless. It watches NodeMaintenances, and the pods on nodes
that are being drained. While there is such a node, it also watches PodDisruptionBudgets (PDBs). In an idle cluster, it
has only three idle watches.

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
from eventing.podsource.budget_tracker import BudgetTracker
from eventing.podsource.draining_node import DrainingNode
from eventing.podsource.hint_scheduler import DueHint
from eventing.podsource.metrics import DRAINING_NODES, RelistObserver, WatchMetricsObserver
from eventing.podsource.sender import HintSender
from eventing.task_supervisor import TaskSupervisor
from kube.backoff import generate_delays
from kube.budgets import BUDGETS_PATH
from kube.client.api import Api
from kube.client.api_errors import NotFound
from kube.client.list_watch import follow
from kube.maintenance import objects as m
from kube.maintenance.groups import GROUPS, ApiGroup
from kube.paths import Object, build_pods_on_node_query
from kube.pods import Pod, is_terminating
from kube.trimming import trim_budget, trim_pod

EMITTED_TYPES = (events.PODS_GONE, events.PODS_ADDED, events.BUDGET_OPENED)
MIN_CRD_RETRY_SECONDS, MAX_CRD_RETRY_SECONDS = 2.0, 60.0
"""Initial and maximum seconds between checks for a NodeMaintenance CRD that is not installed; each delay doubles.

From the installation of the CRD until the next check, only `resync` handles its objects.
"""


class PodSource:
    """Watches the cluster through `api`, whose connections must be unlimited (see `start`), and emits through `sender`.

    `tasks` runs the watches. A node does not refer to its own watch: the traceback of a cancelled watch refers to the
    node, so both would stay in memory until a full garbage collection.
    """

    def __init__(
        self, api: Api, sender: HintSender, tasks: TaskSupervisor, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._api, self._sender, self._tasks, self._clock = api, sender, tasks, clock
        self._nodes: dict[str, DrainingNode] = {}
        self._pod_watches: dict[str, asyncio.Task[None]] = {}
        self._budget_tracker = BudgetTracker(self._nodes)
        self._budget_task: asyncio.Task[None] | None = None
        self._unsynced = set(GROUPS)
        self._wakeup = asyncio.Event()

    @property
    def is_ready(self) -> bool:
        """Return whether all NodeMaintenances that existed when PodSource started are known."""
        return not self._unsynced

    def start(self) -> None:
        """Start the watches and the task that emits hints.

        Each node under maintenance has its own watch and connection. The load therefore grows with the number of these
        nodes. With a single watch of all pods, the load would grow with the size of the cluster.
        """
        for group in GROUPS.values():
            self._tasks.start(self._watch_maintenances(group))
        self._tasks.start(self._emit_due_hints())

    async def _watch_maintenances(self, group: ApiGroup) -> None:
        for pause in generate_delays(MIN_CRD_RETRY_SECONDS, MAX_CRD_RETRY_SECONDS):
            try:
                await self._follow_maintenances(group)
            except NotFound:
                self._handle_absent_crd(group)
            await asyncio.sleep(pause)

    async def _follow_maintenances(self, group: ApiGroup) -> None:
        observer = WatchMetricsObserver("nodemaintenances")
        async with aclosing(follow(self._api, group.path, transform=m.trim_maintenance, observer=observer)) as changes:
            async for change in changes:
                if change.change_type == "SYNCED":
                    self._unsynced.discard(group.api_version)
                    continue
                maintenance = {**change.object, "apiVersion": group.api_version}
                is_gone = change.change_type == "DELETED"
                self._update_maintenance(maintenance, is_gone=is_gone)

    def _handle_absent_crd(self, group: ApiGroup) -> None:
        """Remove all NodeMaintenances of an API group whose CRD is not installed or was deleted."""
        self._unsynced.discard(group.api_version)
        for node in list(self._nodes.values()):
            for maintenance in list(node.maintenances.values()):
                if m.get_group(maintenance) is group:
                    self._update_maintenance(maintenance, is_gone=True)

    def _update_maintenance(self, maintenance: Object, *, is_gone: bool) -> None:
        """Update a NodeMaintenance; watch its node's pods as long as one of the node's maintenances is draining."""
        name, key = m.get_node_name(maintenance), maintenance["metadata"]["uid"]
        if not is_gone and not m.is_deleting(maintenance) and m.get_phase(maintenance) not in (m.SUCCEEDED, m.FAILED):
            if name not in self._nodes:
                self._nodes[name] = DrainingNode(name)
                self._pod_watches[name] = self._tasks.start(self._watch_pods(self._nodes[name]))
            node = self._nodes[name]
            had_begun = node.has_begun()
            options_changed = node.update_maintenance(maintenance)
            if options_changed or node.has_begun() is not had_begun:
                self._budget_tracker.mark_node_changed(node)
                self._wakeup.set()
        elif name in self._nodes:
            node = self._nodes[name]
            node.maintenances.pop(key, None)
            if not node.maintenances:
                self._drop_node(
                    node,
                    keep_types=(events.PODS_ADDED,) if not is_gone and m.get_phase(maintenance) == m.SUCCEEDED else (),
                )
        DRAINING_NODES.set(len(self._nodes))
        self._toggle_budget_watch()

    def _drop_node(self, node: DrainingNode, keep_types: tuple[str, ...]) -> None:
        """Stop watching the node's pods, and drop its hints except for those of `keep_types`.

        `pods.added` must still be sent for pods that arrived just before the status reported that no pod is left.
        """
        del self._nodes[node.name]
        self._pod_watches.pop(node.name).cancel()
        self._budget_tracker.drop_node(node)
        self._sender.discard_hints(node.name, keep_types)

    async def _watch_pods(self, node: DrainingNode) -> None:
        path, fields = build_pods_on_node_query(node.name)
        stream = follow(
            self._api,
            path,
            field_selector=fields,
            use_streaming_list=True,
            transform=trim_pod,
            observer=WatchMetricsObserver("pods"),
        )
        async with aclosing(stream) as changes:
            async for change in changes:
                node.pods_version = version = str(change.object["metadata"]["resourceVersion"])
                if change.change_type == "SYNCED":
                    self._mark_synced(node, version)
                elif change.change_type == "DELETED":
                    self._remove_pod(node, change.object, version)
                else:
                    self._update_pod(node, change.object)
                self._wakeup.set()

    def _mark_synced(self, node: DrainingNode, version: str) -> None:
        node.is_synced = True
        self._budget_tracker.mark_node_changed(node)
        if node.has_begun():  # pods may have left before this watch started
            self._emit_pods_gone(node, version)

    def _update_pod(self, node: DrainingNode, pod: Pod) -> None:
        before = node.update_pod(pod)
        if is_terminating(pod) and before is not None and not is_terminating(before):
            self._budget_tracker.record_eviction(node, pod, self._clock())
        if before is not None:
            self._budget_tracker.request_hint_if_uncovered(node, before, pod)
        elif node.may_evict and not is_terminating(pod) and node.classify_pods([pod]).leaving:
            self._emit_pods_event(node, events.PODS_ADDED, str(pod["metadata"]["resourceVersion"]), "more")
        for state in (pod,) if before is None else (before, pod):  # the pod's labels may have changed
            self._budget_tracker.mark_pod_changed(node, state)

    def _remove_pod(self, node: DrainingNode, pod: Pod, version: str) -> None:
        before = node.remove_pod(pod)
        if before is not None and not is_terminating(before):  # the pod was deleted without a grace period
            self._budget_tracker.record_eviction(node, pod, self._clock())
        self._budget_tracker.record_pod_gone(node, pod)
        self._budget_tracker.mark_pod_changed(node, pod)
        classification, is_last = node.classify_pods([pod]), not node.list_leaving_pods()
        if is_last:
            self._budget_tracker.mark_node_changed(node)
        if classification.leaving or (classification.daemonset_pods and is_last and node.has_begun()):
            self._emit_pods_gone(node, version)

    def _emit_pods_gone(self, node: DrainingNode, version: str) -> None:
        """Emit `pods.gone`: immediately for the last pod, otherwise coalesced with the events for other pods.

        If every pod that may be evicted is terminating, only `status` needs the event. The event is also emitted if
        only DaemonSet pods are left, because the last pod of a deleted DaemonSet may have left (NMO-7).
        """
        classification = node.classify_pods()
        leaving, evictable = classification.leaving, node.list_evictable_pods(classification)
        flag = "progress" if evictable and all(map(is_terminating, evictable)) else "more"
        self._emit_pods_event(node, events.PODS_GONE, version, flag, urgent=not leaving)

    def _emit_pods_event(
        self, node: DrainingNode, event_type: str, version: str, flag: str, *, urgent: bool = False
    ) -> None:
        for reference in node.list_references():
            self._sender.enqueue(
                event_type, reference, node.name, {"podsVersion": version}, urgent=urgent, flags=(flag,)
            )

    def _toggle_budget_watch(self) -> None:
        """Start or stop the watch of PodDisruptionBudgets, which runs only during drains."""
        if self._nodes and self._budget_task is None:
            self._budget_task = self._tasks.start(self._follow_budgets())
        elif not self._nodes and self._budget_task is not None:
            self._budget_task.cancel()
            self._budget_task = None
            self._budget_tracker.clear()

    async def _follow_budgets(self) -> None:
        observer = RelistObserver("poddisruptionbudgets", self._handle_relist)
        stream = follow(self._api, BUDGETS_PATH, use_streaming_list=True, transform=trim_budget, observer=observer)
        async with aclosing(stream) as changes:
            async for change in changes:
                if change.change_type == "SYNCED":
                    continue
                if change.change_type == "DELETED":
                    self._budget_tracker.remove_budget(change.object)
                else:
                    self._budget_tracker.update_budget(change.object)
                self._wakeup.set()

    def _handle_relist(self) -> None:
        self._budget_tracker.mark_budgets_listed()
        self._wakeup.set()

    async def _emit_due_hints(self) -> None:
        """Emit the hints that are due; then wait until the next hint is due or the cluster changes."""
        while True:
            self._wakeup.clear()
            now = self._clock()
            for hint in self._budget_tracker.take_due_hints(now):
                self._emit_budget_opened(hint)
            seconds = self._budget_tracker.get_next_due_time(now) - now
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wakeup.wait(), None if math.isinf(seconds) else seconds)

    def _emit_budget_opened(self, hint: DueHint) -> None:
        """Emit `budget.opened` for a node with a pod that this PodDisruptionBudget (PDB) admits.

        A first hint includes the pods' version. `evict` can therefore skip it if a pass has already read PDBs and pods
        that are at least as new. A repeated hint omits that version, so that it always causes a pass.
        """
        node = self._nodes[hint.node]
        data = {"budget": hint.budget, "budgetsVersion": str(self._budget_tracker.latest_version)}
        if not hint.repeats:
            data["podsVersion"] = node.pods_version
        for reference in node.list_references():
            event_type = events.BUDGET_OPENED
            self._sender.enqueue(event_type, reference, hint.node, data, urgent=True, repeats=hint.repeats)
