"""Test of `redrive`: it posts a journal's dead letters to a receiver in place of the function."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

from cloudevents.core.v1.event import CloudEvent

from eventing import events
from eventing.dead_letters import DeadLetter, as_dead_letter
from eventing.journal.store import Journal
from tests.console.conftest import Run
from tests.receiver import Answer, Receiver


def test_a_second_letter_of_the_same_is_not_open_any_more(run: Run, receiver: Receiver, tmp_path: Path) -> None:
    """X-6: A second dead letter of the same event is skipped without an error after the first one is redriven."""
    head = {"id": "1", "source": "/s", "type": events.MAINTENANCE_BEGUN, "datacontenttype": "application/json"}
    with closing(Journal(tmp_path / "journal.db")) as book:
        for host in ("gone", "elsewhere"):
            book.write(as_dead_letter(CloudEvent(head, {}), DeadLetter(f"http://{host}/cordon", 503, "away")))
    receiver.answers["/cordon"] = lambda _: Answer(204)
    where = ("--journal", str(tmp_path / "journal.db"), "--functions", receiver.url, "--broker", receiver.url)

    done = run("redrive", "--all", "--yes", "-o", "json", *where)

    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["redriven"]
    assert [row["open"] for row in rows] == [False, False]
    assert rows[1]["now"] == {"note": "it was redriven meanwhile"}
    assert len(receiver.at("/cordon")) == 1
