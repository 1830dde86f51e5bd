"""A cluster of the mutex's own, with OpenShift's real kinds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from localcluster import product as localproduct
from localcluster.cluster import LocalCluster
from localcluster.openshift import crds
from localcluster.product import FLOW, MUTEX, Product
from tests.chain.mutex.stage import OLD, Stage
from tests.openshift import FakeMco


@pytest.fixture(scope="package")
def upgrading(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Give a cluster with OpenShift's kinds, the upgrade mutex at work, and the old version."""
    folder = tmp_path_factory.mktemp("mutex")
    with LocalCluster(folder / "servers", nodes=1) as cluster:
        crds.install(cluster)
        localproduct.install(cluster, v1alpha1=True, mutex=True)
        with Product(cluster, folder / "product", flow=(*FLOW, MUTEX / "eventing.yaml")) as product:
            stage = Stage(cluster, product)
            stage.cvo.install(OLD)
            yield stage
            stage.admin.close()
            product.kill()


@pytest.fixture
def stage(upgrading: Stage) -> Iterator[Stage]:
    """Give it with nothing on it of an earlier test."""
    upgrading.cvo.want(OLD)
    yield upgrading
    upgrading.clear()


@pytest.fixture
def mco(stage: Stage) -> Iterator[FakeMco]:
    """Give what upgrades nodes."""
    with FakeMco(stage.admin) as running:
        yield running
