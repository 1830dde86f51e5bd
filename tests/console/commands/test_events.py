"""Tests for `kubectl maintenance events` with a journal that each test fills."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cloudevents.core.v1.event import CloudEvent

from console.cli import cli
from eventing import events
from eventing.events import ObjectReference, build_event
from eventing.http_binding import encode_structured
from eventing.journal.store import Attempt, Journal
from kube.maintenance.objects import ENDER_ANNOTATION, REQUESTER_ANNOTATION
from tests.console.conftest import ROOT

MAINTENANCE = ObjectReference("nodemaintenance.medik8s.io/v1beta1", "nm", "uid-1")
START_TIME = datetime.now(timezone.utc) - timedelta(hours=1)
ADDED = CloudEvent(
    {"id": "added", "source": "/apis", "type": events.RESOURCE_ADDED, "kind": "NodeMaintenance"},
    {"metadata": {"name": "nm", "uid": "uid-1"}, "spec": {"nodeName": "node-1"}},
)
BEGUN = build_event(events.MAINTENANCE_BEGUN, "begin", MAINTENANCE, "node-1", cause=ADDED)
CORDONED = build_event(events.NODE_CORDONED, "cordon", MAINTENANCE, "node-1", cause=BEGUN)
GONE = build_event(events.PODS_GONE, "podsource", MAINTENANCE, "node-1", seed="7", more="true")
TICK = CloudEvent({"id": "tick", "source": "/ping", "type": events.TICK}, {})
ALL_EVENTS = (ADDED, BEGUN, CORDONED, GONE, TICK)
ZONE = f"({START_TIME.astimezone():%Z})"
RunEvents = Callable[..., Result]


def fill_journal(journal: Journal) -> None:
    """Record a maintenance in which `cordon` took 2 s, `status` failed once, and `evict` was never called."""
    arrival_times = (START_TIME + timedelta(seconds=seconds) for seconds in (0, 0.1, 2.2, 3, 4))
    journal.write_events(zip(ALL_EVENTS, arrival_times, strict=True))
    attempts = (
        (ADDED, "begin", 0.09, 200, ""),
        (BEGUN, "cordon", 2.05, 200, ""),
        (BEGUN, "status", 0.01, 503, "the API server is unavailable"),
        (CORDONED, "taint", 0.02, 200, ""),
        (TICK, "resync", 0.03, 204, ""),
    )
    journal.write_attempts(
        Attempt(event.get_source(), event.get_id(), name, START_TIME, duration, code, error=error)
        for event, name, duration, code, error in attempts
    )


@pytest.fixture
def run_events(journal_url: str) -> RunEvents:
    """Return a function that runs `events` on a filled journal."""
    with closing(Journal(journal_url)) as journal:
        fill_journal(journal)

    def invoke_events(*args: str, color: bool = False) -> Result:
        command_line = ["events", "--journal", journal_url, *args]
        return CliRunner(env={"TZ": "UTC"}).invoke(cli, command_line, prog_name="kubectl maintenance", color=color)

    return invoke_events


def get_event_ids(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return [entry["event"]["id"] for entry in json.loads(result.stdout)]


def test_tree_shows_slow_failed_and_missing_attempts(run_events: RunEvents, journal_url: str) -> None:
    """Check that the tree shows each event below the event that caused it, with delays, durations and status codes."""
    result = run_events("-o", "tree")

    assert result.exit_code == 0, result.output
    heading, added, begun, cordoned, pods_gone, replay, _, other_heading, tick = result.stdout.splitlines()
    assert heading.startswith("nm (uid-1), node node-1, ")
    assert heading.endswith("4 events in 3.000 s, 1 failed, 1 missing")
    assert added.split() == ["+0.000", "s", "apiserver.resource.add", "begin", "90", "ms"]
    assert begun.split()[:6] == ["+0.100", "s", "└─", "maintenance.begun", "0.100", "s"]
    assert begun.endswith("cordon 2050 ms (longest attempt), status 10 ms 503 the API server is unavailable")
    assert cordoned.split() == [
        "+2.200",
        "s",
        "└─",
        "node.cordoned",
        "2.100",
        "s",
        "taint",
        "20",
        "ms,",
        "longest",
        "delay",
    ]
    assert cordoned.index("└─") > begun.index("└─")
    assert pods_gone.split() == ["+3.000", "s", "pods.gone", "evict", "MISSING"]
    selection = f"--id {BEGUN.get_id()} --function cordon --dry-run=server --journal {journal_url}"
    assert replay == f"To replay the longest attempt: kubectl maintenance replay {selection}"
    assert other_heading.startswith("Without a maintenance, ")
    assert tick.split()[2:] == ["sources.ping", "resync", "30", "ms"]


def test_event_id_in_replay_command_is_quoted(journal_url: str) -> None:
    """Check that a shell does not execute an event's id, because any client that may post events controls this text."""
    event = CloudEvent({"id": "$(reboot)", "source": "/test", "type": events.RESOURCE_ADDED}, ADDED.get_data())
    with closing(Journal(journal_url)) as journal:
        journal.write_event(event, START_TIME)
        journal.write_attempts(
            Attempt("/test", event.get_id(), name, START_TIME, seconds, 503)
            for name, seconds in (("begin", 0.2), ("status", 0.1))
        )

    *_, replay = CliRunner().invoke(cli, ["events", "--journal", journal_url, "-o", "tree"]).stdout.splitlines()

    assert " --id '$(reboot)' --function begin " in replay


