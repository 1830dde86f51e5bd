"""OpenShift versions of nodes and of the ClusterVersion, compared according to semver.org (MUT-31)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

VERSION_LABEL = "machineconfiguration.openshift.io/release-image-version"
WORKER_LABEL = "node-role.kubernetes.io/worker"
_NUMBER = r"(0|[1-9]\d*)"
_IDENTIFIERS = r"[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*"
SEMVER_PATTERN = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-({_IDENTIFIERS}))?(?:\+{_IDENTIFIERS})?", re.ASCII)
MAX_VERSION_CHARACTERS = 128
"""Maximum length of a version, in characters."""
VersionKey = tuple[int, int, int, bool, tuple[tuple[int, int, str], ...]]


class InvalidVersion(ValueError):
    """Error for a string that is not a semantic version."""


class DesiredVersion(NamedTuple):
    """The version that a ClusterVersion requests, "" if none, and the reason why no node may be upgraded to it now."""

    version: str
    blocker: str


def parse_version_key(version: str) -> VersionKey:
    """Return the sort key of a version. Raises `InvalidVersion`."""
    match = SEMVER_PATTERN.fullmatch(version) if len(version) <= MAX_VERSION_CHARACTERS else None
    if match is None:
        raise InvalidVersion(f"{version[:MAX_VERSION_CHARACTERS]!r} is not a version such as 4.16.4")
    major, minor, patch, prerelease = match.groups()
    identifiers = tuple(map(_build_identifier_key, prerelease.split("."))) if prerelease else ()
    return int(major), int(minor), int(patch), not prerelease, identifiers


def _build_identifier_key(text: str) -> tuple[int, int, str]:
    """Return the sort key of a pre-release identifier: numbers sort by value and before words."""
    return (0, int(text), "") if text.isdecimal() else (1, 0, text)


def is_older_version(version: str, other: str) -> bool:
    """Return whether `version` is older than `other`. Raises `InvalidVersion`."""
    return parse_version_key(version) < parse_version_key(other)


def is_valid_version(text: str) -> bool:
    """Return whether the string is a valid semantic version."""
    try:
        parse_version_key(text)
    except InvalidVersion:
        return False
    return True


def get_version(node: Mapping[str, Any]) -> str:
    """Return the version in the node's label, "" if there is none."""
    return str((node["metadata"].get("labels") or {}).get(VERSION_LABEL) or "")


def is_worker(node: Mapping[str, Any]) -> bool:
    """Return whether the node has the worker role label."""
    return WORKER_LABEL in (node["metadata"].get("labels") or {})


def parse_desired_version(cluster_version: Mapping[str, Any] | None) -> DesiredVersion:
    """Return the version that a ClusterVersion requests, and why nodes must wait for it (MUT-31, MUT-32, C23)."""
    if cluster_version is None:
        return DesiredVersion("", "ClusterVersion version not found")
    desired = (cluster_version.get("spec") or {}).get("desiredUpdate") or {}
    version = str(desired.get("version") or "") if isinstance(desired, Mapping) else ""
    if not version:
        return DesiredVersion("", "the ClusterVersion has no spec.desiredUpdate.version")
    if not is_valid_version(version):
        return DesiredVersion(
            "",
            f"spec.desiredUpdate.version of the ClusterVersion, {version[:MAX_VERSION_CHARACTERS]!r}, is not a version",
        )
    return DesiredVersion(version, _find_blocker((cluster_version.get("status") or {}).get("history"), version))


def _find_blocker(history: Any, version: str) -> str:
    """Return why the control plane does not have the version yet; "" if it has."""
    newest = history[0] if isinstance(history, list) and history else {"state": history}
    state, reached = str(newest.get("state") or "unknown"), newest.get("version")
    if state != "Completed":
        return f"the update of the control plane is {state}, not Completed"
    if reached and reached != version:
        return f"the control plane has completed {reached}, not yet {version}"
    return ""
