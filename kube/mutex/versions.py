"""Versions of OpenShift, on nodes and in the ClusterVersion, compared as semver.org has it (MUT-31). Pure."""

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
"""Characters; what is longer is no version."""
Key = tuple[int, int, int, bool, tuple[tuple[int, int, str], ...]]


class NoVersion(ValueError):
    """A text that is no version."""


class Wanted(NamedTuple):
    """What a ClusterVersion says: the version that is wanted, "" for none, and why no node may be released for it."""

    version: str
    hindrance: str


def key(version: str) -> Key:
    """What versions are sorted by. Raises `NoVersion`."""
    found = SEMVER.fullmatch(version) if len(version) <= LONGEST else None
    if found is None:
        raise NoVersion(f"{version[:LONGEST]!r} is no version such as 4.16.4")
    major, minor, patch, before = found.groups()
    identifiers = tuple(_identifier(each) for each in before.split(".")) if before else ()
    return int(major), int(minor), int(patch), not before, identifiers


def _identifier(text: str) -> tuple[int, int, str]:
    """Numbers come before words and are compared as numbers."""
    return (0, int(text), "") if text.isdecimal() else (1, 0, text)


def is_less(version: str, other: str) -> bool:
    """Whether the first one is older. Raises `NoVersion`."""
    return key(version) < key(other)


def is_version(text: str) -> bool:
    """Whether it can be compared."""
    try:
        key(text)
    except NoVersion:
        return False
    return True


def version_of(node: Mapping[str, Any]) -> str:
    """The version that a node carries on its label, "" for none."""
    return str((node["metadata"].get("labels") or {}).get(VERSION_LABEL) or "")


def is_worker(node: Mapping[str, Any]) -> bool:
    """Whether it is one of the cluster's workers."""
    return WORKER in (node["metadata"].get("labels") or {})


def wanted(cluster_version: Mapping[str, Any] | None) -> Wanted:
    """What a ClusterVersion asks for (MUT-31, MUT-32, C23)."""
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
    """Why the control plane is not there yet; "" when it is."""
    newest = history[0] if isinstance(history, list) and history else {"state": history}
    state, reached = str(newest.get("state") or "unknown"), newest.get("version")
    if state != "Completed":
        return f"the update of the control plane is {state}, not Completed"
    if reached and reached != version:
        return f"the control plane has reached {reached}, not yet {version}"
    return ""