@pytest.mark.parametrize("options", [("--maintenance", "nm"), ("--maintenance", "nm", "-o", "tree")])
def test_past_maintenance_names_users_and_reason(journal_url: str, options: tuple[str, ...]) -> None:
    """Check that table and tree name who started and ended a deleted maintenance, and the reason.

    The `stop` of carol has failed: she has set the annotation, but not deleted the object.
    """
    annotations = {REQUESTER_ANNOTATION: "alice", ENDER_ANNOTATION: "carol"}
    metadata = {"name": "nm", "uid": "uid-1", "annotations": annotations}
    spec = {"nodeName": "node-1", "reason": "replace a disk"}
    kept, deleted = (
        CloudEvent(
            {"id": event_type, "source": "/apis", "type": event_type, "kind": "NodeMaintenance"},
            {"metadata": {**metadata, **fields}, "spec": spec},
        )
        for event_type, fields in (
            (events.RESOURCE_UPDATED, {}),
            (events.RESOURCE_DELETED, {"annotations": {ENDER_ANNOTATION: "bob"}}),
        )
    )
    run_arguments = ["events", "--journal", journal_url, *options]
    with closing(Journal(journal_url)) as journal:
        journal.write_event(kept, START_TIME)
        running_output = CliRunner().invoke(cli, run_arguments).stdout
        journal.write_event(deleted, START_TIME + timedelta(seconds=1))
    ended_output = CliRunner().invoke(cli, run_arguments).stdout

    assert "Requested by alice; reason: replace a disk\n" in running_output
    assert "Requested by alice; reason: replace a disk; ended by bob\n" in ended_output


