"""Formats the preview of a maintenance for the terminal. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from console.operations.maintenance_preview import MAX_NAMED_PODS, MaintenancePreview, NodeCounts
from console.operations.preview_summary import list_duration_lines, list_vm_lines
from console.terminal.output import create_table, escape
from kube.capacity import FITS, NOWHERE, UNKNOWN, Placement
from kube.evictions.forecast import ADMITS, BLOCKS, IN_TURN, NEVER, RUNS_OUT, BudgetForecast
from kube.pods import Pod
from kube.text_limits import format_count, format_first_names
from kube.virtualization.drain_forecast import BLOCKS as VMI_BLOCKS
from kube.virtualization.drain_forecast import build_warnings

COUNT_HEADINGS = ("NODE", "STATE", "EVICTED", "IN TURN", "BLOCKED", "ENDING", "STAY", "VMS")


def render_preview(preview: MaintenancePreview, scale_commands: Mapping[str, str], *, verbose: bool) -> RenderableType:
    """Build the view of a preview: the table of counts, followed by a section for each topic that applies.

    `scale_commands` are those of `console.operations.budget_hints.read_scale_commands`.
    """
    sections = (
        ("BLOCKED", _iter_blocked_lines(preview, scale_commands, verbose)),
        ("BUDGETS", _iter_budget_lines(preview.forecast.budgets, verbose)),
        ("LOST", _iter_lost_lines(preview, verbose)),
        ("STAY", _iter_ignored_pod_lines(preview, verbose)),
        ("VIRTUAL MACHINES", list_vm_lines(preview)),
        ("CAPACITY OF THE OTHER NODES", _iter_capacity_lines(preview, verbose)),
        ("DURATION", _iter_duration_lines(preview)),
    )
    parts: list[RenderableType] = [_render_counts(preview.counts)]
    for heading, lines in sections:
        if indented := [_render_line(line) for line in lines]:
            parts += [Text(""), Text(heading, "bold"), *indented]
    doubts = preview.warnings or preview.select_placements(NOWHERE)
    color = "red" if preview.will_block else "yellow" if doubts else "green"
    return Group(*parts, Text(""), Text(format_summary(preview), color))


def format_summary(preview: MaintenancePreview) -> str:
    """Return one line that states whether the drain will be blocked, and by what, or else which pods do not fit."""
    if not preview.will_block:
        if rejected := preview.select_placements(NOWHERE):
            return f"{format_count(len(rejected), 'pod')} will stay Pending: no other node has capacity."
        return "Nothing known will block the drain."
    groups = preview.blocking_groups
    pods = format_count(sum(len(group.pods) for group in groups), "pod")
    vms = build_warnings(report for report in preview.vmi_reports if report["drain"] == VMI_BLOCKS)
    parts = [*([f"{pods} will block the drain, for {format_count(len(groups), 'cause')}"] if groups else []), *vms]
    return f"{escape('; '.join(parts))}."


def _render_counts(counts: Sequence[NodeCounts]) -> Table:
    table = create_table(*COUNT_HEADINGS)
    for row in counts:
        state = "cordoned" if row.cordoned else "schedulable"
        table.add_row(escape(row.node), state, *map(str, row[2:]))
    if len(counts) > 1:
        totals = (sum(column) for column in zip(*(row[2:] for row in counts), strict=True))
        table.add_row("TOTAL", "", *map(str, totals), style="bold")
    return table


def _render_line(line: str) -> Padding:
    """Build an indented line; each leading space of `line` increases the indentation."""
    text = line.lstrip(" ")
    return Padding(Text(escape(text), overflow="fold"), (0, 0, 0, 2 + len(line) - len(text)), expand=False)


def _iter_blocked_lines(preview: MaintenancePreview, scale_commands: Mapping[str, str], verbose: bool) -> Iterator[str]:
    for group in preview.blocked_groups:
        names = preview.list_blocked_names(group)
        examples = "" if verbose else f": {format_first_names(names, MAX_NAMED_PODS)}"
        yield f"{format_count(len(names), 'pod')}, {group.reason}: {group.message}{examples}"
        for remedy in group.add_scale_command(scale_commands.get(group.budget_key, "")).remedies:
            yield f"  {remedy.text}{':' if remedy.command else ''}"
            if remedy.command:
                yield f"    {remedy.command}"
        if verbose:
            yield from (f"  {name}" for name in names)


def _iter_budget_lines(budgets: Iterable[BudgetForecast], verbose: bool) -> Iterator[str]:
    """Yield a line for each PodDisruptionBudget that does not admit all of its pods now, or for all with `verbose`."""
    for item in budgets:
        if item.effect != ADMITS or verbose:
            yield f"{item.key} {_describe_budget(item)}"


def _describe_budget(item: BudgetForecast) -> str:
    status = item.budget.get("status") or {}
    counts = f"{status.get('currentHealthy', 0)} healthy, {status.get('desiredHealthy', 0)} needed"
    pods = format_count(len(item.pods), "pod")
    descriptions = {
        ADMITS: f"admits all of these nodes' pods now: {pods} ({counts})",
        IN_TURN: f"admits {item.now} of {pods} now, and the others when replacements are ready, "
        f"in {format_count(item.rounds, 'round')} ({counts})",
        RUNS_OUT: f"admits {item.now} of {pods} now, and then none, "
        f"because evicted pods have no controller that replaces them ({counts})",
        BLOCKS: f"admits none of {pods} now ({counts})",
        NEVER: f"admits none of {pods}, because it needs all pods that it covers ({counts})",
    }
    return descriptions[item.effect]


def _iter_lost_lines(preview: MaintenancePreview, verbose: bool) -> Iterator[str]:
    if preview.losing_data:
        yield _format_pods(preview, "{} will lose emptyDir data", preview.losing_data, verbose)
    if preview.bare:
        yield _format_pods(preview, "{} without a controller will not be recreated", preview.bare, verbose)


def _format_pods(preview: MaintenancePreview, template: str, pods: Sequence[Pod], verbose: bool) -> str:
    names = format_first_names(preview.list_pod_names(pods), len(pods) if verbose else MAX_NAMED_PODS)
    return f"{template.format(format_count(len(pods), 'pod'))}: {names}"


def _iter_ignored_pod_lines(preview: MaintenancePreview, verbose: bool) -> Iterator[str]:
    for reason, count in sorted(Counter(reason for _, reason in preview.ignored).items()):
        pods = [pod for pod, pod_reason in preview.ignored if pod_reason == reason]
        yield f"{format_count(count, 'pod')}: {reason}"
        yield from (f"  {name}" for name in preview.list_pod_names(pods) if verbose)


def _iter_capacity_lines(preview: MaintenancePreview, verbose: bool) -> Iterator[str]:
    if preview.placements is None:
        yield "unknown: the nodes cannot be listed"
        return
    fitting, unknown, rejected = map(preview.select_placements, (FITS, UNKNOWN, NOWHERE))
    if preview.placements:
        yield f"{len(fitting)} of {format_count(len(preview.placements), 'displaced pod')} fit"
    if verbose:
        names = preview.list_pod_names(item.pod for item in fitting)
        yield from (f"  {name} could move to {item.node}" for name, item in zip(names, fitting, strict=True))
    yield from _iter_reason_lines(preview, "unknown", unknown, verbose)
    yield from _iter_reason_lines(preview, "no node has capacity", rejected, verbose)


def _iter_reason_lines(
    preview: MaintenancePreview, verdict: str, placements: Sequence[Placement], verbose: bool
) -> Iterator[str]:
    """Yield one line per reason, with the number and the names of the displaced pods, and `verdict`."""
    pods_by_reason: dict[str, list[Pod]] = {}
    for placement in placements:
        pods_by_reason.setdefault(placement.reason, []).append(placement.pod)
    for reason, pods in sorted(pods_by_reason.items(), key=lambda item: (-len(item[1]), item[0])):
        yield f"{_format_pods(preview, '{}', pods, verbose)}: {verdict}, {reason}"


def _iter_duration_lines(preview: MaintenancePreview) -> Iterator[str]:
    yield from list_duration_lines(preview)
    if not preview.duration.seconds:
        return
    yield f"longest: {preview.duration.reason}"
    if preview.will_block:
        yield "the drain ends only after the blocked pods are unblocked"
    elif preview.forecast.later:
        yield "plus the time until replacements are ready, so that their budget admits the next pods"
