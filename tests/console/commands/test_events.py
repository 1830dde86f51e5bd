"""Tests of `kubectl maintenance events` on a journal that each test fills."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cloudevents.core.v1.event import CloudEvent

from console.cli import commands
from eventing import events
from eventing.events import Reference, event
from eventing.journal.store import Attempt, Journal

MINE = Reference("nodemaintenance.medik8s.io/v1beta1", "nm", "uid-1")
START = datetime.now(timezone.utc) - timedelta(hours=1)
ADDED = CloudEvent(
    {"id": "added", "source": "/apis", "type": events.RESOURCE_ADDED, "kind": "NodeMaintenance"},
    {"metadata": {"name": "nm", "uid": "uid-1"}, "spec": {"nodeName": "node-1"}},
)
BEGUN = event(events.MAINTENANCE_BEGUN, "begin", MINE, "node-1", cause=ADDED)
CORDONED = event(events.NODE_CORDONED, "cordon", MINE, "node-1", cause=BEGUN)
GONE = event(events.PODS_GONE, "podsource", MINE, "node-1", seed="7", more="true")
TICK = CloudEvent({"id": "tick", "source": "/ping", "type": events.TICK}, {})
ALL = (ADDED, BEGUN, CORDONED, GONE, TICK)
Events = Callable[..., Result]


def fill(book: Journal) -> None:
    """Fill the journal with a maintenance: `cordon` took 2 s, `status` failed once, and `evict` was never called."""
    arrived = (START + timedelta(seconds=seconds) for seconds in (0, 0.1, 2.2, 3, 4))
    book.write_all(zip(ALL, arrived, strict=True))
    runs = (
        (ADDED, "begin", 0.09, 200, ""),
        (BEGUN, "cordon", 2.05, 200, ""),
        (BEGUN, "status", 0.01, 503, "the API server is away"),
        (CORDONED, "taint", 0.02, 200, ""),
        (TICK, "resync", 0.03, 204, ""),
    )
    book.write_attempts(
        Attempt(one.get_source(), one.get_id(), name, START, took, code, error=error)
        for one, name, took, code, error in runs
    )


@pytest.fixture
def show(journal_url: str) -> Events:
    """Return a function that runs `events` on a filled journal."""
    with closing(Journal(journal_url)) as book:
        fill(book)

    def runs(*words: str, color: bool = False) -> Result:
        line = ["events", "--journal", journal_url, *words]
        return CliRunner(env={"TZ": "UTC"}).invoke(commands, line, prog_name="kubectl maintenance", color=color)

    return runs


def ids(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return [item["event"]["id"] for item in json.loads(result.stdout)]


def test_the_tree_shows_what_was_slow_failed_or_is_missing(show: Events) -> None:
    """Check that the tree shows effects below causes, delays, and each function's duration and status."""
    result = show("-o", "tree")

    assert result.exit_code == 0, result.output
    heading, added, begun, cordoned, gone, _, none, tick = result.stdout.splitlines()
    assert heading.startswith("nm (uid-1), node node-1, ")
    assert heading.endswith("4 events in 3.000 s, 1 failed, 1 missing")
    assert added.split() == ["+0.000", "s", "apiserver.resource.add", "begin", "90", "ms"]
    assert begun.split()[:6] == ["+0.100", "s", "└─", "maintenance.begun", "0.100", "s"]
    assert begun.endswith("cordon 2050 ms, status 10 ms 503 the API server is away")
    assert cordoned.split() == ["+2.200", "s", "└─", "node.cordoned", "2.100", "s", "taint", "20", "ms"]
    assert cordoned.index("└─") > begun.index("└─")
    assert gone.split() == ["+3.000", "s", "pods.gone", "evict", "MISSING"]
    assert none.startswith("Of no maintenance, ")
    assert tick.split()[2:] == ["sources.ping", "resync", "30", "ms"]


def test_who_replied_and_was_killed_is_not_called_missing(journal_url: str) -> None:
    """Check that a function that replied, but whose attempt was not recorded, is not reported as missing.

    A function that is killed after its reply publishes no attempt.
    """
    with closing(Journal(journal_url)) as book:
        book.write_all(((ADDED, START), (BEGUN, START + timedelta(seconds=1))))

    lines = CliRunner().invoke(commands, ["events", "--journal", journal_url, "-o", "tree"]).stdout.splitlines()

    assert lines[0].endswith("2 events in 1.000 s, 2 missing")
    assert lines[1].endswith("begin ANSWERED, how long it took is not known")
    assert lines[2].endswith("cordon MISSING, status MISSING")


