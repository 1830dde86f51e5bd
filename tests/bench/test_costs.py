"""Tests for the measurement of resource usage and waiting times during a drain."""

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
    group_pids_by_process_name,
    list_process_tree,
    measure_event_waits,
    measure_longest_queue_time,
    measure_memory,
    read_cpu_seconds,
    read_peak_mebibytes,
    read_private_mebibytes,
    summarize_waits,
)
from eventing.journal.entries import Attempt
from eventing.journal.store import Journal

CHILD_SCRIPT = "import os; print(os.getpid(), flush=True); input()"
"""Python script that prints its pid; after the output, its command line is visible in /proc."""
PARENT_SCRIPT = "import subprocess, sys; subprocess.run([sys.executable, '-c', {!r}, {!r}])"
FORKING_SCRIPT = (
    "import os, signal; held = bytearray(b'x') * (64 << 20); child = os.fork(); "
    "print(child, flush=True) if child else None; signal.pause()"
)


@pytest.mark.parametrize(("child_argument", "group_name"), [("other", "delivery"), ("eventing.podsource", "podsource")])
def test_process_group_includes_children_except_podsource(child_argument: str, group_name: str) -> None:
    """Check that a process and its children form one group, except for PodSource, a child of the local delivery."""
    command = [sys.executable, "-c", PARENT_SCRIPT.format(CHILD_SCRIPT, child_argument)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        groups = group_pids_by_process_name({"delivery": parent.pid})
        assert list(list_process_tree(parent.pid)) == [parent.pid, child]
        parent.communicate("\n")

    assert parent.pid in groups["delivery"]
    assert child in groups[group_name]
    assert sum(map(len, groups.values())) == 2
    assert read_cpu_seconds(os.getpid()) > 0
    assert read_peak_mebibytes(os.getpid()) > 1


def test_exited_process_has_zero_cpu_time_and_memory() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as exited:
        exited.wait()

    assert (read_cpu_seconds(exited.pid), read_peak_mebibytes(exited.pid)) == (0.0, 0.0)


def test_memory_shared_with_forked_worker_counts_once() -> None:
    """Check that memory that a process shares with a forked worker is counted only once."""
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


def test_event_waits_until_first_attempt_of_each_function(tmp_path: Path) -> None:
    """Check that an event's waiting time for a function ends with the function's first attempt.

    Retries, replays, earlier events and the function `record` do not count.
    """
    emitted_at = 1_800_000_000.0
    event = CloudEvent(
        {"id": "1", "source": "s", "type": "t", "time": datetime.fromtimestamp(emitted_at, timezone.utc)}, {}
    )
    journal = Journal(tmp_path / "journal.db")
    journal.write_event(event)
    attempts = [("evict", 0.85, ""), ("evict", 5.0, ""), ("status", 0.75, ""), ("guard", 9.0, "r"), ("record", 8.0, "")]
    journal.write_attempts(
        Attempt(
            "s",
            "1",
            function,
            datetime.fromtimestamp(emitted_at + delay_seconds, timezone.utc),
            0.1,
            200,
            replay=replay,
        )
        for function, delay_seconds, replay in attempts
    )
    journal.close()

    expected = {"median": 0.8, "99 %": 0.85, "longest": 0.85, "longest except evict": 0.75}
    assert measure_event_waits(tmp_path / "journal.db", emitted_at) == expected
    assert measure_event_waits(tmp_path / "journal.db", emitted_at + 60) == {}


def test_queueing_time_is_from_post_to_first_attempt(tmp_path: Path) -> None:
    """Check that a request's queueing time is the time between the POST and the start of the function's attempt.

    Earlier deliveries, deliveries with a retry, and deliveries without an attempt do not count.
    """
    journal, log, since = tmp_path / "journal.db", tmp_path / "delivery.log", 1_800_000_000.0
    store = Journal(journal)
    attempts = [("1", "evict", 1.25), ("2", "status", 2.75), ("2", "status", 3.75), ("3", "guard", -1.0)]
    store.write_attempts(
        Attempt("s", event_id, function, datetime.fromtimestamp(since + seconds, timezone.utc), 0.1, 200)
        for event_id, function, seconds in attempts
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
            json.dumps({"ts": since + at, "msg": message, "id": event_id, "source": "s", "trigger": trigger, "ms": 500})
            + "\n"
            for at, message, event_id, trigger in lines
        )
    )

    assert measure_longest_queue_time(journal, log, since) == {"longest in a server queue": 0.25}
    assert measure_longest_queue_time(journal, log, since + 60) == {}
    assert measure_longest_queue_time(journal, tmp_path / "none.log", since) == {}


def test_summary_shows_maximum_and_99th_percentile_of_waiting_times() -> None:
    assert summarize_waits([0.1] * 99 + [0.2] + [7.0]) == {"median": 0.1, "99 %": 0.2, "longest": 7.0}
