"""Drains a node without a NodeMaintenance: evicts pods, and watches the pods and PodDisruptionBudgets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import aclosing

from console.operations.errors import OperationError
from console.operations.maintenance_actions import get_node_or_refuse
from console.operations.maintenance_preview import MaintenancePreview, preview_maintenance
from console.operations.node_vmis import return_no_vmis
from kube.budgets import BUDGETS_PATH, BlockedPod, Budget, covers, format_budget_key
from kube.client.api import JSON_PATCH, Api
from kube.client.list_watch import Change, follow, merge_streams
from kube.evictions.executor import execute_eviction_plan
from kube.evictions.planner import plan_evictions
from kube.evictions.tracker import EvictionTracker
from kube.maintenance.blocked_pods import format_summary
from kube.maintenance.drain_flags import DAEMON_SET_REASON
from kube.maintenance.groups import MEDIK8S
from kube.maintenance.lookup import find_orphan_uids
from kube.nodes import build_cordon_patch, build_node_path
from kube.paths import build_pods_on_node_query
from kube.pods import DrainOptions, Pod, PodClassification, classify_pods, format_key, get_uid
from kube.text_limits import format_count
from kube.virtualization.virt_launcher_budgets import is_own_budget
from kube.virtualization.vmis import has_drain_taint

PERMANENT_REFUSALS = ("Forbidden", "MultipleBudgets")
"""Reasons of refused evictions that cannot succeed later, for which kubectl drain also exits with an error."""
MIGRATION_REMEDY = (
    "this command cannot migrate virtual machines, because the cluster has no KubeVirt that migrates them: "
    "run kubectl maintenance start {node}, which does, or shut them down"
)
RETRY_SECONDS = 5.0
"""Retry delay, as in kubectl, after a refusal that no watched PodDisruptionBudget explains.

After such a refusal, no watch event may follow that would trigger the next pass.
"""
IN_FLIGHT_RETRY_SECONDS = 1.0
"""Delay before the next pass while an eviction is in flight, because its refusal would cause no watch event."""


async def cordon_node(api: Api, node: str) -> bool:
    """Make the node unschedulable; return False if the node was already unschedulable."""
    patch = build_cordon_patch(await get_node_or_refuse(api, node))
    if patch:
        await api.patch(build_node_path(node), patch, JSON_PATCH)
    return bool(patch)


async def classify_node_pods(api: Api, node: str, options: DrainOptions) -> PodClassification:
    """List and classify the node's pods by the drain options. Raises `Rejected` if the pod selector is invalid."""
    path, fields = build_pods_on_node_query(node)
    pods = (await api.list(path, field_selector=fields, label_selector=options.pod_selector))["items"]
    return classify_pods(pods, options, await find_orphan_uids(api, pods))


async def preview_node_drain(api: Api, node: str, options: DrainOptions) -> MaintenancePreview:
    """Preview a drain of the node with these drain options, which must permit the eviction of all pods to evict.

    Like kubectl, the preview omits static pods and pods that do not match the pod selector. It treats virt-launcher
    pods like all other pods, because no function migrates their virtual machines. Raises the same errors as
    `read_snapshot`.
    """
    preview = await preview_maintenance(
        api, [node], options, MEDIK8S, read_node_vmis=return_no_vmis, reads_other_nodes=False
    )
    ignored = [(pod, reason) for pod, reason in preview.ignored if reason == DAEMON_SET_REASON]
    return preview._replace(ignored=ignored)


