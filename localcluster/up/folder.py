"""The folder of a `make up` cluster: its lock, its supervisor's process id, its list of processes, what `up` printed.

The supervisor holds a lock on its pid file, and so does every process that it starts, through the open file that they
inherit: the lock is free when, and only when, all of them are gone. A stale pid file is therefore one without a lock.
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
from localcluster.trouble import LocalClusterError
from localcluster.up.keeper import Record
from localcluster.up.wish import Wish

PID_FILE = "supervisor.pid"
READY_FILE = "ready"
PROCESSES_FILE = "processes.json"
LOG_FILE = "supervisor.log"
KUBECONFIG = "kubeconfig"
SERVERS = "servers"
LOCK_SECONDS = 2.0  # somebody else may be looking whether it is locked
ORPHAN_SECONDS = 2.0
"""The kernel ends the children of a killed supervisor; only theirs may be left, and a worker of gunicorn looks each
second whether its parent is there."""


def running(directory: Path) -> bool:
    """Tell whether a supervisor or anything that it started is alive."""
    with contextlib.suppress(FileNotFoundError), (directory / PID_FILE).open() as file:
        if not _lock(file.fileno(), fcntl.LOCK_SH):
            return True
    return bool(supervisors(directory))


def exports(directory: Path) -> str:
    """Give the export lines of the cluster that is up. Raises `LocalClusterError` when none is, or not yet."""
    text = hints(directory) if running(directory) else ""
    if not text:
        raise LocalClusterError("no cluster is up: `make up` starts one")
    if not supervisor(directory):
        raise LocalClusterError(orphaned(directory))
    return "".join(line for line in text.splitlines(keepends=True) if line.startswith("export "))


def supervisor_pid(directory: Path) -> int:
    """Give the process id of the supervisor, or of the last one if none runs; 0 if that is not known."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return int((directory / PID_FILE).read_text())
    return 0


def supervisor(directory: Path) -> int:
    """Give the process id of the supervisor that is alive, by its lock or by its command line; 0 if none is."""
    noted = supervisor_pid(directory)
    return noted if is_alive(noted) else next(iter(supervisors(directory)), 0)


def orphaned(directory: Path) -> str:
    """What there is to say of a cluster that is `running`, though its `supervisor` is not alive."""
    return f"the supervisor of {directory} is gone and restarts nothing: `make down`, then `make up`"


def is_alive(pid: int) -> bool:
    """Tell whether there is a process of that id, which has not ended: until it is reaped it is there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid > 0 and not _has_ended(pid)


def is_group(pid: int) -> bool:
    """Tell whether that process is alive and leads a group, as all do that a supervisor starts.

    One that has got the id since hardly does.
    """
    with contextlib.suppress(ProcessLookupError):
        return is_alive(pid) and os.getpgid(pid) == pid
    return False


def _has_ended(pid: int) -> bool:
    """Tell whether it only waits to be reaped. Only Linux shows that."""
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        return state in ("Z", "X")
    return False


def supervisors(directory: Path) -> list[int]:
    """Give the process ids of the folder's supervisors by their command lines.

    They tell of one that has no lock yet, or whose folder was deleted. Only Linux shows them; elsewhere there are none.
    """
    wanted = ["localcluster", "supervise", str(directory.resolve())]
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it ended while we looked
            words = file.read_bytes().decode(errors="replace").split("\0")
            if words[2:5] == wanted:
                found.append(int(file.parent.name))
    return found


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[int]:
    """Hold the folder's lock; gives the open file by which children hold it, too."""
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
    """Wait until nothing of the folder's cluster is alive; tells whether that came in time.

    A lock has no event to wait for together with a time limit.
    """
    deadline = time.monotonic() + seconds
    while running(directory):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def write_records(directory: Path, records: Sequence[Record]) -> None:
    """Write down what is known of the processes, all at once, so that a reader never sees half of it."""
    fresh = directory / f"{PROCESSES_FILE}.new"
    fresh.write_text(json.dumps([asdict(record) for record in records], indent=1))
    fresh.replace(directory / PROCESSES_FILE)


def records(directory: Path) -> list[Record]:
    """Give what the supervisor wrote down last; nothing if there is no such file, or it is no such file."""
    try:
        return [Record(**item) for item in json.loads((directory / PROCESSES_FILE).read_text())]
    except (FileNotFoundError, ValueError, TypeError):
        return []


def groups(directory: Path) -> list[int]:
    """Give the process groups that the supervisor started last; each is named for its first process."""
    return [record.pid for record in records(directory)]


def title(wish: Wish) -> str:
    """The first line of what is printed when all is ready."""
    return f"{wish.title()}: the product is at work\n"


def hints(directory: Path) -> str:
    """Give what was printed when all was ready; "" before that."""
    file = directory / READY_FILE
    return file.read_text() if file.exists() else ""


def unready(directory: Path) -> None:
    """Take away what an earlier start printed, which would pass for the next one's. Raises as `owned`."""
    with owned(directory):
        (directory / READY_FILE).unlink(missing_ok=True)


def forget(directory: Path) -> None:
    """Take away what tells of a cluster that is gone; logs and data stay until the next one."""
    for name in (READY_FILE, PROCESSES_FILE, KUBECONFIG):
        (directory / name).unlink(missing_ok=True)


def remedy(left: Path) -> str:
    """How a user is rid of what another user's cluster, which is down, has left."""
    return f"`sudo rm -rf {shlex.quote(str(left))}` takes it away"


@contextlib.contextmanager
def owned(directory: Path) -> Iterator[None]:
    """Do something with the folder. Raises `LocalClusterError` with the remedy where another user's file is in the way.

    What else may not be done is raised as it is.
    """
    try:
        yield
    except PermissionError as error:
        home, named = directory.resolve(), Path(str(error.filename)).resolve()
        if not _anothers(place for place in (named, *named.parents) if place.is_relative_to(home)):
            raise
        raise LocalClusterError(f"{directory} is another user's: {error}; {remedy(directory)}") from None


def _anothers(places: Iterable[Path]) -> bool:
    """Tell whether one of these is somebody else's. What is not there, or may not be seen, tells nothing."""
    for place in places:
        with contextlib.suppress(OSError):
            if place.lstat().st_uid != os.geteuid():
                return True
    return False


def clear(directory: Path) -> None:
    """Take away all that an earlier cluster left, and nothing that is not ours.

    Raises `LocalClusterError` with the remedy where another user's is left, as root's cluster leaves it, and `OSError`
    where something else stays.
    """
    for left in (directory / SERVERS, directory / "product"):
        shutil.rmtree(left, ignore_errors=True)
        if not left.exists():
            continue
        if _anothers((left, *left.rglob("*"))):
            raise LocalClusterError(f"{left} is left of another user's cluster: {remedy(left)}")
        shutil.rmtree(left)  # says what is in the way
    forget(directory)
    (directory / LOG_FILE).unlink(missing_ok=True)
