"""Fixture that starts broker processes, and stops them after the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from localcluster.http_receiver import Receiver
from tests.eventing.local.broker_process import BrokerProcess

StartBroker = Callable[..., BrokerProcess]


@pytest.fixture
def start_broker(receiver: Receiver, tmp_path: Path) -> Iterator[StartBroker]:
    """Yield a function that starts a broker process with these manifests; the broker delivers to `receiver`."""
    brokers: list[BrokerProcess] = []

    def start(*manifests: dict[str, Any], **environment: str) -> BrokerProcess:
        broker = BrokerProcess(tmp_path, manifests, receiver.url, **environment)
        brokers.append(broker)
        return broker

    yield start
    for broker in brokers:
        broker.stop()
