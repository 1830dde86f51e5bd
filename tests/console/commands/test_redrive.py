"""Tests for `redrive`, which posts the journal's dead letters to an HTTP receiver instead of a function."""

from __future__ import annotations

import json
import re
import uuid
from contextlib import closing
from pathlib import Path

from cloudevents.core.v1.event import CloudEvent

from console.operations.dead_letter_redrive import list_open_dead_letters
from eventing import events
from eventing.dead_letters import DeadLetter, add_dead_letter_extensions
from eventing.journal.store import Journal, Query
from localcluster.http_receiver import Receiver, Response
from tests.console.conftest import RunCommand
from tests.console.terminal.test_output import run_on_terminal
from tests.postgresql import PostgreSQL


def test_second_dead_letter_of_same_event_is_skipped(
    run_command: RunCommand, receiver: Receiver, tmp_path: Path
) -> None:
    """X-6: a second dead letter of the same event is skipped without an error after the first one was redriven."""
    attributes = {"id": "1", "source": "/s", "type": events.MAINTENANCE_BEGUN, "datacontenttype": "application/json"}
    with closing(Journal(tmp_path / "journal.db")) as journal:
        for host in ("gone", "elsewhere"):
            journal.write_event(
                add_dead_letter_extensions(CloudEvent(attributes, {}), DeadLetter(f"http://{host}/cordon", 503, "away"))
            )
    receiver.answers["/cordon"] = lambda _: Response(204)
    options = ("--journal", str(tmp_path / "journal.db"), "--functions", receiver.url, "--broker", receiver.url)

    result = run_command("redrive", "--all", "--yes", "-o", "json", *options)

    assert result.exit_code == 0, result.output
    redriven = json.loads(result.stdout)["redriven"]
    assert [row["open"] for row in redriven] == [False, False]
    assert redriven[1]["now"] == {"note": "another redrive has delivered it already"}
    assert len(receiver.list_requests("/cordon")) == 1


def test_redrive_of_rejected_event_suggests_discard(
    run_command: RunCommand, receiver: Receiver, tmp_path: Path
) -> None:
    """X-6: if the function rejects the event with 400, the output states how to close the dead letter."""
    attributes = {"id": "1", "source": "/s", "type": events.MAINTENANCE_BEGUN, "datacontenttype": "application/json"}
    with closing(Journal(tmp_path / "journal.db")) as journal:
        dead_letter = DeadLetter("http://gone/cordon", 400, "data.node is missing")
        journal.write_event(add_dead_letter_extensions(CloudEvent(attributes, {}), dead_letter))
    options = ("--journal", str(tmp_path / "journal.db"), "--functions", receiver.url, "--broker", receiver.url)

    receiver.answers["/cordon"] = lambda _: Response(400)
    rejected = run_command("redrive", "1", "--yes", *options)
    receiver.answers["/cordon"] = lambda _: Response(503)
    unavailable = run_command("redrive", "1", "--yes", *options)

    assert (rejected.exit_code, unavailable.exit_code) == (1, 1)
    assert "to close its dead letter, use --discard" in rejected.output
    assert "--discard" not in unavailable.output


def test_discarded_dead_letter_is_no_longer_open_and_names_user(
    run_command: RunCommand, receiver: Receiver, tmp_path: Path
) -> None:
    """X-6: `--discard` closes only the named dead letter without a delivery, and records the user and the time.

    One dead letter has a destination without a function's name, so a redrive of it can never succeed.
    """
    attributes = {"source": "/s", "type": events.MAINTENANCE_BEGUN, "datacontenttype": "application/json"}
    with closing(Journal(tmp_path / "journal.db")) as journal:
        for event_id, path in (("1", ""), ("2", "/cordon"), ("3", "/cordon")):
            event = CloudEvent({"id": event_id, **attributes}, {})
            journal.write_event(add_dead_letter_extensions(event, DeadLetter(f"{receiver.url}{path}", 503, "away")))
    option = ("--journal", str(tmp_path / "journal.db"))

    result = run_command("redrive", "1", "2", "--discard", "--yes", "-o", "json", *option)

    assert result.exit_code == 0, result.output
    discarded = json.loads(result.stdout)["discarded"]
    assert [(row["event"], row["open"], row["discarded"]["by"]) for row in discarded] == [
        ("1", False, "admin"),
        ("2", False, "admin"),
    ]
    open_rows = json.loads(run_command("deadletters", "-o", "json", *option).stdout)["deadLetters"]
    assert [(row["event"], row["discarded"]) for row in open_rows] == [("3", None)]
    all_result = run_command("deadletters", "--all", *option)
    assert "(discarded by admin " in all_result.stdout
    assert f"kubectl maintenance redrive EVENT --journal {tmp_path / 'journal.db'}; to close it" in all_result.stderr
    assert run_command("redrive", "1", "--yes", *option).exit_code == 2
    with closing(Journal(tmp_path / "journal.db")) as journal:
        assert [entry.event.get_id() for entry in list_open_dead_letters(journal)] == ["3"]
        assert len(journal.select(Query(dead_letters_only=True))) == 3
    run_command("redrive", "--all", "--discard", "--yes", *option)
    assert run_command("deadletters", "--all", *option).stderr == ""
    assert receiver.requests == []


def test_dead_letters_fit_into_narrow_terminal(tmp_path: Path) -> None:
    """Check that 80 columns show the whole id on one line, as `redrive` needs it, and the reason in lines below it."""
    event_id, node = str(uuid.uuid4()), "worker-1.example.com"
    event = CloudEvent({"id": event_id, "source": "/s", "type": events.MAINTENANCE_BEGUN, "node": node}, {})
    reason = "no response from the function within 30 seconds, and 2 retries"
    with closing(Journal(tmp_path / "journal.db")) as journal:
        journal.write_event(add_dead_letter_extensions(event, DeadLetter("http://away/cordon", 503, reason)))
    arguments = ["deadletters", "--journal", str(tmp_path / "journal.db")]

    output = run_on_terminal(f"import os; os.environ['COLUMNS'] = '80'; from console.cli import cli; cli({arguments})")

    _, row, *description = [line.rstrip() for line in output.decode().splitlines()][:4]
    assert re.fullmatch(rf"{event_id}   \d+s    503    cordon", row)
    assert description == [
        "  maintenance.begun of worker-1.example.com: no response from the function",
        "  within 30 seconds, and 2 retries",
    ]


def test_hint_of_deadletters_does_not_repeat_password(run_command: RunCommand, postgresql: PostgreSQL) -> None:
    """X-6: the hint below open dead letters repeats `--journal` without the password of its URL."""
    url = postgresql.create_database()
    url_with_password = url.replace("//test@", "//test:secret@")
    event = CloudEvent({"id": "1", "source": "/s", "type": events.MAINTENANCE_BEGUN}, {})
    with closing(Journal(url)) as journal:
        journal.write_event(add_dead_letter_extensions(event, DeadLetter("http://away/cordon", 503, "away")))

    result = run_command("deadletters", "--journal", url_with_password)

    shown_url = url.replace("//test@", "//test:***@")
    assert f"redrive EVENT --journal '{shown_url}'; to close it" in result.stderr
    assert "secret" not in result.output