@pytest.mark.parametrize(
    ("status", "recorded_end", "text"),
    [
        ({"phase": "Running", "evictionPods": 5, "pendingCount": 2}, None, "given up after 3m: 2 of 5 pods remained"),
        ({}, None, "given up after 3m"),
        ({"phase": "Succeeded", "evictionPods": 5, "pendingCount": 0}, None, ""),
        ({"phase": "Running", "evictionPods": 5, "pendingCount": 1}, (events.NODE_DRAINED, {}), ""),
        (
            {"phase": "Running", "evictionPods": 5, "pendingCount": 1},
            (events.NODE_RESTORED, {"nodeDeleted": True}),
            "",
        ),
        ({"phase": "Failed"}, None, ""),
    ],
    ids=["running", "no status", "succeeded", "drained, not reported", "node deleted", "failed"],
)
def test_drain_that_was_given_up_differs_from_finished_drain(
    journal_url: str, status: dict[str, object], recorded_end: tuple[str, dict[str, bool]] | None, text: str
) -> None:
    """Check that tree and table state that a maintenance was deleted before its drain had succeeded."""
    times = {"creationTimestamp": "2026-03-01T10:00:00Z", "deletionTimestamp": "2026-03-01T10:03:00Z"}
    deleted = CloudEvent(
        {"id": "deleted", "source": "/apis", "type": events.RESOURCE_UPDATED, "kind": "NodeMaintenance"},
        {"metadata": {"name": "nm", "uid": "uid-1", **times}, "spec": {"nodeName": "node-1"}, "status": status},
    )
    end_type, data = recorded_end or (events.NODE_RESTORED, {})
    end = build_event(end_type, "evict", MAINTENANCE, "node-1", cause=BEGUN, data=data)
    with closing(Journal(journal_url)) as journal:
        journal.write_events((event, START_TIME) for event in (ADDED, BEGUN, deleted, end))
    arguments = ["events", "--journal", journal_url, "--maintenance", "nm", "-o"]

    heading, *tree = CliRunner().invoke(cli, [*arguments, "tree"]).stdout.splitlines()
    table = CliRunner().invoke(cli, [*arguments, "table"]).stdout

    assert heading.endswith(", given up") == bool(text)
    assert [line.strip().lower() for line in tree if "iven up" in line] == ([text] if text else [])
    assert f"nm (uid-1): {text.capitalize()}\n" in table if text else "iven up" not in table


@pytest.mark.parametrize(("seconds", "is_shown"), [(300, True), (4, False)])
def test_tree_names_creation_that_was_recorded_late(journal_url: str, seconds: int, is_shown: bool) -> None:
    """Check that the tree states how long before the first event the object was created, as after an outage."""
    created = START_TIME.replace(microsecond=0)
    metadata = {"name": "nm", "uid": "uid-1", "creationTimestamp": created.isoformat().replace("+00:00", "Z")}
    added = CloudEvent(ADDED.get_attributes(), {"metadata": metadata, "spec": {"nodeName": "node-1"}})
    with closing(Journal(journal_url)) as journal:
        journal.write_event(added, created + timedelta(seconds=seconds))

    lines = CliRunner().invoke(cli, ["events", "--journal", journal_url, "-o", "tree"]).stdout.splitlines()

    text = f"  Created at {created.astimezone():%Y-%m-%d %H:%M:%S}, 5m before the first event below"
    assert (lines[1] == text) == is_shown
    assert len(lines) == (3 if is_shown else 2)


def test_function_with_recorded_reply_but_no_attempt_is_not_missing(journal_url: str) -> None:
    """Check that a function whose reply is recorded is not reported as missing, even without a recorded attempt.

    A function that is killed immediately after its reply does not publish the attempt.
    """
    with closing(Journal(journal_url)) as journal:
        journal.write_events(((ADDED, START_TIME), (BEGUN, START_TIME + timedelta(seconds=1))))

    lines = CliRunner().invoke(cli, ["events", "--journal", journal_url, "-o", "tree"]).stdout.splitlines()

    assert lines[0].endswith("2 events in 1.000 s, 2 missing")
    assert lines[1].endswith("begin RESPONDED, duration unknown")
    assert lines[2].endswith("cordon MISSING, status MISSING")


FORBIDDEN = 'nodes "node-1" is forbidden: cannot patch resource "nodes"'


@pytest.fixture
def failed_step_journal_url(journal_url: str) -> str:
    """Return a journal in which `cordon` responds with the event that reports its failure, as with missing rights."""
    data = {"step": "cordon", "error": FORBIDDEN}
    failed = build_event(events.MAINTENANCE_STEP_FAILED, "cordon", MAINTENANCE, "node-1", cause=BEGUN, data=data)
    replies = (json.loads(encode_structured(failed).body),)
    with closing(Journal(journal_url)) as journal:
        journal.write_events((event, START_TIME) for event in (ADDED, BEGUN, failed))
        journal.write_attempts(
            Attempt(event.get_source(), event.get_id(), name, START_TIME, 0.1, status, attempt_replies)
            for event, name, status, attempt_replies in (
                (ADDED, "begin", 200, ()),
                (BEGUN, "cordon", 200, replies),
                (BEGUN, "status", 204, ()),
                (failed, "status", 204, ()),
            )
        )
    return journal_url


