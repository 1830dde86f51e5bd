"""Tests for `replay` with an HTTP receiver instead of functions: which responses are results, and which are errors."""

from __future__ import annotations

import json
import socket
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path

import pytest
from click.testing import CliRunner
from cloudevents.core.v1.event import CloudEvent

from console.cli import cli
from console.commands.replay import render_missing_objects, render_replay
from console.operations.replay import ReplayOptions, ReplayResult, replay_to_json
from eventing import events
from eventing.http_binding import BATCH_CONTENT_TYPE
from eventing.journal.entries import Attempt, Entry
from eventing.journal.store import Journal
from eventing.replay.function_client import FunctionResponse
from eventing.replay.response_diff import Difference
from localcluster.http_receiver import Receiver, Response
from tests.console.commands.test_escaping import ESCAPED_TEXT, UNSAFE_TEXT
from tests.console.conftest import RunCommand

MAINTENANCE = events.ObjectReference("nodemaintenance.medik8s.io/v1beta1", "replayed", "uid-replayed")


@pytest.fixture
def replay_journal(tmp_path: Path) -> str:
    """Create a journal with three events: `status` handled one, failed for another, and never received the last."""
    file, now = tmp_path / "journal.db", datetime.now(timezone.utc)
    with closing(Journal(file)) as store:
        for key, error in (("silent", ""), ("failed", "other clients keep changing the status"), ("unknown", None)):
            event = events.build_event(events.NODE_DRAINED, "evict", MAINTENANCE, "replayed-1", seed=key)
            store.write_event(event)
            if error is not None:
                attempt = Attempt(
                    event.get_source(), event.get_id(), "status", now, 0.1, 503 if error else 204, (), error
                )
                store.write_attempts([attempt])
    return str(file)


def list_event_ids(journal: str) -> list[str]:
    with closing(Journal(journal)) as store:
        return [entry.event.get_id() for entry in store.select()]


def run_replay(run_command: RunCommand, receiver: Receiver, journal: str, *args: str) -> tuple[int, list[str], str]:
    """Run `replay`, and return the exit status, the result of each call, and stderr."""
    base_options = ("--functions", receiver.url, "--function", "status", "--dry-run=server", "-o", "json")
    result = run_command("replay", "--journal", journal, *base_options, *args)
    rows = json.loads(result.stdout)["answers"] if result.stdout else []
    return result.exit_code, [row["result"] for row in rows], result.stderr


@pytest.mark.parametrize(
    ("args", "conflicting_options"),
    [
        (("--in-process", "--functions=http://here"), "--in-process and --functions"),
        (("--in-process", "--url=http://here"), "--in-process and --url"),
        (("--url=http://here/status", "--functions=http://here"), "--url and --functions"),
    ],
)
def test_two_options_for_functions_location_are_usage_error(args: tuple[str, ...], conflicting_options: str) -> None:
    """X-6: two options for the location of the functions are a usage error, because one would have no effect."""
    result = CliRunner().invoke(cli, ["replay", "--id=1", *args])

    assert result.exit_code == 2
    assert f"Error: {conflicting_options}: each specifies where functions run, omit all but one" in result.stderr


