"""`make status`: prints whether the cluster is running and healthy, and the state and the restarts of each process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from localcluster.errors import LocalClusterError
from localcluster.up import state_directory
from localcluster.up.restarter import ProcessRecord

ESSENTIAL_SERVERS = ("etcd", "kube-apiserver")
"""The processes that the cluster cannot work without."""


def print_status(directory: Path) -> None:
    """Print the cluster's status. Raises `LocalClusterError` if the cluster stopped without `make down`."""
    ready_output = state_directory.read_ready_message(directory)
    if not state_directory.is_running(directory):
        if ready_output:
            raise LocalClusterError(
                f"the cluster in {directory} ended without `make down`: start it again with `make up`"
            )
        print("no cluster is running: start one with `make up`")
        return
    supervisor, records = state_directory.find_supervisor_pid(directory), state_directory.read_records(directory)
    if not supervisor:
        _print_table(records, _is_orphaned)
        raise LocalClusterError(state_directory.format_orphaned_error(directory))
    state = describe_state(records) if ready_output else "starting or stopping"
    print(f"{state}, supervisor {supervisor}, logs in {directory}/")
    _print_table(records)
    print(ready_output, end="")


def _print_table(
    records: Sequence[ProcessRecord], is_running: Callable[[ProcessRecord], bool] = lambda record: True
) -> None:
    for line in format_table(records, time.time(), is_running):
        print(line)


def _is_orphaned(record: ProcessRecord) -> bool:
    """Return whether the process outlived its supervisor, which can no longer record the process's exit."""
    return record.restart_at is None and state_directory.is_group_leader(record.pid)


def describe_state(records: Sequence[ProcessRecord]) -> str:
    """Summarize the cluster's state: the names of processes that are down, and whether the cluster still works."""
    down = [record.name for record in records if record.restart_at is not None]
    if broken := [name for name in down if name in ESSENTIAL_SERVERS]:
        return f"broken: {' and '.join(broken)} down, so the cluster does not work"
    return f"up, but {', '.join(down)} down" if down else "up"


def format_table(
    records: Sequence[ProcessRecord], now: float, is_running: Callable[[ProcessRecord], bool]
) -> list[str]:
    """Return a header and one line per process; a process for which `is_running` is false has the state "gone"."""
    if not records:
        return []
    rows = [("PROCESS", "STATE", "PID", "RESTARTS", "LAST EXIT")]
    rows += [_format_row(record, now, is_running(record)) for record in records]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]]) for row in rows]


def _format_row(record: ProcessRecord, now: float, is_running: bool) -> tuple[str, str, str, str, str]:
    last_exit = f"{record.exit_reason}, {now - record.exited_at:.0f} s ago; {record.log}" if record.exit_reason else ""
    restarts = str(record.restarts)
    if not is_running:
        return record.name, "gone", "-", restarts, last_exit
    if record.restart_at is None:
        return record.name, "running", str(record.pid), restarts, last_exit
    return record.name, f"down, restarts in {max(record.restart_at - now, 0):.0f} s", "-", restarts, last_exit
