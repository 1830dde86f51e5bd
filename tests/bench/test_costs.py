"""The costs of a drain and how they are measured."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

import pytest
from cloudevents.core.v1.event import CloudEvent

from bench.costs import at_door, cpu_seconds, families, memory, own_mebibytes, peak_mebibytes, spread, tree, waits
from eventing.journal.entries import Attempt
from eventing.journal.store import Journal

CHILD = "import os; print(os.getpid(), flush=True); input()"
"""Script that prints its own pid, because its command line may not be visible before."""
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', {!r}, {!r}])"
FORKING = (
    "import os, signal; held = bytearray(b'x') * (64 << 20); child = os.fork(); "
    "print(child, flush=True) if child else None; signal.pause()"
)


@pytest.mark.parametrize(("word", "family"), [("other", "delivery"), ("eventing.podsource", "podsource")])
def test_a_process_counts_with_its_children_but_podsource_by_itself(word: str, family: str) -> None:
    """Check that a process counts with its children, except PodSource, which the local delivery starts as a child."""
    command = [sys.executable, "-c", PARENT.format(CHILD, word)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        found = families({"delivery": parent.pid})
        assert list(tree(parent.pid)) == [parent.pid, child]
        parent.communicate("\n")

    assert parent.pid in found["delivery"]
    assert child in found[family]
    assert sum(map(len, found.values())) == 2
    assert cpu_seconds(os.getpid()) > 0
    assert peak_mebibytes(os.getpid()) > 1


def test_a_process_that_has_ended_costs_nothing_more() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()

    assert (cpu_seconds(ended.pid), peak_mebibytes(ended.pid)) == (0.0, 0.0)


def test_what_processes_share_counts_once() -> None:
    """Check that memory shared by a forked worker counts only once."""
    with subprocess.Popen([sys.executable, "-c", FORKING], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        both, alone, own = memory([parent.pid, child]), memory([parent.pid]), own_mebibytes(child)
        os.kill(child, signal.SIGKILL)
        parent.kill()

    assert 64 < alone <= both < alone + 32
    assert own < 32
    assert (own_mebibytes(parent.pid), memory([parent.pid])) == (0.0, 0.0)


def test_an_event_waits_until_its_functions_first_attempt(tmp_path: Path) -> None:
    """Check that an event's wait ends with its function's first attempt.

    Retries, replays, earlier events and `record` do not count.
    """
    emitted = 1_800_000_000.0
    event = CloudEvent(
        {"id": "1", "source": "s", "type": "t", "time": datetime.fromtimestamp(emitted, timezone.utc)}, {}
    )
    journal = Journal(tmp_path / "journal.db")
    journal.write(event)
    begun = [("evict", 0.85, ""), ("evict", 5.0, ""), ("status", 0.75, ""), ("guard", 9.0, "r"), ("record", 8.0, "")]
    journal.write_attempts(
        Attempt("s", "1", name, datetime.fromtimestamp(emitted + after, timezone.utc), 0.1, 200, replay=replay)
        for name, after, replay in begun
    )
    journal.close()

    found = {"median": 0.8, "99 %": 0.85, "longest": 0.85, "longest but evict": 0.75}
    assert waits(tmp_path / "journal.db", emitted) == found
    assert waits(tmp_path / "journal.db", emitted + 60) == {}


def test_a_request_waits_at_the_door_from_its_post_to_the_functions_work(tmp_path: Path) -> None:
    """Check that a request's queueing time lasts from its post to the start of the function's attempt.

    Earlier deliveries, deliveries with a retry, and deliveries without an attempt do not count.
    """
    journal, log, since = tmp_path / "journal.db", tmp_path / "delivery.log", 1_800_000_000.0
    book = Journal(journal)
    begun = [("1", "evict", 1.25), ("2", "status", 2.75), ("2", "status", 3.75), ("3", "guard", -1.0)]
    book.write_attempts(
        Attempt("s", number, name, datetime.fromtimestamp(since + after, timezone.utc), 0.1, 200)
        for number, name, after in begun
    )
    book.close()
    lines = [(1.5, "delivered", "1", "evict-on-more"), (4.0, "delivered", "2", "status-on-progress")]
    lines += [
        (-0.9, "delivered", "3", "guard-on-node-updated"),
        (5.0, "accepted", "4", ""),
        (6.0, "delivered", "5", "x"),
    ]
    log.write_text(
        "a child's own words\n"
        + "".join(
            json.dumps({"ts": since + at, "msg": said, "id": number, "source": "s", "trigger": trigger, "ms": 500})
            + "\n"
            for at, said, number, trigger in lines
        )
    )

    assert at_door(journal, log, since) == {"longest at a door": 0.25}
    assert at_door(journal, log, since + 60) == {}
    assert at_door(journal, tmp_path / "none.log", since) == {}


def test_of_a_hundred_waits_the_longest_is_told_apart() -> None:
    assert spread([0.1] * 99 + [0.2] + [7.0]) == {"median": 0.1, "99 %": 0.2, "longest": 7.0}
