"""`kubectl maintenance start NODE...`: creates the NodeMaintenances, which the functions then process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import click

from console.operations.descriptions import strip_managed_fields
from console.operations.drain_preview import DELETION_WARNING, DrainPreview, NodeVmis, preview_drain, read_vmis
from console.operations.maintenance_actions import create_maintenance
from console.terminal.drain_flag_options import drain_flag_options
from console.terminal.drain_wait import describe_continuation, wait_until_drained
from console.terminal.node_selection import NodeOutcomes, NodeSelection, node_selection_options, run_for_nodes
from console.terminal.options import (
    KubectlFlagsCommand,
    Utf8Text,
    check_timeout,
    cluster_options,
    dry_run_option,
    group_option,
    namespace_option,
    object_output_option,
    text_option,
    timeout_option,
)
from console.terminal.output import print_note, set_interrupt_note, warn
from kube.client.access_reviews import whoami
from kube.client.api import Api
from kube.client.decoding import collect_warnings
from kube.maintenance import escalation
from kube.maintenance.drain_flags import build_drain_spec, parse_drain_options
from kube.maintenance.groups import ApiGroup
from kube.maintenance.objects import format_full_name, get_node_name
from kube.paths import Object
from kube.pods import DEFAULT_DRAIN_OPTIONS, DrainOptions


@dataclass(frozen=True)
class MaintenanceRequest:
    """The NodeMaintenances that the command line describes: one for each selected node.

    Attributes:
        name: The name of the only NodeMaintenance, or "" for the name of each node.
        drain_fields: The fields of its `spec.drain`: the deadline, and the flags of `kubectl drain`, whose parameters
            have the fields' names (DRN-1a); None for each flag that is not set.
    """

    name: str
    group: ApiGroup
    reason: str
    drain_fields: Mapping[str, object]
    dry_run: bool
    output: str

    @property
    def drain_options(self) -> DrainOptions:
        """Return the drain options, with defaults for fields that are None."""
        return parse_drain_options({"spec": build_drain_spec(self.drain_fields)})


def check_deadline(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    """Return the deadline unchanged. Raises `BadParameter` if it is not a duration."""
    try:
        if value is not None:
            escalation.parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return value


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
    namespace: str,
    output: str,
    **drain_fields: object,
) -> None:
    """Take NODE out of service: cordon it, taint it and evict its pods.

    As with kubectl drain --force --delete-emptydir-data, pods without a controller and emptyDir data are lost. With
    --force=false or --delete-emptydir-data=false, such pods stay, the status lists them, and the other pods leave. The
    command shows the admission webhook's warnings about data that will be lost. It also names the virtual machines that
    will move, shut down or block the drain.

    \b
    Example:
      kubectl maintenance start node-1 --dry-run
      kubectl maintenance start node-1 --reason "new disk"
      kubectl maintenance start node-1 --force=false --delete-emptydir-data=false
      kubectl maintenance start node-1 node-2 --wait --timeout 10m
      kubectl maintenance start -l pool=blue
    """
    check_timeout(wait=wait, remedy="add --wait")
    if wait and dry_run:
        raise click.UsageError("--dry-run starts no drain that --wait could wait for: omit one of them")
    if name and not selection.is_one_node:
        raise click.UsageError("--name names one NodeMaintenance: omit it, or name only one node")
    request = MaintenanceRequest(name, group, reason, drain_fields, dry_run, output)

    async def start_nodes(api: Api, nodes: list[str]) -> NodeOutcomes:
        outcomes = await _start_maintenances(api, selection, nodes, request)
        if wait and outcomes.reports:
            await _wait_for_drains(api, outcomes, namespace, timeout, output)
        elif not dry_run and outcomes.reports:
            target = f"status {nodes[0]}" if selection.is_one_node else "status"
            print_note(f"Follow the drain with: kubectl maintenance {target} --watch", output)
        return outcomes

    run_for_nodes(selection, start_nodes, "" if dry_run else "Start the maintenance of").finish(output, _list_full_name)


def _list_full_name(maintenance: Object) -> list[str]:
    return [format_full_name(maintenance)]


async def _start_maintenances(
    api: Api, selection: NodeSelection, nodes: Iterable[str], request: MaintenanceRequest
) -> NodeOutcomes:
    """Create the NodeMaintenance of each node, or preview it in a dry run; return the objects to print."""
    outcomes = NodeOutcomes(selection)
    for node in nodes:
        with outcomes.collect_error(node):
            outcomes.reports[node] = strip_managed_fields(await _start_maintenance(api, node, request, outcomes))
            if not request.dry_run:
                set_interrupt_note(lambda: describe_continuation(list(outcomes.reports.values())))
    return outcomes


async def _start_maintenance(api: Api, node: str, request: MaintenanceRequest, outcomes: NodeOutcomes) -> Object:
    """Create one NodeMaintenance, and show its warnings; in a dry run, only preview it."""
    preview, node_vmis = await _preview_maintenance(api, node, request)
    created, warnings = await _create_maintenance(api, node, request)
    for warning in (*warnings, *node_vmis.list_warnings(request.group), *_iter_warnings(preview, node, request)):
        warn(outcomes.add_node_name(node, warning))
    if moves := node_vmis.describe_moves(request.group):
        print_note(outcomes.add_node_name(node, moves), request.output)
    if request.dry_run:
        return _report_dry_run(preview, created, node_vmis.reports, request.output)
    print_note(f"{format_full_name(created)} created", request.output)
    return created


async def _wait_for_drains(api: Api, outcomes: NodeOutcomes, namespace: str, timeout: float, output: str) -> None:
    """Wait until the nodes are drained, and replace each object with its newest version, even if its drain failed."""
    drains = await wait_until_drained(api, outcomes.reports.values(), namespace, timeout, output)
    for uid, maintenance in drains.latest.items():
        node = get_node_name(maintenance)
        outcomes.reports[node] = strip_managed_fields(maintenance)
        with outcomes.collect_error(node):
            if error := drains.errors.get(uid):
                raise click.ClickException(error)


async def _preview_maintenance(api: Api, node: str, request: MaintenanceRequest) -> tuple[DrainPreview, NodeVmis]:
    """Preview the effect on the node's pods (only for a dry run or non-default options) and virtual machines."""
    options, node_vmis = request.drain_options, await read_vmis(api, node)
    if not request.dry_run and options == DEFAULT_DRAIN_OPTIONS:
        return DrainPreview([], [], [], []), node_vmis
    preview = await preview_drain(api, node, options, node_vmis.reports)
    return preview, node_vmis.exclude(preview.remaining_vms)