class NodeDrain:
    """A drain of one node, which evicts exactly `leaving_pods` as their PodDisruptionBudgets allow.

    `leaving_pods` come from `classify_node_pods`. `report` prints a line for the user.
    """

    def __init__(
        self, api: Api, node: str, selector: str, leaving_pods: Iterable[Pod], report: Callable[[str], None]
    ) -> None:
        self._api, self._node = api, node
        self._report = report
        path, fields = build_pods_on_node_query(node)
        self._streams = (follow(api, path, field_selector=fields, label_selector=selector), follow(api, BUDGETS_PATH))
        self._remaining: dict[str, Pod] = {get_uid(pod): pod for pod in leaving_pods}
        self._seen_uids: set[str] = set()
        self._budgets: dict[str, Budget] = {}
        self._unsynced = {0, 1}
        self._evicted_uids: set[str] = set()
        self._blocked: dict[str, BlockedPod] = {}
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Evict the pods and wait until all of them are gone. Raises `OperationError` if pods cannot be evicted."""
        watching = asyncio.create_task(self._watch_pods_and_budgets())
        try:
            await self._wait_for_change(watching, None)
            while self._remaining:
                next_pass_delay = await self._run_pass()
                await self._raise_if_permanently_refused()
                await self._wait_for_change(watching, next_pass_delay)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    def describe_remaining_pods(self) -> str:
        """Return one line with the number of remaining pods, and why they are blocked, or else their names."""
        names = sorted(format_key(pod) for pod in self._remaining.values())
        blocked = format_summary(self._blocked[uid] for uid in self._remaining if uid in self._blocked)
        return f"{format_count(len(names), 'pod')} left: {blocked or ', '.join(names[:5])}"

    async def _wait_for_change(self, watch_task: asyncio.Task[None], timeout: float | None) -> None:
        """Wait for the next watch event, for at most `timeout` seconds. Raises the error that ended the watch."""
        change = asyncio.ensure_future(self._changed.wait())
        await asyncio.wait({change, watch_task}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        change.cancel()
        if watch_task.done():
            watch_task.result()
        self._changed.clear()

    async def _run_pass(self) -> float | None:
        """Evict the pods that the PodDisruptionBudgets allow now, and return the delay in seconds before the next pass.

        The delay is None if only a change of a pod or budget can allow more evictions.
        """
        waiting = [pod for uid, pod in self._remaining.items() if uid not in self._evicted_uids]
        plan = plan_evictions(waiting, self._budgets.values())
        for pod in plan.admitted:
            if not EvictionTracker.for_client(self._api).has_sent_eviction(pod):
                self._report(f"evicting pod {format_key(pod)}")
        outcome = await execute_eviction_plan(self._api, plan)
        self._evicted_uids.update(pod["uid"] for pod in (*outcome.evicted, *outcome.already_gone))
        self._report_blocked(outcome.blocked)
        if outcome.deferred:
            return 0.0
        if outcome.in_flight:
            return IN_FLIGHT_RETRY_SECONDS
        return RETRY_SECONDS if len(outcome.blocked) > len(plan.blocked) else None

    def _report_blocked(self, blocked: Iterable[BlockedPod]) -> None:
        previous, self._blocked = self._blocked, {blocked_pod.pod["uid"]: blocked_pod for blocked_pod in blocked}
        for uid, blocked_pod in self._blocked.items():
            if uid not in previous or previous[uid].message != blocked_pod.message:
                self._report(f"waiting to evict pod {blocked_pod.key}: {blocked_pod.message}")

    async def _raise_if_permanently_refused(self) -> None:
        """Raise `OperationError` if none of the remaining pods can be evicted later."""
        refused = {uid for uid, item in self._blocked.items() if item.reason in PERMANENT_REFUSALS}
        launchers = {uid for uid in self._blocked.keys() - refused if self._awaits_migration(self._remaining.get(uid))}
        if not self._remaining or not self._remaining.keys() <= refused | launchers:
            return
        if launchers and has_drain_taint(await self._api.get(build_node_path(self._node))):
            return
        summary = f"cannot evict these pods: {format_summary(self._blocked.values())}"
        remedy = MIGRATION_REMEDY.format(node=self._node) if launchers else ""
        raise OperationError(summary, remedy)

    def _awaits_migration(self, pod: Pod | None) -> bool:
        """Return whether a budget of the step `protect` blocks the pod until its virtual machine has migrated.

        The step creates such a budget only if KubeVirt does not. The virtual machine migrates only if the node has a
        drain taint.
        """
        return pod is not None and any(
            is_own_budget(budget) and covers(budget, pod) for budget in self._budgets.values()
        )

    async def _watch_pods_and_budgets(self) -> None:
        async with aclosing(merge_streams(*self._streams)) as changes:
            async for stream_index, change in changes:
                if change.change_type == "SYNCED":
                    self._handle_initial_list_end(stream_index)
                elif stream_index == 0:
                    self._handle_pod_change(change)
                else:
                    self._handle_budget_change(change)
                if not self._unsynced:
                    self._changed.set()

    def _handle_initial_list_end(self, stream_index: int) -> None:
        """Handle the end of an initial list: remove the pods that it does not contain, which are already gone."""
        self._unsynced.discard(stream_index)
        if stream_index == 0:
            for uid in self._remaining.keys() - self._seen_uids:
                self._remove_pod(uid)

    def _handle_pod_change(self, change: Change) -> None:
        uid = get_uid(change.object)
        self._seen_uids.add(uid)
        if uid not in self._remaining:
            return
        if change.change_type == "DELETED":
            self._remove_pod(uid)
        else:
            self._remaining[uid] = change.object

    def _remove_pod(self, pod_uid: str) -> None:
        self._report(f"pod {format_key(self._remaining.pop(pod_uid))} is gone")

    def _handle_budget_change(self, change: Change) -> None:
        if change.change_type == "DELETED":
            self._budgets.pop(format_budget_key(change.object), None)
        else:
            self._budgets[format_budget_key(change.object)] = change.object
