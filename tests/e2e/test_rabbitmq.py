"""What only the RabbitMQ Broker has: RabbitMQ itself, its ingress, a dispatcher per Trigger."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from localcluster.rabbitmq.product import RabbitProduct
from tests.e2e.engine import Engine
from tests.e2e.faults import survives
from tests.e2e.fleet import Fleet

pytestmark = pytest.mark.parametrize("engine", ["rabbitmq"], indirect=True)
Act = Callable[[RabbitProduct], None]


@pytest.mark.parametrize(
    ("kill", "repair"),
    [
        pytest.param(RabbitProduct.kill_rabbitmq, RabbitProduct.start_rabbitmq, id="rabbitmq"),
        pytest.param(RabbitProduct.kill_ingress, RabbitProduct.start_ingress, id="ingress"),
        pytest.param(RabbitProduct.kill_dispatchers, RabbitProduct.start_dispatchers, id="dispatchers"),
    ],
)
def test_a_part_of_the_broker_dies(
    engine: Engine, fleet: Fleet, kill: Act, repair: Act, request: pytest.FixtureRequest
) -> None:
    """X-2, X-3: killed with -9 in the middle of the drains and started again, it costs time only."""
    product = engine.product
    assert isinstance(product, RabbitProduct)
    survives(request.node.name, fleet, lambda: kill(product), lambda: repair(product))
