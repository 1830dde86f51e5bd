"""Fixtures for clusters with twenty nodes that run the product, one cluster per event engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from localcluster import delivery_engines
from localcluster.components.selection import ALL_COMPONENTS, DEFAULT_COMPONENTS
from localcluster.engine_product import EngineProduct
from localcluster.up.restarter import Restarter
from tests.e2e.environment import NODE_COUNT, E2eEnvironment

ENGINE_NAMES = ("knative", "rabbitmq")


@pytest.fixture(scope="session", params=ENGINE_NAMES)
def environment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[E2eEnvironment]:
    """Yield the environment of a ready product on a real engine; the suffix `+components` enables all components."""
    name, *suffixes = request.param.split("+")
    components = ALL_COMPONENTS if suffixes else DEFAULT_COMPONENTS
    engine = delivery_engines.get_engine(name)
    engine.check()
    engine.build(components)
    folder = tmp_path_factory.mktemp(request.param)
    with engine.create_cluster(folder / "servers", NODE_COUNT) as cluster, ExitStack() as exit_stack:
        product = exit_stack.enter_context(engine.install_product(cluster, folder / "product", components))
        restarter = exit_stack.enter_context(Restarter())
        assert isinstance(product, EngineProduct)
        if name == "rabbitmq":
            # The ingress and the dispatchers exit if they have no connection to RabbitMQ for a few seconds.
            restarter.add_servers(product.servers)
        e2e_environment = E2eEnvironment(cluster, product)
        yield e2e_environment
        e2e_environment.close()


@pytest.fixture(autouse=True)
def _record_durations(request: pytest.FixtureRequest) -> Iterator[None]:
    """Record the durations of requests to functions after each test, before the next test can kill the functions."""
    uses_environment = "environment" in request.fixturenames
    yield
    if uses_environment:
        request.getfixturevalue("environment").histogram.record()


@pytest.fixture
def restore_product(environment: E2eEnvironment) -> Iterator[None]:
    """Restart all stopped processes and delete all maintenances after the test."""
    yield
    for server in environment.cluster.servers:
        server.start()
    environment.product.start_delivery()
    environment.product.start_functions()
    environment.delete_maintenances()
