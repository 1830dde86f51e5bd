"""Unit test that the outbox stores an acknowledgement and its reply in one transaction."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from eventing.local.envelope import Envelope
from eventing.local.outbox import Outbox

EVENT, REPLY = (Envelope({"ce-id": key, "ce-partitionkey": "n"}, b"{}") for key in ("event", "reply"))


def test_acknowledgement_and_reply_are_stored_in_one_transaction(tmp_path: Path) -> None:
    """X-6: if the reply cannot be stored, the delivery stays pending, so that the broker repeats it."""
    file = tmp_path / "delivery.db"
    with closing(Outbox(file)) as outbox, closing(sqlite3.connect(file)) as test_connection:
        (pending,) = outbox.accept(EVENT, ["cordon"])
        test_connection.execute(
            "CREATE TRIGGER broken BEFORE INSERT ON delivery WHEN NEW.trigger = 'taint' "
            "BEGIN SELECT RAISE(ABORT, 'forced failure'); END"
        )
        with pytest.raises(sqlite3.Error, match="forced failure"):
            outbox.acknowledge(pending, REPLY, ["taint"])
        remaining = list(outbox.list_pending())
        test_connection.execute("DROP TRIGGER broken")

        (next_delivery,) = outbox.acknowledge(pending, REPLY, ["taint"])

        assert remaining == [pending]
        assert list(outbox.list_pending()) == [next_delivery]
        assert outbox.read_event(next_delivery.sequence) == REPLY