def test_url_option_overrides_environment_variable_functions(
    run_command: RunCommand, receiver: Receiver, replay_journal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that `--url` takes precedence over $FUNCTIONS, which `make env` sets."""
    monkeypatch.setenv("FUNCTIONS", "http://127.0.0.1:9")
    receiver.answers["/status"] = lambda _: Response(200, {"content-type": BATCH_CONTENT_TYPE}, b"[]")

    event, *_ = list_event_ids(replay_journal)
    result = run_command(
        "replay", "--journal", replay_journal, "--id", event, f"--url={receiver.url}/status", "--dry-run=server"
    )

    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    "response", [Response(302, {"location": "/login"}), Response(202), Response(204), Response(200)]
)
def test_response_of_other_server_aborts_replay_with_error(
    run_command: RunCommand, receiver: Receiver, replay_journal: str, response: Response
) -> None:
    """X-2: a response from another server, for example a login page, aborts the replay with an error."""
    receiver.answers["/status"] = lambda _: response

    status, results, message = run_replay(run_command, receiver, replay_journal, "--maintenance", "uid-replayed")

    assert (status, results, len(receiver.requests)) == (2, ["fails"], 1)
    reason = (
        f"status responded with {response.status} and no content type: "
        f"a function of this product responds with {BATCH_CONTENT_TYPE}"
    )
    assert message.startswith(
        f"Error: {reason}; the replay skips the remaining 2 calls: start the functions, or name their address "
    )


def test_refused_connection_aborts_replay_with_error(
    run_command: RunCommand, receiver: Receiver, replay_journal: str
) -> None:
    """X-6: if no function listens, the replay skips the remaining calls, and the error names their number."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"

    functions = ("--functions", url, "--maintenance", "uid-replayed")
    status, results, message = run_replay(run_command, receiver, replay_journal, *functions)

    assert (status, results) == (2, ["fails"])
    assert message.startswith(
        f"Error: no response from {url}/status: the connection failed; the replay skips the remaining 2 calls: "
        "start the functions, or name their address with --functions or --url, and replay again"
    )


RESPONSE_CASES = {
    "success without events": (
        Response(200, {"content-type": BATCH_CONTENT_TYPE}, b"[]"),
        0,
        ["same", "differs", "not recorded"],
        1,
    ),
    "same failure as recorded": (
        Response(503, {}, b"other clients keep changing the status\n"),
        1,
        ["differs", "fails", "fails"],
        2,
    ),
    "different failure": (Response(500, {}, b"no answer"), 1, ["differs", "differs", "fails"], 1),
}


@pytest.mark.parametrize(
    ("response", "success_status", "results", "failure_status"), RESPONSE_CASES.values(), ids=RESPONSE_CASES
)
def test_replay_with_failing_function_never_exits_with_0(
    run_command: RunCommand,
    receiver: Receiver,
    replay_journal: str,
    response: Response,
    success_status: int,
    results: list[str],
    failure_status: int,
) -> None:
    """X-2: the exit status of a replay is never 0 if a function fails.

    The status is 1 if the recorded response differs, and 2 if the same failure or no response was recorded.
    """
    receiver.answers["/status"] = lambda _: response

    assert run_replay(run_command, receiver, replay_journal, "--maintenance", "uid-replayed")[:2] == (1, results)
    for key, expected in zip(list_event_ids(replay_journal), (success_status, failure_status, 2), strict=True):
        assert run_replay(run_command, receiver, replay_journal, "--id", key)[0] == expected


@pytest.mark.parametrize(
    ("recorded_seconds", "seconds", "durations"),
    [(0.672, 0.64, "672 ms then, 640 ms now"), (None, 0.64, "640 ms now"), (0.672, None, "672 ms then")],
)
def test_replayed_line_has_recorded_and_new_duration(
    recorded_seconds: float | None, seconds: float | None, durations: str
) -> None:
    """Check that a replayed line and the JSON output have the known durations, so that users find a slow function."""
    event = events.build_event(events.NODE_TAINTED, "taint", MAINTENANCE)
    entry = Entry(1, datetime.now(timezone.utc), event)
    recorded = None
    if recorded_seconds is not None:
        recorded = Attempt("/s", event.get_id(), "evict", entry.arrived, recorded_seconds, 200)
    result = ReplayResult(entry, recorded, FunctionResponse("evict", 200, seconds), [])

    (answer,) = replay_to_json(ReplayOptions("r1", dry_run=True), (), [result])["answers"]

    assert render_replay(result).plain.split("no event", 1)[1].split() == [*durations.split(), event.get_id()]
    assert answer["now"]["seconds"] == seconds
    assert (answer["then"] or {"seconds": None})["seconds"] == recorded_seconds


def test_cause_that_concerns_many_pods_takes_one_line() -> None:
    """Check that pods with the same explanation share a line, and that every other difference keeps its own."""
    differences = [
        Difference("e-1", "evict", field, 1, None, explained)
        for field, explained in (
            ("data.evicted[default/a]", "the pod no longer exists"),
            ("data.evicted[default/b]", ""),
            ("data.evicted[default/c]", "the pod no longer exists"),
            ("data.blocked[default/d]", "the pod no longer exists"),
            *(("answer", "the node no longer exists"),) * 2,
        )
    ]
    entry = Entry(1, datetime.now(timezone.utc), events.build_event(events.NODE_TAINTED, "taint", MAINTENANCE))
    result = ReplayResult(entry, None, FunctionResponse("evict", 200, 0.1), differences)

    assert render_replay(result).plain.splitlines()[1:] == [
        "    data.evicted, each of 2 pods: the pod no longer exists",
        "    data.evicted[default/b]",
        "      - 1",
        "      + nothing",
        "    data.blocked[default/d]: 1 → nothing: the pod no longer exists",
        *["    answer: 1 → nothing: the node no longer exists"] * 2,
    ]


@pytest.mark.parametrize("explanation", ["", UNSAFE_TEXT])
def test_text_from_recorded_events_and_responses_is_escaped(explanation: str) -> None:
    """X-6: text from recorded events and responses is escaped when a replay is displayed.

    Any client that may post events controls their attributes, and a function's response may repeat them.
    """
    event = CloudEvent({"id": UNSAFE_TEXT, "source": "/s", "type": UNSAFE_TEXT}, {})
    difference = Difference(UNSAFE_TEXT, "cordon", UNSAFE_TEXT, UNSAFE_TEXT, [UNSAFE_TEXT], explanation)
    current = FunctionResponse(UNSAFE_TEXT, 503, 0.1, error=UNSAFE_TEXT)

    text = render_replay(ReplayResult(Entry(1, datetime.now(timezone.utc), event), None, current, [difference])).plain

    assert text.count(ESCAPED_TEXT) >= 5
    assert "\x1b" not in text + render_missing_objects([UNSAFE_TEXT]).plain
    assert "\u202e" not in text
