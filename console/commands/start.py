"""`kubectl maintenance start NODE`: creates the NodeMaintenance, which the functions then process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, aclosing, nullcontext
from dataclasses import dataclass
from datetime import datetime, timezone

import click

from console.operations.descriptions import format_full_name, get_phase_label, strip_managed_fields, summarize_blockers
from console.operations.drain_preview import DrainPreview, NodeVmis, preview_drain, read_vmis
from console.operations.install_check import warn_if_stalled
from console.operations.maintenance_actions import create_maintenance, watch_maintenances
from console.terminal.connection import run_with_api, run_with_timeout
from console.terminal.options import (
    KubectlFlagsCommand,
    NonEmptyText,
    Utf8Text,
    check_timeout,
    cluster_options,
    dry_run_option,
    namespace_option,
    output_option,
    switch_option,
    text_option,
    timeout_option,
)
from console.terminal.output import escape_all, print_note, set_interrupt_note, show_json, show_live, warn
from kube.client.access_reviews import whoami
from kube.client.api import Api
from kube.client.decoding import collect_warnings
from kube.maintenance.drain_flags import build_drain_spec, parse_drain_options
from kube.maintenance.groups import KUBEVIRT, MEDIK8S, ApiGroup
from kube.maintenance.objects import FAILED, get_condition, get_node_name, get_status, is_deleting
from kube.paths import Object
from kube.pods import DEFAULT_DRAIN_OPTIONS, DrainOptions
from kube.selectors import parse_selector

GROUPS = {"medik8s": MEDIK8S, "kubevirt": KUBEVIRT}


@dataclass(frozen=True)
class MaintenanceRequest:
    """The NodeMaintenance that the command line describes.

    Attributes:
        drain_fields: The fields of its `spec.drain`: the flags of `kubectl drain`, whose parameters have the fields'
            names (DRN-1a); None for each flag that is not set.
    """

    node: str
    name: str
    group: ApiGroup
    reason: str
    drain_fields: Mapping[str, object]
    dry_run: bool

    @property
    def drain_options(self) -> DrainOptions:
        """Return the drain options, with defaults for fields that are None."""
        return parse_drain_options({"spec": build_drain_spec(self.drain_fields)})


def check_selector(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    """Return the label selector unchanged. Raises `BadParameter` if it cannot be parsed."""
    try:
        parse_selector(value or "")
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return value


@click.command(cls=KubectlFlagsCommand)
@click.argument("node", type=NonEmptyText())
@click.option("--reason", type=Utf8Text(), default="", help="Reason for the maintenance, as free text.")
@text_option("--name", help="Name of the NodeMaintenance.  [default: the node's name]")
@click.option(
    "--group",
    type=click.Choice(list(GROUPS)),
    default="medik8s",
    show_default=True,
    help="API group of the NodeMaintenance.",
)
@switch_option(
    "--force", default=None, help="Also evict pods without a controller; nothing recreates them.  [default: true]"
)
@switch_option(
    "--delete-emptydir-data",
    "--delete-local-data",
    "deleteEmptyDirData",
    default=None,
    help="Also evict pods with emptyDir volumes; their data is lost.  [default: true]",
)
@switch_option(
    "--ignore-daemonsets", "ignoreDaemonSets", default=None, help="Ignore pods of DaemonSets.  [default: true]"
)
@click.option(
    "--pod-selector",
    "podSelector",
    type=NonEmptyText(),
    callback=check_selector,
    help="Evict only pods that match this label selector, such as app=web.",
)
@click.option(
    "--grace-period",
    "gracePeriodSeconds",
    type=click.IntRange(-1),
    help="Seconds that pods have to terminate.  [default: each pod's terminationGracePeriodSeconds]",
)
@switch_option(
    "--disable-eviction",
    "disableEviction",
    default=None,
    help="Delete pods, regardless of their budgets.  [default: false]",
)
@click.option(
    "--skip-wait-for-delete-timeout",
    "skipWaitForDeleteTimeoutSeconds",
    type=click.IntRange(0),
    help="Do not wait for pods whose deletion is overdue by more than this number of seconds.  [default: wait]",
)
@dry_run_option("Show what would happen to pods and virtual machines, and change nothing.")
@click.option("--wait", is_flag=True, help="Show the progress and return when the node is drained.")
@timeout_option("0", "the node is drained, with --wait")
@namespace_option
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
    namespace: str,
    output: str,
    **drain_fields: object,
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
        raise click.UsageError("--dry-run starts no drain that --wait could wait for: omit one of them")
    request = MaintenanceRequest(node, name or node, GROUPS[group], reason, drain_fields, dry_run)

    async def create_and_follow_maintenance(api: Api) -> Object:
        preview, node_vmis = await _preview_maintenance(api, request)
        created, warnings = await _create_maintenance(api, request)
        for warning in (*warnings, *node_vmis.list_warnings(request.group), *_iter_warnings(preview, request)):
            warn(warning)
        if moves := node_vmis.describe_moves(request.group):
            print_note(moves, output)
        if dry_run:
            return _report_dry_run(preview, created, node_vmis.reports, output)
        print_note(f"{format_full_name(created)} created", output)
        if wait:
            return await _wait_until_drained(api, created, namespace, timeout, output)
        print_note(f"Follow the drain with: kubectl maintenance status {node} --watch", output)
        return created

    show_json(strip_managed_fields(run_with_api(create_and_follow_maintenance)), output)


async def _preview_maintenance(api: Api, request: MaintenanceRequest) -> tuple[DrainPreview, NodeVmis]:
    """Preview the effect on the node's pods (only for a dry run or non-default options) and virtual machines."""
    options, node_vmis = request.drain_options, await read_vmis(api, request.node)
    if not request.dry_run and options == DEFAULT_DRAIN_OPTIONS:
        return DrainPreview([], [], [], []), node_vmis
    preview = await preview_drain(api, request.node, options, node_vmis.reports)
    return preview, node_vmis.exclude(preview.remaining_vms)


