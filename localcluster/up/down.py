"""`make down`: stops a cluster in any state: partly started, its supervisor killed, or its directory deleted."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from localcluster.nodes import cleanup as nodes
from localcluster.errors import LocalClusterError
from localcluster.up import state_directory

STOP_SECONDS = 30.0


def down(directory: Path) -> None:
    """Stop the supervisor and wait until every process that it started has ended.

    Raises `LocalClusterError` if a process does not end, or if the cluster belongs to another user.
    """
    try:
        was_up = state_directory.running(directory)
        if was_up:
            _end_all(directory)
        nodes.clear(directory / state_directory.SERVERS)
        print("down" if was_up else "not up: nothing to do")
        state_directory.forget(directory)
    except PermissionError as error:
        raise LocalClusterError(f"{directory} is another user's cluster, whose `make down` ends it: {error}") from None


def _end_all(directory: Path) -> None:
    pids = {*state_directory.supervisors(directory), state_directory.supervisor_pid(directory)} - {0}
    asked = [pid for pid in pids if _asked(pid)]
    if not state_directory.await_end(directory, STOP_SECONDS if asked else state_directory.ORPHAN_SECONDS):
        # The lock is held, so processes of the supervisor still run, and their process ids cannot have been reused.
        for group in (*state_directory.groups(directory), *pids):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        if not state_directory.await_end(directory, STOP_SECONDS):
            file = directory / state_directory.PID_FILE
            raise LocalClusterError(f"something started from {directory} does not end: see `fuser {file}`")


def _asked(pid: int) -> bool:
    """Send SIGTERM to a process; return whether it exists."""
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return False
    return True
