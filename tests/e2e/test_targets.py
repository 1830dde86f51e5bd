"""Test that fault injection kills every process of the product, on every engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.targets import targets
from localcluster.processes import Server
from tests.e2e.environment import Stage

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(
    ("stage", "spared"), [("knative", "nginx"), ("rabbitmq", "epmd")], indirect=["stage"], ids=["knative", "rabbitmq"]
)
def test_mischief_ends_all_but_what_stands_in_for_a_cluster(stage: Stage, spared: str) -> None:
    """Fault injection kills all processes but nginx, which replaces the cluster's DNS, and RabbitMQ's epmd."""
    console = Server("console", ["true"], Path("console.log"))

    ended = {target.server for named in targets(stage.product, console).values() for target in named.values()}

    assert [server.name for server in (*stage.product.servers, console) if server not in ended] == [spared]
