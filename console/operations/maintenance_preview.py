"""Previews a maintenance of one or several nodes together, without changing any object (DRN-1a, OSV-2, OSV-3).

The preview applies the functions' own rules for drain options, PodDisruptionBudgets and virtual machines. In addition,
it checks whether the other nodes have capacity for the displaced pods, and estimates the duration.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple

from console.operations.install_problems import NO_NODE_REMEDY
from console.operations.preview_snapshot import ClusterSnapshot, ReadNodeVmis, read_snapshot
from console.operations.recorded_drains import RecordedDrain, RecordedEstimate, estimate_from_drains
from kube.budgets import PROGRESSING_REASONS, BlockedPod
from kube.capacity import FITS, NOWHERE, UNKNOWN, Placement, place_pods
from kube.client.api import Api
from kube.evictions.forecast import (
    BLOCKING_EFFECTS,
    DurationEstimate,
    EvictionForecast,
    estimate_duration,
    forecast_evictions,
)
from kube.maintenance import drain_flags
from kube.maintenance.blocked_groups import BlockedGroup, group_blocked_pods
from kube.maintenance.blocked_pods import build_blocked_pods
from kube.maintenance.groups import ApiGroup
from kube.nodes import NO_SCHEDULE, UNSCHEDULABLE_TAINT, has_maintenance_label, is_cordoned
from kube.paths import Object
from kube.pods import (
    DrainOptions,
    Pod,
    PodClassification,
    build_name_reference,
    format_key,
    get_controller,
    get_node_name,
    get_uid,
    is_daemonset_pod,
    is_finished,
    is_terminating,
    tolerates,
)
from kube.text_limits import format_count, format_first_names
from kube.times import parse_time_or_none
from kube.virtualization import drain_forecast
from kube.virtualization.drain_forecast import BLOCKS, MOVES, RESTARTS

DELETION_WARNING = (
    'pods are deleted regardless of their budgets if the component "deleting" is installed; otherwise they stay'
)
NO_USABLE_NODE_WARNING = (
    f"no other node accepts pods: if the product's pods run on these nodes, the drain will stall; {NO_NODE_REMEDY}"
)
MAX_NAMED_PODS = 3
"""Maximum number of pods that a warning lists, and that an output line without `--verbose` lists."""
MAX_NAMED_NODES = 5
"""Maximum number of nodes that a warning lists."""
RETURNING_EFFECTS = (MOVES, RESTARTS)
"""Effects of a drain after which a virtual machine needs capacity on another node."""


class NodeCounts(NamedTuple):
    """Numbers of a node's pods by their outcome in the drain, and number of its virtual machines."""

    node: str
    cordoned: bool
    evicted: int
    later: int
    blocked: int
    ending: int
    ignored: int
    vms: int


