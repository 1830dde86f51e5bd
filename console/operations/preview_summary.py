"""Summarizes a preview in a few lines, for the confirmation prompts of `start` and the console. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from console.operations.maintenance_preview import MAX_NAMED_PODS, MaintenancePreview
from kube.capacity import NOWHERE
from kube.pods import Pod
from kube.text_limits import format_count, format_first_names
from kube.times import format_seconds
from kube.virtualization.drain_forecast import build_warnings, describe_migrating_vms


def summarize_preview(preview: MaintenancePreview) -> list[str]:
    """Return one line per topic: pod counts, blocked pods, losses, virtual machines, capacity and duration."""
    return [
        *([_format_counts(preview)] if preview.has_pods or not preview.vmi_reports else []),
        *list_block_causes(preview),
        *_iter_data_loss_lines(preview),
        *list_vm_lines(preview),
        *_iter_capacity_lines(preview),
        *list_duration_lines(preview),
    ]


def _format_counts(preview: MaintenancePreview) -> str:
    """Return the numbers of pods by their outcome in the drain, without zeros, as one line."""
    counts = (
        (len(preview.forecast.now), "now", "leaves", "leave"),
        (len(preview.forecast.later), "in turn", "leaves", "leave"),
        (len(preview.terminating), "already", "terminates", "terminate"),
        (len(preview.blocked), "blocked", "is", "are"),
        (len(preview.ignored), "on the node", "stays", "stay"),
    )
    parts = [
        f"{format_count(count, 'pod')} {singular if count == 1 else plural} {detail}"
        for count, detail, singular, plural in counts
        if count
    ]
    return ", ".join(parts) or "no pods to evict"


def list_block_causes(preview: MaintenancePreview) -> list[str]:
    """Return one line for each cause that will block the drain, the causes with the most pods first."""
    return [
        f"{format_count(len(group.pods), 'pod')} will block the drain: {group.message}: "
        f"{format_first_names(preview.list_blocked_names(group), MAX_NAMED_PODS)}"
        for group in preview.blocking_groups
    ]


def _iter_data_loss_lines(preview: MaintenancePreview) -> Iterator[str]:
    """Yield a line each for bare pods and for emptyDir data that will be lost, worded like the webhook's warnings."""
    if preview.bare:
        yield "no controller will recreate {} after the eviction: {}".format(*_format_pods(preview, preview.bare))
    if preview.losing_data:
        yield "emptyDir data of {} will be lost: {}".format(*_format_pods(preview, preview.losing_data))


def list_vm_lines(preview: MaintenancePreview) -> list[str]:
    """Return a line about the virtual machines that will migrate, and warnings about the other ones."""
    moves = describe_migrating_vms(preview.migrating_vmis)
    return [*([moves] if moves else []), *build_warnings(preview.vmi_reports)]


def _iter_capacity_lines(preview: MaintenancePreview) -> Iterator[str]:
    if rejected := [placement.pod for placement in preview.select_placements(NOWHERE)]:
        yield "no other node has capacity for {}: {}".format(*_format_pods(preview, rejected))


def list_duration_lines(preview: MaintenancePreview) -> list[str]:
    """Return the estimated durations of the drain: from recorded drains, and from grace periods."""
    recorded = preview.recorded
    by_drains = f"about {format_seconds(recorded.seconds)} by {recorded.format_source()} (median)" if recorded else ""
    seconds = preview.duration.seconds
    by_grace = f"at most {format_seconds(seconds)} by grace periods, for the pods that are not blocked"
    return [*([by_drains] if by_drains else []), *([by_grace] if seconds else [])]


def _format_pods(preview: MaintenancePreview, pods: Sequence[Pod]) -> tuple[str, str]:
    """Return the number of pods, and the names of the first ones."""
    return format_count(len(pods), "pod"), format_first_names(preview.list_pod_names(pods), MAX_NAMED_PODS)
