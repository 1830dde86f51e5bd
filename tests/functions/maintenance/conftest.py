"""Fixtures for the tests of the maintenance steps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from localcluster import access
from localcluster.cluster import LocalCluster
from localcluster.processes import wait_until_ready
from tests.manifests.rendering import ROOT


@pytest.fixture
def delete_permission(idle_cluster: LocalCluster) -> Iterator[None]:
    """Grant `evict` the right to delete pods through the component `deleting`, and revoke it after the test."""
    manifest = ROOT / "manifests" / "components" / "deleting" / "rbac.yaml"
    idle_cluster.kubectl("apply", "-f", manifest)
    arguments = ("auth", "can-i", "delete", "pods", "-A", "--as", access.make_username("evict"))
    wait_until_ready(
        "the permission to delete pods",
        lambda: idle_cluster.kubectl(*arguments, check=False).returncode == 0,
        idle_cluster.servers,
    )
    yield
    idle_cluster.kubectl("delete", "-f", manifest)