class MaintenancePreview(NamedTuple):
    """The preview of a maintenance of several nodes.

    Attributes:
        cordoned: Whether each node is already cordoned, by node name, in the order of the command line.
        forecast: The pods that can be evicted now and later, and the PodDisruptionBudgets; `blocked` includes its
            blocked pods.
        blocked: The blocked pods, as entries of `status.blockedPods` with the additional field `node`.
        terminating: The pods that are already terminating.
        ignored: The pods that stay on the node, each with the reason.
        losing_data: The pods to evict whose emptyDir data will be lost.
        bare: The pods to evict that no controller recreates.
        vmi_reports: The reports on virtual machines (`kube.virtualization.drain_forecast`).
        migrating_vmis: The reports in `vmi_reports`, except those for nodes whose maintenance taint KubeVirt ignores.
        placements: Whether and where the displaced pods fit; None if the other nodes are unknown.
        duration: The estimated duration from grace periods, for the pods that are not blocked.
        recorded: The estimated duration from recorded drains; None if there are none.
        uses_deletion: Whether pods are deleted instead of evicted, regardless of PodDisruptionBudgets.
    """

    cordoned: Mapping[str, bool]
    forecast: EvictionForecast
    blocked: list[Object]
    terminating: list[Pod]
    ignored: list[tuple[Pod, str]]
    losing_data: list[Pod]
    bare: list[Pod]
    vmi_reports: list[Object]
    migrating_vmis: list[Object]
    placements: list[Placement] | None
    duration: DurationEstimate
    recorded: RecordedEstimate | None
    uses_deletion: bool
    warnings: list[str]

    @property
    def will_block(self) -> bool:
        """Return whether a pod or a virtual machine will block the drain."""
        return bool(self.blocking_groups) or any(report["drain"] == BLOCKS for report in self.vmi_reports)

    @property
    def has_pods(self) -> bool:
        """Return whether the nodes have pods other than virt-launcher pods."""
        return any((self.forecast.now, self.forecast.later, self.blocked, self.terminating, self.ignored))

    @property
    def counts(self) -> list[NodeCounts]:
        """Return the pod counts of each node, in the order of the command line."""
        return [
            NodeCounts(
                node=node,
                cordoned=self.cordoned[node],
                evicted=len(data["evicted"]),
                later=len(data["later"]),
                blocked=len(data["blockedPods"]),
                ending=len(data["ending"]),
                ignored=len(data["ignored"]),
                vms=len(data["virtualMachines"]),
            )
            for node, data in self.split_by_node().items()
        ]

    @property
    def blocked_groups(self) -> list[BlockedGroup]:
        """Return the blocked pods grouped by cause, the largest groups first."""
        return group_blocked_pods(self.blocked)

    @property
    def blocking_groups(self) -> list[BlockedGroup]:
        """Return the blocked pods grouped by cause, except pods that only wait, such as for a running migration."""
        return [group for group in self.blocked_groups if group.reason not in PROGRESSING_REASONS]

    def select_placements(self, verdict: str) -> list[Placement]:
        """Return the placements with this verdict."""
        return [placement for placement in self.placements or [] if placement.verdict == verdict]

    def as_data(self) -> dict[str, Any]:
        """Return the whole preview as JSON data; see also `split_by_node`."""
        return {
            "willBlock": self.will_block,
            "nodes": [counts._asdict() for counts in self.counts],
            **self._build_node_items(),
            "usesDeletion": self.uses_deletion,
            "losingData": list(map(_build_pod_data, self.losing_data)),
            "withoutController": list(map(_build_pod_data, self.bare)),
            "budgets": _build_budgets_data(self.forecast),
            "capacity": self._build_capacity_data(),
            "duration": {
                "seconds": self.duration.seconds,
                "longest": self.duration.reason,
                "recorded": self.recorded._asdict() if self.recorded else None,
            },
            "warnings": self.warnings,
        }

    def split_by_node(self) -> dict[str, dict[str, list[Object]]]:
        """Return the pods and virtual machines of each node, with the field names of `as_data`."""
        items_by_field = self._build_node_items()
        data = {node: {name: list[Object]() for name in items_by_field} for node in self.cordoned}
        for name, items in items_by_field.items():
            for item in items:
                data[item["node"]][name].append(item)
        return data

    def _build_node_items(self) -> dict[str, list[Object]]:
        """Return those fields of the JSON data whose items belong to one node each."""
        return {
            "evicted": list(map(_build_pod_data, self.forecast.now)),
            "later": list(map(_build_pod_data, self.forecast.later)),
            "blockedPods": self.blocked,
            "ending": list(map(_build_pod_data, self.terminating)),
            "ignored": [{**_build_pod_data(pod), "reason": reason} for pod, reason in self.ignored],
            "virtualMachines": self.vmi_reports,
        }

    @property
    def has_several_nodes(self) -> bool:
        """Return whether the preview is about several nodes, so that a pod's name must be shown with its node."""
        return len(self.cordoned) > 1

    def list_pod_names(self, pods: Iterable[Pod]) -> list[str]:
        """Return `namespace/name` of each pod, with its node if the preview is about several nodes."""
        return _list_pod_names(pods, has_several_nodes=self.has_several_nodes)

    def list_blocked_names(self, group: BlockedGroup) -> list[str]:
        """Return the names of the group's pods, as `list_pod_names` does."""
        nodes = {f"{entry['namespace']}/{entry['name']}": entry["node"] for entry in self.blocked}
        return [f"{key} on {nodes[key]}" if self.has_several_nodes else key for key in group.pods]

    def format_pod_lines(self, *, has_headings: bool) -> Iterator[str]:
        """Yield one line per pod, which states what a dry run would do with the pod.

        With headings, the lines are grouped by node, and indented below the node's name.
        """
        lines = list(self._iter_pod_lines())
        if not has_headings:
            yield from (line for _, line in lines)
            return
        for node in self.cordoned:
            yield f"node/{node}:"
            yield from [f"  {line}" for line_node, line in lines if line_node == node] or ["  no pods"]

    def _iter_pod_lines(self) -> Iterator[tuple[str, str]]:
        """Yield the node of each pod, and what a dry run would do with the pod."""
        for pod in self.forecast.now:
            yield get_node_name(pod), f"would {'delete' if self.uses_deletion else 'evict'} pod {format_key(pod)}"
        for pod in self.forecast.later:
            yield get_node_name(pod), f"would evict pod {format_key(pod)} in turn, when its budget allows it again"
        for entry in self.blocked:
            key = f"{entry['namespace']}/{entry['name']}"
            yield entry["node"], f"would not evict pod {key} now: {entry['message']}"
        for pod in self.terminating:
            yield get_node_name(pod), f"would wait for pod {format_key(pod)}, which is terminating"
        for pod, reason in self.ignored:
            yield get_node_name(pod), f"would ignore pod {format_key(pod)}: {reason}"

    def _build_capacity_data(self) -> Object | None:
        """Return the displaced pods as JSON data, by whether they fit on another node; None if that is unknown."""
        if self.placements is None:
            return None
        return {
            verdict: [
                {**_build_pod_data(pod), **({"to": node} if node else {}), **({"reason": reason} if reason else {})}
                for pod, _, node, reason in self.select_placements(verdict)
            ]
            for verdict in (FITS, UNKNOWN, NOWHERE)
        }


