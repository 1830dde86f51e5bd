"""Determines the version of `kubectl maintenance`, and the images and versions of the functions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress

from kube.paths import Object

PACKAGES = ("kubectl-maintenance", "function")
"""Names of the Python distributions that contain the command: the plugin's own, and the functions' distribution."""
UNPACKAGED = "unknown, because it runs from a source tree that is not installed as a package"
VERSION_LABEL = "app.kubernetes.io/version"
VERSION_PATTERN = re.compile(r"v?(\d+)\.(\d+)(?:\.\d.*)?")
"""Matches a version or the tag of a released image; the groups are the major and the minor version number."""


def read_client_version() -> str:
    """Return the version of the installed package, or a text that states why the version is unknown."""
    from importlib.metadata import PackageNotFoundError, version  # Only two commands need this slow import.

    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            return version(package)
    return UNPACKAGED


def group_by_image(workloads: Iterable[Object]) -> dict[str, list[str]]:
    """Return the names of Deployments and Knative Services, sorted and grouped by the image of their first container.

    During an upgrade, workloads have different images. A workload without a container is omitted.
    """
    names_by_image: dict[str, list[str]] = {}
    for workload in workloads:
        containers = workload["spec"].get("template", {}).get("spec", {}).get("containers") or []
        if containers and containers[0].get("image"):
            names_by_image.setdefault(containers[0]["image"], []).append(workload["metadata"]["name"])
    return {image: sorted(names) for image, names in sorted(names_by_image.items())}


def is_rolled_out(workload: Object) -> bool:
    """Return whether a Deployment or a Knative Service runs only its current image, and its pods are available.

    A Knative Service runs the image of its latest ready Revision, and changes `latestCreatedRevisionName` first.
    """
    status = workload.get("status") or {}
    if status.get("observedGeneration") != workload["metadata"].get("generation"):
        return False
    if created := status.get("latestCreatedRevisionName"):
        return bool(created == status.get("latestReadyRevisionName"))
    replicas = workload["spec"].get("replicas")
    return all(status.get(field, 0) == replicas for field in ("replicas", "updatedReplicas", "availableReplicas"))


def find_function_versions(workloads: Iterable[Object]) -> list[str]:
    """Return the sorted versions of the workloads, without a leading `v`.

    A workload's version is its version label, or else its image's tag. A tag that is not a version, such as `latest`,
    is omitted.
    """
    versions = set()
    for workload in workloads:
        label = (workload["metadata"].get("labels") or {}).get(VERSION_LABEL)
        for text in [label] if label else map(_parse_image_tag, group_by_image([workload])):
            if VERSION_PATTERN.fullmatch(text):
                versions.add(text.removeprefix("v"))
    return sorted(versions)


def _parse_image_tag(image: str) -> str:
    """Return the tag of an image reference, or "" if it has no tag; a colon before the last slash precedes a port."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[2]


def explain_version_skew(client_version: str, cluster_versions: Iterable[str]) -> str:
    """Return a warning if functions have a different major or minor version than the command, else ""."""
    client = VERSION_PATTERN.fullmatch(client_version)
    matches = {version: VERSION_PATTERN.fullmatch(version) for version in cluster_versions}
    others = [version for version, match in matches.items() if client and match and match.groups() != client.groups()]
    if not others:
        return ""
    return (
        f"this command has version {client_version}, and functions have version {', '.join(others)}: "
        "install a command with the minor version of the functions"
    )
