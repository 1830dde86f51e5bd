"""`kubectl maintenance cordon` and `uncordon`: change nodes without a NodeMaintenance (DRN-6, OSV-10, OSV-10a)."""

from __future__ import annotations

from contextlib import suppress

import click

from console.operations.descriptions import STATE_SCHEDULABLE, build_node_report
from console.operations.maintenance_actions import get_node_or_refuse, list_served_maintenances
from console.operations.manual_drain import cordon_node
from console.terminal.node_selection import (
    NodeOutcomes,
    NodeSelection,
    get_node_reference,
    node_selection_options,
    run_for_nodes,
)
from console.terminal.options import cluster_options, object_output_option
from console.terminal.output import print_note
from kube.client.api import JSON_PATCH, Api
from kube.client.api_errors import Conflict
from kube.maintenance.groups import DRAIN_TAINTS
from kube.maintenance.objects import format_full_name, select_unreleased
from kube.nodes import build_node_path, build_restore_patch, has_maintenance_label
from kube.paths import Object

MAX_ATTEMPTS = 5
"""Maximum number of attempts to patch the node.

The first attempts may conflict with the node lifecycle controller, which adds or removes taints after a cordon.
"""


@click.command
@node_selection_options()
@object_output_option
@cluster_options
def cordon(selection: NodeSelection, output: str) -> None:
    """Mark NODE unschedulable until it is uncordoned; its pods keep running.

    \b
    Example:
      kubectl maintenance cordon node-1
      kubectl maintenance cordon node-1 node-2
      kubectl maintenance cordon -l pool=blue
    """
    outcomes = NodeOutcomes(selection)

    async def cordon_nodes(api: Api, nodes: list[str]) -> None:
        for node in nodes:
            with outcomes.collect_error(node):
                changed = await cordon_node(api, node)
                print_note(f"node/{node} {'cordoned' if changed else 'already cordoned'}", output)
                outcomes.reports[node] = {"node": node, "schedulable": False, "changed": changed}

    run_for_nodes(selection, cordon_nodes, "Cordon")
    outcomes.finish(output, get_node_reference)


@click.command
@node_selection_options()
@object_output_option
@cluster_options
def uncordon(selection: NodeSelection, output: str) -> None:
    """Make NODE schedulable again after a drain.

    \b
    Example:
      kubectl maintenance uncordon node-1
      kubectl maintenance uncordon node-1 node-2
      kubectl maintenance uncordon -l pool=blue
    """
    outcomes = NodeOutcomes(selection)

    async def uncordon_nodes(api: Api, nodes: list[str]) -> None:
        for node in nodes:
            with outcomes.collect_error(node):
                changed, report = await _uncordon_node(api, node)
                print_note(f"node/{node} {'uncordoned' if changed else 'already uncordoned'}", output)
                if report["state"] != STATE_SCHEDULABLE:
                    print_note(f"Node {node}: {report['state']}", output)
                outcomes.reports[node] = {**report, "changed": changed}

    run_for_nodes(selection, uncordon_nodes, "Uncordon")
    outcomes.finish(output, get_node_reference)


async def _uncordon_node(api: Api, node_name: str) -> tuple[bool, Object]:
    """Uncordon the node, and return whether the node changed, and the report on the node.

    If the node has the maintenance label, the patch also removes the label and the drain taints. Without the label,
    another actor has added the drain taints, so they stay. Raises `ClickException` if a maintenance of the node exists,
    because that maintenance would cordon the node again.
    """
    for maintenance in select_unreleased(await list_served_maintenances(api, node_name)):
        raise click.ClickException(
            f'node "{node_name}" is in maintenance by {format_full_name(maintenance)}: '
            f"to end it, run kubectl maintenance stop {node_name}"
        )
    for _ in range(MAX_ATTEMPTS):
        node = await get_node_or_refuse(api, node_name)
        patch = build_restore_patch(node, DRAIN_TAINTS if has_maintenance_label(node) else ())
        if not patch:
            return False, build_node_report(node_name, node)
        with suppress(Conflict):
            return True, build_node_report(node_name, await api.patch(build_node_path(node_name), patch, JSON_PATCH))
    message = f'node "{node_name}" not uncordoned: other clients changed it during each of {MAX_ATTEMPTS} attempts'
    raise click.ClickException(f"{message}; try again")