def test_tree_marks_failed_step_although_its_response_has_status_of_success(failed_step_journal_url: str) -> None:
    """X-6: the step that failed is marked, and the event that reports the failure shows the step and the reason."""
    command_line = ["events", "--journal", failed_step_journal_url, "-o", "tree"]

    heading, _, begun, failed, _ = CliRunner().invoke(cli, command_line, color=True).stdout.splitlines()

    assert "1 failed" in heading
    assert "\x1b[31m\x1b[1mcordon 100 ms FAILED\x1b[0m, status 100 ms" in begun
    assert f"\x1b[31mcordon: {FORBIDDEN}\x1b[0m, status 100 ms" in failed


def test_list_of_failures_names_failed_step_and_reason(failed_step_journal_url: str) -> None:
    """X-6: `events --failed` shows which step failed and why, and not only the function that recorded the failure."""
    command_line = ["events", "--journal", failed_step_journal_url, "--failed"]

    _, row = CliRunner().invoke(cli, command_line).stdout.splitlines()

    assert row.endswith(f"cordon: {FORBIDDEN}, status 100 ms")


def test_tree_folds_ticks_that_changed_nothing(journal_url: str) -> None:
    """Check that successive ticks during a blocked drain share a line, unless a function replied to one of them."""
    ticks = [
        build_event(events.NODE_TAINTED, "resync", MAINTENANCE, "node-1", cause=TICK, seed=str(number))
        for number in range(5)
    ]
    evicted = build_event(events.PODS_EVICTED, "evict", MAINTENANCE, "node-1", cause=ticks[3])
    times = [START_TIME + timedelta(seconds=15 * number) for number in range(5)]
    with closing(Journal(journal_url)) as journal:
        journal.write_events([*zip(ticks, times, strict=True), (evicted, times[3] + timedelta(seconds=1))])
        journal.write_attempts(
            Attempt(
                tick.get_source(),
                *(tick.get_id(), "evict", START_TIME, 0.01, 204),
                (json.loads(encode_structured(evicted).body),) if tick is ticks[3] else (),
            )
            for tick in ticks
        )

    _, folded, *others = CliRunner().invoke(cli, ["events", "--journal", journal_url, "-o", "tree"]).stdout.splitlines()

    assert folded.split() == ["+0.000", "s", "node.tainted", "×3", "no", "effects", "until", "+30.000", "s"]
    assert [line.split()[2] for line in others] == ["node.tainted", "└─", "node.tainted"]


def test_tree_shows_that_node_no_longer_exists(journal_url: str) -> None:
    """Check that the tree states next to `node.restored` that the deletion of the node ended the drain."""
    deleted, restored = (
        build_event(events.NODE_RESTORED, "restore", MAINTENANCE, "node-1", seed=str(data), data=data)
        for data in ({"nodeDeleted": True}, {})
    )
    with closing(Journal(journal_url)) as journal:
        journal.write_events([(deleted, START_TIME), (restored, START_TIME)])

    lines = CliRunner().invoke(cli, ["events", "--journal", journal_url, "-o", "tree"]).stdout.splitlines()[1:]

    assert [" ".join(line.split()[2:]) for line in lines] == [
        "node.restored the node no longer exists",
        "node.restored",
    ]


def test_events_for_which_no_function_had_anything_to_do_share_a_line(journal_url: str) -> None:
    """Check that the tree has no duration of a function that had nothing to do, and folds successive such events."""
    updates = [
        CloudEvent(
            {"id": f"update-{number}", "source": "/apis", "type": events.RESOURCE_UPDATED, "kind": "NodeMaintenance"},
            ADDED.get_data(),
        )
        for number in range(3)
    ]
    with closing(Journal(journal_url)) as journal:
        journal.write_events(
            (event, START_TIME + timedelta(seconds=number))
            for number, event in enumerate((updates[0], GONE, *updates[1:]))
        )
        journal.write_attempts(
            Attempt(event.get_source(), event.get_id(), name, START_TIME, seconds, 204)
            for event, name, seconds in (
                *((update, "restore", 0.0002) for update in updates),
                (GONE, "evict", 0.0002),
                (GONE, "status", 0.03),
            )
        )

    lines = CliRunner().invoke(cli, ["events", "--journal", journal_url, "-o", "tree"]).stdout.splitlines()[1:]

    assert [" ".join(line.split()[2:]) for line in lines] == [
        "apiserver.resource.update restore: nothing to do",
        "pods.gone evict: nothing to do, status 30 ms",
        "apiserver.resource.update ×2 no effects until +3.000 s",
    ]


