"""`kubectl maintenance cordon NODE`: marks a node unschedulable, without a NodeMaintenance (OSV-10a)."""

from __future__ import annotations

import click

from console.operations import manual_drain
from console.terminal.connection import run_with_api
from console.terminal.flags import SingleNodeCommand
from console.terminal.options import cluster_options, output_option
from console.terminal.output import print_note, show_json
from console.terminal.param_types import NonEmptyText


@click.command(cls=SingleNodeCommand)
@click.argument("node", type=NonEmptyText())
@output_option
@cluster_options
def cordon(node: str, output: str) -> None:
    """Mark NODE unschedulable until it is uncordoned; its pods keep running.

    \b
    Example:
      kubectl maintenance cordon node-1
    """
    changed = run_with_api(lambda api: manual_drain.cordon_node(api, node))
    print_note(f"node/{node} {'cordoned' if changed else 'already cordoned'}", output)
    if output == "json":
        show_json({"node": node, "schedulable": False, "changed": changed})
