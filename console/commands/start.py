"""`kubectl maintenance start NODE...`: creates the NodeMaintenances, which the functions then process."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import click

from console.operations.descriptions import strip_managed_fields
from console.operations.errors import OperationError
from console.operations.maintenance_actions import create_maintenance
from console.operations.maintenance_preview import MaintenancePreview, preview_maintenance
from console.operations.preview_summary import list_block_causes, list_duration_lines, summarize_preview
from console.operations.recorded_drains import RecordedDrain
from console.terminal.connection import format_api_error, run_with_api
from console.terminal.drain_flag_options import drain_flag_options
from console.terminal.drain_wait import describe_continuation, wait_until_drained
from console.terminal.journal import journal_option, read_recorded_drains
from console.terminal.node_selection import (
    NodeOutcomes,
    NodeSelection,
    confirm_nodes,
    node_selection_options,
    select_nodes,
)
from console.terminal.options import (
    KubectlFlagsCommand,
    Utf8Text,
    check_timeout,
    cluster_options,
    dry_run_option,
    group_option,
    is_set_on_command_line,
    namespace_option,
    object_output_option,
    text_option,
    timeout_option,
)
from console.terminal.output import escape, print_note, set_interrupt_note, warn
from kube.client.access_reviews import whoami
from kube.client.api import Api, gather_all, get_or_none
from kube.client.api_errors import ApiError
from kube.client.decoding import collect_warnings
from kube.maintenance import escalation
from kube.maintenance.drain_flags import build_drain_spec, parse_drain_options
from kube.maintenance.groups import ApiGroup
from kube.maintenance.objects import format_full_name, get_node_name
from kube.nodes import build_node_path
from kube.paths import Object
from kube.pods import DrainOptions
from kube.virtualization.drain_forecast import build_warnings, describe_migrating_vms


@dataclass(frozen=True)
class MaintenanceRequest:
    """Command-line options for the NodeMaintenances to create, one for each selected node.

    Attributes:
        name: The name of the NodeMaintenance if only one node is selected; "" to use the node's name.
        drain_fields: The fields of `spec.drain`: the deadline and the flags of `kubectl drain` (DRN-1a); None for a
            field whose option is not set.
    """

    name: str
    group: ApiGroup
    reason: str
    drain_fields: Mapping[str, object]
    dry_run: bool
    output: str

    @property
    def drain_options(self) -> DrainOptions:
        """Return the drain options, with the default value for each field that is None."""
        return parse_drain_options({"spec": build_drain_spec(self.drain_fields)})


def check_deadline(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    """Return the value of --deadline unchanged. Raises `BadParameter` if the value is not a duration."""
    try:
        if value is not None:
            escalation.parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return value


class PreviewResult(NamedTuple):
    """The selected nodes that exist, the preview of their maintenance, and the error if the preview failed."""

    known_nodes: Sequence[str]
    preview: MaintenancePreview | None = None
    error: str = ""

    def split_by_node(self) -> Mapping[str, Object]:
        """Return the preview of each existing node as JSON data, or the error if the preview failed."""
        if self.preview:
            return self.preview.split_by_node()
        return {node: {"podsUnknown": self.error} for node in self.known_nodes}


@click.command(cls=KubectlFlagsCommand)
@node_selection_options()
@click.option("--reason", type=Utf8Text(), default="", help="Reason for the maintenance, as free text.")
@text_option("--name", help="Name of the NodeMaintenance.  [default: the node's name]")
@group_option
@drain_flag_options
@click.option(
    "--deadline",
    callback=check_deadline,
    metavar="DURATION",
    help="Report a drain that takes longer than this time, such as 2h; the drain continues.",
)
@dry_run_option("Show what would happen to pods and virtual machines, and change nothing.")
@click.option("--wait", is_flag=True, help="Show the progress and return when the node is drained.")
@timeout_option("0", "the node is drained, with --wait")
@journal_option
@namespace_option
@object_output_option
@cluster_options
def start(
    selection: NodeSelection,
    reason: str,
    name: str,
    group: ApiGroup,
    dry_run: bool,
    wait: bool,
    timeout: float,
    journal: str,
    namespace: str,
    output: str,
    **drain_fields: object,
) -> None:
    """Take NODE out of service: cordon it, taint it and evict its pods.

    On a terminal, the command first shows a summary of the preview, and asks; --yes skips the question. Elsewhere, it
    asks only with --all, and prints a warning for each cause that will block the drain. With --journal, it then also
    prints the estimated duration.

    As with kubectl drain --force --delete-emptydir-data, pods without a controller and emptyDir data are lost. With
    --force=false or --delete-emptydir-data=false, such pods stay, the status lists them, and the other pods leave. The
    command shows the admission webhook's warnings about data that will be lost. It also names the virtual machines that
    will move, shut down or block the drain.

    \b
    Example:
      kubectl maintenance start node-1 --dry-run
      kubectl maintenance start node-1 --reason "new disk"
      kubectl maintenance start node-1 node-2 --wait --timeout 10m
      kubectl maintenance start -l pool=blue --yes
    """
    check_timeout(wait=wait, remedy="add --wait")
    if wait and dry_run:
        raise click.UsageError("--dry-run starts no drain that --wait could wait for: omit one of them")
    if name and not selection.is_one_node:
        raise click.UsageError("--name names one NodeMaintenance: omit it, or name only one node")
    request = MaintenanceRequest(name, group, reason, drain_fields, dry_run, output)
    nodes = select_nodes(selection)
    result = _preview_and_confirm(selection, nodes, request, journal)

    async def start_maintenances_of_nodes(api: Api) -> NodeOutcomes:
        outcomes = await _start_maintenances(api, selection, nodes, request)
        if dry_run:
            preview_data = result.split_by_node()
            outcomes.reports = {
                node: {**report, **preview_data.get(node, {})} for node, report in outcomes.reports.items()
            }
        elif wait and outcomes.reports:
            await _wait_for_drains(api, outcomes, namespace, timeout, output)
        elif outcomes.reports:
            target = f"status {nodes[0]}" if selection.is_one_node else "status"
            print_note(f"Follow the drain with: kubectl maintenance {target} --watch", output)
        return outcomes

    run_with_api(start_maintenances_of_nodes).finish(output, _list_maintenance_name)


def _list_maintenance_name(maintenance: Object) -> list[str]:
    return [format_full_name(maintenance)]


def _preview_and_confirm(
    selection: NodeSelection, nodes: Sequence[str], request: MaintenanceRequest, journal: str
) -> PreviewResult:
    """Preview the maintenance, show the preview, and ask for confirmation if necessary.

    The function asks outside of the event loop, which would ignore Ctrl-C at a prompt. Raises `NoResult` if the user
    does not confirm.
    """
    may_ask = not (request.dry_run or selection.is_confirmed)
    is_interactive = may_ask and sys.stdin.isatty()
    is_detailed = is_interactive or request.dry_run
    drains = read_recorded_drains(journal) if is_detailed or is_set_on_command_line("journal") else []
    result = run_with_api(lambda api: _try_preview(api, nodes, request, drains=drains, reads_other_nodes=is_detailed))
    if result.error:
        warn(f"cannot preview the maintenance: {result.error}")
    if result.preview:
        _show_preview(result.preview, request, asks=is_interactive)
    if may_ask and (selection.selects_all or (is_interactive and result.known_nodes)):
        command = f"kubectl maintenance preview {' '.join(selection.names)}".rstrip()
        confirm_nodes("Start the maintenance of", nodes, f"use --yes, or see {command}")
    return result


async def _try_preview(
    api: Api,
    nodes: Sequence[str],
    request: MaintenanceRequest,
    *,
    drains: Collection[RecordedDrain],
    reads_other_nodes: bool,
) -> PreviewResult:
    """Preview the maintenance of the nodes that exist.

    Nodes that do not exist are reported later, when their NodeMaintenances are created. If a request of the preview
    fails, the result contains the error instead of a preview. Raises `ApiError` if the nodes cannot be read.
    """
    found = await gather_all(*(get_or_none(api.get(build_node_path(name))) for name in nodes))
    known = [name for name, node in zip(nodes, found, strict=True) if node]
    if not known:
        return PreviewResult(known)
    options, group = request.drain_options, request.group
    try:
        preview = await preview_maintenance(
            api, known, options, group, drains=drains, reads_other_nodes=reads_other_nodes
        )
    except ApiError as error:
        return PreviewResult(known, error=format_api_error(error))
    except OperationError as error:
        return PreviewResult(known, error=str(error))
    return PreviewResult(known, preview)


def _show_preview(preview: MaintenancePreview, request: MaintenanceRequest, *, asks: bool) -> None:
    """Show the preview: if the command `asks` for confirmation, a summary on stderr, otherwise warnings.

    In a dry run, the function also prints a line for each pod. Without a question, it prints the estimated duration
    only if the command line names a journal with recorded drains.
    """
    for warning in preview.warnings:
        warn(warning)
    if asks:
        for line in summarize_preview(preview):
            click.echo(f"  {escape(line)}", err=True)
        return
    effects = [*list_block_causes(preview), *build_warnings(preview.vmi_reports)]
    for warning in effects:
        warn(warning)
    if request.dry_run:
        for line in [
            *preview.format_pod_lines(has_headings=preview.has_several_nodes),
            *(line for line in summarize_preview(preview) if line not in effects),
        ]:
            print_note(line, request.output)
        return
    if moves := describe_migrating_vms(preview.migrating_vmis):
        print_note(moves, request.output)
    for line in list_duration_lines(preview) if preview.recorded else []:
        print_note(line, request.output)


async def _start_maintenances(
    api: Api, selection: NodeSelection, nodes: Iterable[str], request: MaintenanceRequest
) -> NodeOutcomes:
    """Create a NodeMaintenance for each node (with a dry-run request if requested); return the objects to print."""
    outcomes = NodeOutcomes(selection)
    for node in nodes:
        with outcomes.collect_error(node):
            outcomes.reports[node] = strip_managed_fields(await _start_maintenance(api, node, request, outcomes))
            if not request.dry_run:
                set_interrupt_note(lambda: describe_continuation(list(outcomes.reports.values())))
    return outcomes


async def _start_maintenance(api: Api, node: str, request: MaintenanceRequest, outcomes: NodeOutcomes) -> Object:
    """Create a NodeMaintenance for the node, and print the API server's warnings."""
    created, warnings = await _create_maintenance(api, node, request)
    for warning in warnings:
        warn(outcomes.add_node_name(node, warning))
    print_note(f"{format_full_name(created)} {'would be created' if request.dry_run else 'created'}", request.output)
    return created


async def _wait_for_drains(api: Api, outcomes: NodeOutcomes, namespace: str, timeout: float, output: str) -> None:
    """Wait until the nodes are drained, and replace each object with its latest version, even if its drain failed."""
    drains = await wait_until_drained(api, outcomes.reports.values(), namespace, timeout, output)
    for uid, maintenance in drains.latest.items():
        node = get_node_name(maintenance)
        outcomes.reports[node] = strip_managed_fields(maintenance)
        with outcomes.collect_error(node):
            if error := drains.errors.get(uid):
                raise click.ClickException(error)


async def _create_maintenance(api: Api, node: str, request: MaintenanceRequest) -> tuple[Object, list[str]]:
    """Create the NodeMaintenance (with a dry-run request if requested); return it and the API server's warnings."""
    requester, create_api = await whoami(api), api.with_dry_run() if request.dry_run else api
    with collect_warnings() as warnings:
        created = await create_maintenance(
            create_api, request.group, node, request.name or node, request.reason, requester, request.drain_fields
        )
    return created, warnings