def test_failure_for_which_no_function_had_anything_to_do_has_its_own_line(journal_url: str) -> None:
    """Check that the tree never folds events that report a failure, even if `status` had nothing to do."""
    failures = [
        build_event(
            *(events.MAINTENANCE_STEP_FAILED, "cordon", MAINTENANCE, "node-1"),
            seed=str(number),
            data={"step": "cordon", "error": FORBIDDEN},
        )
        for number in range(2)
    ]
    with closing(Journal(journal_url)) as journal:
        journal.write_events((event, START_TIME) for event in failures)
        journal.write_attempts(
            Attempt(event.get_source(), event.get_id(), "status", START_TIME, 0.0002, 204) for event in failures
        )

    lines = CliRunner().invoke(cli, ["events", "--journal", journal_url, "-o", "tree"]).stdout.splitlines()[1:]

    shown = f"maintenance.step_failed cordon: {FORBIDDEN}, status: nothing to do"
    assert [" ".join(line.split()[2:]) for line in lines] == [shown] * 2


def test_slow_and_missing_attempts_are_highlighted(run_events: RunEvents) -> None:
    """Check that delays and durations of at least one second are yellow, and that errors are red."""
    output = run_events("-o", "tree", color=True).stdout

    assert "\x1b[33m\x1b[1m   2.100 s\x1b[0m" in output
    assert "\x1b[33m\x1b[1mcordon 2050 ms\x1b[0m" in output
    assert "\x1b[31m\x1b[1mevict MISSING\x1b[0m" in output


def test_table_has_one_row_per_event(run_events: RunEvents) -> None:
    """Check that the table has one row for each event, with the event ID that `replay` accepts."""
    heading, *rows = run_events("--ticks").stdout.splitlines()

    assert heading.split()[:3] == ["TIME", ZONE, "TYPE"]
    assert heading.split()[2:] == ["TYPE", "NODE", "ID", "ATTEMPTS"]
    assert len(rows) == 5
    assert all(event.get_id()[:8] in row for event, row in zip(ALL_EVENTS, rows, strict=True))
    assert rows[3].split()[2:] == ["pods.gone", "node-1", "(nm)", GONE.get_id()[:8], "evict", "MISSING"]
    _, *rows_of_maintenance = run_events("--maintenance", "nm").stdout.splitlines()
    assert rows_of_maintenance[3].split()[2:] == ["pods.gone", "node-1", GONE.get_id()[:8], "evict", "MISSING"]


def test_table_fits_100_columns(journal_url: str) -> None:
    """Check that the rows of a node's usual events fit into 100 columns, and that JSON contains the full values."""
    node = "worker-12.example"
    reference = ObjectReference("nodemaintenance.medik8s.io/v1beta1", node, "uid-1")
    event_id = "0b7e3a52-5d8c-4a51-9d5f-3c6f0f1f9a10"
    updated = CloudEvent(
        {"id": event_id, "source": "/apis", "type": events.RESOURCE_UPDATED, "kind": "NodeMaintenance"},
        {"metadata": {"name": node, "uid": "uid-1"}, "spec": {"nodeName": node}},
    )
    evicted = build_event(events.PODS_EVICTED, "evict", reference, node, cause=updated)
    with closing(Journal(journal_url)) as journal:
        journal.write_events((event, START_TIME) for event in (updated, evicted))
        journal.write_attempts([Attempt("/apis", event_id, "restore", START_TIME, 0.121, 204)])
    arguments = ["events", "--journal", journal_url]

    table = CliRunner().invoke(cli, arguments).stdout.splitlines()
    entry, _ = json.loads(CliRunner().invoke(cli, [*arguments, "-o", "json"]).stdout)

    assert max(map(len, table)) <= 100
    assert table[1].split()[2:] == ["apiserver.resource.update", node, "0b7e3a52", "restore", "121", "ms"]
    assert (entry["event"]["id"], entry["arrived"]) == (event_id, START_TIME.isoformat())


