"""Test that fault injection kills every process of the product, on every engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.targets import build_targets
from localcluster.processes import Server
from tests.e2e.environment import E2eEnvironment

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(
    ("environment", "spared_name"),
    [("knative", "nginx"), ("rabbitmq", "epmd")],
    indirect=["environment"],
    ids=["knative", "rabbitmq"],
)
def test_fault_injection_kills_all_but_infrastructure(environment: E2eEnvironment, spared_name: str) -> None:
    """Check that fault injection kills all processes except epmd and nginx, which replaces the cluster's DNS."""
    console = Server("console", ["true"], Path("console.log"))

    killed_servers = {
        target.server for targets in build_targets(environment.product, console).values() for target in targets.values()
    }

    assert [server.name for server in (*environment.product.servers, console) if server not in killed_servers] == [
        spared_name
    ]
