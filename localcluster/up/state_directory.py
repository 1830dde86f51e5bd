"""The state directory of a `make up` cluster: the supervisor's pid file and lock, its process list, and its output.

The supervisor holds a lock on its pid file. Every process that it starts shares the lock, since it inherits the open
file. So the lock is free if, and only if, all of them have ended; a pid file without a lock is stale.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from localcluster.processes import POLL_SECONDS
from localcluster.errors import LocalClusterError
from localcluster.up.restarter import Record
from localcluster.up.cluster_spec import Wish

PID_FILE = "supervisor.pid"
READY_FILE = "ready"
PROCESSES_FILE = "processes.json"
LOG_FILE = "supervisor.log"
KUBECONFIG = "kubeconfig"
SERVERS = "servers"
LOCK_SECONDS = 2.0  # a reader may hold a shared lock for a moment
ORPHAN_SECONDS = 2.0
"""Seconds for processes to end after their supervisor was killed.

The kernel kills the supervisor's children, but not their children. A gunicorn worker checks each second whether its
parent is alive.
"""


def running(directory: Path) -> bool:
    """Return whether a supervisor or a process that it started is alive."""
    with contextlib.suppress(FileNotFoundError), (directory / PID_FILE).open() as file:
        if not _lock(file.fileno(), fcntl.LOCK_SH):
            return True
    return bool(supervisors(directory))


def exports(directory: Path) -> str:
    """Return the export lines of the running cluster. Raises `LocalClusterError` if none is running and ready."""
    text = hints(directory) if running(directory) else ""
    if not text:
        raise LocalClusterError("no cluster is up: `make up` starts one")
    if not supervisor(directory):
        raise LocalClusterError(orphaned(directory))
    return "".join(line for line in text.splitlines(keepends=True) if line.startswith("export "))


def supervisor_pid(directory: Path) -> int:
    """Return the process id of the supervisor, or of the last one if none runs; 0 if it is unknown."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return int((directory / PID_FILE).read_text())
    return 0


def supervisor(directory: Path) -> int:
    """Return the process id of the live supervisor, by its pid file or its command line; 0 if none is alive."""
    noted = supervisor_pid(directory)
    return noted if is_alive(noted) else next(iter(supervisors(directory)), 0)


def orphaned(directory: Path) -> str:
    """Return the message for a cluster that is `running` although its `supervisor` is not alive."""
    return f"the supervisor of {directory} is gone and restarts nothing: `make down`, then `make up`"


def is_alive(pid: int) -> bool:
    """Return whether a process with this id exists and has not ended; a zombie has ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid > 0 and not _has_ended(pid)


def is_group(pid: int) -> bool:
    """Return whether the process is alive and leads a process group, as all processes that a supervisor starts do.

    A process that reuses the id is unlikely to lead a group.
    """
    with contextlib.suppress(ProcessLookupError):
        return is_alive(pid) and os.getpgid(pid) == pid
    return False


def _has_ended(pid: int) -> bool:
    """Return whether the process is a zombie; only Linux shows that."""
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        return state in ("Z", "X")
    return False


def supervisors(directory: Path) -> list[int]:
    """Return the process ids of the directory's supervisors, found by their command lines.

    This also finds a supervisor that does not hold the lock yet, or whose directory was deleted. It works only on
    Linux; elsewhere the list is empty.
    """
    wanted = ["localcluster", "supervise", str(directory.resolve())]
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # the process ended in the meantime
            words = file.read_bytes().decode(errors="replace").split("\0")
            if words[2:5] == wanted:
                found.append(int(file.parent.name))
    return found


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[int]:
    """Hold the directory's lock; yield the file descriptor through which children share the lock."""
    with (directory / PID_FILE).open("a+") as file:
        deadline = time.monotonic() + LOCK_SECONDS
        while not _lock(file.fileno(), fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise LocalClusterError(f"{directory} is in use by another supervisor; `make down` ends it")
            time.sleep(POLL_SECONDS)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield file.fileno()


def _lock(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def await_end(directory: Path, seconds: float) -> bool:
    """Wait until no process of the directory's cluster is alive; return whether that happened in time.

    The function polls, since waiting for a lock cannot have a timeout.
    """
    deadline = time.monotonic() + seconds
    while running(directory):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def write_records(directory: Path, records: Sequence[Record]) -> None:
    """Write the process records atomically, so that a reader never reads a partial file."""
    fresh = directory / f"{PROCESSES_FILE}.new"
    fresh.write_text(json.dumps([asdict(record) for record in records], indent=1))
    fresh.replace(directory / PROCESSES_FILE)


def records(directory: Path) -> list[Record]:
    """Return the records that the supervisor wrote last; an empty list if the file is missing or invalid."""
    try:
        return [Record(**item) for item in json.loads((directory / PROCESSES_FILE).read_text())]
    except (FileNotFoundError, ValueError, TypeError):
        return []


def groups(directory: Path) -> list[int]:
    """Return the process groups that the supervisor started last; the id of each is that of its first process."""
    return [record.pid for record in records(directory)]


def title(wish: Wish) -> str:
    """Return the first line of the output that is printed when everything is ready."""
    return f"{wish.title()}: the product is at work\n"


def hints(directory: Path) -> str:
    """Return the output that was printed when everything was ready; "" before that."""
    file = directory / READY_FILE
    return file.read_text() if file.exists() else ""


def unready(directory: Path) -> None:
    """Remove an earlier start's output, which would be mistaken for the next one's. Raises what `owned` raises."""
    with owned(directory):
        (directory / READY_FILE).unlink(missing_ok=True)


def forget(directory: Path) -> None:
    """Remove the files that describe a cluster that has ended; its logs and data stay until the next start."""
    for name in (READY_FILE, PROCESSES_FILE, KUBECONFIG):
        (directory / name).unlink(missing_ok=True)


def remedy(left: Path) -> str:
    """Return how a user can remove the files of another user's cluster that is down."""
    return f"`sudo rm -rf {shlex.quote(str(left))}` takes it away"


@contextlib.contextmanager
def owned(directory: Path) -> Iterator[None]:
    """Run the block. Raises `LocalClusterError` with the remedy if another user's file denies access.

    Any other `PermissionError` is raised unchanged.
    """
    try:
        yield
    except PermissionError as error:
        home, named = directory.resolve(), Path(str(error.filename)).resolve()
        if not _anothers(place for place in (named, *named.parents) if place.is_relative_to(home)):
            raise
        raise LocalClusterError(f"{directory} is another user's: {error}; {remedy(directory)}") from None


def _anothers(places: Iterable[Path]) -> bool:
    """Return whether another user owns one of these paths; a missing or inaccessible path does not count."""
    for place in places:
        with contextlib.suppress(OSError):
            if place.lstat().st_uid != os.geteuid():
                return True
    return False


def clear(directory: Path) -> None:
    """Remove everything that an earlier cluster left, but nothing else.

    Raises `LocalClusterError` with the remedy if files of another user remain, for example root's. Raises `OSError` if
    other files remain.
    """
    for left in (directory / SERVERS, directory / "product"):
        shutil.rmtree(left, ignore_errors=True)
        if not left.exists():
            continue
        if _anothers((left, *left.rglob("*"))):
            raise LocalClusterError(f"{left} is left of another user's cluster: {remedy(left)}")
        shutil.rmtree(left)  # raises an error that names the obstacle
    forget(directory)
    (directory / LOG_FILE).unlink(missing_ok=True)
