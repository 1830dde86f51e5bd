"""Previews what a drain does to the pods and virtual machines on a node, by the same rules as the functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime, timezone
from typing import Any, NamedTuple

from kube.budgets import BlockedPod
from kube.client.api import Api
from kube.client.api_errors import ApiError
from kube.evictions.executor import list_covering_budgets
from kube.evictions.planner import plan_evictions
from kube.maintenance import drain_flags
from kube.maintenance.groups import ApiGroup
from kube.maintenance.lookup import find_orphan_uids, list_pods_on_node
from kube.paths import Object
from kube.pods import (
    DrainOptions,
    Pod,
    PodClassification,
    build_name_reference,
    format_key,
    get_uid,
    is_mirror_pod,
    is_terminating,
)
from kube.virtualization import drain_forecast
from kube.virtualization.lookup import are_vmis_served, read_vmi_snapshot
from kube.virtualization.vmis import Resource

STATIC_POD_REASON, DAEMON_SET_REASON = "static pod", "pod of a DaemonSet"
"""Reasons why a pod stays regardless of the flags."""
DELETION_WARNING = (
    'pods are deleted regardless of their budgets if the component "deleting" is installed; otherwise they stay'
)


class NodeVmis(NamedTuple):
    """The reports on a node's virtual machines (`kube.virtualization.drain_forecast`), or why they could not be read.

    Attributes:
        kubevirt: The KubeVirt object, if that KubeVirt migrates the virtual machines itself.
    """

    reports: list[Object]
    error: str = ""
    kubevirt: Resource | None = None

    def list_warnings(self, group: ApiGroup) -> list[str]:
        """Return warnings about the virtual machines, to show before a maintenance in this API group is created."""
        return [*self.list_problems(group), *drain_forecast.build_warnings(self.reports)]

    def list_problems(self, group: ApiGroup) -> list[str]:
        """Return the failed read, and a taint in this API group that keeps KubeVirt from migrating, if any."""
        mismatch = drain_forecast.explain_taint_mismatch(self.kubevirt, self.reports, group.drain_taint)
        return list(filter(None, (self.error, mismatch)))

    def exclude(self, vmis: Collection[tuple[str, str]]) -> NodeVmis:
        """Return a copy without these virtual machines, given as (namespace, name)."""
        reports = [report for report in self.reports if (report["namespace"], report["name"]) not in vmis]
        return self._replace(reports=reports)

    def describe_moves(self, group: ApiGroup) -> str:
        """Return a line about the virtual machines that will migrate without downtime, or "" if there are none."""
        mismatch = drain_forecast.explain_taint_mismatch(self.kubevirt, self.reports, group.drain_taint)
        return "" if mismatch else drain_forecast.describe_moves(self.reports)


async def read_vmis(api: Api, node: str) -> NodeVmis:
    """Return the virtual machines on a node; on a cluster without KubeVirt, this takes one request.

    A failed read becomes `error` in the result, so that the caller can continue.
    """
    try:
        if not await are_vmis_served(api):
            return NodeVmis([])
        snapshot = await read_vmi_snapshot(api, node)
    except ApiError as error:
        return NodeVmis([], f'cannot read the virtual machines of node "{node}": {error.message}')
    return NodeVmis(drain_forecast.build_vmi_reports(snapshot), kubevirt=snapshot.kubevirt)


class DrainPreview(NamedTuple):
    """The preview of a drain: what happens to each pod on the node.

    Attributes:
        evictable: Pods that leave, unless earlier evictions use up their budget.
        blocked: Pods that a budget blocks for now, or that a flag excludes permanently.
        terminating: Terminating pods, which the drain waits for.
        ignored: Pods that the drain ignores, each with the reason.
        uses_deletion: Whether the drain deletes pods, which bypasses disruption budgets.
        selects_none: Whether a pod selector is set but no pod would leave.
        remaining_vms: Virtual machines, by namespace and name, whose virt-launcher pods stay.
        errors: One sentence for each failed read.
    """

    evictable: list[Pod]
    blocked: list[BlockedPod]
    terminating: list[Pod]
    ignored: list[tuple[Pod, str]]
    uses_deletion: bool = False
    selects_none: bool = False
    remaining_vms: Collection[tuple[str, str]] = ()
    errors: tuple[str, ...] = ()

    def format_lines(self) -> Iterator[str]:
        """Yield one line for each pod."""
        for pod in self.evictable:
            yield f"would {'delete' if self.uses_deletion else 'evict'} pod {format_key(pod)}"
        for blocked_pod in self.blocked:
            yield f"would not evict pod {blocked_pod.key} now: {blocked_pod.message}"
        for pod in self.terminating:
            yield f"would wait for pod {format_key(pod)}, which is terminating"
        for pod, reason in self.ignored:
            yield f"would ignore pod {format_key(pod)}: {reason}"

    def as_data(self) -> dict[str, Any]:
        """Return the preview as JSON data, with the field names that `drain -o json` and the status use."""
        return {
            "evicted": [build_name_reference(pod) for pod in self.evictable],
            "blockedPods": [blocked_pod.as_data() for blocked_pod in self.blocked],
            "ending": [build_name_reference(pod) for pod in self.terminating],
            "ignored": [{**build_name_reference(pod), "reason": reason} for pod, reason in self.ignored],
            **({"podsUnknown": "; ".join(self.errors)} if self.errors else {}),
        }


async def preview_drain(api: Api, node: str, options: DrainOptions, vmi_reports: Iterable[Object]) -> DrainPreview:
    """Preview a drain of the node's pods with these options.

    The preview omits a virt-launcher pod that leaves if its VMI is in `vmi_reports`, because the caller reports these
    VMIs separately. A failed read adds a sentence to `errors`; the preview continues without that data.
    """
    try:
        pods = sorted((await list_pods_on_node(api, node)).items, key=format_key)
    except ApiError as error:
        return DrainPreview([], [], [], [], errors=(f'cannot list the pods of node "{node}": {error.message}',))
    orphaned, errors = await try_find_orphan_uids(api, pods)
    now = datetime.now(timezone.utc)
    classification = drain_flags.classify_for_drain(pods, options, now, orphaned)
    evictable = {get_uid(pod): pod for pod in drain_flags.select_evictable_pods(classification, options)}
    vmis_by_uid = map_launcher_pods(pods, vmi_reports)
    preview = await preview_pods(api, [evictable[uid] for uid in evictable if uid not in vmis_by_uid], options)
    return preview._replace(
        blocked=sorted(
            [*preview.blocked, *drain_flags.find_pods_blocked_by_flags(classification, options)],
            key=lambda blocked_pod: (blocked_pod.pod["namespace"], blocked_pod.pod["name"]),
        ),
        ignored=explain_ignored_pods(pods, classification, options, now),
        selects_none=bool(options.pod_selector) and not classification.leaving,
        remaining_vms={vmi for uid, vmi in vmis_by_uid.items() if uid not in evictable},
        errors=(*errors, *preview.errors),
    )


async def preview_pods(api: Api, leaving_pods: Iterable[Pod], options: DrainOptions) -> DrainPreview:
    """Preview the eviction of these pods: each pod leaves, is already terminating, or is blocked by a budget."""
    errors: tuple[str, ...] = ()
    ordered = sorted(leaving_pods, key=format_key)
    running = [pod for pod in ordered if not is_terminating(pod)]
    try:
        budgets = [] if options.disable_eviction else (await list_covering_budgets(api, running)).items
    except ApiError as error:
        budgets, errors = [], (f"cannot list disruption budgets, so the preview ignores them: {error.message}",)
    blocked = plan_evictions(running, budgets, options).blocked
    blocked_uids = {blocked_pod.pod["uid"] for blocked_pod in blocked}
    return DrainPreview(
        evictable=[pod for pod in running if get_uid(pod) not in blocked_uids],
        blocked=blocked,
        terminating=[pod for pod in ordered if is_terminating(pod)],
        ignored=[],
        uses_deletion=options.disable_eviction,
        errors=errors,
    )


async def try_find_orphan_uids(api: Api, pods: Iterable[Pod]) -> tuple[Collection[str], tuple[str, ...]]:
    """Return the uids of pods whose DaemonSet no longer exists, and the errors of failed reads of DaemonSets."""
    try:
        return await find_orphan_uids(api, pods), ()
    except ApiError as error:
        return (), (f"cannot read DaemonSets, so the preview assumes that all of them exist: {error.message}",)


def map_launcher_pods(pods: Iterable[Pod], vmi_reports: Iterable[Object]) -> dict[str, tuple[str, str]]:
    """Return pod uid → virtual machine for the virt-launcher pods of the reported virtual machines."""
    reported_keys = {(report["namespace"], report["name"]) for report in vmi_reports}
    key_by_uid = {get_uid(pod): drain_forecast.get_launched_vmi_key(pod) for pod in pods}
    return {uid: key for uid, key in key_by_uid.items() if key in reported_keys}


def explain_ignored_pods(
    pods: Iterable[Pod], classification: PodClassification, options: DrainOptions, now: datetime
) -> list[tuple[Pod, str]]:
    """Return the pods that do not leave, each with the reason."""
    leaving_uids = {get_uid(pod) for pod in classification.leaving}
    ignored = [pod for pod in pods if get_uid(pod) not in leaving_uids]
    reasons = (
        STATIC_POD_REASON
        if is_mirror_pod(pod)
        else drain_flags.get_exclusion_reason(pod, options, now) or DAEMON_SET_REASON
        for pod in ignored
    )
    return list(zip(ignored, reasons, strict=True))
