"""Determines the version of this command, and the images that the functions in the cluster run. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from kube.paths import Object

PACKAGES = ("kubectl-maintenance", "function")
"""Names of the Python distributions that contain the command: for workstations, and with the functions."""
UNPACKAGED = "unknown, because it runs from a source tree that is not installed as a package"


def read_client_version() -> str:
    """Return the version of the installed package, or why it is unknown."""
    from importlib.metadata import PackageNotFoundError, version  # slow import, needed by two commands

    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            return version(package)
    return UNPACKAGED


def group_by_image(workloads: Iterable[Object]) -> dict[str, list[str]]:
    """Return each image → the sorted names of the Deployments or Knative Services whose first container runs it.

    There are several images during an upgrade. A workload without a container is omitted.
    """
    names_by_image: dict[str, list[str]] = {}
    for workload in workloads:
        containers = workload["spec"].get("template", {}).get("spec", {}).get("containers") or []
        if containers and containers[0].get("image"):
            names_by_image.setdefault(containers[0]["image"], []).append(workload["metadata"]["name"])
    return {image: sorted(names) for image, names in sorted(names_by_image.items())}
