"""Fixtures for a cluster that runs the product with the component `notifications`, and a notification receiver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from localcluster.components.selection import NOTIFICATIONS
from localcluster.http_receiver import Receiver
from tests.chain.environment import EventChainEnvironment
from tests.chain.running_product import run_product

KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture(scope="package")
def receiver() -> Iterator[Receiver]:
    """Yield an HTTP server that receives notifications."""
    with closing(Receiver()) as server:
        yield server


@pytest.fixture(scope="package")
def environment(tmp_path_factory: pytest.TempPathFactory, receiver: Receiver) -> Iterator[EventChainEnvironment]:
    """Yield the cluster with the running product, which announces a blocked drain at the next resync tick."""
    folder = tmp_path_factory.mktemp("notifications")
    with pytest.MonkeyPatch.context() as variables:
        for name, value in {"NOTIFY_SECONDS": "0", "NOTIFY_HOSTS": receiver.url, "NOTIFY_KEY": KEY}.items():
            variables.setenv(name, value)
        with run_product(folder, NOTIFICATIONS) as (cluster, product):
            chain_environment = EventChainEnvironment(cluster, product)
            yield chain_environment
            chain_environment.client.close()
