"""Tests of versions, compared as semver.org defines it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from kube.mutex import versions
from kube.mutex.versions import NoVersion
from tests.proofs import proves

ORDERED = (
    *("4.9.0", "4.10.0-0.ci", "4.10.0-alpha", "4.10.0-alpha.1", "4.10.0-alpha.beta", "4.10.0-beta", "4.10.0-beta.2"),
    *("4.10.0-beta.11", "4.10.0-rc.1", "4.10.0", "4.15.9", "4.16.0-rc.1", "4.16.0", "4.16.4", "4.16.10", "5.0.0"),
)


@proves("MUT-31")
def test_versions_are_in_order() -> None:
    """Compare numbers by value, and order pre-releases before their release."""
    assert all(versions.is_less(one, two) and not versions.is_less(two, one) for one, two in pairwise(ORDERED))
    assert not versions.is_less("4.16.4", "4.16.4")
    assert not versions.is_less("4.16.4+a", "4.16.4+b")


@pytest.mark.parametrize("text", ["", "4.16", "v4.16.4", "4.16.4.1", "04.1.1", "4.16.x", "4.1.1-", "x" * 300, "４.1.1"])
def test_what_is_no_version_is_refused(text: str) -> None:
    """Raise `NoVersion` for a text that is not a version."""
    assert not versions.is_version(text)
    with pytest.raises(NoVersion):
        versions.key(text)


def cluster_version(version: Any, history: Any) -> dict[str, Any]:
    return {"spec": {"desiredUpdate": {"version": version}}, "status": {"history": history}}


DONE = {"state": "Completed", "version": "4.16.4"}


@proves("MUT-32", "C23")
@pytest.mark.parametrize(
    ("found", "version", "hindered"),
    [
        (None, "", True),
        ({}, "", True),
        (cluster_version("", [DONE]), "", True),
        (cluster_version("soon", [DONE]), "", True),
        (cluster_version("4.16.4", [DONE]), "4.16.4", False),
        (cluster_version("4.16.4", [{"state": "Completed"}]), "4.16.4", False),
        (cluster_version("4.16.4", "Completed"), "4.16.4", False),
        (cluster_version("4.16.4", "Partial"), "4.16.4", True),
        (cluster_version("4.16.4", []), "4.16.4", True),
        (cluster_version("4.16.4", [{"state": "Partial", "version": "4.16.4"}, DONE]), "4.16.4", True),
        (cluster_version("4.17.0", [DONE]), "4.17.0", True),
    ],
)
def test_what_a_cluster_version_asks_for(found: Any, version: str, hindered: bool) -> None:
    """Require that the newest history entry is Completed and has the desired version."""
    told = versions.wanted(found)
    assert (told.version, bool(told.hindrance)) == (version, hindered)
