"""`kubectl maintenance drain NODE`: like `kubectl drain`, without a NodeMaintenance (DRN-1 to DRN-6, OSV-10)."""

from __future__ import annotations

import click

from console.operations.manual_drain import Drain, cordon, look
from console.operations.errors import InvalidSelector
from console.operations.maintenance_actions import known_node
from console.operations.drain_preview import DAEMON, Pods, fates
from console.terminal.connection import with_api, within
from console.terminal.errors import goes_on
from console.terminal.flags import KubectlFlags, dry_run_switch, switch
from console.terminal.options import cluster_options, output_option, timeout_option
from console.terminal.output import note, show_json, warn
from console.terminal.param_types import Name
from kube.client.api import Api
from kube.paths import Object
from kube.pods import DrainOptions, Sorted, key, name_of, warnings


@click.command(cls=KubectlFlags)
@click.argument("node", type=Name())
@switch(
    "--delete-emptydir-data", "--delete-local-data", help="Evict pods with emptyDir volumes too; their data is lost."
)
@switch("--ignore-daemonsets", help="Leave DaemonSet pods where they are.")
@switch("--force", help="Evict pods too that no controller makes again.")
@click.option("--pod-selector", type=Name(), default="", help="Evict only pods with these labels, such as app=web.")
@dry_run_switch("Show what would be done, and change nothing.")
@timeout_option("0", "all pods are gone")
@output_option
@cluster_options
def drain(
    node: str,
    delete_emptydir_data: bool,
    ignore_daemonsets: bool,
    force: bool,
    pod_selector: str,
    dry_run: bool,
    timeout: float,
    output: str,
) -> None:
    """Cordon NODE and evict its pods, as kubectl drain does; it stays cordoned until uncordon.

    \b
    Example:
      kubectl maintenance drain node-1 --ignore-daemonsets --delete-emptydir-data --force
      kubectl maintenance drain node-1 --ignore-daemonsets=true --pod-selector=kubevirt.io=virt-launcher
    """
    options = DrainOptions(force, ignore_daemonsets, delete_emptydir_data, pod_selector)

    async def work(api: Api) -> Object:
        await known_node(api, node)
        await _check_selector(api, node, options)
        if not dry_run:
            note(f"node/{node} {'cordoned' if await cordon(api, node) else 'already cordoned'}", output)
        found = await look(api, node, options)
        _refuse(node, found, cordoned=not dry_run)
        for warning in warnings(found):
            warn(warning)
        if dry_run:
            return _foreseen(node, found, await fates(api, found.leaving, options), output)
        await _evict(api, node, found, options, timeout, output)
        return {
            "node": node,
            "dryRun": False,
            "drained": True,
            "evicted": [name_of(pod) for pod in sorted(found.leaving, key=key)],
            "ignored": [name_of(pod) for pod in sorted(found.daemons, key=key)],
        }

    report = with_api(work)
    note(f"node/{node} {'would be drained' if dry_run else 'drained'}", output)
    if output == "json":
        show_json(report)


async def _check_selector(api: Api, node: str, options: DrainOptions) -> None:
    """Raise a usage error if the API server rejects the selector; runs before the node is cordoned (DRN-5)."""
    try:
        await look(api, node, options)
    except InvalidSelector as error:
        raise click.BadParameter(error.message, param_hint="--pod-selector") from None


def _refuse(node: str, found: Sorted, *, cordoned: bool) -> None:
    """Raise one error that lists all refusals, if there are any.

    The command then evicts no pods. If it has cordoned the node, the node stays cordoned (DRN-2).
    """
    if not found.refusals:
        return
    reasons = "; ".join(f"{refusal.reason}: {', '.join(refusal.pods)}" for refusal in found.refusals)
    state = ", which stays cordoned" if cordoned else ""
    raise click.ClickException(f"nothing was evicted from {node}{state}: {reasons}")


async def _evict(api: Api, node: str, found: Sorted, options: DrainOptions, timeout: float, output: str) -> None:
    work = Drain(api, node, options.pod_selector, found.leaving, lambda text: note(text, output))
    state, undo = f"{node} stays cordoned", f"kubectl maintenance uncordon {node} ends that"
    goes_on(lambda: f"nothing more is evicted, {state}, {work.rest()}; {undo}")
    await within(
        timeout, work.run(), lambda: f"{node} is not drained after {timeout:g}s, and stays cordoned: {work.rest()}"
    )


def _foreseen(node: str, found: Sorted, leaving: Pods, output: str) -> Object:
    """Show and return the report of a dry run: the pods that would leave, and what each would wait for."""
    pods = leaving._replace(staying=[(pod, DAEMON) for pod in sorted(found.daemons, key=key)])
    for warning in pods.unknown:
        warn(warning)
    for line in pods.lines():
        note(line, output)
    return {"node": node, "dryRun": True, "drained": False, **pods.as_data()}