async def _create_maintenance(api: Api, request: MaintenanceRequest) -> tuple[Object, list[str]]:
    """Create the NodeMaintenance, in a dry run without storing it; return it with the API server's warnings."""
    requester, create_api = await whoami(api), api.with_dry_run() if request.dry_run else api
    with collect_warnings() as warnings:
        created = await create_maintenance(
            create_api, request.group, request.node, request.name, request.reason, requester, request.drain_fields
        )
    return created, warnings


def _iter_warnings(preview: DrainPreview, request: MaintenanceRequest) -> Iterator[str]:
    """Yield warnings about the drain's pods and about failed reads."""
    yield from preview.errors
    if preview.selects_none:
        selector = request.drain_options.pod_selector
        yield f'pod selector {selector} matches no pod that would leave node "{request.node}"'
    if preview.uses_deletion:
        yield (
            'pods are deleted regardless of their budgets if the component "deleting" is installed; otherwise they stay'
        )


def _report_dry_run(preview: DrainPreview, maintenance: Object, vmi_reports: list[Object], output: str) -> Object:
    """Show the preview of a dry run, and return it with the NodeMaintenance that would be created."""
    for line in preview.format_lines():
        print_note(line, output)
    print_note(f"{format_full_name(maintenance)} would be created", output)
    return {**maintenance, **preview.as_data(), "virtualMachines": vmi_reports}


async def _wait_until_drained(api: Api, maintenance: Object, namespace: str, timeout: float, output: str) -> Object:
    """Return the NodeMaintenance once its node is drained.

    If the maintenance has no status after some seconds, warnings name the problems of the install. If the wait fails
    and the output is JSON, the function prints the last known state of the object.
    """
    node = get_node_name(maintenance)
    remedy = f"to see it, run kubectl maintenance status {node}; to end it, run kubectl maintenance stop {node}"
    set_interrupt_note(lambda: f'the maintenance of node "{node}" continues: {remedy}')
    latest = [maintenance]
    try:
        async with warn_if_stalled(api, namespace, lambda: [item for item in latest if not get_status(item)], warn):
            return await run_with_timeout(
                timeout, _follow_until_drained(api, latest, output), lambda: _format_timeout(node, timeout, latest[0])
            )
    except click.ClickException:
        show_json(strip_managed_fields(latest[0]), output)
        raise


def _format_timeout(node: str, timeout: float, maintenance: Object) -> str:
    """Build the message for a drain that exceeds the timeout, with the reason that blocks it."""
    reason = summarize_blockers(get_status(maintenance))
    state = f'node "{node}" not drained within {timeout:g}s{f" ({reason})" if reason else ""}'
    return f"{state}, its maintenance continues: see kubectl maintenance status {node}"


async def _follow_until_drained(api: Api, latest: list[Object], output: str) -> Object:
    """Show the progress, and return the NodeMaintenance once its node is drained.

    In: `latest`, a list with the created object. The function replaces that object with each newer version, so that the
    caller still has the last version after a timeout.

    Raises `ClickException` if the maintenance fails or is deleted.
    """
    from console.terminal.maintenance_display import (  # slow import, needed only to draw
        format_line,
        render_awaited_maintenance,
    )

    display: AbstractContextManager[Callable[[Object], None]] = (
        show_live(lambda state: render_awaited_maintenance(state, datetime.now(timezone.utc)), format_line)
        if output == "table"
        else nullcontext(lambda _state: None)  # The JSON output is printed at the end.
    )
    (created,) = latest
    uid, name = created["metadata"]["uid"], format_full_name(created)
    with display as show_state:
        async with aclosing(watch_maintenances(api, get_node_name(created))) as updates:
            async for maintenances in updates:
                maintenance = next((item for item in maintenances if item["metadata"]["uid"] == uid), None)
                if maintenance is None or is_deleting(maintenance):
                    raise click.ClickException(f"{name} was deleted before its node was drained")
                latest[0] = maintenance
                show_state(escape_all(maintenance))
                if get_condition(maintenance, "Drained").get("status") == "True":
                    return maintenance
                if get_phase_label(maintenance) == FAILED:
                    raise click.ClickException(f"{name} failed: {maintenance['status'].get('lastError')}")
    raise click.ClickException(f"the watch on {name} ended: see kubectl maintenance status")
