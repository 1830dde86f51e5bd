"""`kubectl maintenance start NODE`: creates the NodeMaintenance; the functions do the rest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import aclosing, nullcontext
from datetime import datetime, timezone

import click

from console.operations.descriptions import full_name, held_up, phase_word, plain
from console.operations.maintenance_actions import create, machines_on
from console.operations.maintenance_watch import watched
from console.operations.drain_preview import Pods, pods_foreseen
from console.terminal.connection import with_api, within
from console.terminal.errors import goes_on
from console.terminal.flags import KubectlFlags, dry_run_switch, switch
from console.terminal.options import check_timeout, cluster_options, output_option, timeout_option
from console.terminal.output import live, note, show_json, warn
from console.terminal.param_types import Name, Text
from kube.client.access_reviews import whoami
from kube.client.api import Api
from kube.client.decoding import hearing
from kube.maintenance.drain_flags import drain_of, options_of
from kube.maintenance.groups import KUBEVIRT, MEDIK8S
from kube.maintenance.objects import FAILED, condition, is_deleting, node_name, status_of
from kube.paths import Object
from kube.pods import NODE_MAINTENANCE, DrainOptions
from kube.selectors import parsed

NO_PODS = Pods([], [], [], [])
GROUPS = {"medik8s": MEDIK8S, "kubevirt": KUBEVIRT}
FIELDS = {
    "force": "force",
    "delete_emptydir_data": "deleteEmptyDirData",
    "ignore_daemonsets": "ignoreDaemonSets",
    "pod_selector": "podSelector",
    "grace_period": "gracePeriodSeconds",
    "disable_eviction": "disableEviction",
    "skip_wait_for_delete_timeout": "skipWaitForDeleteTimeoutSeconds",
}
"""Flag of `kubectl drain` → field of `spec.drain` (DRN-1a)."""


def selector(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    """Return the label selector unchanged. Raises `BadParameter` if it cannot be parsed."""
    try:
        parsed(value or "")
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return value


@click.command(cls=KubectlFlags)
@click.argument("node", type=Name())
@click.option("--reason", type=Text(), default="", help="Why, in your own words.")
@click.option("--name", type=Name(), default="", help="Name of the NodeMaintenance.  [default: the node's name]")
@click.option(
    "--group", type=click.Choice(list(GROUPS)), default="medik8s", show_default=True, help="API group to use."
)
@switch("--force", default=None, help="Evict pods too that no controller makes again.  [default: true]")
@switch(
    "--delete-emptydir-data",
    "--delete-local-data",
    default=None,
    help="Evict pods with emptyDir volumes too; their data is lost.  [default: true]",
)
@switch("--ignore-daemonsets", default=None, help="Leave DaemonSet pods where they are.  [default: true]")
@click.option(
    "--pod-selector", type=Name(), callback=selector, help="Evict only pods with these labels, such as app=web."
)
@click.option(
    "--grace-period", type=click.IntRange(-1), help="Seconds that pods have to end.  [default: the pod's own]"
)
@switch("--disable-eviction", default=None, help="Delete pods, whatever their budgets say.  [default: false]")
@click.option(
    "--skip-wait-for-delete-timeout",
    type=click.IntRange(0),
    help="Do not wait for pods that were to be gone so many seconds ago.  [default: wait]",
)
@dry_run_switch("Show what would become of pods and virtual machines, and change nothing.")
@click.option("--wait", is_flag=True, help="Show the progress and return when the node is drained.")
@timeout_option("0", "the node is drained, with --wait")
@output_option
@cluster_options
def start(
    node: str,
    reason: str,
    name: str,
    group: str,
    dry_run: bool,
    wait: bool,
    timeout: float,
    output: str,
    **flags: object,
) -> None:
    """Take NODE out of service: cordon it, taint it and evict its pods.

    As with kubectl drain --force --delete-emptydir-data, pods without a controller and emptyDir data are lost. With
    --force=false or --delete-emptydir-data=false, such pods stay, the status lists them, and the other pods leave. The
    command shows the admission webhook's warnings about data that will be lost. It also names the virtual machines that
    will move, shut down or block the drain.

    \b
    Example:
      kubectl maintenance start node-1 --dry-run
      kubectl maintenance start node-1 --reason "new disk"
      kubectl maintenance start node-1 --force=false --delete-emptydir-data=false
      kubectl maintenance start node-1 --wait --timeout 10m
    """
    check_timeout(wait=wait, remedy="add --wait")
    if wait and dry_run:
        raise click.UsageError("--dry-run changes nothing that --wait could wait for: leave one of them out")
    drain = {FIELDS[flag]: value for flag, value in flags.items()}

    async def work(api: Api) -> Object:
        requester = await whoami(api)
        door = api.dry_run() if dry_run else api
        options, foreseen = options_of({"spec": drain_of(drain)}), await machines_on(api, node)
        is_plain = options == NODE_MAINTENANCE and not dry_run
        pods = NO_PODS if is_plain else await pods_foreseen(api, node, options, foreseen.reports)
        foreseen = foreseen.without(pods.machines)
        with hearing() as warnings:
            made = await create(door, GROUPS[group], node, name or node, reason, requester, drain)
        for warning in (*warnings, *foreseen.warnings(GROUPS[group]), *_about(pods, node, options)):
            warn(warning)
        if moving := foreseen.moves(GROUPS[group]):
            note(moving, output)
        if dry_run:
            return _shown(pods, made, foreseen.reports, output)
        note(f"{full_name(made)} created", output)
        if wait:
            return await _awaited(api, made, node, timeout, output)
        note(f"Follow it with: kubectl maintenance status {node} --watch", output)
        return made

    made = with_api(work)
    if output == "json":
        show_json(plain(made))


def _about(pods: Pods, node: str, options: DrainOptions) -> Iterator[str]:
    """Yield warnings about the pods of this drain, including any that could not be read."""
    yield from pods.unknown
    if pods.selects_none:
        yield f"no pod that would leave {node} is selected by {options.pod_selector}"
    if pods.deleted:
        yield "pods are deleted, whatever their budgets say, where the component deleting is installed: else they stay"


def _shown(pods: Pods, made: Object, machines: list[Object], output: str) -> Object:
    """Show the preview of a dry run, and return it with the NodeMaintenance that would be created."""
    for line in pods.lines():
        note(line, output)
    note(f"{full_name(made)} would be created", output)
    return {**made, **pods.as_data(), "virtualMachines": machines}


async def _awaited(api: Api, made: Object, node: str, timeout: float, output: str) -> Object:
    """Return the NodeMaintenance once its node is drained.

    If the wait fails and the output is JSON, the function prints the last known state of the object.
    """
    follow, end = f"kubectl maintenance status {node}", f"kubectl maintenance stop {node}"
    goes_on(lambda: f"the maintenance of {node} goes on: {follow} shows it, {end} ends it")
    latest = [made]
    try:
        return await within(timeout, _drained(api, latest, output), lambda: _late(node, timeout, latest[0]))
    except click.ClickException:
        if output == "json":
            show_json(plain(latest[0]))
        raise


def _late(node: str, seconds: float, item: Object) -> str:
    """Build the message for a drain that exceeds the timeout, with the reason that blocks it."""
    reason = held_up(status_of(item))
    why = f" ({reason})" if reason else ""
    return f"{node} is not drained after {seconds:g} s{why}, its maintenance goes on: kubectl maintenance status {node}"


async def _drained(api: Api, latest: list[Object], output: str) -> Object:
    """Show the progress, and return the NodeMaintenance once its node is drained.

    In: `latest`, a list with the created object. The function replaces that object with each newer state, so that the
    caller still has the last one after a timeout.

    Raises `ClickException` if the maintenance fails or is deleted.
    """
    from console.terminal.maintenance_display import awaited, line  # imports rich, which only drawing needs
    from console.terminal.escaping import escaped_all

    screen = (
        live(lambda item: awaited(item, datetime.now(timezone.utc)), line) if output == "table" else nullcontext(_mute)
    )
    (made,) = latest
    uid, name = made["metadata"]["uid"], full_name(made)
    with screen as show_state:
        async with aclosing(watched(api, node_name(made))) as states:
            async for state in states:
                item = next((item for item in state if item["metadata"]["uid"] == uid), None)
                if item is None or is_deleting(item):
                    raise click.ClickException(f"{name} was deleted before its node was drained")
                latest[0] = item
                show_state(escaped_all(item))
                if condition(item, "Drained").get("status") == "True":
                    return item
                if phase_word(item) == FAILED:
                    raise click.ClickException(f"{name} failed: {item['status'].get('lastError')}")
    raise click.ClickException(f"the watch on {name} ended: see kubectl maintenance status")


def _mute(item: Object) -> None:
    """Show nothing: the JSON output is printed at the end."""
