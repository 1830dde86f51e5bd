"""Which recorded events a command is about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from cloudevents.core.v1.event import CloudEvent

from console.operations.errors import NoResult
from console.terminal.selection import Chosen, selected, uid_of_run
from eventing import events
from eventing.journal.store import Entry, Journal
from kube.maintenance.groups import MEDIK8S
from kube.mutex.objects import RUN

FIRST, SECOND = "11111111-0000-0000-0000-000000000000", "00000000-0000-0000-0000-000000000000"


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Journal]:
    """Two maintenances under one name, one after the other."""
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
    """From one step to another would otherwise run through the end of one and the beginning of the next."""
    both = [events.MAINTENANCE_BEGUN, events.NODE_CORDONED]

    assert found(book, Chosen(maintenance="node-1")) == [(SECOND, kind) for kind in both]
    assert found(book, Chosen(maintenance=FIRST)) == [(FIRST, kind) for kind in both]


def test_which_of_several_it_is_is_said(book: Journal, capsys: pytest.CaptureFixture[str]) -> None:
    """And how to choose another one; a uid is clear."""
    found(book, Chosen(maintenance="node-1"))
    said = capsys.readouterr().err
    found(book, Chosen(maintenance=FIRST))

    assert said == (
        f"node-1 is the one with the uid {SECOND} here; in the journal are also {FIRST}: name one by its uid.\n"
    )
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["node-1", SECOND])
def test_an_event_of_anybody_s_decides_nothing(book: Journal, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """X-6: whoever may emit events could have a recording of his own making replayed in the place of ours."""
    attributes = {"id": "1", "source": "/anybody", "type": events.RESOURCE_UPDATED, "kind": "NodeMaintenance"}
    book.write(CloudEvent(attributes, {"metadata": {"name": name, "uid": "fake\x1b"}}))

    assert {uid for uid, _ in found(book, Chosen(maintenance=name))} == {SECOND}
    assert ("fake\\x1b" in capsys.readouterr().err) is (name == "node-1")


def test_a_name_that_is_anybody_s_uid_is_a_name(book: Journal, capsys: pytest.CaptureFixture[str]) -> None:
    """X-6: an event about the object with the uid node-1 would be replayed alone, in the place of all that was done."""
    book.write(about("node-1", "/anybody"))

    assert {uid for uid, _ in found(book, Chosen(maintenance="node-1"))} == {SECOND}
    assert f"node-1 is the one with the uid {SECOND} here; in the journal are also node-1, " in capsys.readouterr().err


def test_where_nothing_is_ours_a_uid_comes_first_and_others_are_told(
    book: Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    """X-6: which of them is true nobody knows: it is said."""
    for uid, name in (("node-2", "other"), ("real", "node-2")):
        book.write(about(uid, "/anybody", name))

    assert {uid for uid, _ in found(book, Chosen(maintenance="node-2"))} == {"node-2"}
    assert "in the journal are also real: name one" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["NodeMaintenance", RUN])
def test_an_event_that_has_a_name_and_no_uid_is_of_none(book: Journal, kind: str) -> None:
    """X-6: "" would stand for all that is in the journal."""
    book.write(CloudEvent({"id": "1", "source": "/anybody", "type": "x", "kind": kind}, {"metadata": {"name": "mine"}}))

    for choose in (selected_by, uid_of_run):
        with pytest.raises(NoResult, match=r"the journal (holds|has) no event of"):
            choose(book, "mine")


def selected_by(book: Journal, name: str) -> list[Entry]:
    return selected(book, Chosen(maintenance=name))


def about(uid: str, source: str, name: str = "node-1") -> CloudEvent:
    """An event about the NodeMaintenance with this uid and name."""
    attributes = {"id": uid, "source": source, "type": "x", "maintenance": uid, "subject": name}
    return CloudEvent(attributes, None)


def test_steps_narrow_it(book: Journal) -> None:
    """From the first of its events of one type, up to the last of another."""
    assert found(book, Chosen(maintenance="node-1", first="node.cordoned")) == [(SECOND, events.NODE_CORDONED)]
    assert found(book, Chosen(maintenance=FIRST, last="maintenance.begun")) == [(FIRST, events.MAINTENANCE_BEGUN)]
