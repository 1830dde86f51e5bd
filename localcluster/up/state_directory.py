"""The state directory of a `make up` cluster: the supervisor's pid file and lock, its process list, and its output.

The supervisor holds a lock on its pid file. Every process that it starts inherits the open file, and shares the lock.
So the lock is free only after all of these processes have exited. A pid file without a lock is stale.
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
from dataclasses import asdict, dataclass
from pathlib import Path

from localcluster.components import selection
from localcluster.errors import LocalClusterError
from localcluster.nodes import preflight
from localcluster.processes import POLL_SECONDS
from localcluster.up.restarter import ProcessRecord

PID_FILE = "supervisor.pid"
READY_FILE = "ready"
PROCESSES_FILE = "processes.json"
LOG_FILE = "supervisor.log"
KUBECONFIG_FILE = "kubeconfig"
SERVERS_DIR, IMAGES_DIR = "servers", "images"
LOCK_TIMEOUT_SECONDS = 2.0  # `is_running` holds a shared lock for a moment.
ORPHAN_TIMEOUT_SECONDS = 2.0
"""Seconds within which all processes exit after their supervisor was killed.

The kernel kills the supervisor's children, but not its grandchildren. A gunicorn worker, for example, checks every
second whether its parent process is alive.
"""


def is_running(directory: Path) -> bool:
    """Return whether the supervisor, or a process that it started, is alive."""
    with contextlib.suppress(FileNotFoundError), (directory / PID_FILE).open() as file:
        if not _try_lock(file.fileno(), fcntl.LOCK_SH):
            return True
    return bool(find_supervisor_pids(directory))


def read_export_lines(directory: Path) -> str:
    """Return the running cluster's `export` lines. Raises `LocalClusterError` if no cluster is running and ready."""
    text = read_ready_message(directory) if is_running(directory) else ""
    if not text:
        raise LocalClusterError("no cluster is running: start one with `make up`")
    if not find_supervisor_pid(directory):
        raise LocalClusterError(format_orphaned_error(directory))
    return "".join(line for line in text.splitlines(keepends=True) if line.startswith("export "))


def read_supervisor_pid(directory: Path) -> int:
    """Return the supervisor's process id from the pid file, which may be stale, or 0 if the file has no id."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return int((directory / PID_FILE).read_text())
    return 0


def find_supervisor_pid(directory: Path) -> int:
    """Return the live supervisor's process id, found by pid file or command line; 0 if no supervisor is alive."""
    recorded_pid = read_supervisor_pid(directory)
    return recorded_pid if is_alive(recorded_pid) else next(iter(find_supervisor_pids(directory)), 0)


def format_orphaned_error(directory: Path) -> str:
    """Return the error message for a cluster whose processes still run although its supervisor has exited."""
    return f"the supervisor of {directory} has exited and restarts nothing: run `make down`, then `make up`"


