"""Tests for the Makefile's virtual environment: its creation, and the handling of an incomplete one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster.up import state_directory
from tests.localcluster.commands import ROOT

FILES = ("Makefile", "pyproject.toml", "requirements.txt", "requirements-dev.txt", "requirements-dev.lock")


@pytest.fixture
def work_tree(tmp_path: Path) -> Path:
    """Create a work tree in which make has not run yet."""
    for name in FILES:
        shutil.copy(ROOT / name, tmp_path)
    for package in ("localcluster", "kube"):
        (tmp_path / package).symlink_to(ROOT / package)
    return tmp_path


def run_make(work_tree: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run make in the work tree, with a fake pip that installs nothing."""
    command = ["make", "--no-print-directory", "UV=", "PIP=true", *args]
    variables = {**os.environ, "LC_ALL": "C.UTF-8"}  # Python always uses UTF-8 with the locale C.
    return subprocess.run(
        command, cwd=work_tree, env=variables, capture_output=True, text=True, check=False, timeout=120
    )


def create_incomplete_environment(work_tree: Path) -> Path:
    """Create a virtual environment without pip, as after an interrupted installation; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", work_tree / ".venv"], check=True)
    return work_tree / ".venv" / "bin" / "python"


def create_working_environment(work_tree: Path, forwarded_args: str = '"$@"') -> Path:
    """Create a virtual environment without the stamp file, and return its Python.

    This Python runs the real Python with `forwarded_args`.
    """
    python = work_tree / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\nexec {sys.executable} {forwarded_args}\n")
    python.chmod(0o755)
    return python


def write_python_without_packages(work_tree: Path) -> str:
    """Create a Python without installed packages; return the make variable that selects this Python."""
    python = work_tree / "python-that-is-bare"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    return f"PYTHON={python}"


@pytest.mark.slow
@pytest.mark.parametrize("has_stamp", [False, True], ids=["interrupted", "different Python"])
def test_environment_without_pip_is_recreated(work_tree: Path, has_stamp: bool) -> None:
    python = create_incomplete_environment(work_tree)
    if has_stamp:
        (work_tree / ".venv" / ".stamp").touch()

    result = run_make(work_tree, ".venv/.stamp")

    assert result.returncode == 0, result.stderr
    assert subprocess.run([python, "-m", "pip", "--version"], check=False).returncode == 0


def test_make_does_not_replace_working_environment(work_tree: Path) -> None:
    """Check that make does not replace a working virtual environment, because a process may be using it."""
    python = create_working_environment(work_tree)

    assert run_make(work_tree, ".venv/.stamp").returncode == 0
    assert python.read_text().startswith("#!/bin/sh")


def write_fake_uv(work_tree: Path) -> str:
    """Create a fake uv that appends its arguments to the file `calls`; return the make variable that selects it."""
    uv = work_tree / "uv"
    uv.write_text(f'#!/bin/sh\nmkdir -p .venv\necho "$@" >> {work_tree}/calls\n')
    uv.chmod(0o755)
    return f"UV={uv}"


def test_uv_creates_environment_and_installs_lock_file_with_hashes(work_tree: Path) -> None:
    """Check that uv, not pip, creates the virtual environment and installs the lock file with hashes."""
    result = run_make(work_tree, write_fake_uv(work_tree), "PIP=false", f"PYTHON={sys.executable}", ".venv/.stamp")

    assert (result.returncode, len(result.stdout.splitlines())) == (0, 1), result.stderr
    create_call, sync_call, install_call = (work_tree / "calls").read_text().splitlines()
    assert create_call == f"venv --quiet --python {sys.executable} .venv"
    assert sync_call.endswith(" --require-hashes requirements-dev.lock")
    assert install_call.endswith(" --no-deps --no-build-isolation --editable .")


def test_make_with_uv_does_not_replace_working_environment(work_tree: Path) -> None:
    create_working_environment(work_tree)

    assert run_make(work_tree, write_fake_uv(work_tree), ".venv/.stamp").returncode == 0
    assert not [call for call in (work_tree / "calls").read_text().splitlines() if call.startswith("venv ")]


@pytest.mark.parametrize("installer", ["PIP=false", "UV=false"])
def test_failed_installation_names_remedy_and_leaves_no_stamp_file(work_tree: Path, installer: str) -> None:
    create_working_environment(work_tree)

    result = run_make(work_tree, installer, ".venv/.stamp")

    assert result.returncode != 0
    assert "connect to the network or set " in result.stderr
    assert not (work_tree / ".venv" / ".stamp").exists()


def test_make_lock_without_uv_fails_with_remedy(work_tree: Path) -> None:
    result = run_make(work_tree, "lock")

    assert result.returncode != 0
    assert result.stderr.startswith("error: uv is required to write requirements-dev.lock: install it")


OUTPUT_WITHOUT_CLUSTER = {
    "down": "no cluster is running\n",
    "status": "no cluster is running: start one with `make up`\n",
}


@pytest.mark.parametrize(("target", "output"), OUTPUT_WITHOUT_CLUSTER.items())
def test_down_and_status_install_nothing(work_tree: Path, target: str, output: str) -> None:
    """Check that `make down` and `make status` install nothing, whether or not an environment exists."""
    assert run_make(work_tree, "PIP=false", target).stdout == output
    assert not (work_tree / ".venv").exists()
    create_working_environment(work_tree)
    assert run_make(work_tree, "PIP=false", target).stdout == output


@pytest.fixture
def lock_holder(work_tree: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that holds the lock of the work tree's cluster."""
    (work_tree / ".cluster").mkdir()
    with state_directory.hold_lock(work_tree / ".cluster") as lock:
        holder = subprocess.Popen(["sleep", "60"], pass_fds=[lock], start_new_session=True)
    (work_tree / ".cluster" / state_directory.PID_FILE).write_text(str(holder.pid))
    with holder:
        yield holder
        holder.kill()


