"""Tests of which recorded events the options of a command select."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from cloudevents.core.v1.event import CloudEvent

from console.operations.errors import NoResult
from console.terminal.event_selection import Chosen, selected, uid_of_run
from eventing import events
from eventing.journal.store import Entry, Journal
from kube.maintenance.groups import MEDIK8S
from kube.mutex.objects import RUN

FIRST, SECOND = "11111111-0000-0000-0000-000000000000", "00000000-0000-0000-0000-000000000000"


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Journal]:
    """Yield a journal with two maintenances of the same name, one created after the other."""
    with closing(Journal(tmp_path / "journal.db")) as journal:
        for uid in (FIRST, SECOND):
            reference = events.Reference(MEDIK8S.api_version, "node-1", uid)
            begun = events.event(events.MAINTENANCE_BEGUN, "begin", reference, "node-1")
            journal.write(begun)
            journal.write(events.event(events.NODE_CORDONED, "cordon", reference, "node-1", cause=begun))
        yield journal


def found(book: Journal, chosen: Chosen) -> list[tuple[str, str]]:
    return [(entry.maintenance, entry.event.get_type()) for entry in selected(book, chosen)]


def test_a_name_is_the_newest_maintenance_that_had_it(book: Journal) -> None:
    """Check that a name selects the newest maintenance with that name, and a uid exactly that one.

    With all maintenances of a name, a range of steps could start in one maintenance and end in the next.
    """
    both = [events.MAINTENANCE_BEGUN, events.NODE_CORDONED]

    assert found(book, Chosen(maintenance="node-1")) == [(SECOND, kind) for kind in both]
    assert found(book, Chosen(maintenance=FIRST)) == [(FIRST, kind) for kind in both]


def test_which_of_several_it_is_is_said(book: Journal, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that an ambiguous name is reported with the other uids, while a uid is not ambiguous."""
    found(book, Chosen(maintenance="node-1"))
    said = capsys.readouterr().err
    found(book, Chosen(maintenance=FIRST))

    assert said == (
        f"node-1 is the one with the uid {SECOND} here; in the journal are also {FIRST}: name one by its uid.\n"
    )
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["node-1", SECOND])
def test_an_event_of_anybody_s_decides_nothing(book: Journal, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """X-6: An event from another emitter does not change which maintenance is replayed.

    Otherwise any client that may post events could have its own events replayed.
    """
    attributes = {"id": "1", "source": "/anybody", "type": events.RESOURCE_UPDATED, "kind": "NodeMaintenance"}
    book.write(CloudEvent(attributes, {"metadata": {"name": name, "uid": "fake\x1b"}}))

    assert {uid for uid, _ in found(book, Chosen(maintenance=name))} == {SECOND}
    assert ("fake\\x1b" in capsys.readouterr().err) is (name == "node-1")


def test_a_name_that_is_anybody_s_uid_is_a_name(book: Journal, capsys: pytest.CaptureFixture[str]) -> None:
    """X-6: A name is not taken as a uid if only an event of another emitter has that uid.

    Otherwise only that event would be replayed, in place of the maintenance with that name.
    """
    book.write(about("node-1", "/anybody"))

    assert {uid for uid, _ in found(book, Chosen(maintenance="node-1"))} == {SECOND}
    assert f"node-1 is the one with the uid {SECOND} here; in the journal are also node-1, " in capsys.readouterr().err


def test_where_nothing_is_ours_a_uid_comes_first_and_others_are_told(
    book: Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    """X-6: If all events are from other emitters, an exact uid wins, and the command reports the other uids."""
    for uid, name in (("node-2", "other"), ("real", "node-2")):
        book.write(about(uid, "/anybody", name))

    assert {uid for uid, _ in found(book, Chosen(maintenance="node-2"))} == {"node-2"}
    assert "in the journal are also real: name one" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["NodeMaintenance", RUN])
def test_an_event_that_has_a_name_and_no_uid_is_of_none(book: Journal, kind: str) -> None:
    """X-6: An event with a name and without a uid is not selected; an empty uid would select the whole journal."""
    book.write(CloudEvent({"id": "1", "source": "/anybody", "type": "x", "kind": kind}, {"metadata": {"name": "mine"}}))

    for choose in (selected_by, uid_of_run):
        with pytest.raises(NoResult, match=r"the journal (holds|has) no event of"):
            choose(book, "mine")


def selected_by(book: Journal, name: str) -> list[Entry]:
    return selected(book, Chosen(maintenance=name))


def about(uid: str, source: str, name: str = "node-1") -> CloudEvent:
    """Build an event about the NodeMaintenance with this uid and name."""
    attributes = {"id": uid, "source": source, "type": "x", "maintenance": uid, "subject": name}
    return CloudEvent(attributes, None)


def test_steps_narrow_it(book: Journal) -> None:
    """Check that `first` and `last` limit the range, from the first event of one type to the last of another."""
    assert found(book, Chosen(maintenance="node-1", first="node.cordoned")) == [(SECOND, events.NODE_CORDONED)]
    assert found(book, Chosen(maintenance=FIRST, last="maintenance.begun")) == [(FIRST, events.MAINTENANCE_BEGUN)]