def _list_pod_names(pods: Iterable[Pod], *, has_several_nodes: bool) -> list[str]:
    return [f"{format_key(pod)} on {get_node_name(pod)}" if has_several_nodes else format_key(pod) for pod in pods]


def _build_pod_data(pod: Pod) -> Object:
    return {**build_name_reference(pod), "node": get_node_name(pod)}


def _build_budgets_data(forecast: EvictionForecast) -> list[Object]:
    return [
        {
            **build_name_reference(item.budget),
            "effect": item.effect,
            "blocks": item.effect in BLOCKING_EFFECTS,
            "pods": len(item.pods),
            "admittedNow": item.now,
            "rounds": item.rounds,
            "healthy": (item.budget.get("status") or {}).get("currentHealthy", 0),
            "needed": (item.budget.get("status") or {}).get("desiredHealthy", 0),
        }
        for item in forecast.budgets
    ]


async def preview_maintenance(
    api: Api,
    nodes: Sequence[str],
    options: DrainOptions,
    group: ApiGroup,
    *,
    drains: Collection[RecordedDrain] = (),
    read_node_vmis: ReadNodeVmis | None = None,
    reads_other_nodes: bool = True,
) -> MaintenancePreview:
    """Read the cluster, and preview a maintenance of these nodes in this API group.

    The duration is estimated from the recorded `drains`. The other arguments are passed to `read_snapshot`. Raises the
    same errors as `read_snapshot`.
    """
    names = list(dict.fromkeys(nodes))
    snapshot = await read_snapshot(
        api, names, group, read_node_vmis=read_node_vmis, reads_other_nodes=reads_other_nodes
    )
    return build_preview(snapshot, names, options, datetime.now(timezone.utc), drains)


