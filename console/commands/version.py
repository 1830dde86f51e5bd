"""`kubectl maintenance version`: shows the versions of this command and of the functions, and warns if they differ."""

from __future__ import annotations

from dataclasses import replace

import click

from console.operations.install_check import PRODUCT_LISTINGS
from console.operations.install_problems import COMPONENT_LABEL, FUNCTION_COMPONENT
from console.operations.versions import (
    explain_version_skew,
    find_function_versions,
    group_by_image,
    is_rolled_out,
    read_client_version,
)
from console.terminal.connection import run_with_api
from console.terminal.options import cluster_options, namespace_option, output_option
from console.terminal.output import print_note, show_json, warn
from kube.client.api import Api, get_or_none
from kube.client.api_errors import Denied
from kube.paths import Object
from kube.text_limits import format_first_names

SELECTORS = {"services": "", "deployments": f"{COMPONENT_LABEL}={FUNCTION_COMPONENT}"}
"""Map from the resource name of a workload kind to the label selector of the workloads that run functions.

Knative Services need no selector: every Knative Service in the namespace runs functions, and the one that `func deploy`
creates has no label of this project.
"""
MAX_NAMES = 3


@click.command
@click.option("--client", "client_only", is_flag=True, help="Show only the version of this command.")
@namespace_option
@output_option
@cluster_options
def version(client_only: bool, namespace: str, output: str) -> None:
    """Show the version of this command, and the images of the functions in the cluster.

    The version of the functions is the label app.kubernetes.io/version, or else the tag of the image. If its minor
    version is not that of this command, a warning names both.

    Functions that are "not ready yet" still run their previous image, or their new pods are not available.

    \b
    Example:
      kubectl maintenance version
      kubectl maintenance version --client
      kubectl maintenance version -o json
    """
    client_version = read_client_version()
    print_note(f"Command: {client_version}", output)
    if client_only:
        show_json({"command": client_version}, output)
        return
    workloads, reason = run_with_api(lambda api: _list_workloads(api, namespace))
    images, cluster_versions = group_by_image(workloads), find_function_versions(workloads)
    if not images and not reason:
        reason = f'namespace "{namespace}" has no functions: name another one with --namespace'
    ready, unready = (
        [workload for workload in workloads if is_rolled_out(workload) is expected] for expected in (True, False)
    )
    for group, note in ((ready, ""), (unready, ", not ready yet")):
        for image, names in group_by_image(group).items():
            print_note(f"Functions: {image}{note} ({format_first_names(names, MAX_NAMES)})", output)
    if reason:
        print_note(f"Functions: unknown, because {reason}", output)
    if warning := explain_version_skew(client_version, cluster_versions):
        warn(warning)
    unknown_fields = {"functionsUnknown": reason} if reason else {}
    versions = {"command": client_version, "clusterVersions": cluster_versions}
    not_ready = sorted(workload["metadata"]["name"] for workload in unready)
    show_json({**versions, "functions": images, "notReady": not_ready, **unknown_fields}, output)


async def _list_workloads(api: Api, namespace: str) -> tuple[list[Object], str]:
    """Return the workloads that run functions, and the reason why the workloads cannot be listed, or ""."""
    listings = [replace(item, namespace=namespace) for item in PRODUCT_LISTINGS if item.resource in SELECTORS]
    workloads: list[Object] = []
    for listing in listings:
        try:
            found = await get_or_none(api.list(listing.path, label_selector=SELECTORS[listing.resource]))
        except Denied:
            return [], f"you may not {listing.permission}: ask an administrator for the ClusterRole maintenance-viewer"
        workloads += (found or {}).get("items", [])
    return workloads, ""
