"""Fixture for the administrator's API client for the local cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kube.client.sync_client import SyncClient
from localcluster.cluster import LocalCluster


@pytest.fixture(scope="session")
def admin_client(installed_cluster: LocalCluster) -> Iterator[SyncClient]:
    """Yield the administrator's API client, and close it after the last test."""
    client = SyncClient(str(installed_cluster.kubeconfig))
    yield client
    client.close()
