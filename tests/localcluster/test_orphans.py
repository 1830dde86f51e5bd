"""The messages about a cluster whose supervisor was killed, with and without processes that still hold the lock."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster.errors import LocalClusterError
from localcluster.up import state_directory, start
from localcluster.up.restarter import Record
from localcluster.up.status import status
from localcluster.up.cluster_spec import Wish


@pytest.fixture
def killed() -> Iterator[subprocess.Popen[bytes]]:
    """Yield a killed process that was not reaped."""
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        yield process


@pytest.fixture
def orphan(tmp_path: Path, killed: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process of a cluster without supervisor, which holds the lock of the directory."""
    with state_directory.locked(tmp_path) as lock:
        process = subprocess.Popen(["sleep", "60"], pass_fds=[lock], start_new_session=True)
    another = subprocess.Popen(["sleep", "60"])
    (tmp_path / state_directory.PID_FILE).write_text(str(killed.pid))
    records = [("functions", process.pid), ("etcd", killed.pid), ("console", another.pid)]
    state_directory.write_records(tmp_path, [Record(name, pid, f"{name}.log") for name, pid in records])
    (tmp_path / state_directory.READY_FILE).write_text(f"{state_directory.title(Wish())}export KUBECONFIG=there\n")
    with process, another:
        yield process
        process.kill()
        another.kill()


def test_status_lists_what_is_gone_with_its_supervisor(
    tmp_path: Path, orphan: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that `status` lists ended processes as gone, even if not reaped or if their pid was reused."""
    with pytest.raises(LocalClusterError, match=f"^the supervisor of {tmp_path} is gone and restarts nothing: `make d"):
        status(tmp_path)

    said = capsys.readouterr().out
    assert {tuple(line.split()[:3]) for line in said.splitlines()[1:]} == {
        ("functions", "running", str(orphan.pid)),
        ("etcd", "gone", "-"),
        ("console", "gone", "-"),
    }


@pytest.mark.usefixtures("orphan")
def test_what_is_left_of_a_cluster_is_neither_up_nor_to_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that `up` and `env` fail and name the remedy."""
    monkeypatch.setattr(state_directory, "ORPHAN_SECONDS", 0.0)

    with pytest.raises(LocalClusterError, match=r"`make down`, then `make up`$"):
        start.up(tmp_path, Wish())
    with pytest.raises(LocalClusterError, match=r"`make down`, then `make up`$"):
        state_directory.exports(tmp_path)


def test_status_fails_where_a_cluster_ended_by_itself(tmp_path: Path, orphan: subprocess.Popen[bytes]) -> None:
    """Check that `status` fails if the whole cluster ended, for example after a reboot."""
    os.kill(orphan.pid, signal.SIGKILL)
    orphan.wait()

    with pytest.raises(LocalClusterError, match=r"has ended without `make down`: `make up` starts it anew$"):
        status(tmp_path)
