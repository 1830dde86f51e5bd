"""Fixtures with a cluster of twenty nodes and the running product, one for each real engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from localcluster import delivery_engines
from localcluster.engine_product import EngineProduct
from localcluster.up.restarter import Keeper
from localcluster.components.selection import DEFAULT, KNOWN
from tests.e2e.environment import NODES, Stage

ENGINES = ("knative", "rabbitmq")


@pytest.fixture(scope="session", params=ENGINES)
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Yield the ready product on a real engine; a parameter with `+wings` selects a cluster with all components."""
    name, *more = request.param.split("+")
    wings = KNOWN if more else DEFAULT
    engine = delivery_engines.named(name)
    engine.check()
    engine.build(wings)
    folder = tmp_path_factory.mktemp(request.param)
    with engine.cluster(folder / "servers", NODES) as cluster, ExitStack() as work:
        product = work.enter_context(engine.open(cluster, folder / "product", wings))
        keeper = work.enter_context(Keeper())
        assert isinstance(product, EngineProduct)
        if name == "rabbitmq":
            keeper.keep(product.servers)  # after some seconds without RabbitMQ, ingress and dispatchers exit
        stage = Stage(cluster, product)
        yield stage
        stage.close()


@pytest.fixture(autouse=True)
def _figures_are_noted(request: pytest.FixtureRequest) -> Iterator[None]:
    """Record the durations of the functions' requests, before another test kills the functions."""
    on_stage = "stage" in request.fixturenames
    yield
    if on_stage:
        request.getfixturevalue("stage").histogram.note()


@pytest.fixture
def whole_again(stage: Stage) -> Iterator[None]:
    """Start all stopped processes and delete all maintenances after the test."""
    yield
    for server in stage.local.servers:
        server.start()
    stage.product.start_delivery()
    stage.product.start_functions()
    stage.clear()
