"""A cluster on which PodSource is all there is of the product: the tests play the functions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kube.door.sync_client import Cluster
from localcluster import product as localproduct
from localcluster.cluster import LocalCluster
from tests.eventing.podsource.bench import Bench


@pytest.fixture(scope="package")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Give a cluster with our kinds and rights, and nobody who acts by them."""
    with LocalCluster(tmp_path_factory.mktemp("podsource"), nodes=1, audit=False) as cluster:
        localproduct.install(cluster)
        yield cluster


@pytest.fixture
def bench(quiet: LocalCluster, tmp_path: Path) -> Iterator[Bench]:
    """Give a namespace there, a sink, and PodSource at the test's disposal."""
    admin = Cluster(str(quiet.kubeconfig))
    one = Bench(quiet, admin, tmp_path)
    yield one
    one.clear()
    admin.close()
