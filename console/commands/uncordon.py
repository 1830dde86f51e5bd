"""`kubectl maintenance uncordon NODE`: make a node schedulable that no NodeMaintenance cordoned (DRN-6, OSV-10)."""

from __future__ import annotations

from contextlib import suppress

import click

from console.operations.describing import full_name
from console.operations.maintaining import known_node
from console.terminal.connection import with_api
from console.terminal.options import cluster_options, output_option
from console.terminal.screen import note, show_json
from kube.door.api import JSON_PATCH, Api
from kube.door.api_errors import Conflict
from kube.maintenance.lookup import maintenances
from kube.nodes import node_path, restore_patch

ATTEMPTS = 5
"""The node lifecycle controller writes taints right after a cordon: read again, then patch again."""


@click.command
@click.argument("node")
@output_option
@cluster_options
def uncordon(node: str, output: str) -> None:
    """Let NODE take new pods again after a drain.

    \b
    Example:
      kubectl maintenance uncordon node-1
    """
    changed = with_api(lambda api: _uncordon(api, node))
    note(f"node/{node} {'uncordoned' if changed else 'already uncordoned'}", output)
    if output == "json":
        show_json({"node": node, "schedulable": True, "changed": changed})


async def _uncordon(api: Api, node: str) -> bool:
    """Take the cordon off; a one-line error while the node is in maintenance, which would cordon it again."""
    for other in await maintenances(api, node):
        raise click.ClickException(f"{node} is in maintenance by {full_name(other)}: kubectl maintenance stop {node}")
    for _ in range(ATTEMPTS):
        patch = restore_patch(await known_node(api, node), ())
        if not patch:
            return False
        with suppress(Conflict):
            await api.patch(node_path(node), patch, JSON_PATCH)
            return True
    raise click.ClickException(f"{node} is being changed by somebody else all the time: try again")
