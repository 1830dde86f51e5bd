"""The shipped image, built by buildah on a Debian of its own, where no registry is asked; and nodes with containers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from localcluster import product as localproduct
from localcluster.cluster import LocalCluster
from localcluster.nodes import machine
from localcluster.nodes.buildah import Buildah
from localcluster.nodes.nodes import RealNodes
from localcluster.product import Product
from localcluster.programs import build
from tests.real.containers import Real
from tests.real.our_image import Image, built


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buildah]:
    """Give buildah with storage of its own, and the base image in it."""
    engine = Buildah(tmp_path_factory.mktemp("engine"))
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def image(engine: Buildah) -> Image:
    """Give the image as `make image` builds it."""
    return built(engine)


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    """Give a cluster with two real nodes and the product at work; on a machine that cannot, this fails and says why."""
    machine.check()
    build.servers(build.NODES)
    folder = tmp_path_factory.mktemp("real")
    with LocalCluster(folder / "the servers", nodes=1, real=2) as cluster, RealNodes(cluster, 2) as nodes:
        localproduct.install(cluster)
        with Product(cluster, folder / "product") as product:
            nodes.await_ready()
            yield Real(cluster, nodes)
            product.kill()
