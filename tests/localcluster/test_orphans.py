"""Tests for the messages about orphaned clusters, whose supervisor was killed."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster.errors import LocalClusterError
from localcluster.up import start, state_directory
from localcluster.up.restarter import ProcessRecord
from localcluster.up.state_directory import ClusterSpec
from localcluster.up.status import print_status


@pytest.fixture
def killed_process() -> Iterator[subprocess.Popen[bytes]]:
    """Yield a killed process that has not been reaped."""
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        yield process


@pytest.fixture
def orphaned_process(tmp_path: Path, killed_process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Yield an orphaned process, which holds the directory's lock, of a cluster without a supervisor."""
    with state_directory.hold_lock(tmp_path) as lock:
        process = subprocess.Popen(["sleep", "60"], pass_fds=[lock], start_new_session=True)
    other_process = subprocess.Popen(["sleep", "60"])
    (tmp_path / state_directory.PID_FILE).write_text(str(killed_process.pid))
    records = [("functions", process.pid), ("etcd", killed_process.pid), ("console", other_process.pid)]
    state_directory.write_records(tmp_path, [ProcessRecord(name, pid, f"{name}.log") for name, pid in records])
    (tmp_path / state_directory.READY_FILE).write_text(
        f"{state_directory.format_ready_title(ClusterSpec())}export KUBECONFIG=there\n"
    )
    with process, other_process:
        yield process
        process.kill()
        other_process.kill()


def test_status_lists_exited_processes_as_gone(
    tmp_path: Path, orphaned_process: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that `make status` lists exited processes as gone, even if not reaped, or if the pid was reused."""
    with pytest.raises(
        LocalClusterError, match=f"^the supervisor of {tmp_path} has exited and restarts nothing: run `m"
    ):
        print_status(tmp_path)

    output = capsys.readouterr().out
    assert {tuple(line.split()[:3]) for line in output.splitlines()[1:]} == {
        ("functions", "running", str(orphaned_process.pid)),
        ("etcd", "gone", "-"),
        ("console", "gone", "-"),
    }


@pytest.mark.usefixtures("orphaned_process")
def test_up_and_env_reject_orphaned_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that `make up` and `make env` fail for an orphaned cluster, and name the remedy."""
    monkeypatch.setattr(state_directory, "ORPHAN_TIMEOUT_SECONDS", 0.0)

    with pytest.raises(LocalClusterError, match=r"`make down`, then `make up`$"):
        start.start_cluster(tmp_path, ClusterSpec())
    with pytest.raises(LocalClusterError, match=r"`make down`, then `make up`$"):
        state_directory.read_export_lines(tmp_path)


def test_status_fails_if_all_processes_of_cluster_have_exited(
    tmp_path: Path, orphaned_process: subprocess.Popen[bytes]
) -> None:
    """Check that `make status` fails if all processes of the cluster have exited, for example after a reboot."""
    os.kill(orphaned_process.pid, signal.SIGKILL)
    orphaned_process.wait()

    with pytest.raises(LocalClusterError, match=r"ended without `make down`: start it again with `make up`$"):
        print_status(tmp_path)
