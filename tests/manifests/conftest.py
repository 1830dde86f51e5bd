"""Fixture for a cluster with Knative's CRDs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from localcluster.cluster import LocalCluster
from tests.manifests.rendering import fetch_knative_crds


@pytest.fixture(scope="package")
def knative_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Yield a cluster with the CRDs of Knative Eventing and Serving, but without their controllers."""
    with LocalCluster(tmp_path_factory.mktemp("knative"), nodes=1) as cluster:
        files = [argument for file in fetch_knative_crds() for argument in ("-f", str(file))]
        cluster.kubectl("apply", "--server-side", *files)
        cluster.wait_for_crds()
        yield cluster
