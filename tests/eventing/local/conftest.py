"""A way to start brokers; everything is ended after the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.eventing.local.workbench import Broker
from tests.receiver import Receiver

Start = Callable[..., Broker]


@pytest.fixture
def start(receiver: Receiver, tmp_path: Path) -> Iterator[Start]:
    """Start a broker with these manifests, delivering to `receiver`."""
    started: list[Broker] = []

    def begin(*manifests: dict[str, Any], **environment: str) -> Broker:
        broker = Broker(tmp_path, manifests, receiver.url, **environment)
        started.append(broker)
        return broker

    yield begin
    for broker in started:
        broker.stop()
