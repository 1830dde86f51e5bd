"""Fixtures for the chain tests, which use their own cluster because other tests need one without the product.

The cluster stops after the last test of this package, because an idle cluster uses a tenth of a core.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chain.environment import EventChainEnvironment, FinishedMaintenances
from tests.chain.running_product import run_product


@pytest.fixture(scope="package")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EventChainEnvironment]:
    """Yield a cluster with all three NodeMaintenance APIs and the running product."""
    folder = tmp_path_factory.mktemp("chain")
    with run_product(folder) as (cluster, product):
        chain_environment = EventChainEnvironment(cluster, product)
        yield chain_environment
        chain_environment.client.close()


@pytest.fixture(scope="package")
def finished_maintenances(environment: EventChainEnvironment) -> Iterator[FinishedMaintenances]:
    """Yield three finished maintenances, which all tests of the package share."""
    with FinishedMaintenances(environment) as maintenances:
        yield maintenances
