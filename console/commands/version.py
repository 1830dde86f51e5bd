"""`kubectl maintenance version`: shows the version of this command, and the images of the functions in the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import click

from console.operations.install_check import PRODUCT_LISTINGS
from console.operations.install_problems import COMPONENT_LABEL, FUNCTION_COMPONENT
from console.operations.versions import group_by_image, read_client_version
from console.terminal.connection import run_with_api
from console.terminal.options import cluster_options, namespace_option, output_option
from console.terminal.output import print_note, show_json
from kube.client.api import Api, get_or_none
from kube.client.api_errors import Denied
from kube.text_limits import format_first_names

SELECTORS = {"services": "", "deployments": f"{COMPONENT_LABEL}={FUNCTION_COMPONENT}"}
"""Resource of the workloads that run functions → the label selector of those among the objects in the namespace.

Every Knative Service in the namespace runs functions; `func deploy` gives its Service no label of this project.
"""
MAX_NAMES = 3


@click.command
@namespace_option
@output_option
@cluster_options
def version(namespace: str, output: str) -> None:
    """Show the version of this command, and the images of the functions in the cluster.

    The tag of the image is the version of the functions.

    \b
    Example:
      kubectl maintenance version
      kubectl maintenance version -o json
    """
    client_version = read_client_version()
    print_note(f"Command: {client_version}", output)
    images, reason = run_with_api(lambda api: _read_images(api, namespace))
    for image, names in images.items():
        print_note(f"Functions: {image} ({format_first_names(names, MAX_NAMES)})", output)
    if reason:
        print_note(f"Functions: unknown, because {reason}", output)
    unknown_fields = {"functionsUnknown": reason} if reason else {}
    show_json({"command": client_version, "functions": images, **unknown_fields}, output)


async def _read_images(api: Api, namespace: str) -> tuple[Mapping[str, list[str]], str]:
    """Return the names of the functions' workloads by image, or why they are unknown."""
    listings = [replace(item, namespace=namespace) for item in PRODUCT_LISTINGS if item.resource in SELECTORS]
    workloads = []
    for listing in listings:
        try:
            found = await get_or_none(api.list(listing.path, label_selector=SELECTORS[listing.resource]))
        except Denied:
            return {}, f"you may not {listing.permission}"
        workloads += (found or {}).get("items", [])
    images = group_by_image(workloads)
    return images, "" if images else f'namespace "{namespace}" has no functions: name another one with --namespace'
