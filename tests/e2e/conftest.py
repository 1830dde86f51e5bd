"""One engine after another, each with a cluster of its own: several at a time would share two cores, and some a port."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster import deliveries
from tests.chain.scene import Scene
from tests.e2e.engine import Engine
from tests.e2e.fleet import Fleet

ENGINES = ("rabbitmq",)


@pytest.fixture(scope="session", params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Give the product at work on a real broker."""
    delivery = deliveries.named(request.param)
    folder = Path(tmp_path_factory.mktemp(request.param))
    delivery.check()
    delivery.build()
    with delivery.cluster(folder / "servers", 1) as cluster, delivery.open(cluster, folder / "product") as product:
        scene = Scene(cluster, product)  # type: ignore[arg-type]
        yield Engine(request.param, scene, product)
        scene.admin.close()


@pytest.fixture(scope="session")
def fleet(engine: Engine) -> Fleet:
    """Give twenty nodes."""
    return Fleet(engine.scene)
