"""Tests for the selection of recorded events by command-line options."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from cloudevents.core.v1.event import CloudEvent

from console.operations.errors import NoResult
from console.terminal.journal import EventSelection, find_run_uid, select_entries
from eventing import events
from eventing.journal.store import Entry, Journal
from kube.maintenance.groups import MEDIK8S
from kube.mutex.objects import RUN_KIND

FIRST_UID, SECOND_UID = "11111111-0000-0000-0000-000000000000", "00000000-0000-0000-0000-000000000000"


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """Yield a journal with two successive maintenances that have the same name."""
    with closing(Journal(tmp_path / "journal.db")) as journal:
        for uid in (FIRST_UID, SECOND_UID):
            reference = events.ObjectReference(MEDIK8S.api_version, "node-1", uid)
            begun_event = events.build_event(events.MAINTENANCE_BEGUN, "begin", reference, "node-1")
            journal.write_event(begun_event)
            journal.write_event(
                events.build_event(events.NODE_CORDONED, "cordon", reference, "node-1", cause=begun_event)
            )
        yield journal


def select_uids_and_types(journal: Journal, selection: EventSelection) -> list[tuple[str, str]]:
    return [(entry.maintenance, entry.event.get_type()) for entry in select_entries(journal, selection)]


def test_name_selects_newest_maintenance(journal: Journal) -> None:
    """Check that a name selects the newest maintenance with this name, and that a uid selects the one with this uid.

    Otherwise a range of events could begin in one maintenance and end in the next maintenance with the same name.
    """
    types = [events.MAINTENANCE_BEGUN, events.NODE_CORDONED]

    assert select_uids_and_types(journal, EventSelection(maintenance="node-1")) == [
        (SECOND_UID, event_type) for event_type in types
    ]
    assert select_uids_and_types(journal, EventSelection(maintenance=FIRST_UID)) == [
        (FIRST_UID, event_type) for event_type in types
    ]


def test_ambiguous_maintenance_name_is_reported(journal: Journal, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that an ambiguous name is reported with the other maintenances' uids, and that a uid is unambiguous."""
    select_uids_and_types(journal, EventSelection(maintenance="node-1"))
    message = capsys.readouterr().err
    select_uids_and_types(journal, EventSelection(maintenance=FIRST_UID))

    assert message == (
        f'Several objects match "node-1": using the uid {SECOND_UID}. To use another object, name its uid: '
        f"{FIRST_UID}.\n"
    )
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["node-1", SECOND_UID])
def test_event_from_other_source_does_not_change_selected_maintenance(
    journal: Journal, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """X-6: an event from another source does not change which maintenance is selected.

    Otherwise any client that may post events could cause its own events to be replayed.
    """
    attributes = {"id": "1", "source": "/anybody", "type": events.RESOURCE_UPDATED, "kind": "NodeMaintenance"}
    journal.write_event(CloudEvent(attributes, {"metadata": {"name": name, "uid": "fake\x1b"}}))

    assert {uid for uid, _ in select_uids_and_types(journal, EventSelection(maintenance=name))} == {SECOND_UID}
    assert ("fake\\x1b" in capsys.readouterr().err) is (name == "node-1")


def test_name_is_not_matched_against_uid_in_event_from_other_source(
    journal: Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    """X-6: a name is not used as a uid if only an event from a different source has this uid.

    Otherwise only that event would be selected instead of the maintenance with this name.
    """
    journal.write_event(build_event("node-1", "/anybody"))

    assert {uid for uid, _ in select_uids_and_types(journal, EventSelection(maintenance="node-1"))} == {SECOND_UID}
    assert (
        f'Several objects match "node-1": using the uid {SECOND_UID}. To use another object, name its uid: node-1, '
        in capsys.readouterr().err
    )


def test_uid_takes_precedence_over_name_if_all_events_are_from_other_sources(
    journal: Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    """X-6: if all events are from other sources, a matching uid takes precedence over a matching name."""
    for uid, name in (("node-2", "other"), ("real", "node-2")):
        journal.write_event(build_event(uid, "/anybody", name))

    assert {uid for uid, _ in select_uids_and_types(journal, EventSelection(maintenance="node-2"))} == {"node-2"}
    assert "To use another object, name its uid: real." in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["NodeMaintenance", RUN_KIND])
def test_event_without_uid_is_not_selected(journal: Journal, kind: str) -> None:
    """X-6: an event with a name but without a uid is not selected; an empty uid would select the whole journal."""
    journal.write_event(
        CloudEvent({"id": "1", "source": "/anybody", "type": "x", "kind": kind}, {"metadata": {"name": "mine"}})
    )

    for select in (select_by_name, find_run_uid):
        with pytest.raises(NoResult, match=r'"mine" not found in the journal'):
            select(journal, "mine")


def select_by_name(journal: Journal, name: str) -> list[Entry]:
    return select_entries(journal, EventSelection(maintenance=name))


def build_event(uid: str, source: str, name: str = "node-1") -> CloudEvent:
    """Build an event about the NodeMaintenance with this uid and name."""
    attributes = {"id": uid, "source": source, "type": "x", "maintenance": uid, "subject": name}
    return CloudEvent(attributes, None)


def test_first_and_last_type_limit_selected_events(journal: Journal) -> None:
    """Check that the selection begins with the first event of `first_type` and ends with the next of `last_type`."""
    assert select_uids_and_types(journal, EventSelection(maintenance="node-1", first_type="node.cordoned")) == [
        (SECOND_UID, events.NODE_CORDONED)
    ]
    assert select_uids_and_types(journal, EventSelection(maintenance=FIRST_UID, last_type="maintenance.begun")) == [
        (FIRST_UID, events.MAINTENANCE_BEGUN)
    ]


def test_range_ends_with_next_event_of_last_type_even_if_ticks_repeat_events(tmp_path: Path) -> None:
    """Check that a range contains one event of each type, and ends after its start, even if ticks repeat both types."""
    reference = events.ObjectReference(MEDIK8S.api_version, "node-1", FIRST_UID)
    types = [events.PODS_EVICTED, *[events.NODE_TAINTED, events.PODS_EVICTED] * 7]
    with closing(Journal(tmp_path / "repeated.db")) as journal:
        for number, event_type in enumerate(types):
            journal.write_event(events.build_event(event_type, "evict", reference, "node-1", seed=str(number)))

        selected = select_entries(
            journal, EventSelection(maintenance=FIRST_UID, first_type="node.tainted", last_type="pods.evicted")
        )
        single = select_entries(
            journal, EventSelection(maintenance=FIRST_UID, first_type="node.tainted", last_type="node.tainted")
        )

    assert [entry.event.get_type() for entry in selected] == [events.NODE_TAINTED, events.PODS_EVICTED]
    assert [entry.seq for entry in selected] == [2, 3]
    assert [entry.seq for entry in single] == [2]


def test_first_characters_of_id_select_event(journal: Journal) -> None:
    """Check that the short id in the table of events selects the event, unless several events match."""
    entry = journal.select()[0]
    event_id = entry.event.get_id()
    (selected,) = select_entries(journal, EventSelection(ids=(event_id[:8],)))
    assert selected.event.get_id() == event_id

    similar_id = f"{event_id[:8]}-0000"
    journal.write_event(CloudEvent({"id": similar_id, "source": "/test", "type": events.NODE_CORDONED}, {}))
    with pytest.raises(NoResult, match=f"id that starts with {event_id[:8]}: name one of .*{similar_id}"):
        select_entries(journal, EventSelection(ids=(event_id[:8],)))
    (selected,) = select_entries(journal, EventSelection(ids=(similar_id,)))
    assert selected.event.get_id() == similar_id

    journal.write_event(CloudEvent({"id": event_id[:8], "source": "/test", "type": events.NODE_CORDONED}, {}))
    (selected,) = select_entries(journal, EventSelection(ids=(event_id[:8],)))
    assert selected.event.get_id() == event_id[:8]
