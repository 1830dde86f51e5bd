"""Unit test of the outbox: an acknowledgement and its reply are one transaction."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from eventing.local.envelope import Envelope
from eventing.local.outbox import Outbox

EVENT, REPLY = (Envelope({"ce-id": key, "ce-partitionkey": "n"}, b"{}") for key in ("event", "reply"))


def test_an_acknowledgement_and_its_reply_are_kept_together_or_not_at_all(tmp_path: Path) -> None:
    """X-6: If the reply cannot be stored, the delivery stays pending, so that it is repeated with its reply."""
    file = tmp_path / "delivery.db"
    with closing(Outbox(file)) as outbox, closing(sqlite3.connect(file)) as other:
        (pending,) = outbox.accept(EVENT, ["cordon"])
        other.execute(
            "CREATE TRIGGER broken BEFORE INSERT ON delivery WHEN NEW.trigger = 'taint' "
            "BEGIN SELECT RAISE(ABORT, 'by hand'); END"
        )
        with pytest.raises(sqlite3.Error, match="by hand"):
            outbox.acknowledge(pending, REPLY, ["taint"])
        left = list(outbox.pending())
        other.execute("DROP TRIGGER broken")

        (following,) = outbox.acknowledge(pending, REPLY, ["taint"])

        assert left == [pending]
        assert list(outbox.pending()) == [following]
        assert outbox.event(following.event) == REPLY
