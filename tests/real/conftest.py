"""Fixtures for the shipped image, which buildah builds without a registry, and for nodes that run containers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from localcluster import product as localproduct
from localcluster.cluster import LocalCluster
from localcluster.nodes import preflight
from localcluster.nodes.buildah import Buildah
from localcluster.nodes.real_nodes import RealNodes
from localcluster.product import Product
from localcluster.programs import build
from tests.real.environment import RealNodesEnvironment
from tests.real.product_image import ProductImage, build_image


@pytest.fixture(scope="session")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buildah]:
    """Yield buildah with its own storage, which contains the base image."""
    engine = Buildah(tmp_path_factory.mktemp("engine"))
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def image(buildah: Buildah) -> ProductImage:
    """Return the product's image, built by the commands of `make image`."""
    return build_image(buildah)


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNodesEnvironment]:
    """Yield a cluster with two real nodes and the running product; fail if the machine is unsuitable."""
    preflight.check_host()
    build.ensure_programs(build.NODES)
    folder = tmp_path_factory.mktemp("real")
    with LocalCluster(folder / "the servers", nodes=1, real_nodes=2) as cluster, RealNodes(cluster, 2) as nodes:
        localproduct.install_manifests(cluster)
        with Product(cluster, folder / "product") as product:
            nodes.wait_until_ready()
            yield RealNodesEnvironment(cluster, nodes)
            product.kill()
