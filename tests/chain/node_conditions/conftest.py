"""Fixture for a cluster that runs the product with the component `node-conditions`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from localcluster.components.selection import NODE_CONDITIONS
from tests.chain.environment import EventChainEnvironment
from tests.chain.running_product import run_product


@pytest.fixture(scope="package")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EventChainEnvironment]:
    """Yield the cluster with the running product."""
    folder = tmp_path_factory.mktemp("node-conditions")
    with run_product(folder, NODE_CONDITIONS) as (cluster, product):
        chain_environment = EventChainEnvironment(cluster, product)
        yield chain_environment
        chain_environment.client.close()
