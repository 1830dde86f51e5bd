"""`make status`: whether a cluster is up and whole, and of each process its state, restarts and latest end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from localcluster.up import folder
from localcluster.up.keeper import Record

FOUNDATION = ("etcd", "kube-apiserver")
"""Without these nothing works."""


def status(directory: Path) -> None:
    """Print it."""
    if not folder.running(directory):
        print("not up; `make up` starts it")
        return
    hints, records = folder.hints(directory), folder.records(directory)
    state = condition(records) if hints else "starting or ending"
    supervisor = _supervisor(directory)
    if not folder.is_alive(supervisor):
        state = "the supervisor is gone and restarts nothing: `make down`, then `make up`; before that"
    print(f"{state}, supervisor {supervisor}, logs in {directory}/")
    for line in table(records, time.time()):
        print(line)
    print(hints, end="")


def _supervisor(directory: Path) -> int:
    """Give its process id: the one that it wrote down, or found by its command line, since it has no lock at first."""
    noted = folder.supervisor_pid(directory)
    return noted if folder.is_alive(noted) else next(iter(folder.supervisors(directory)), noted)


def condition(records: Sequence[Record]) -> str:
    """Whether all that is needed runs, in a few words."""
    down = [record.name for record in records if record.due is not None]
    if broken := [name for name in down if name in FOUNDATION]:
        return f"broken: {' and '.join(broken)} down, and the cluster with it"
    return f"up, but {', '.join(down)} down" if down else "up"


def table(records: Sequence[Record], now: float) -> list[str]:
    """One line a process, under a heading."""
    if not records:
        return []
    rows = [("PROCESS", "STATE", "PID", "RESTARTS", "ENDED LAST"), *(_row(record, now) for record in records)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]]) for row in rows]


def _row(record: Record, now: float) -> tuple[str, str, str, str, str]:
    ended = f"{record.ended}, {now - record.ended_at:.0f} s ago; {record.log}" if record.ended else ""
    restarts = str(record.restarts)
    if record.due is None:
        return record.name, "running", str(record.pid), restarts, ended
    return record.name, f"down, again in {max(record.due - now, 0):.0f} s", "-", restarts, ended
