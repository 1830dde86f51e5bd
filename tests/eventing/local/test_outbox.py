"""The outbox by itself: what one transaction holds together."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from eventing.local.envelope import Envelope
from eventing.local.outbox import Outbox

EVENT, REPLY = (Envelope({"ce-id": key, "ce-partitionkey": "n"}, b"{}") for key in ("event", "reply"))


def test_an_acknowledgement_and_its_reply_are_kept_together_or_not_at_all(tmp_path: Path) -> None:
    """X-6: where the reply cannot be kept, the delivery is pending as before: it comes again, and so does the reply."""
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