def test_slow_and_missing_stand_out_on_a_terminal(show: Events) -> None:
    """Check that delays and durations from one second are yellow, and errors red."""
    coloured = show("-o", "tree", color=True).stdout

    assert "\x1b[33m\x1b[1m   2.100 s\x1b[0m" in coloured
    assert "\x1b[33m\x1b[1mcordon 2050 ms\x1b[0m" in coloured
    assert "\x1b[31m\x1b[1mevict MISSING\x1b[0m" in coloured


def test_the_table_has_a_row_for_each_event(show: Events) -> None:
    """Check that the table has one row for each event, with the id that `replay` accepts."""
    heading, *rows = show().stdout.splitlines()

    assert heading.split() == ["TIME", "TYPE", "NODE", "MAINTENANCE", "ID", "ATTEMPTS"]
    assert len(rows) == 5
    assert all(one.get_id() in row for one, row in zip(ALL, rows, strict=True))
    assert rows[3].split()[2:] == ["pods.gone", "node-1", "nm", GONE.get_id(), "evict", "MISSING"]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ((), ALL),
        (("--node", "node-1"), ALL[:4]),
        (("--maintenance", "nm"), ALL[:4]),
        (("--maintenance", "uid-1", "--type", "pods.gone"), (GONE,)),
        (("--type", "apiserver.resource.add", "--type", events.TICK), (ADDED, TICK)),
        (("--type", "resource.add"), (ADDED,)),
        (("--since", "2h"), ALL),
        (("--since", "10m"), ()),
        (("--until", "1d"), ()),
        (("--since", (START + timedelta(seconds=2.5)).isoformat()), (GONE, TICK)),
        (("--failed",), (BEGUN,)),
        (("--limit", "2"), (GONE, TICK)),
        (("--node", "elsewhere"), ()),
    ],
)
def test_options_choose(show: Events, words: tuple[str, ...], found: tuple[CloudEvent, ...]) -> None:
    """Check that events can be filtered by node, maintenance, type (short or full), time and failure."""
    assert ids(show(*words, "-o", "json")) == [one.get_id() for one in found]


def test_json_tells_all_that_is_known(show: Events) -> None:
    """Check that the JSON output has the event, its cause, attempts, missing functions and dead letter."""
    (item,) = json.loads(show("--type", "maintenance.begun", "-o", "json").stdout)

    assert item["cause"] == "added"
    assert item["event"]["data"]["maintenance"]["name"] == "nm"
    assert [(made["function"], made["status"]) for made in item["attempts"]] == [("cordon", 200), ("status", 503)]
    assert (item["missing"], item["deadLetter"], item["node"]) == ([], None, "node-1")


def test_json_is_printed_as_one_list(show: Events) -> None:
    """Check that the JSON output, which is written event by event, is one well-formed, indented list."""
    for words in ((), ("--limit", "1"), ("--type", "unknown")):
        printed = show("-o", "json", *words).stdout
        assert printed == json.dumps(json.loads(printed), indent=2) + "\n"


def test_that_there_is_more_is_said(show: Events) -> None:
    """Check that a list that `--limit` cuts off is reported as incomplete."""
    cut, whole = show("--limit", "2"), show("--limit", "5")

    assert "There are older ones: these are the newest 2" in cut.stderr
    assert whole.stderr == ""


def test_nothing_found_is_said(show: Events) -> None:
    """Check that the table and the tree report that no events were found, without an error."""
    for output in ("table", "tree"):
        assert show("--node", "elsewhere", "-o", output).stdout == "No events.\n"


@pytest.mark.parametrize("output", ["table", "tree", "json", "jsonl"])
def test_a_node_or_maintenance_that_nobody_recorded_is_told(show: Events, output: str) -> None:
    """X-6: An unknown node or maintenance is reported on stderr; a known one without matching events is not."""
    node, maintenance = show("--node", "elsewhere", "-o", output), show("--maintenance", "uid-2", "-o", output)
    known = show("--node", "node-1", "--maintenance", "nm", "--until", "1d", "-o", output)

    assert node.stderr == "The journal has no event of a node elsewhere: see kubectl get nodes.\n"
    assert maintenance.stderr.startswith("The journal has no event of a NodeMaintenance uid-2, by name or uid: see ")
    assert known.stderr == ""
    assert [result.exit_code for result in (node, maintenance, known)] == [0, 0, 0]