@pytest.mark.parametrize(
    ("args", "expected_events"),
    [
        ((), ALL_EVENTS),
        (("--node", "node-1"), ALL_EVENTS[:4]),
        (("--maintenance", "nm"), ALL_EVENTS[:4]),
        (("--maintenance", "uid-1", "--type", "pods.gone"), (GONE,)),
        (("--type", "apiserver.resource.add", "--type", events.TICK), (ADDED, TICK)),
        (("--type", "resource.add"), (ADDED,)),
        (("--since", "2h"), ALL_EVENTS),
        (("--since", "10m"), ()),
        (("--until", "1d"), ()),
        (("--since", (START_TIME + timedelta(seconds=2.5)).isoformat()), (GONE, TICK)),
        (("--failed",), (BEGUN,)),
        (("--limit", "2"), (GONE, TICK)),
        (("--node", "elsewhere"), ()),
    ],
)
def test_options_filter_events(
    run_events: RunEvents, args: tuple[str, ...], expected_events: tuple[CloudEvent, ...]
) -> None:
    """Check that events can be filtered by node, maintenance, type (short or full), time and failure."""
    assert get_event_ids(run_events(*args, "-o", "json")) == [event.get_id() for event in expected_events]


def test_json_contains_cause_attempts_and_missing_functions(run_events: RunEvents) -> None:
    """Check that the JSON output contains the event, its cause, attempts, missing functions and dead letter."""
    (entry,) = json.loads(run_events("--type", "maintenance.begun", "-o", "json").stdout)

    assert entry["cause"] == "added"
    assert entry["event"]["data"]["maintenance"]["name"] == "nm"
    assert [(attempt["function"], attempt["status"]) for attempt in entry["attempts"]] == [
        ("cordon", 200),
        ("status", 503),
    ]
    assert (entry["missing"], entry["deadLetter"], entry["node"]) == ([], None, "node-1")


def test_json_output_is_one_indented_list(run_events: RunEvents) -> None:
    """Check that the JSON output, which is written event by event, is one valid and indented list."""
    for options in ((), ("--limit", "1"), ("--type", "unknown")):
        output = run_events("-o", "json", *options).stdout
        assert output == json.dumps(json.loads(output), indent=2) + "\n"


def test_table_omits_ticks_that_changed_nothing(run_events: RunEvents) -> None:
    """Check that the table omits an idle tick and reports that, unless the user asks for ticks."""
    result, tick_result = run_events(), run_events("--type", events.TICK)

    assert len(result.stdout.splitlines()) == 5
    assert TICK.get_id() not in [row.split()[-1] for row in result.stdout.splitlines()]
    assert result.stderr == "1 tick that changed nothing is not shown: see --ticks.\n"
    assert len(run_events("--ticks").stdout.splitlines()) == 6
    assert len(tick_result.stdout.splitlines()) == 2
    assert len(get_event_ids(run_events("-o", "json"))) == 5


