"""`kubectl maintenance stop NODE`: delete its NodeMaintenance objects and wait until the node is restored."""

from __future__ import annotations

from contextlib import aclosing

import click

from console.operations.describing import full_name, node_report
from console.operations.maintaining import end
from console.operations.maintenance_watch import watched
from console.terminal.connection import with_api, within
from console.terminal.errors import goes_on
from console.terminal.options import Name, check_timeout, cluster_options, output_option, timeout_option
from console.terminal.screen import note, show_json
from kube.door.api import Api, absent_ok
from kube.nodes import node_path
from kube.paths import Object


@click.command
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
        ended = await end(api, node)
        if wait:
            await within(timeout, _gone(api, node, ended), lambda: _still_there(ended))
        names = [full_name(item) for item in ended]
        return {**node_report(node, await absent_ok(api.get(node_path(node)))), "deleted": names}

    report = with_api(work)
    for name in report["deleted"]:
        note(f"{name} {'deleted' if wait else 'marked for deletion'}", output)
    if wait:
        note(f"Node {node}: {report['state']}", output)
    if output == "json":
        show_json(report)


async def _gone(api: Api, node: str, ended: list[Object]) -> None:
    """Return when none of these objects is there any more: their finalizer goes last, after the node is restored."""
    uids = {item["metadata"]["uid"] for item in ended}
    async with aclosing(watched(api, node)) as states:
        async for state in states:
            if uids.isdisjoint(item["metadata"]["uid"] for item in state):
                return


def _still_there(ended: list[Object]) -> str:
    names = ", ".join(full_name(item) for item in ended)
    return f"{names} is marked for deletion, but nobody restores the node: are the functions running?"
