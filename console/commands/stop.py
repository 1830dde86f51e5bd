"""`kubectl maintenance stop NODE...`: deletes the nodes' NodeMaintenances, and waits until the nodes are restored."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing, suppress

import click

from console.operations.descriptions import build_node_report, explain_released_maintenance
from console.operations.maintenance_actions import end_maintenances, watch_maintenances
from console.terminal.node_selection import NodeOutcomes, NodeSelection, node_selection_options, run_for_nodes
from console.terminal.options import check_timeout, cluster_options, object_output_option, timeout_option
from console.terminal.output import print_note, set_interrupt_note
from kube.client.api import Api, get_or_none
from kube.maintenance.objects import format_full_name, get_finalizers, select_unreleased
from kube.nodes import build_node_path
from kube.paths import Object


@click.command
@node_selection_options(offers_maintained_nodes=True)
@click.option("--wait/--no-wait", default=True, help="Return when the node is restored.  [default: wait]")
@timeout_option("1m", "the nodes are restored")
@object_output_option
@cluster_options
def stop(selection: NodeSelection, wait: bool, timeout: float, output: str) -> None:
    """End every maintenance of NODE, including those started by other users: remove the taints and the cordon.

    The command also removes a cordon that the node had before the maintenance. With -l or --all, it selects only nodes
    in maintenance.

    \b
    Example:
      kubectl maintenance stop node-1
      kubectl maintenance stop node-1 node-2 --timeout 5m
      kubectl maintenance stop --all
    """
    check_timeout(wait=wait, remedy="omit --no-wait")
    outcomes = NodeOutcomes(selection)

    async def end_maintenances_of_nodes(api: Api, nodes: list[str]) -> None:
        target = f" {nodes[0]}" if selection.is_one_node else ""
        set_interrupt_note(
            lambda: f"maintenances marked for deletion end without this command: see kubectl maintenance status{target}"
        )
        ended: dict[str, list[Object]] = {}
        for node in nodes:
            with outcomes.collect_error(node):
                ended[node] = await end_maintenances(api, node)
        remaining = await _wait_until_released(api, ended, timeout) if wait and ended else {}
        for node, maintenances in ended.items():
            with outcomes.collect_error(node):
                if select_unreleased(remaining.get(node, [])):
                    raise click.ClickException(_format_timeout(maintenances))
                report = await _build_node_report(api, node, maintenances, remaining.get(node, []))
                outcomes.reports[node] = report
                _print_report(report, remaining.get(node, []), output, wait=wait, is_one_node=selection.is_one_node)

    run_for_nodes(selection, end_maintenances_of_nodes, "Stop the maintenance of", only_in_maintenance=True)
    outcomes.finish(output, lambda report: report["deleted"])


async def _wait_until_released(api: Api, ended: Mapping[str, list[Object]], timeout: float) -> dict[str, list[Object]]:
    """Wait until the `ended` maintenances are released; return those that still exist, by node.

    The functions release a maintenance by removing their finalizer, after they have restored the node. A released
    maintenance still exists if it has another controller's finalizer. After the timeout, the result also contains
    maintenances that are not released.
    """
    remaining = dict(ended)
    node = next(iter(ended)) if len(ended) == 1 else None

    async def follow_maintenances() -> None:
        async with aclosing(watch_maintenances(api, node)) as updates:
            async for maintenances in updates:
                existing = {maintenance["metadata"]["uid"]: maintenance for maintenance in maintenances}
                for name, objects in ended.items():
                    uids = (maintenance["metadata"]["uid"] for maintenance in objects)
                    remaining[name] = [existing[uid] for uid in uids if uid in existing]
                if not any(map(select_unreleased, remaining.values())):
                    return
        target = f" {node}" if node else ""
        raise click.ClickException(f"the watch on the maintenances ended: see kubectl maintenance status{target}")

    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(follow_maintenances(), timeout or None)
    return remaining


def _format_timeout(ended_maintenances: list[Object]) -> str:
    names = ", ".join(map(format_full_name, ended_maintenances))
    return f"{names} is marked for deletion, but no function has restored the node: check that the functions run"


async def _build_node_report(api: Api, node: str, ended: list[Object], remaining_maintenances: list[Object]) -> Object:
    """Return the node's state, the names of the ended maintenances, and the finalizers of those that still exist."""
    return {
        **build_node_report(node, await get_or_none(api.get(build_node_path(node)))),
        "deleted": list(map(format_full_name, ended)),
        "keptBy": {
            format_full_name(maintenance): get_finalizers(maintenance) for maintenance in remaining_maintenances
        },
    }


def _print_report(
    report: Object, remaining_maintenances: list[Object], output: str, *, wait: bool, is_one_node: bool
) -> None:
    """Print a node's report, on a single line if the command selects several nodes.

    An additional line explains why a maintenance still exists.
    """
    for maintenance in remaining_maintenances:
        print_note(explain_released_maintenance(maintenance), output)
    outcome = "deleted" if wait else "marked for deletion"
    names = [name for name in report["deleted"] if name not in report["keptBy"]]
    if not is_one_node:
        state = f"node/{report['node']} {report['state']}" if wait else f"node/{report['node']}"
        print_note(f"{state}: {', '.join(names)} {outcome}" if names else state, output)
        return
    for name in names:
        print_note(f"{name} {outcome}", output)
    if wait:
        print_note(f"Node {report['node']}: {report['state']}", output)