async def _create_maintenance(api: Api, node: str, request: MaintenanceRequest) -> tuple[Object, list[str]]:
    """Create the NodeMaintenance, in a dry run without storing it; return it with the API server's warnings."""
    requester, create_api = await whoami(api), api.with_dry_run() if request.dry_run else api
    with collect_warnings() as warnings:
        created = await create_maintenance(
            create_api, request.group, node, request.name or node, request.reason, requester, request.drain_fields
        )
    return created, warnings


def _iter_warnings(preview: DrainPreview, node: str, request: MaintenanceRequest) -> Iterator[str]:
    """Yield warnings about the drain's pods and about failed reads."""
    yield from preview.errors
    if preview.selects_none:
        selector = request.drain_options.pod_selector
        yield f'pod selector {selector} matches no pod that would leave node "{node}"'
    if preview.uses_deletion:
        yield DELETION_WARNING


def _report_dry_run(preview: DrainPreview, maintenance: Object, vmi_reports: list[Object], output: str) -> Object:
    """Show the preview of a dry run, and return it with the NodeMaintenance that would be created."""
    for line in preview.format_lines():
        print_note(line, output)
    print_note(f"{format_full_name(maintenance)} would be created", output)
    return {**maintenance, **preview.as_data(), "virtualMachines": vmi_reports}
