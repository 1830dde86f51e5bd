"""`kubectl maintenance preview NODE...`: shows what a maintenance would do, and what would block it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from console.operations.budget_hints import read_scale_commands, select_budget_groups
from console.operations.maintenance_preview import MaintenancePreview, preview_maintenance
from console.terminal.drain_flag_options import drain_flag_options
from console.terminal.journal import journal_option, read_recorded_drains
from console.terminal.node_selection import NodeSelection, node_selection_options, run_for_nodes
from console.terminal.options import KubectlFlagsCommand, cluster_options, group_option, template_output_option
from console.terminal.output import show, show_object, warn
from kube.client.api import Api
from kube.maintenance.drain_flags import build_drain_spec, parse_drain_options
from kube.maintenance.groups import ApiGroup

BLOCKED_EXIT_STATUS = 3
"""Exit status if a pod or a virtual machine will block the drain; 1 means an error, and 2 a usage error."""


@click.command(cls=KubectlFlagsCommand)
@node_selection_options()
@group_option
@drain_flag_options
@journal_option
@click.option("-v", "--verbose", is_flag=True, help="List each pod, instead of counts and examples.")
@template_output_option
@cluster_options
def preview(
    selection: NodeSelection, group: ApiGroup, journal: str, verbose: bool, output: str, **drain_fields: object
) -> None:
    """Show what a maintenance of each NODE would do, what would block it, and change nothing.

    The preview judges several nodes together: pods on two nodes may share a disruption budget, and all displaced pods
    need capacity on the nodes that remain. The drain options are those of start. If the journal contains finished
    drains, the estimate of the duration names their median.

    The exit status is 3 if something will block the drain, 0 if nothing known will, and 1 after an error.

    \b
    Example:
      kubectl maintenance preview node-1
      kubectl maintenance preview -l pool=blue --verbose
      kubectl maintenance preview node-1 --delete-emptydir-data=false -o json
    """
    options = parse_drain_options({"spec": build_drain_spec(drain_fields)})
    drains = read_recorded_drains(journal)

    async def read_preview(api: Api, nodes: Sequence[str]) -> tuple[MaintenancePreview, Mapping[str, str]]:
        result = await preview_maintenance(api, nodes, options, group, drains=drains)
        shown_groups = select_budget_groups(result.blocking_groups) if output == "table" else []
        return result, await read_scale_commands(api, shown_groups)

    result, scale_commands = run_for_nodes(selection, read_preview)
    for warning in result.warnings:
        warn(warning)
    if output == "table":
        from console.terminal.preview_display import render_preview  # This slow import is needed only for the table.

        show(render_preview(result, scale_commands, verbose=verbose))
    show_object(result.as_data(), output)
    if result.will_block:
        raise click.exceptions.Exit(BLOCKED_EXIT_STATUS)