def test_follow_shows_events_as_they_arrive(run_events: RunEvents, journal_url: str) -> None:
    """Check that `--follow` shows a new event, shows it again with its attempt, and omits an idle tick.

    The arrival is in the future, so that no function counts as missing however slow the machine is.
    """
    command = [sys.executable, "-m", "console.cli", "events", "--journal", journal_url, "--follow"]
    drained = build_event(events.NODE_DRAINED, "evict", MAINTENANCE, "node-1", seed="drained")
    tick = CloudEvent({"id": "tick-2", "source": "/ping", "type": events.TICK}, {})
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process,
        closing(Journal(journal_url)) as journal,
    ):
        assert process.stdout
        first_lines = [process.stdout.readline() for _ in range(5)]
        arrived = datetime.now(timezone.utc) + timedelta(minutes=5)
        journal.write_events([(tick, arrived), (drained, arrived)])
        new_line = process.stdout.readline()
        journal.write_attempts(
            [
                Attempt("/ping", "tick-2", "resync", START_TIME, 0.01, 204),
                Attempt(drained.get_source(), drained.get_id(), "status", START_TIME, 0.02, 200),
            ]
        )
        repeated_line = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)

    assert first_lines[0].split() == ["TIME", ZONE, "TYPE", "NODE", "ID", "ATTEMPTS"]
    assert new_line.split()[2:] == ["node.drained", "node-1", "(nm)", drained.get_id()[:8]]
    assert repeated_line.split()[2:] == ["node.drained", "node-1", "(nm)", drained.get_id()[:8], "status", "20", "ms"]
    assert (process.returncode, errors) == (130, "")


def test_truncated_event_list_is_reported(run_events: RunEvents) -> None:
    """Check that the command reports that a list truncated by `--limit` is incomplete."""
    truncated_result, complete_result = run_events("--limit", "2"), run_events("--ticks", "--limit", "5")

    assert "Only the newest 2 events are shown" in truncated_result.stderr
    assert complete_result.stderr == ""


def test_empty_event_list_is_reported(run_events: RunEvents) -> None:
    """Check that the table and the tree report that no events were found, without an error."""
    for output in ("table", "tree"):
        assert run_events("--node", "elsewhere", "-o", output).stdout == "No events found.\n"


@pytest.mark.parametrize("output", ["table", "tree", "json", "jsonl"])
def test_unknown_node_or_maintenance_is_reported(run_events: RunEvents, output: str) -> None:
    """X-6: an unknown node or maintenance is reported on stderr; a known node without matching events is not."""
    unknown_node_result, unknown_maintenance_result = (
        run_events("--node", "elsewhere", "-o", output),
        run_events("--maintenance", "uid-2", "-o", output),
    )
    known_names_result = run_events("--node", "node-1", "--maintenance", "nm", "--until", "1d", "-o", output)

    assert unknown_node_result.stderr == 'Node "elsewhere" not found in the journal: see kubectl get nodes.\n'
    assert unknown_maintenance_result.stderr == (
        'No events of NodeMaintenance "uid-2", by name or uid, are recorded yet. If it exists, no function has '
        "received its events, or the function record does not run: see kubectl maintenance status.\n"
    )
    assert known_names_result.stderr == ""
    assert [result.exit_code for result in (unknown_node_result, unknown_maintenance_result, known_names_result)] == [
        0,
        0,
        0,
    ]


def test_export_can_be_imported_into_new_journal(run_events: RunEvents, journal_url: str, tmp_path: Path) -> None:
    """X-2: an export can be imported into a new journal from a pipe; a second import adds nothing."""
    exported = run_events("-o", "jsonl").stdout_bytes
    other_journal = str(tmp_path / "other.db")

    def import_from_stdin() -> Result:
        return CliRunner().invoke(cli, ["events", "--journal", other_journal, "--import", "-"], input=exported)

    assert [import_from_stdin().stdout, import_from_stdin().stdout] == [
        "5 new events imported\n",
        "0 new events imported\n",
    ]
    imported_tree = CliRunner().invoke(cli, ["events", "-o", "tree"], env={"JOURNAL": other_journal}).stdout
    assert imported_tree == run_events("-o", "tree").stdout.replace(f" --journal {journal_url}", "")


