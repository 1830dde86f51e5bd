"""Fixtures with the shipped image, which buildah builds without a registry, and with nodes that run containers."""

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
from tests.real.environment import Real
from tests.real.product_image import Image, built


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buildah]:
    """Yield buildah with its own storage, which contains the base image."""
    engine = Buildah(tmp_path_factory.mktemp("engine"))
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def image(engine: Buildah) -> Image:
    """Return the image as `make image` builds it."""
    return built(engine)


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    """Yield a cluster with two real nodes and the running product; fail if the machine is unsuitable."""
    preflight.check()
    build.servers(build.NODES)
    folder = tmp_path_factory.mktemp("real")
    with LocalCluster(folder / "the servers", nodes=1, real=2) as cluster, RealNodes(cluster, 2) as nodes:
        localproduct.install(cluster)
        with Product(cluster, folder / "product") as product:
            nodes.await_ready()
            yield Real(cluster, nodes)
            product.kill()
