"""`make status`: whether a cluster is up and healthy, with the state, restarts and latest exit of each process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from localcluster.errors import LocalClusterError
from localcluster.up import state_directory
from localcluster.up.restarter import Record

FOUNDATION = ("etcd", "kube-apiserver")
"""The processes without which the cluster does not work."""


def status(directory: Path) -> None:
    """Print the status. Raises `LocalClusterError` with the remedy if the cluster ended without `make down`."""
    hints = state_directory.hints(directory)
    if not state_directory.running(directory):
        if hints:
            raise LocalClusterError(
                f"what was up in {directory} has ended without `make down`: `make up` starts it anew"
            )
        print("not up; `make up` starts it")
        return
    supervisor, records = state_directory.supervisor(directory), state_directory.records(directory)
    if not supervisor:
        _print_table(records, _is_left)
        raise LocalClusterError(state_directory.orphaned(directory))
    state = condition(records) if hints else "starting or ending"
    print(f"{state}, supervisor {supervisor}, logs in {directory}/")
    _print_table(records)
    print(hints, end="")


def _print_table(records: Sequence[Record], is_there: Callable[[Record], bool] = lambda record: True) -> None:
    for line in table(records, time.time(), is_there):
        print(line)


def _is_left(record: Record) -> bool:
    """Return whether the record's process outlived the supervisor, which no longer records exits."""
    return record.due is None and state_directory.is_group(record.pid)


def condition(records: Sequence[Record]) -> str:
    """Return a summary of whether all required processes run."""
    down = [record.name for record in records if record.due is not None]
    if broken := [name for name in down if name in FOUNDATION]:
        return f"broken: {' and '.join(broken)} down, and the cluster with it"
    return f"up, but {', '.join(down)} down" if down else "up"


def table(records: Sequence[Record], now: float, is_there: Callable[[Record], bool]) -> list[str]:
    """Return one line per process below a header; processes for which `is_there` is false are listed as gone."""
    if not records:
        return []
    rows = [("PROCESS", "STATE", "PID", "RESTARTS", "ENDED LAST")]
    rows += [_row(record, now, is_there(record)) for record in records]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]]) for row in rows]


def _row(record: Record, now: float, is_there: bool) -> tuple[str, str, str, str, str]:
    ended = f"{record.ended}, {now - record.ended_at:.0f} s ago; {record.log}" if record.ended else ""
    restarts = str(record.restarts)
    if not is_there:
        return record.name, "gone", "-", restarts, ended
    if record.due is None:
        return record.name, "running", str(record.pid), restarts, ended
    return record.name, f"down, again in {max(record.due - now, 0):.0f} s", "-", restarts, ended
