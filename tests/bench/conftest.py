"""Fixture for the tests of the benchmark's measuring code: a cluster on which the product does not run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from localcluster import product
from localcluster.cluster import LocalCluster


@pytest.fixture(scope="package")
def idle_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Yield a cluster with one node and the product's CRDs."""
    with LocalCluster(tmp_path_factory.mktemp("bench"), nodes=1) as cluster:
        product.install_manifests(cluster)
        yield cluster
