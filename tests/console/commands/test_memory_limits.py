"""Memory tests for commands with a journal of large events.

Parsing an event takes almost 20 times its size in memory, and any client that may post events can send large ones.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from cloudevents.core.v1.event import CloudEvent

from eventing.dead_letters import DeadLetter, add_dead_letter_extensions
from eventing.journal.store import Journal, Query
from eventing.journal.transfer import export_lines

pytestmark = pytest.mark.slow

EVENT_COUNT, ITEMS_PER_EVENT = 8, 500_000
"""Number of dead letters, and length of the list in each; parsing such an event of 2 MB takes 36 MiB of memory."""
MAX_MEMORY_MIB = 280
"""Maximum memory of a process in MiB: enough for two of these events, but not for all of them."""
COMMANDS = {
    "a table": ("-m", "console.cli", "events"),
    "a tree": ("-m", "console.cli", "events", "-o", "tree"),
    "JSON": ("-m", "console.cli", "events", "-o", "json", "--limit", "5"),
    "an export": ("-m", "console.cli", "events", "-o", "jsonl"),
    "dead letters": ("-m", "console.cli", "deadletters"),
    "a redrive": (
        "-c",
        "import sys; from console.operations.dead_letter_redrive import list_dead_letters_to_redrive; "
        "from eventing.journal.store import Journal; print(list_dead_letters_to_redrive(Journal(sys.argv[2]), ()))",
    ),
}

MEASURING_PROGRAM = """
import os, subprocess, sys
running = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, used = os.wait4(running.pid, 0)
print(used.ru_maxrss // 1024)
running.returncode = os.waitstatus_to_exitcode(status)
sys.exit(running.returncode)
"""
"""Script that runs a program and prints the program's peak memory.

The kernel counts the parent's memory when the child starts, so the parent must be small.
"""


@pytest.fixture(scope="module")
def large_journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a journal with large dead letters."""
    path = tmp_path_factory.mktemp("many") / "journal.db"
    with closing(Journal(path)) as journal:
        for number in range(EVENT_COUNT):
            attributes = {"id": str(number), "source": "/x", "type": "x", "datacontenttype": "application/json"}
            event = CloudEvent(attributes, {"items": [{}] * ITEMS_PER_EVENT})
            journal.write_event(add_dead_letter_extensions(event, DeadLetter("http://functions/evict", 503, "away")))
    return path


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_command_that_shows_large_events_stays_within_memory_limit(
    large_journal: Path, command: tuple[str, ...]
) -> None:
    """X-6: a command has at most two large events in memory, regardless of the number of events that it prints."""
    assert measure_peak_memory_mib(*command, "--journal", str(large_journal)) < MAX_MEMORY_MIB


def test_import_of_large_events_stays_within_memory_limit(large_journal: Path, tmp_path: Path) -> None:
    """X-6: an import has at most two large events in memory."""
    export_file = tmp_path / "export.jsonl"
    with closing(Journal(large_journal)) as journal, export_file.open("wb") as file:
        file.writelines(export_lines(journal, Query()))

    peak_mib = measure_peak_memory_mib(
        *COMMANDS["a table"], "--journal", str(tmp_path / "other.db"), "--import", str(export_file)
    )

    with closing(Journal(tmp_path / "other.db")) as imported_journal:
        assert len(imported_journal.list_entries(Query(), capacity=0)) == EVENT_COUNT
    assert peak_mib < MAX_MEMORY_MIB


def measure_peak_memory_mib(*command: str) -> int:
    """Run a program, and return its peak memory in MiB. Raises an error if its exit status is not 0."""
    result = subprocess.run(
        [sys.executable, "-c", MEASURING_PROGRAM, sys.executable, *command], check=True, stdout=subprocess.PIPE
    )
    return int(result.stdout)
