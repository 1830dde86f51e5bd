"""Commands on a journal of events that take up to twenty times their bytes in memory: anybody may post such."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from cloudevents.core.v1.event import CloudEvent

from eventing.deadletters import DeadLetter, as_dead_letter
from eventing.journal.store import Journal, Query
from eventing.journal.transfer import exported

pytestmark = pytest.mark.slow

COUNT, ITEMS = 8, 500_000
"""Dead letters, each of 2 MB, and of 36 MiB in memory."""
LIMIT = 280
"""MiB of a process that has read two of them at once, and not all."""
READERS = {
    "a table": ("-m", "console.cli", "events"),
    "a tree": ("-m", "console.cli", "events", "-o", "tree"),
    "JSON": ("-m", "console.cli", "events", "-o", "json", "--limit", "5"),
    "an export": ("-m", "console.cli", "events", "-o", "jsonl"),
    "dead letters": ("-m", "console.cli", "deadletters"),
    "what is redriven": (
        "-c",
        "import sys; from console.operations.redriving import waiting; from eventing.journal.store import Journal; "
        "print(waiting(Journal(sys.argv[2]), ()))",
    ),
}

SMALL = """
import os, subprocess, sys
running = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, used = os.wait4(running.pid, 0)
print(used.ru_maxrss // 1024)
running.returncode = os.waitstatus_to_exitcode(status)
sys.exit(running.returncode)
"""
"""Starts a program and tells its memory. That counts what its parent had as it began, so its parent is small."""


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a journal of such events."""
    path = tmp_path_factory.mktemp("many") / "journal.db"
    with closing(Journal(path)) as book:
        for number in range(COUNT):
            attributes = {"id": str(number), "source": "/x", "type": "x", "datacontenttype": "application/json"}
            event = CloudEvent(attributes, {"items": [{}] * ITEMS})
            book.write(as_dead_letter(event, DeadLetter("http://functions/evict", 503, "away")))
    return path


@pytest.mark.parametrize("command", READERS.values(), ids=READERS)
def test_a_few_long_events_do_not_end_who_shows_them(journal: Path, command: tuple[str, ...]) -> None:
    """X-6: what is in memory at once is two of them, however many are shown."""
    assert most(*command, "--journal", str(journal)) < LIMIT


def test_a_few_long_events_do_not_end_who_imports_them(journal: Path, tmp_path: Path) -> None:
    """X-6: what a line takes, as well."""
    export = tmp_path / "export.jsonl"
    with closing(Journal(journal)) as book, export.open("wb") as file:
        file.writelines(exported(book, Query()))

    used = most(*READERS["a table"], "--journal", str(tmp_path / "other.db"), "--import", str(export))

    with closing(Journal(tmp_path / "other.db")) as other:
        assert len(other.listed(Query(), room=0)) == COUNT
    assert used < LIMIT


def most(*command: str) -> int:
    """MiB that this program had at most; its exit status is 0."""
    found = subprocess.run([sys.executable, "-c", SMALL, sys.executable, *command], check=True, stdout=subprocess.PIPE)
    return int(found.stdout)
