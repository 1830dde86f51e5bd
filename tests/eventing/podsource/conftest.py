"""Fixtures for a cluster on which only PodSource runs; test helpers replace the functions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kube.client.sync_client import SyncClient
from localcluster import product as localproduct
from localcluster.cluster import LocalCluster
from tests.eventing.podsource.environment import PodSourceEnvironment


@pytest.fixture(scope="package")
def idle_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Yield a cluster with the product's CRDs and RBAC rules, but without running functions."""
    with LocalCluster(tmp_path_factory.mktemp("podsource"), nodes=1, audit=False) as cluster:
        localproduct.install_manifests(cluster)
        yield cluster


@pytest.fixture
def environment(idle_cluster: LocalCluster, tmp_path: Path) -> Iterator[PodSourceEnvironment]:
    """Yield an environment with a namespace, an event sink, and a PodSource process that the test can start."""
    admin = SyncClient(str(idle_cluster.kubeconfig))
    podsource_environment = PodSourceEnvironment(idle_cluster, admin, tmp_path)
    yield podsource_environment
    podsource_environment.clean_up()
    admin.close()
