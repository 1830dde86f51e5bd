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

from bench.costs import (
    group_processes,
    list_process_tree,
    measure_memory,
    measure_queueing,
    measure_waits,
    read_cpu_seconds,
    read_peak_mebibytes,
    read_private_mebibytes,
    summarize_waits,
)
from eventing.journal.entries import Attempt
from eventing.journal.store import Journal

CHILD_SCRIPT = "import os; print(os.getpid(), flush=True); input()"
"""Script that prints its own pid, because its command line may not be visible before."""
PARENT_SCRIPT = "import subprocess, sys; subprocess.run([sys.executable, '-c', {!r}, {!r}])"
FORKING_SCRIPT = (
    "import os, signal; held = bytearray(b'x') * (64 << 20); child = os.fork(); "
    "print(child, flush=True) if child else None; signal.pause()"
)


@pytest.mark.parametrize(("word", "family"), [("other", "delivery"), ("eventing.podsource", "podsource")])
def test_process_includes_children_except_podsource(word: str, family: str) -> None:
    """Check that a process counts with its children, except PodSource, which the local delivery starts as a child."""
    command = [sys.executable, "-c", PARENT_SCRIPT.format(CHILD_SCRIPT, word)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        groups = group_processes({"delivery": parent.pid})
        assert list(list_process_tree(parent.pid)) == [parent.pid, child]
        parent.communicate("\n")

    assert parent.pid in groups["delivery"]
    assert child in groups[family]
    assert sum(map(len, groups.values())) == 2
    assert read_cpu_seconds(os.getpid()) > 0
    assert read_peak_mebibytes(os.getpid()) > 1


def test_ended_process_has_no_costs() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()

    assert (read_cpu_seconds(ended.pid), read_peak_mebibytes(ended.pid)) == (0.0, 0.0)


def test_shared_memory_counts_once() -> None:
    """Check that memory shared by a forked worker counts only once."""
    with subprocess.Popen([sys.executable, "-c", FORKING_SCRIPT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        both, alone, private = (
            measure_memory([parent.pid, child]),
            measure_memory([parent.pid]),
            read_private_mebibytes(child),
        )
        os.kill(child, signal.SIGKILL)
        parent.kill()

    assert 64 < alone <= both < alone + 32
    assert private < 32
    assert (read_private_mebibytes(parent.pid), measure_memory([parent.pid])) == (0.0, 0.0)


def test_wait_of_event_ends_with_first_attempt(tmp_path: Path) -> None:
    """Check that an event's wait ends with its function's first attempt.

    Retries, replays, earlier events and `record` do not count.
    """
    emitted = 1_800_000_000.0
    event = CloudEvent(
        {"id": "1", "source": "s", "type": "t", "time": datetime.fromtimestamp(emitted, timezone.utc)}, {}
    )
    journal = Journal(tmp_path / "journal.db")
    journal.write_event(event)
    attempts = [("evict", 0.85, ""), ("evict", 5.0, ""), ("status", 0.75, ""), ("guard", 9.0, "r"), ("record", 8.0, "")]
    journal.write_attempts(
        Attempt("s", "1", name, datetime.fromtimestamp(emitted + after, timezone.utc), 0.1, 200, replay=replay)
        for name, after, replay in attempts
    )
    journal.close()

    expected = {"median": 0.8, "99 %": 0.85, "longest": 0.85, "longest except evict": 0.75}
    assert measure_waits(tmp_path / "journal.db", emitted) == expected
    assert measure_waits(tmp_path / "journal.db", emitted + 60) == {}


def test_queueing_lasts_from_post_to_attempt(tmp_path: Path) -> None:
    """Check that a request's queueing time lasts from its post to the start of the function's attempt.

    Earlier deliveries, deliveries with a retry, and deliveries without an attempt do not count.
    """
    journal, log, since = tmp_path / "journal.db", tmp_path / "delivery.log", 1_800_000_000.0
    store = Journal(journal)
    attempts = [("1", "evict", 1.25), ("2", "status", 2.75), ("2", "status", 3.75), ("3", "guard", -1.0)]
    store.write_attempts(
        Attempt("s", number, name, datetime.fromtimestamp(since + seconds, timezone.utc), 0.1, 200)
        for number, name, seconds in attempts
    )
    store.close()
    lines = [(1.5, "delivered", "1", "evict-on-more"), (4.0, "delivered", "2", "status-on-progress")]
    lines += [
        (-0.9, "delivered", "3", "guard-on-node-updated"),
        (5.0, "accepted", "4", ""),
        (6.0, "delivered", "5", "x"),
    ]
    log.write_text(
        "a child's own output\n"
        + "".join(
            json.dumps({"ts": since + at, "msg": message, "id": number, "source": "s", "trigger": trigger, "ms": 500})
            + "\n"
            for at, message, number, trigger in lines
        )
    )

    assert measure_queueing(journal, log, since) == {"longest in a server queue": 0.25}
    assert measure_queueing(journal, log, since + 60) == {}
    assert measure_queueing(journal, tmp_path / "none.log", since) == {}


def test_longest_wait_is_above_99th_percentile() -> None:
    assert summarize_waits([0.1] * 99 + [0.2] + [7.0]) == {"median": 0.1, "99 %": 0.2, "longest": 7.0}
