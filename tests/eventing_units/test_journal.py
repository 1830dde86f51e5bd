"""The journal on a real file."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest
from cloudevents.core.v1.event import CloudEvent

from eventing import events
from eventing.events import Reference, event
from eventing.journal import Journal, JournalError

MINE = Reference("nodemaintenance.medik8s.io/v1beta1", "nm", "uid-1")


def numbered(number: int) -> CloudEvent:
    return event(events.NODE_CORDONED, "cordon", MINE, "node-1", seed=str(number), data={"number": number})


def test_each_event_is_kept_once_in_order(tmp_path: Path) -> None:
    """X-2: source and id tell a duplicate; the order is that of arrival."""
    journal = Journal(tmp_path / "journal.db")

    kept = [journal.write(numbered(number)) for number in (2, 1, 2, 3, 1)]

    assert kept == [True, True, False, True, False]
    assert [item.get_data() for item in journal.events()] == [numbered(n).get_data() for n in (2, 1, 3)]
    journal.close()


def test_an_event_comes_back_whole(tmp_path: Path) -> None:
    """X-2: attributes, extensions and data are as they came, so that the event can be posted again."""
    journal = Journal(tmp_path / "journal.db")
    sent = numbered(1)
    journal.write(sent)

    (back,) = journal.events()

    assert (back.get_id(), back.get_type(), back.get_source()) == (sent.get_id(), sent.get_type(), sent.get_source())
    assert back.get_extension("partitionkey") == "node-1"
    assert back.get_time() == sent.get_time()
    journal.close()


def test_it_survives_its_process(tmp_path: Path) -> None:
    """X-2: what was written is there after the file is opened again, and is still a duplicate."""
    first = Journal(tmp_path / "journal.db")
    first.write(numbered(1))
    first.close()

    second = Journal(tmp_path / "journal.db")

    assert second.write(numbered(1)) is False
    assert len(list(second.events())) == 1
    second.close()


def test_many_writers_lose_nothing(tmp_path: Path) -> None:
    """X-2: two journals on one file, several threads each: every event once."""
    journals = [Journal(tmp_path / "journal.db") for _ in range(2)]

    def write(journal: Journal) -> None:
        for number in range(20):
            journal.write(numbered(number))

    writers = [threading.Thread(target=write, args=(journals[number % 2],)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()

    assert len(list(journals[0].events())) == 20
    for journal in journals:
        journal.close()


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    """X-6: a wrong path or another file is an error that names the file."""
    (tmp_path / "text").write_text("this is no database, and long enough to be taken for one" * 20)

    with pytest.raises(JournalError, match="no-such-folder"):
        Journal(tmp_path / "no-such-folder" / "journal.db")
    with pytest.raises(JournalError, match="text"):
        Journal(tmp_path / "text")


def test_a_locked_file_is_an_error_to_try_again(tmp_path: Path) -> None:
    """X-6: a file that cannot be written any more is a JournalError, which `record` answers with 503."""
    journal = Journal(tmp_path / "journal.db")
    with sqlite3.connect(tmp_path / "journal.db") as other:
        other.execute("DROP TABLE events")
    other.close()

    with pytest.raises(JournalError):
        journal.write(numbered(1))
    journal.close()
