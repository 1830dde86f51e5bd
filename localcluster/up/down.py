"""`make down`: stops a cluster, even if it is only partly started, or if its supervisor or its directory is missing."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from localcluster.errors import LocalClusterError
from localcluster.nodes import cgroups
from localcluster.up import state_directory

STOP_TIMEOUT_SECONDS = 30.0


def stop_cluster(directory: Path) -> None:
    """Stop the supervisor, and wait until all processes that it started have exited.

    Raises `LocalClusterError` if a process does not exit, or if the cluster belongs to another user.
    """
    try:
        was_up = state_directory.is_running(directory)
        if was_up:
            _stop_processes(directory)
        cgroups.remove_leftover_cgroups_and_data(directory / state_directory.SERVERS_DIR)
        print("down" if was_up else "no cluster is running")
        state_directory.remove_state_files(directory)
    except PermissionError as error:
        raise LocalClusterError(
            f"the cluster in {directory} belongs to another user, who must run `make down`: {error}"
        ) from None


def _stop_processes(directory: Path) -> None:
    pids = {*state_directory.find_supervisor_pids(directory), state_directory.read_supervisor_pid(directory)} - {0}
    terminated = [pid for pid in pids if _send_sigterm(pid)]
    if not state_directory.wait_for_exit(
        directory, STOP_TIMEOUT_SECONDS if terminated else state_directory.ORPHAN_TIMEOUT_SECONDS
    ):
        # The lock is still held, so processes of the cluster are alive, and the kernel has not reused their ids.
        for group in (*state_directory.list_process_groups(directory), *pids):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        if not state_directory.wait_for_exit(directory, STOP_TIMEOUT_SECONDS):
            file = directory / state_directory.PID_FILE
            raise LocalClusterError(f"processes of the cluster in {directory} did not exit: `fuser {file}` lists them")


def _send_sigterm(pid: int) -> bool:
    """Send SIGTERM to a process; return whether the process exists."""
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return False
    return True