def is_alive(pid: int) -> bool:
    """Return whether a process with this id exists and is not a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid > 0 and not _is_zombie(pid)


def is_group_leader(pid: int) -> bool:
    """Return whether the process is alive and leads a process group, as every process of a supervisor does.

    If another process reuses the id, it is unlikely to lead a process group.
    """
    with contextlib.suppress(ProcessLookupError):
        return is_alive(pid) and os.getpgid(pid) == pid
    return False


def _is_zombie(pid: int) -> bool:
    """Return whether the process is a zombie, which can only be detected on Linux."""
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        return state in ("Z", "X")
    return False


def find_supervisor_pids(directory: Path) -> list[int]:
    """Return the process ids of the supervisors of this directory, found by their command lines.

    This finds even a supervisor that does not hold the lock yet, or whose directory was deleted. On other systems than
    Linux, the list is empty.
    """
    arguments = ["localcluster", "supervise", str(directory.resolve())]
    pids = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # The process may have exited in the meantime.
            words = file.read_bytes().decode(errors="replace").split("\0")
            if words[2:5] == arguments:
                pids.append(int(file.parent.name))
    return pids


@contextlib.contextmanager
def hold_lock(directory: Path) -> Iterator[int]:
    """Hold the state directory's lock; yield the file descriptor with which child processes share the lock."""
    with (directory / PID_FILE).open("a+") as file:
        deadline = time.monotonic() + LOCK_TIMEOUT_SECONDS
        while not _try_lock(file.fileno(), fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise LocalClusterError(
                    f"directory {directory} is in use by another supervisor: stop it with `make down`"
                )
            time.sleep(POLL_SECONDS)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield file.fileno()


def _try_lock(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_for_exit(directory: Path, timeout: float) -> bool:
    """Wait until all processes of the directory's cluster have exited; return False after the timeout.

    The function polls, because `flock` has no timeout.
    """
    deadline = time.monotonic() + timeout
    while is_running(directory):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def write_records(directory: Path, records: Sequence[ProcessRecord]) -> None:
    """Write the process records atomically, so that readers never read a partial file."""
    temporary = directory / f"{PROCESSES_FILE}.new"
    temporary.write_text(json.dumps([asdict(record) for record in records], indent=1))
    temporary.replace(directory / PROCESSES_FILE)


def read_records(directory: Path) -> list[ProcessRecord]:
    """Return the process records that the supervisor wrote last, or an empty list if the file is missing or invalid."""
    try:
        return [ProcessRecord(**item) for item in json.loads((directory / PROCESSES_FILE).read_text())]
    except (FileNotFoundError, ValueError, TypeError):
        return []


def list_process_groups(directory: Path) -> list[int]:
    """Return the process group ids in the latest records; a group's id is the id of its first process."""
    return [record.pid for record in read_records(directory)]


def format_ready_title(spec: ClusterSpec) -> str:
    """Return the first line of the output that `make up` prints when the cluster is ready."""
    return f"{spec.format_title()}: the product is ready\n"


def read_ready_message(directory: Path) -> str:
    """Return the output that `make up` printed when the cluster was ready, or "" before that."""
    file = directory / READY_FILE
    return file.read_text() if file.exists() else ""


def remove_ready_file(directory: Path) -> None:
    """Remove the output of an earlier start, so that it is not mistaken for the next start's output.

    Raises the same errors as `explain_permission_errors`.
    """
    with explain_permission_errors(directory):
        (directory / READY_FILE).unlink(missing_ok=True)


def remove_state_files(directory: Path) -> None:
    """Remove the files that describe a stopped cluster; its logs and data stay until the next start."""
    for name in (READY_FILE, PROCESSES_FILE, KUBECONFIG_FILE):
        (directory / name).unlink(missing_ok=True)


def format_remedy(path: Path) -> str:
    """Return the remedy for files that another user's stopped cluster left."""
    return f"remove it with `sudo rm -rf {shlex.quote(str(path))}`"


@contextlib.contextmanager
def explain_permission_errors(directory: Path) -> Iterator[None]:
    """Run the `with` block. Raises `LocalClusterError` with the remedy if another user's file denies access.

    Any other `PermissionError` is raised unchanged.
    """
    try:
        yield
    except PermissionError as error:
        home, denied = directory.resolve(), Path(str(error.filename)).resolve()
        if not _has_other_owner(path for path in (denied, *denied.parents) if path.is_relative_to(home)):
            raise
        reason = f"directory {directory} belongs to another user: {error}"
        raise LocalClusterError(f"{reason}; {format_remedy(directory)}") from None


def _has_other_owner(paths: Iterable[Path]) -> bool:
    """Return whether another user owns one of these paths; a missing or inaccessible path does not count."""
    for path in paths:
        with contextlib.suppress(OSError):
            if path.lstat().st_uid != os.geteuid():
                return True
    return False


def remove_previous_cluster(directory: Path) -> None:
    """Remove all files of an earlier cluster, but no other files.

    Raises `LocalClusterError` with the remedy if files of another user, such as root, remain. Raises `OSError` if
    other files remain.
    """
    for folder in (directory / SERVERS_DIR, directory / "product", directory / IMAGES_DIR):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            continue
        if _has_other_owner((folder, *folder.rglob("*"))):
            raise LocalClusterError(f"{folder} is a leftover of another user's cluster: {format_remedy(folder)}")
        shutil.rmtree(folder)  # Unlike the first call, this one raises an error with the reason.
    remove_state_files(directory)
    (directory / LOG_FILE).unlink(missing_ok=True)


@dataclass(frozen=True)
class ClusterSpec:
    """The specification of one cluster on which the product is installed.

    Attributes:
        nodes: The number of fake nodes.
        control_planes: The number of fake nodes that are control-plane nodes.
        engine: The engine that delivers the events.
        components: The installed components.
        fakes: The mode of the fakes, one of `selection.FAKE_MODES`; `SIMULATORS` in the Makefile.
        real_nodes: The number of real nodes besides the fake ones.
    """

    nodes: int = 3
    control_planes: int = 0
    engine: str = "local"
    components: Sequence[str] = selection.DEFAULT_COMPONENTS
    fakes: str = selection.FAKES_OFF
    real_nodes: int = 0

    def validate(self) -> None:
        """Raise `LocalClusterError` if the values contradict each other, or the host cannot run real nodes."""
        if self.control_planes >= self.nodes:
            reason = f"CONTROL_PLANES={self.control_planes} leaves no worker node of NODES={self.nodes}"
            raise LocalClusterError(f"{reason}: increase NODES")
        if self.real_nodes:
            preflight.check_host()
        selection.check_fakes(self.components, self.fakes)

    def format_title(self) -> str:
        """Return the specification as the variables of `make up`; equal specifications have equal titles."""
        control_planes = f" CONTROL_PLANES={self.control_planes}" if self.control_planes else ""
        is_default = tuple(self.components) == selection.DEFAULT_COMPONENTS
        components = "" if is_default else f" COMPONENTS={','.join(self.components)}"
        simulators = "" if self.fakes == selection.FAKES_OFF else f" SIMULATORS={self.fakes}"
        real = f" REAL={self.real_nodes}" if self.real_nodes else ""
        return f"NODES={self.nodes}{control_planes} DELIVERY={self.engine}{components}{simulators}{real}"

    def to_json(self) -> str:
        """Return the specification as JSON, for the supervisor's command line."""
        return json.dumps(asdict(self))


def parse_spec(text: str) -> ClusterSpec:
    """Parse a specification from `ClusterSpec.to_json`."""
    return ClusterSpec(**json.loads(text))