def build_preview(
    snapshot: ClusterSnapshot,
    names: Sequence[str],
    options: DrainOptions,
    now: datetime,
    drains: Collection[RecordedDrain] = (),
) -> MaintenancePreview:
    """Build the preview from the snapshot and the recorded drains; a pure function."""
    classification = drain_flags.classify_for_drain(snapshot.pods, options, now, snapshot.orphan_uids)
    evictable = drain_flags.select_evictable_pods(classification, options)
    vmi_reports, launcher_vmis = _select_vmi_reports(snapshot, evictable)
    displaced = _select_displaced_pods(snapshot, evictable, launcher_vmis)
    leaving = [pod for pod in evictable if get_uid(pod) not in launcher_vmis]
    forecast = _forecast_evictions(snapshot, leaving, options)
    terminating = sorted(filter(is_terminating, leaving), key=format_key)
    return MaintenancePreview(
        cordoned={name: is_cordoned(snapshot.node_objects[name]) for name in names},
        forecast=forecast,
        blocked=_build_blocked_entries(
            snapshot.pods,
            [*drain_flags.find_pods_blocked_by_flags(classification, options), *forecast.blocked],
            build_blocked_pods([], [], terminating, now),
        ),
        terminating=terminating,
        ignored=drain_flags.explain_ignored_pods(snapshot.pods, classification, options, now),
        losing_data=_select_pods_in_forecast(classification.with_local_storage, forecast),
        bare=_select_pods_in_forecast(classification.bare, forecast),
        vmi_reports=vmi_reports,
        migrating_vmis=_select_migrating_vmi_reports(snapshot, vmi_reports),
        placements=None
        if snapshot.nodes is None
        else place_pods(displaced, snapshot.nodes, names, snapshot.other_pods),
        duration=_estimate_duration(forecast, terminating, options, now),
        recorded=estimate_from_drains(drains, names),
        uses_deletion=options.disable_eviction,
        warnings=[
            *snapshot.warnings,
            *([] if snapshot.has_usable_node else [NO_USABLE_NODE_WARNING]),
            *_iter_cordon_warnings(snapshot.node_objects),
            *_iter_drain_warnings(snapshot, classification, displaced, options),
        ],
    )


def _forecast_evictions(snapshot: ClusterSnapshot, leaving: Iterable[Pod], options: DrainOptions) -> EvictionForecast:
    """Forecast the evictions of these pods, assuming that each pod with a controller gets a replacement.

    The forecast ignores the capacity of the other nodes, because preemption or an autoscaler may provide capacity.
    """
    running = [pod for pod in leaving if not is_terminating(pod)]
    lost_uids = {get_uid(pod) for pod in running if not _does_controller_recreate_pod(pod, snapshot.orphan_uids)}
    return forecast_evictions(running, snapshot.budgets, options, lost_uids)


def _select_vmi_reports(
    snapshot: ClusterSnapshot, evictable: Iterable[Pod]
) -> tuple[list[Object], Mapping[str, Object]]:
    """Return the reports on the virtual machines that must leave, and all reports by the virt-launcher pod's uid."""
    reports = [{**report, "node": node} for node, vmis in snapshot.vmis.items() for report in vmis.reports]
    reports_by_key = {(report["namespace"], report["name"]): report for report in reports}
    keys_by_uid = drain_forecast.map_launcher_pods(snapshot.pods, reports)
    evictable_uids = set(map(get_uid, evictable))
    staying = {key for uid, key in keys_by_uid.items() if uid not in evictable_uids}
    return (
        [report for key, report in reports_by_key.items() if key not in staying],
        {uid: reports_by_key[key] for uid, key in keys_by_uid.items()},
    )


def _select_migrating_vmi_reports(snapshot: ClusterSnapshot, vmi_reports: Iterable[Object]) -> list[Object]:
    """Return the reports, except those for nodes whose maintenance taint triggers no migration by KubeVirt."""
    taint_key = snapshot.group.drain_taint
    ignored_nodes = {
        node
        for node, vmis in snapshot.vmis.items()
        if drain_forecast.explain_taint_mismatch(vmis.kubevirt, vmis.reports, taint_key)
    }
    return [report for report in vmi_reports if report["node"] not in ignored_nodes]


def _does_controller_recreate_pod(pod: Pod, orphan_uids: Collection[str]) -> bool:
    return get_controller(pod) is not None and get_uid(pod) not in orphan_uids


