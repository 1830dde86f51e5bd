"""Fixtures: a cluster on which only PodSource runs; the tests do the work of the functions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kube.client.sync_client import Cluster
from localcluster import product as localproduct
from localcluster.cluster import LocalCluster
from tests.eventing.podsource.environment import Bench


@pytest.fixture(scope="package")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Yield a cluster with the product's CRDs and RBAC, without a running function."""
    with LocalCluster(tmp_path_factory.mktemp("podsource"), nodes=1, audit=False) as cluster:
        localproduct.install(cluster)
        yield cluster


@pytest.fixture
def bench(quiet: LocalCluster, tmp_path: Path) -> Iterator[Bench]:
    """Yield a namespace on that cluster, a sink, and a PodSource process that the test can start."""
    admin = Cluster(str(quiet.kubeconfig))
    one = Bench(quiet, admin, tmp_path)
    yield one
    one.clear()
    admin.close()
