"""Test for `redrive`, which posts a journal's dead letters to a receiver that acts as the function."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

from cloudevents.core.v1.event import CloudEvent

from eventing import events
from eventing.dead_letters import DeadLetter, add_dead_letter_extensions
from eventing.journal.store import Journal
from localcluster.http_receiver import Receiver, Response
from tests.console.conftest import RunCommand


def test_second_dead_letter_of_same_event_is_skipped(
    run_command: RunCommand, receiver: Receiver, tmp_path: Path
) -> None:
    """X-6: A second dead letter of the same event is skipped without an error after the first one was redriven."""
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