def _select_displaced_pods(
    snapshot: ClusterSnapshot, evictable: Iterable[Pod], launcher_vmis: Mapping[str, Object]
) -> list[Pod]:
    """Return the pods to evict that a controller recreates, usually on another node."""
    return [
        pod
        for pod in evictable
        if _does_controller_recreate_pod(pod, snapshot.orphan_uids)
        and not (is_finished(pod) or is_terminating(pod) or is_daemonset_pod(pod))
        and (get_uid(pod) not in launcher_vmis or launcher_vmis[get_uid(pod)]["drain"] in RETURNING_EFFECTS)
    ]


def _build_blocked_entries(pods: Iterable[Pod], blocked: Iterable[BlockedPod], stuck: Iterable[Object]) -> list[Object]:
    """Return `status.blockedPods` entries for blocked and stuck pods, with their nodes, sorted by pod."""
    nodes = {format_key(pod): get_node_name(pod) for pod in pods}
    entries = [*(item.as_data() for item in blocked), *stuck]
    with_nodes = [{**entry, "node": nodes[f"{entry['namespace']}/{entry['name']}"]} for entry in entries]
    return sorted(with_nodes, key=lambda entry: (entry["namespace"], entry["name"]))


def _select_pods_in_forecast(pods: Iterable[Pod], forecast: EvictionForecast) -> list[Pod]:
    """Return those of `pods` that will be evicted according to the forecast."""
    leaving = {get_uid(pod) for pod in (*forecast.now, *forecast.later)}
    return sorted((pod for pod in pods if get_uid(pod) in leaving), key=format_key)


def _estimate_duration(
    forecast: EvictionForecast, terminating: Iterable[Pod], options: DrainOptions, now: datetime
) -> DurationEstimate:
    """Estimate the duration of the drain, including the remaining grace periods of terminating pods."""
    ends = ((pod, parse_time_or_none(pod["metadata"]["deletionTimestamp"])) for pod in terminating)
    estimates = [
        DurationEstimate(int((end - now).total_seconds()), f"pod {format_key(pod)}, which is terminating")
        for pod, end in ends
        if end and end > now
    ]
    return max((estimate_duration(forecast, options), *estimates), key=lambda estimate: estimate.seconds)


def _iter_cordon_warnings(nodes: Mapping[str, Object]) -> Iterator[str]:
    """Yield a warning about the nodes that are cordoned but have no maintenance, because its end uncordons them."""
    names = [f'"{name}"' for name, node in nodes.items() if is_cordoned(node) and not has_maintenance_label(node)]
    if len(names) == 1:
        yield f"node {names[0]} is already cordoned, and the end of the maintenance uncordons it"
    elif names:
        shown = format_first_names(names, MAX_NAMED_NODES)
        yield f"nodes {shown} are already cordoned, and the end of their maintenances uncordons them"


def _iter_drain_warnings(
    snapshot: ClusterSnapshot, classification: PodClassification, displaced: Iterable[Pod], options: DrainOptions
) -> Iterator[str]:
    """Yield warnings about the drain options, and about pods that may be recreated on the same node."""
    has_several_nodes = len(snapshot.node_objects) > 1
    if options.pod_selector and not classification.leaving:
        nodes = "these nodes" if has_several_nodes else f'node "{next(iter(snapshot.node_objects))}"'
        yield f"pod selector {options.pod_selector} matches no pod that would leave {nodes}"
    if options.disable_eviction:
        yield DELETION_WARNING
    taints = (snapshot.group.drain_taint, UNSCHEDULABLE_TAINT)
    returning = [pod for pod in displaced if all(tolerates(pod, taint, NO_SCHEDULE) for taint in taints)]
    if returning:
        names = format_first_names(_list_pod_names(returning, has_several_nodes=has_several_nodes), MAX_NAMED_PODS)
        yield (
            f"{format_count(len(returning), 'pod')} may be recreated on the same node, "
            f"because of tolerations for the taints of the maintenance: {names}"
        )
