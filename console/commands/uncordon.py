"""`kubectl maintenance uncordon NODE`: uncordons a node that is not in maintenance (DRN-6, OSV-10)."""

from __future__ import annotations

from contextlib import suppress

import click

from console.operations.descriptions import SCHEDULABLE, full_name, node_report
from console.operations.maintenance_actions import known_node
from console.terminal.connection import with_api
from console.terminal.flags import OneNode
from console.terminal.options import cluster_options, output_option
from console.terminal.output import note, show_json
from console.terminal.param_types import Name
from kube.client.api import JSON_PATCH, Api
from kube.client.api_errors import Conflict
from kube.maintenance.groups import DRAIN_TAINTS
from kube.maintenance.lookup import maintenances
from kube.maintenance.objects import standing
from kube.nodes import is_labelled, node_path, restore_patch
from kube.paths import Object

ATTEMPTS = 5
"""Maximum attempts to patch the node; the node lifecycle controller's taint writes after a cordon cause conflicts."""


@click.command(cls=OneNode)
@click.argument("node", type=Name())
@output_option
@cluster_options
def uncordon(node: str, output: str) -> None:
    """Let NODE take new pods again after a drain.

    \b
    Example:
      kubectl maintenance uncordon node-1
    """
    changed, report = with_api(lambda api: _uncordon(api, node))
    note(f"node/{node} {'uncordoned' if changed else 'already uncordoned'}", output)
    if report["state"] != SCHEDULABLE:
        note(f"Node {node}: {report['state']}", output)
    if output == "json":
        show_json({**report, "changed": changed})


async def _uncordon(api: Api, name: str) -> tuple[bool, Object]:
    """Uncordon the node, and return whether that changed it, and the node's report.

    If the node carries our maintenance label, the patch also removes that label and the drain taints. Without the
    label, another actor set the drain taints, and they stay. Raises `ClickException` while the node is in maintenance,
    because that maintenance would cordon it again.
    """
    for other in standing(await maintenances(api, name)):
        raise click.ClickException(f"{name} is in maintenance by {full_name(other)}: kubectl maintenance stop {name}")
    for _ in range(ATTEMPTS):
        node = await known_node(api, name)
        patch = restore_patch(node, DRAIN_TAINTS if is_labelled(node) else ())
        if not patch:
            return False, node_report(name, node)
        with suppress(Conflict):
            return True, node_report(name, await api.patch(node_path(name), patch, JSON_PATCH))
    raise click.ClickException(f"{name} is being changed by somebody else all the time: try again")
