"""Fixture for a cluster with Knative's CRDs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from localcluster.cluster import LocalCluster
from tests.manifests.rendering import install_knative_crds


@pytest.fixture(scope="package")
def knative_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Yield a cluster with the CRDs of Knative Eventing and Serving, but without Knative's controllers."""
    with LocalCluster(tmp_path_factory.mktemp("knative"), nodes=1) as cluster:
        install_knative_crds(cluster)
        yield cluster
