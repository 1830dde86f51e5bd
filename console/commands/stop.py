"""`kubectl maintenance stop NODE`: deletes the node's NodeMaintenance objects, and waits until the node is restored."""

from __future__ import annotations

from contextlib import aclosing

import click

from console.operations.descriptions import build_node_report, explain_released_maintenance, format_full_name
from console.operations.maintenance_actions import end_maintenances, watch_maintenances
from console.terminal.connection import run_with_api, run_with_timeout
from console.terminal.options import (
    NonEmptyText,
    SingleNodeCommand,
    check_timeout,
    cluster_options,
    output_option,
    timeout_option,
)
from console.terminal.output import print_note, set_interrupt_note, show_json
from kube.client.api import Api, get_or_none
from kube.maintenance.objects import get_finalizers, select_unreleased
from kube.nodes import build_node_path
from kube.paths import Object


@click.command(cls=SingleNodeCommand)
@click.argument("node", type=NonEmptyText())
@click.option("--wait/--no-wait", default=True, help="Return when the node is restored.  [default: wait]")
@timeout_option("1m", "the node is restored")
@output_option
@cluster_options
def stop(node: str, wait: bool, timeout: float, output: str) -> None:
    """End every maintenance of NODE, including those started by other users: remove the taints and the cordon.

    \b
    Example:
      kubectl maintenance stop node-1
    """
    check_timeout(wait=wait, remedy="omit --no-wait")

    async def end_maintenances_and_wait(api: Api) -> Object:
        set_interrupt_note(
            lambda: f"maintenances marked for deletion end without this command: see kubectl maintenance status {node}"
        )
        ended, still_existing = await end_maintenances(api, node), list[Object]()
        if wait:
            still_existing = await run_with_timeout(
                timeout, _wait_until_released(api, node, ended), lambda: _format_timeout(ended)
            )
            for maintenance in still_existing:
                print_note(explain_released_maintenance(maintenance), output)
        report = build_node_report(node, await get_or_none(api.get(build_node_path(node))))
        return {
            **report,
            "deleted": list(map(format_full_name, ended)),
            "keptBy": {format_full_name(maintenance): get_finalizers(maintenance) for maintenance in still_existing},
        }

    report = run_with_api(end_maintenances_and_wait)
    for name in report["deleted"]:
        if name not in report["keptBy"]:
            print_note(f"{name} {'deleted' if wait else 'marked for deletion'}", output)
    if wait:
        print_note(f"Node {node}: {report['state']}", output)
    show_json(report, output)


async def _wait_until_released(api: Api, node: str, ended_maintenances: list[Object]) -> list[Object]:
    """Wait until all these maintenances are released; return those that other controllers' finalizers still keep.

    A maintenance counts as released when the functions have removed their finalizers, after restoring the node.
    """
    uids = {maintenance["metadata"]["uid"] for maintenance in ended_maintenances}
    async with aclosing(watch_maintenances(api, node)) as updates:
        async for maintenances in updates:
            remaining = [maintenance for maintenance in maintenances if maintenance["metadata"]["uid"] in uids]
            if not select_unreleased(remaining):
                return remaining
    raise click.ClickException(f"the watch on {node} ended: see kubectl maintenance status {node}")


def _format_timeout(ended_maintenances: list[Object]) -> str:
    names = ", ".join(map(format_full_name, ended_maintenances))
    return f"{names} is marked for deletion, but no function has restored the node: check that the functions run"
