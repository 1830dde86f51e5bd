"""What every engine has in common for the tests, whatever its broker is made of."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

import requests
from cloudevents.core.v1.event import CloudEvent

from eventing.journal import Journal
from eventing.wire import binary
from tests.chain.scene import Scene


class Product(Protocol):
    """The parts of a product that each engine has."""

    broker_url: str
    journal: Path

    def function_url(self, name: str) -> str:
        """Give the address of a function's process."""

    def start_functions(self, *names: str) -> None:
        """Start functions' processes, all if none is named."""

    def kill_functions(self, *names: str) -> None:
        """End functions' processes as a crash would."""

    def start_delivery(self) -> None:
        """Start the broker's data plane and the sources."""

    def kill_delivery(self) -> None:
        """End the broker's data plane and the sources as a crash would."""


@dataclass(frozen=True)
class Engine:
    """One engine with the product at work on it."""

    name: str
    scene: Scene
    product: Product

    def post(self, event: CloudEvent, session: requests.Session | None = None) -> None:
        """Hand an event to the broker, which must take it."""
        message = binary(event)
        url = self.product.broker_url
        answer = (session or requests).post(url, message.body, headers=message.headers, timeout=10)  # type: ignore[union-attr]
        assert answer.status_code == 202, answer.text

    def recorded(self) -> dict[str, CloudEvent]:
        """What is in the journal, by id."""
        book = Journal(self.product.journal)
        found = {event.get_id(): event for event in book.events()}
        book.close()
        return found  # type: ignore[return-value]

    def arrivals(self) -> dict[str, float]:
        """When each event was recorded: seconds of the wall clock by id."""
        with sqlite3.connect(self.product.journal) as book:
            rows = book.execute("SELECT id, arrived FROM events").fetchall()
        book.close()
        return {key: datetime.fromisoformat(arrived).timestamp() for key, arrived in rows}
