"""OpenShift versions of nodes and of the ClusterVersion, compared as semver.org defines it (MUT-31)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

VERSION_LABEL = "machineconfiguration.openshift.io/release-image-version"
WORKER = "node-role.kubernetes.io/worker"
_NUMBER = r"(0|[1-9]\d*)"
_IDENTIFIERS = r"[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*"
SEMVER = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-({_IDENTIFIERS}))?(?:\+{_IDENTIFIERS})?", re.ASCII)
LONGEST = 128
"""Maximum length of a version, in characters."""
Key = tuple[int, int, int, bool, tuple[tuple[int, int, str], ...]]


class NoVersion(ValueError):
    """Error for a text that is not a version."""


class Wanted(NamedTuple):
    """The version that a ClusterVersion requests, "" for none, and the reason why no node may be released for it."""

    version: str
    hindrance: str


def key(version: str) -> Key:
    """Return the sort key of a version. Raises `NoVersion`."""
    found = SEMVER.fullmatch(version) if len(version) <= LONGEST else None
    if found is None:
        raise NoVersion(f"{version[:LONGEST]!r} is no version such as 4.16.4")
    major, minor, patch, before = found.groups()
    identifiers = tuple(_identifier(each) for each in before.split(".")) if before else ()
    return int(major), int(minor), int(patch), not before, identifiers


def _identifier(text: str) -> tuple[int, int, str]:
    """Return the sort key of a pre-release identifier: numbers sort before words, and by value."""
    return (0, int(text), "") if text.isdecimal() else (1, 0, text)


def is_less(version: str, other: str) -> bool:
    """Return whether `version` is older than `other`. Raises `NoVersion`."""
    return key(version) < key(other)


def is_version(text: str) -> bool:
    """Return whether the text is a version that can be compared."""
    try:
        key(text)
    except NoVersion:
        return False
    return True


def version_of(node: Mapping[str, Any]) -> str:
    """Return the version in the node's label, "" for none."""
    return str((node["metadata"].get("labels") or {}).get(VERSION_LABEL) or "")


def is_worker(node: Mapping[str, Any]) -> bool:
    """Return whether the node has the worker role."""
    return WORKER in (node["metadata"].get("labels") or {})


def wanted(cluster_version: Mapping[str, Any] | None) -> Wanted:
    """Return the version that a ClusterVersion requests, and whether nodes may follow it (MUT-31, MUT-32, C23)."""
    if cluster_version is None:
        return Wanted("", "there is no ClusterVersion named version")
    desired = (cluster_version.get("spec") or {}).get("desiredUpdate") or {}
    version = str(desired.get("version") or "") if isinstance(desired, Mapping) else ""
    if not version:
        return Wanted("", "the ClusterVersion has no spec.desiredUpdate.version")
    if not is_version(version):
        return Wanted("", f"spec.desiredUpdate.version of the ClusterVersion, {version[:LONGEST]!r}, is no version")
    return Wanted(version, _hindrance((cluster_version.get("status") or {}).get("history"), version))


def _hindrance(history: Any, version: str) -> str:
    """Return why the control plane does not have the version yet, "" if it has."""
    newest = history[0] if isinstance(history, list) and history else {"state": history}
    state, reached = str(newest.get("state") or "unknown"), newest.get("version")
    if state != "Completed":
        return f"the update of the control plane is {state}, not Completed"
    if reached and reached != version:
        return f"the control plane has reached {reached}, not yet {version}"
    return ""