def test_an_export_is_imported_elsewhere(show: Events, tmp_path: Path) -> None:
    """X-2: An export can be imported from a pipe into a new journal, and a second import adds nothing."""
    exported = show("-o", "jsonl").stdout_bytes
    other = str(tmp_path / "other.db")

    def take() -> Result:
        return CliRunner().invoke(commands, ["events", "--journal", other, "--import", "-"], input=exported)

    assert [take().stdout, take().stdout] == ["5 new events\n", "0 new events\n"]
    there = CliRunner().invoke(commands, ["events", "--journal", other, "-o", "tree"]).stdout
    assert there == show("-o", "tree").stdout


def test_a_broken_line_is_told_with_file_and_number(show: Events, tmp_path: Path) -> None:
    """X-6: An invalid line is a one-line error with file name and line number."""
    (tmp_path / "broken.jsonl").write_text("{}\n")

    result = show("--import", str(tmp_path / "broken.jsonl"))

    assert result.exit_code == 2
    assert result.stderr.startswith(f"Error: {tmp_path}/broken.jsonl: line 1: not a CloudEvent 1.0: ")
    assert result.stderr.endswith("nothing was imported\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--journal", "/nowhere/journal.db"), "there is no journal at /nowhere/journal.db: name it with --journal"),
        (("--journal", "postgresql://x@127.0.0.1:9/x"), "127.0.0.1"),
        (("--journal", "mysql://x"), "take a path, sqlite:///PATH or postgresql://"),
        (("--since", "soon"), "'soon' is neither so long ago, such as 10m, 2h or 1d, nor a time"),
        (("--import", "/nowhere/file"), "No such file"),
        (("--import", "-", "--node=x", "-o", "json", "--run=y"), "shows nothing: leave out --node, --run, --output"),
        (
            ("--journal", "postgresql://u:p@h:5432x/db"),
            "journal h:5432x/db: take a path, sqlite:///PATH or postgresql://",
        ),
        (("--limit", str(2**63)), "'9223372036854775808' is no number from 1 to 9223372036854775807; 0 is for all"),
        (("--limit", "-1"), "Invalid value for '--limit': '-1' is no number from 1 to "),
        (("--limit", "all"), "Invalid value for '--limit': 'all' is no number from 1 to "),
        (("--node", "\udcff"), "Invalid value for '--node': it is no UTF-8"),
    ],
)
def test_a_wrong_word_is_a_clear_error(words: tuple[str, ...], message: str) -> None:
    """X-6: An invalid option exits with status 2 and names the remedy."""
    result = CliRunner().invoke(commands, ["events", *words])

    assert result.exit_code == 2
    assert message in result.stderr
    assert not isinstance(result.exception, ValueError)


def test_what_no_journal_can_be_asked_is_a_clear_error(show: Events) -> None:
    """X-6: A filter with a lone surrogate, which no database can store, exits with status 2."""
    result = show("--type", "\udcff")

    assert result.exit_code == 2
    assert result.stderr.startswith("Error: the journal cannot hold it: ")


def test_a_type_that_nobody_knows_is_told(show: Events) -> None:
    """X-6: An unknown event type is reported on stderr with the known types; an unused known type is not reported."""
    misspelt, unused = show("--type", "pods.evict"), show("--type", "pods.evicted")

    assert misspelt.stdout == unused.stdout == "No events.\n"
    assert misspelt.stderr.startswith("No event is of type pods.evict; ours are ")
    assert "pods.evicted" in misspelt.stderr
    assert unused.stderr == ""


def test_the_environment_names_the_journal(tmp_path: Path) -> None:
    """Check that JOURNAL names the journal, and that DATABASE_URL takes precedence, as in the function `record`."""
    with closing(Journal(tmp_path / "journal.db")) as book:
        fill(book)

    def count(**environment: str) -> int:
        result = CliRunner(env=environment).invoke(commands, ["events", "-o", "json"])
        return len(json.loads(result.stdout))

    assert count(JOURNAL=str(tmp_path / "journal.db")) == 5
    assert count(JOURNAL="/nowhere", DATABASE_URL=f"sqlite:///{tmp_path}/journal.db") == 5


def test_what_is_no_journal_is_told(tmp_path: Path) -> None:
    """X-6: A database of another program is a usage error and stays unchanged."""
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("CREATE TABLE events (something TEXT)")

    result = CliRunner().invoke(commands, ["events", "--journal", str(tmp_path / "other.db")])

    assert result.exit_code == 2
    assert f"Error: journal {tmp_path}/other.db: there are no tables of a journal in it\n" in result.stderr
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        assert other.execute("SELECT name FROM sqlite_master").fetchall() == [("events",)]
