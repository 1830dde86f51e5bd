"""The Makefile's virtual environment: how it is created, and how an incomplete one is handled."""

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
def clone(tmp_path: Path) -> Path:
    """Return a work tree in which make has not run yet."""
    for name in FILES:
        shutil.copy(ROOT / name, tmp_path)
    for room in ("localcluster", "kube"):
        (tmp_path / room).symlink_to(ROOT / room)
    return tmp_path


def make(clone: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run make in the work tree, with a pip that installs nothing."""
    line = ["make", "--no-print-directory", "UV=", "PIP=true", *words]
    where = {**os.environ, "LC_ALL": "C.UTF-8"}  # Python switches the locale C to UTF-8 by itself
    return subprocess.run(line, cwd=clone, env=where, capture_output=True, text=True, check=False, timeout=120)


def break_off(clone: Path) -> Path:
    """Create the environment that an interrupted installation leaves, without pip; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", clone / ".venv"], check=True)
    return clone / ".venv" / "bin" / "python"


def working(clone: Path, words: str = '"$@"') -> Path:
    """Create a working environment without make's stamp; return its Python, a script that passes `words` to Python."""
    python = clone / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\nexec {sys.executable} {words}\n")
    python.chmod(0o755)
    return python


def bare_python(clone: Path) -> str:
    """Return the make variable for a Python without installed packages."""
    python = clone / "python-that-is-bare"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    return f"PYTHON={python}"


@pytest.mark.slow
@pytest.mark.parametrize("stamped", [False, True], ids=["interrupted", "for another Python"])
def test_an_environment_without_pip_is_made_anew(clone: Path, stamped: bool) -> None:
    python = break_off(clone)
    if stamped:
        (clone / ".venv" / ".stamp").touch()

    done = make(clone, ".venv/.stamp")

    assert done.returncode == 0, done.stderr
    assert subprocess.run([python, "-m", "pip", "--version"], check=False).returncode == 0


def test_an_environment_that_works_is_not_made_anew(clone: Path) -> None:
    """Check that a working environment is not replaced, because it may be in use."""
    python = working(clone)

    assert make(clone, ".venv/.stamp").returncode == 0
    assert python.read_text().startswith("#!/bin/sh")


def recording_uv(clone: Path) -> str:
    """Create a uv that appends its arguments to the file `calls`; return the make variable for it."""
    uv = clone / "uv"
    uv.write_text(f'#!/bin/sh\nmkdir -p .venv\necho "$@" >> {clone}/calls\n')
    uv.chmod(0o755)
    return f"UV={uv}"


def test_uv_creates_a_new_environment_and_installs_the_lock_file_with_hashes(clone: Path) -> None:
    """Check that uv creates the environment and installs the lock file with hashes, without pip and with one line."""
    done = make(clone, recording_uv(clone), "PIP=false", f"PYTHON={sys.executable}", ".venv/.stamp")

    assert (done.returncode, len(done.stdout.splitlines())) == (0, 1), done.stderr
    created, synced, installed = (clone / "calls").read_text().splitlines()
    assert created == f"venv --quiet --python {sys.executable} .venv"
    assert synced.endswith(" --require-hashes requirements-dev.lock")
    assert installed.endswith(" --no-deps --no-build-isolation --editable .")


def test_uv_keeps_an_environment_that_works(clone: Path) -> None:
    working(clone)

    assert make(clone, recording_uv(clone), ".venv/.stamp").returncode == 0
    assert not [call for call in (clone / "calls").read_text().splitlines() if call.startswith("venv ")]


@pytest.mark.parametrize("installer", ["PIP=false", "UV=false"])
def test_a_failed_installation_names_the_remedy_and_leaves_no_stamp(clone: Path, installer: str) -> None:
    working(clone)

    done = make(clone, installer, ".venv/.stamp")

    assert done.returncode != 0
    assert "connect to the network or set " in done.stderr
    assert not (clone / ".venv" / ".stamp").exists()


def test_make_lock_without_uv_says_how_to_get_it(clone: Path) -> None:
    done = make(clone, "lock")

    assert done.returncode != 0
    assert done.stderr.startswith("error: uv is needed to write requirements-dev.lock: install it")


NOTHING_UP = {"down": "not up: nothing to do\n", "status": "not up; `make up` starts it\n"}


@pytest.mark.parametrize(("target", "said"), NOTHING_UP.items())
def test_what_looks_at_a_cluster_installs_nothing(clone: Path, target: str, said: str) -> None:
    """Check that `down` and `status` install nothing, in a new work tree or with an outdated environment."""
    assert make(clone, "PIP=false", target).stdout == said
    assert not (clone / ".venv").exists()
    working(clone)
    assert make(clone, "PIP=false", target).stdout == said


@pytest.fixture
def other(clone: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that holds the lock of the work tree's cluster."""
    (clone / ".cluster").mkdir()
    with state_directory.locked(clone / ".cluster") as lock:
        holder = subprocess.Popen(["sleep", "60"], pass_fds=[lock], start_new_session=True)
    (clone / ".cluster" / state_directory.PID_FILE).write_text(str(holder.pid))
    with holder:
        yield holder
        holder.kill()


@pytest.mark.parametrize("interrupted", [False, True], ids=["without one", "one that is not whole"])
def test_a_cluster_is_seen_and_ended_without_its_environment(
    clone: Path, other: subprocess.Popen[bytes], interrupted: bool
) -> None:
    """Check that `status` and `down` need no installed packages: the environment may be missing or incomplete."""
    if interrupted:
        break_off(clone)
    bare = bare_python(clone)

    status, down = make(clone, bare, "status"), make(clone, bare, "down")

    assert status.stdout.startswith(f"starting or ending, supervisor {other.pid}, "), status.stderr
    assert (down.returncode, down.stdout) == (0, "down\n"), down.stderr
    assert other.wait() == -signal.SIGTERM


def test_what_make_starts_writes_utf_8_wherever_it_is(clone: Path) -> None:
    """Check that programs of the Makefile use UTF-8 in every locale, which a demo's progress bars need."""
    working(clone, "-c 'import sys; print(sys.flags.utf8_mode)'")

    assert make(clone, "status").stdout == "1\n"


def test_clean_takes_an_environment_away_that_is_not_whole(clone: Path) -> None:
    break_off(clone)

    done = make(clone, "clean")

    assert (done.returncode, done.stderr) == (0, "")
    assert not (clone / ".venv").exists()


@pytest.mark.usefixtures("other")
def test_clean_ends_a_cluster_without_its_environment(clone: Path) -> None:
    done = make(clone, bare_python(clone), "clean")

    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "down"), done.stderr
    assert not (clone / ".cluster").exists()


@pytest.mark.usefixtures("other")
def test_clean_removes_nothing_where_it_cannot_end_the_cluster(clone: Path) -> None:
    """Check that `clean` fails with one line and removes nothing if it cannot stop the cluster."""
    assert make(clone, "PYTHON=false", "clean").returncode != 0
    (clone / ".cluster" / state_directory.PROCESSES_FILE).mkdir()
    done = make(clone, bare_python(clone), "clean")

    assert done.stderr.startswith("error: [Errno 21] Is a directory: ")
    assert done.returncode != 0
    assert state_directory.supervisor_pid(clone / ".cluster")
