"""Fixture: the administrator's API client for the local cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kube.client.sync_client import Cluster
from localcluster.cluster import LocalCluster


@pytest.fixture(scope="session")
def admin(installed: LocalCluster) -> Iterator[Cluster]:
    """Yield the administrator's API client, and close it after the last test."""
    door = Cluster(str(installed.kubeconfig))
    yield door
    door.close()