@pytest.mark.parametrize("is_incomplete", [False, True], ids=["no environment", "incomplete environment"])
def test_status_and_down_work_without_environment(
    work_tree: Path, lock_holder: subprocess.Popen[bytes], is_incomplete: bool
) -> None:
    """Check that `make status` and `make down` need no installed packages, as the environment may be incomplete."""
    if is_incomplete:
        create_incomplete_environment(work_tree)
    bare_python = write_python_without_packages(work_tree)

    status_result, down_result = run_make(work_tree, bare_python, "status"), run_make(work_tree, bare_python, "down")

    assert status_result.stdout.startswith(f"starting or stopping, supervisor {lock_holder.pid}, "), (
        status_result.stderr
    )
    assert (down_result.returncode, down_result.stdout) == (0, "down\n"), down_result.stderr
    assert lock_holder.wait() == -signal.SIGTERM


def test_python_started_by_make_uses_utf_8(work_tree: Path) -> None:
    """Check that Python programs that make starts use UTF-8 in every locale, because the demos print progress bars."""
    create_working_environment(work_tree, "-c 'import sys; print(sys.flags.utf8_mode)'")

    assert run_make(work_tree, "status").stdout == "1\n"


def test_make_clean_removes_incomplete_environment(work_tree: Path) -> None:
    create_incomplete_environment(work_tree)

    result = run_make(work_tree, "clean")

    assert (result.returncode, result.stderr) == (0, "")
    assert not (work_tree / ".venv").exists()


@pytest.mark.usefixtures("lock_holder")
def test_make_clean_stops_cluster_without_environment(work_tree: Path) -> None:
    result = run_make(work_tree, write_python_without_packages(work_tree), "clean")

    assert (result.returncode, result.stdout.splitlines()[0]) == (0, "down"), result.stderr
    assert not (work_tree / ".cluster").exists()


@pytest.mark.usefixtures("lock_holder")
def test_make_clean_fails_if_cluster_cannot_be_stopped(work_tree: Path) -> None:
    """Check that `make clean` fails with one line and removes nothing if the cluster cannot be stopped."""
    assert run_make(work_tree, "PYTHON=false", "clean").returncode != 0
    (work_tree / ".cluster" / state_directory.PROCESSES_FILE).mkdir()
    result = run_make(work_tree, write_python_without_packages(work_tree), "clean")

    assert result.stderr.startswith("error: [Errno 21] Is a directory: ")
    assert result.returncode != 0
    assert state_directory.read_supervisor_pid(work_tree / ".cluster")
