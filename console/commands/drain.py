"""`kubectl maintenance drain`: drains nodes like `kubectl drain`, without a NodeMaintenance (DRN-1 to 6, OSV-10)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import click

from console.operations.maintenance_actions import get_node_or_refuse
from console.operations.maintenance_preview import MaintenancePreview
from console.operations.manual_drain import NodeDrain, classify_node_pods, cordon_node, preview_node_drain
from console.terminal.connection import run_with_timeout
from console.terminal.node_selection import (
    NodeOutcomes,
    NodeSelection,
    get_node_reference,
    node_selection_options,
    run_for_nodes,
)
from console.terminal.options import (
    KubectlFlagsCommand,
    cluster_options,
    dry_run_option,
    object_output_option,
    switch_option,
    text_option,
    timeout_option,
)
from console.terminal.output import print_note, set_interrupt_note, warn
from kube.client.api import Api
from kube.client.api_errors import Rejected
from kube.paths import Object
from kube.pods import DrainOptions, PodClassification, build_name_reference, build_warnings, format_key


@dataclass(frozen=True)
class DrainRequest:
    """The command-line options of the drain; `timeout` is the maximum time per node in seconds, 0 for no limit."""

    options: DrainOptions
    dry_run: bool
    timeout: float
    output: str


@click.command(cls=KubectlFlagsCommand)
@node_selection_options()
@switch_option(
    "--delete-emptydir-data",
    "--delete-local-data",
    help="Also evict pods with emptyDir volumes; their data is lost.",
)
@switch_option("--ignore-daemonsets", help="Ignore pods of DaemonSets.")
@switch_option("--force", help="Also evict pods without a controller; nothing recreates them.")
@text_option("--pod-selector", help="Evict only pods that match this label selector, such as app=web.")
@dry_run_option("Show what would be done, and change nothing.")
@timeout_option("0", "all pods of a node are gone")
@object_output_option
@cluster_options
def drain(
    selection: NodeSelection,
    delete_emptydir_data: bool,
    ignore_daemonsets: bool,
    force: bool,
    pod_selector: str,
    dry_run: bool,
    timeout: float,
    output: str,
) -> None:
    """Cordon NODE and evict its pods, as kubectl drain does; NODE stays cordoned until it is uncordoned.

    Several nodes are all cordoned first, so that no evicted pod moves to one of them. The command then drains one node
    after the other.

    \b
    Example:
      kubectl maintenance drain node-1 --ignore-daemonsets --delete-emptydir-data --force
      kubectl maintenance drain node-1 --ignore-daemonsets=true --pod-selector=kubevirt.io=virt-launcher
      kubectl maintenance drain -l pool=blue --ignore-daemonsets --timeout 10m
    """
    options = DrainOptions(force, ignore_daemonsets, delete_emptydir_data, pod_selector)
    request, outcomes = DrainRequest(options, dry_run, timeout, output), NodeOutcomes(selection)

    async def drain_nodes(api: Api, nodes: list[str]) -> None:
        cordoned_nodes: list[str] = []
        for node in nodes:
            with outcomes.collect_error(node):
                await _check_and_cordon_node(api, node, request)
                cordoned_nodes.append(node)
            if cordoned_nodes and not dry_run:
                set_interrupt_note(lambda: _build_interrupt_note(cordoned_nodes))
        for node in cordoned_nodes:
            with outcomes.collect_error(node):
                outcomes.reports[node] = await _drain_node(api, node, request, cordoned_nodes)

    run_for_nodes(selection, drain_nodes, "" if dry_run else "Drain")
    outcomes.finish(output, get_node_reference)


async def _check_and_cordon_node(api: Api, node: str, request: DrainRequest) -> None:
    """Cordon the node, except in a dry run. Raises a usage error if the API server rejects the pod selector."""
    await get_node_or_refuse(api, node)
    await _check_pod_selector(api, node, request.options)
    if not request.dry_run:
        changed = await cordon_node(api, node)
        print_note(f"node/{node} {'cordoned' if changed else 'already cordoned'}", request.output)


async def _drain_node(api: Api, node: str, request: DrainRequest, cordoned_nodes: Sequence[str]) -> Object:
    """Evict the node's pods, or preview the evictions in a dry run; return the report for the node.

    `cordoned_nodes` are all nodes that the command has cordoned, which the message after Ctrl-C names.
    """
    options, output = request.options, request.output
    pods = await classify_node_pods(api, node, options)
    _raise_if_drain_refused(node, pods, is_cordoned=not request.dry_run)
    for warning in build_warnings(pods):
        warn(warning)
    if request.dry_run:
        preview = await preview_node_drain(api, node, options)
        report = _report_dry_run(node, preview, output, has_heading=len(cordoned_nodes) > 1)
        print_note(f"node/{node} would be drained", output)
        return report
    await _evict_pods(_create_node_drain(api, node, pods, request), node, request.timeout, cordoned_nodes)
    print_note(f"node/{node} drained", output)
    return {
        "node": node,
        "dryRun": False,
        "drained": True,
        "evicted": [build_name_reference(pod) for pod in sorted(pods.leaving, key=format_key)],
        "ignored": [build_name_reference(pod) for pod in sorted(pods.daemonset_pods, key=format_key)],
    }


async def _check_pod_selector(api: Api, node: str, options: DrainOptions) -> None:
    """Raise a usage error if the API server rejects the pod selector (DRN-5)."""
    try:
        await classify_node_pods(api, node, options)
    except Rejected as error:
        raise click.BadParameter(error.message, param_hint="--pod-selector") from None


def _raise_if_drain_refused(node: str, classification: PodClassification, *, is_cordoned: bool) -> None:
    """Raise an error that lists all pods which the drain options do not allow to evict, if there are any.

    The command then evicts no pod of the node. If it has cordoned the node, the node stays cordoned (DRN-2).
    """
    if not classification.refusals:
        return
    reasons = "; ".join(f"{refusal.reason}: {', '.join(refusal.pods)}" for refusal in classification.refusals)
    state = ", which stays cordoned" if is_cordoned else ""
    raise click.ClickException(f'unable to drain node "{node}"{state}: {reasons}')


def _create_node_drain(api: Api, node: str, classification: PodClassification, request: DrainRequest) -> NodeDrain:
    selector = request.options.pod_selector
    return NodeDrain(api, node, selector, classification.leaving, lambda text: print_note(text, request.output))


def _build_interrupt_note(nodes: Sequence[str], remaining_pods: str = "") -> str:
    """Return the message after Ctrl-C: the nodes that stay cordoned, and the command that uncordons them."""
    names = ", ".join(f'"{node}"' for node in nodes)
    state = f"node {names} stays cordoned" if len(nodes) == 1 else f"nodes {names} stay cordoned"
    undo = f"to uncordon {'it' if len(nodes) == 1 else 'them'}, run kubectl maintenance uncordon {' '.join(nodes)}"
    return f"no more pods are evicted, {state}{f', {remaining_pods}' if remaining_pods else ''}; {undo}"


async def _evict_pods(node_drain: NodeDrain, node: str, timeout: float, cordoned_nodes: Sequence[str]) -> None:
    set_interrupt_note(lambda: _build_interrupt_note(cordoned_nodes, node_drain.describe_remaining_pods()))
    await run_with_timeout(
        timeout,
        node_drain.run(),
        lambda: (
            f'node "{node}" not drained within {timeout:g}s, stays cordoned: {node_drain.describe_remaining_pods()}'
        ),
    )


def _report_dry_run(node: str, preview: MaintenancePreview, output: str, *, has_heading: bool) -> Object:
    """Print what would happen to each pod, and return the report of the dry run."""
    for warning in preview.warnings:
        warn(warning)
    for line in preview.format_pod_lines(has_headings=has_heading):
        print_note(line, output)
    return {"node": node, "dryRun": True, "drained": False, **preview.split_by_node()[node]}
