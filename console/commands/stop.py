"""`kubectl maintenance stop NODE`: deletes the node's NodeMaintenance objects, and waits until the node is restored."""

from __future__ import annotations

from contextlib import aclosing

import click

from console.operations.descriptions import full_name, kept, node_report
from console.operations.maintenance_actions import end
from console.operations.maintenance_watch import watched
from console.terminal.connection import with_api, within
from console.terminal.errors import goes_on
from console.terminal.flags import OneNode
from console.terminal.options import check_timeout, cluster_options, output_option, timeout_option
from console.terminal.output import note, show_json
from console.terminal.param_types import Name
from kube.client.api import Api, absent_ok
from kube.maintenance.objects import finalizers, standing
from kube.nodes import node_path
from kube.paths import Object


@click.command(cls=OneNode)
@click.argument("node", type=Name())
@click.option("--wait/--no-wait", default=True, help="Return when the node is given back.  [default: wait]")
@timeout_option("1m", "the node is given back")
@output_option
@cluster_options
def stop(node: str, wait: bool, timeout: float, output: str) -> None:
    """End every maintenance of NODE, whoever started it: take off taints and cordon.

    \b
    Example:
      kubectl maintenance stop node-1
    """
    check_timeout(wait=wait, remedy="leave out --no-wait")

    async def work(api: Api) -> Object:
        goes_on(lambda: f"what is marked for deletion ends without this command: kubectl maintenance status {node}")
        ended, left = await end(api, node), list[Object]()
        if wait:
            left = await within(timeout, _left(api, node, ended), lambda: _still_there(ended))
            for item in left:
                note(kept(item), output)
        report = node_report(node, await absent_ok(api.get(node_path(node))))
        keepers = {full_name(item): finalizers(item) for item in left}
        return {**report, "deleted": [full_name(item) for item in ended], "keptBy": keepers}

    report = with_api(work)
    for name in report["deleted"]:
        if name not in report["keptBy"]:
            note(f"{name} {'deleted' if wait else 'marked for deletion'}", output)
    if wait:
        note(f"Node {node}: {report['state']}", output)
    if output == "json":
        show_json(report)


async def _left(api: Api, node: str, ended: list[Object]) -> list[Object]:
    """Wait until all `ended` maintenances are released; return those that another controller's finalizer keeps.

    A maintenance counts as released when the functions have removed their finalizers, after restoring the node.
    """
    uids = {item["metadata"]["uid"] for item in ended}
    async with aclosing(watched(api, node)) as states:
        async for state in states:
            left = [item for item in state if item["metadata"]["uid"] in uids]
            if not standing(left):
                return left
    raise click.ClickException(f"the watch on {node} ended: see kubectl maintenance status {node}")


def _still_there(ended: list[Object]) -> str:
    names = ", ".join(full_name(item) for item in ended)
    return f"{names} is marked for deletion, but nobody restores the node: are the functions running?"
