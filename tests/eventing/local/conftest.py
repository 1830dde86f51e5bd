"""Fixture that starts brokers and stops them after the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.eventing.local.broker_process import Broker
from tests.receiver import Receiver

Start = Callable[..., Broker]


@pytest.fixture
def start(receiver: Receiver, tmp_path: Path) -> Iterator[Start]:
    """Yield a function that starts a broker with these manifests, which delivers to `receiver`."""
    started: list[Broker] = []

    def begin(*manifests: dict[str, Any], **environment: str) -> Broker:
        broker = Broker(tmp_path, manifests, receiver.url, **environment)
        started.append(broker)
        return broker

    yield begin
    for broker in started:
        broker.stop()