def test_invalid_line_in_import_is_reported_with_file_and_line_number(run_events: RunEvents, tmp_path: Path) -> None:
    """X-6: an invalid line is reported as a one-line error with the file name and the line number."""
    (tmp_path / "broken.jsonl").write_text("{}\n")

    result = run_events("--import", str(tmp_path / "broken.jsonl"))

    assert result.exit_code == 2
    assert result.stderr.startswith(f"Error: {tmp_path}/broken.jsonl: line 1: not a CloudEvent 1.0: ")
    assert result.stderr.endswith("nothing was imported\n")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--journal", "/nowhere/journal.db"), "journal /nowhere/journal.db not found: name it with --journal"),
        (("--journal", "postgresql://x@127.0.0.1:9/x"), "127.0.0.1"),
        (("--journal", "mysql://x"), "use a path, sqlite:///PATH or postgresql://"),
        (("--since", "soon"), "'soon' is neither an age, such as 10m, 2h or 1d, nor a time"),
        (("--import", "/nowhere/file"), "No such file"),
        (("--import", "-", "--node=x", "-o", "json", "--run=y"), "and shows none: omit --node, --run, --output"),
        (
            ("--journal", "postgresql://u:p@h:5432x/db"),
            "journal h:5432x/db: URL is not supported: use a path, sqlite:///PATH or postgresql://",
        ),
        (("--follow", "-o", "tree"), "--follow shows a table without an end: omit -o and --until"),
        (("--limit", str(2**63)), "'9223372036854775808' is not a number from 1 to 9223372036854775807, or 0"),
        (("--limit", "-1"), "Invalid value for '--limit': '-1' is not a number from 1 to "),
        (("--limit", "all"), "Invalid value for '--limit': 'all' is not a number from 1 to "),
        (("--node", "\udcff"), "Invalid value for '--node': the value is not valid UTF-8"),
    ],
)
def test_error_about_invalid_option_names_remedy(args: tuple[str, ...], message: str) -> None:
    """X-6: an invalid option exits with status 2 and names the remedy."""
    result = CliRunner().invoke(cli, ["events", *args])

    assert result.exit_code == 2
    assert message in result.stderr
    assert not isinstance(result.exception, ValueError)


def test_filter_with_lone_surrogate_is_usage_error(run_events: RunEvents) -> None:
    """X-6: a filter with a lone surrogate, which no database can store, exits with status 2."""
    result = run_events("--type", "\udcff")

    assert result.exit_code == 2
    assert result.stderr.startswith("Error: the journal cannot store the value: ")


def test_unknown_event_type_is_reported(run_events: RunEvents) -> None:
    """X-6: `events` lists the known event types on stderr if the type is unknown, but not if a type has no events."""
    misspelled_result, unused_type_result = run_events("--type", "pods.evict"), run_events("--type", "pods.evicted")

    assert misspelled_result.stdout == unused_type_result.stdout == "No events found.\n"
    assert misspelled_result.stderr.startswith(
        'Unknown event type pods.evict: did you mean "pods.evicted"? The known types are '
    )
    assert "pods.evicted" in misspelled_result.stderr
    assert unused_type_result.stderr == ""


def test_environment_variables_select_journal(tmp_path: Path) -> None:
    """Check that JOURNAL selects the journal, and that DATABASE_URL takes precedence, as in the function `record`."""
    with closing(Journal(tmp_path / "journal.db")) as journal:
        fill_journal(journal)

    def count_events(**environment: str) -> int:
        result = CliRunner(env=environment).invoke(cli, ["events", "-o", "json"])
        return len(json.loads(result.stdout))

    assert count_events(JOURNAL=str(tmp_path / "journal.db")) == 5
    assert count_events(JOURNAL="/nowhere", DATABASE_URL=f"sqlite:///{tmp_path}/journal.db") == 5


def test_database_without_journal_tables_is_usage_error(tmp_path: Path) -> None:
    """X-6: a database without the journal's tables is a usage error, and stays unchanged."""
    with closing(sqlite3.connect(tmp_path / "other.db")) as other_database:
        other_database.execute("CREATE TABLE events (something TEXT)")

    result = CliRunner().invoke(cli, ["events", "--journal", str(tmp_path / "other.db")])

    assert result.exit_code == 2
    message = "database has no journal tables yet: the function record creates them"
    assert f"Error: journal {tmp_path}/other.db: {message}\n" in result.stderr
    with closing(sqlite3.connect(tmp_path / "other.db")) as other_database:
        assert other_database.execute("SELECT name FROM sqlite_master").fetchall() == [("events",)]
