"""Tests for comparing versions according to Semantic Versioning (semver.org)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from kube.mutex import versions
from kube.mutex.versions import InvalidVersion
from tests.proofs import proves

ORDERED_VERSIONS = (
    *("4.9.0", "4.10.0-0.ci", "4.10.0-alpha", "4.10.0-alpha.1", "4.10.0-alpha.beta", "4.10.0-beta", "4.10.0-beta.2"),
    *("4.10.0-beta.11", "4.10.0-rc.1", "4.10.0", "4.15.9", "4.16.0-rc.1", "4.16.0", "4.16.4", "4.16.10", "5.0.0"),
)


@proves("MUT-31")
def test_versions_are_compared_by_number_and_pre_release() -> None:
    """Check that version numbers are compared by value, and that pre-releases precede their release."""
    assert all(
        versions.is_older_version(older, newer) and not versions.is_older_version(newer, older)
        for older, newer in pairwise(ORDERED_VERSIONS)
    )
    assert not versions.is_older_version("4.16.4", "4.16.4")
    assert not versions.is_older_version("4.16.4+a", "4.16.4+b")


@pytest.mark.parametrize("text", ["", "4.16", "v4.16.4", "4.16.4.1", "04.1.1", "4.16.x", "4.1.1-", "x" * 300, "４.1.1"])
def test_invalid_version_raises_invalid_version(text: str) -> None:
    """Check that a text that is not a version raises `InvalidVersion`."""
    assert not versions.is_valid_version(text)
    with pytest.raises(InvalidVersion):
        versions.parse_version_key(text)


def make_cluster_version(version: Any, history: Any) -> dict[str, Any]:
    return {"spec": {"desiredUpdate": {"version": version}}, "status": {"history": history}}


COMPLETED_UPDATE = {"state": "Completed", "version": "4.16.4"}


@proves("MUT-32", "C23")
@pytest.mark.parametrize(
    ("reported_cluster_version", "version", "is_blocked"),
    [
        (None, "", True),
        ({}, "", True),
        (make_cluster_version("", [COMPLETED_UPDATE]), "", True),
        (make_cluster_version("soon", [COMPLETED_UPDATE]), "", True),
        (make_cluster_version("4.16.4", [COMPLETED_UPDATE]), "4.16.4", False),
        (make_cluster_version("4.16.4", [{"state": "Completed"}]), "4.16.4", False),
        (make_cluster_version("4.16.4", "Completed"), "4.16.4", False),
        (make_cluster_version("4.16.4", "Partial"), "4.16.4", True),
        (make_cluster_version("4.16.4", []), "4.16.4", True),
        (make_cluster_version("4.16.4", [{"state": "Partial", "version": "4.16.4"}, COMPLETED_UPDATE]), "4.16.4", True),
        (make_cluster_version("4.17.0", [COMPLETED_UPDATE]), "4.17.0", True),
    ],
)
def test_control_plane_is_updated_if_desired_version_is_completed(
    reported_cluster_version: Any, version: str, is_blocked: bool
) -> None:
    """Check that the control plane is updated only if its newest history entry has Completed the desired version."""
    result = versions.parse_desired_version(reported_cluster_version)
    assert (result.version, bool(result.blocker)) == (version, is_blocked)
