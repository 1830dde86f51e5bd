"""A cluster that the bench's instruments are tried on; nobody drains anything there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from localcluster import product
from localcluster.cluster import LocalCluster


@pytest.fixture(scope="package")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Give a cluster of one node with our kinds."""
    with LocalCluster(tmp_path_factory.mktemp("bench"), nodes=1) as cluster:
        product.install(cluster)
        yield cluster
