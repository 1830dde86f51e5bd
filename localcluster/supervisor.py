"""What stays after `make up`: one process that owns the servers and ends them when it is told to or when it dies.

It holds a lock on its pid file, and so does every process that it starts, through the open file that they inherit:
the lock is free when, and only when, all of them are gone. A stale pid file is therefore simply one without a lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from localcluster import build, deliveries, processes
from localcluster.cluster import LocalCluster
from localcluster.console import Console
from localcluster.trouble import LocalClusterError

DIRECTORY = Path(".cluster")
PID_FILE = "supervisor.pid"
READY_FILE = "ready"
GROUPS_FILE = "groups"
STOP_SECONDS = 30.0
ORPHAN_SECONDS = 1.0
LOCK_SECONDS = 2.0  # somebody else may be looking whether it is locked


def up(directory: Path, nodes: int, delivery: str) -> None:
    """Start the supervisor and return when all is ready; say so and return if it is up already."""
    engine = deliveries.named(delivery)
    if running(directory):
        if not (directory / READY_FILE).exists():
            raise LocalClusterError(
                f"another start in {directory} is under way; wait for it, or end it with `make down`"
            )
        hints = (directory / READY_FILE).read_text()
        if not hints.startswith(_title(delivery)):
            raise LocalClusterError("another DELIVERY is up; `make down` ends it")
        print(f"already up; `make down` ends it\n{hints}", end="")
        return
    engine.check()
    engine.build()  # here, where there may be a terminal to show the progress on
    command = [sys.executable, "-m", "localcluster", "supervise", str(directory), str(nodes), delivery]
    quiet, pipe, both = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT
    child = subprocess.Popen(command, stdin=quiet, stdout=pipe, stderr=both, start_new_session=True, text=True)
    try:
        for line in child.stdout or ():  # ends when the supervisor turns to its log file, or dies
            print(line, end="", flush=True)
    except BaseException:
        child.terminate()
        child.wait()
        raise
    if not (directory / READY_FILE).exists():
        child.wait()
        raise LocalClusterError("not started; the reason is above")


def down(directory: Path) -> None:
    """End the supervisor and wait until every process that it started is gone."""
    if running(directory):
        _end_all(directory)
        print("down")
    else:
        print("not up: nothing to do")
    for name in (READY_FILE, GROUPS_FILE, "kubeconfig"):
        (directory / name).unlink(missing_ok=True)


def _end_all(directory: Path) -> None:
    pid = supervisor_pid(directory)
    patience = STOP_SECONDS
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        patience = ORPHAN_SECONDS
    if not _await_end(directory, patience):
        # The lock is held, so what the supervisor started is still there, and these ids are still theirs.
        for group in (*groups(directory), pid):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        if not _await_end(directory, STOP_SECONDS):
            raise LocalClusterError(
                f"something started from {directory} does not end: see `fuser {directory / PID_FILE}`"
            )


def running(directory: Path) -> bool:
    """Tell whether a supervisor or anything that it started is alive."""
    try:
        with (directory / PID_FILE).open() as file:
            return not _lock(file.fileno(), fcntl.LOCK_SH)
    except FileNotFoundError:
        return False


def _lock(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def status(directory: Path) -> None:
    """Say what is up."""
    if not running(directory):
        print("not up; `make up` starts it")
        return
    ready = (directory / READY_FILE).exists()
    print(f"{'up' if ready else 'starting or ending'}, supervisor {supervisor_pid(directory)}, logs in {directory}/")
    if ready:
        print((directory / READY_FILE).read_text(), end="")


def exports(directory: Path) -> str:
    """Give the export lines of the cluster that is up. Raises `LocalClusterError` when none is, or not yet."""
    ready = directory / READY_FILE
    if not running(directory) or not ready.exists():
        raise LocalClusterError("no cluster is up: `make up` starts one")
    return "".join(line for line in ready.read_text().splitlines(keepends=True) if line.startswith("export "))


def groups(directory: Path) -> list[int]:
    """Give the process groups that the supervisor started."""
    file = directory / GROUPS_FILE
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def supervisor_pid(directory: Path) -> int:
    """Give the process id of the supervisor, or of the last one if none runs."""
    file = directory / PID_FILE
    return int(file.read_text() or 0) if file.exists() else 0


def supervise(directory: Path, nodes: int, delivery: str) -> None:
    """Be the supervisor: start everything, say so, and stop it all on SIGTERM."""
    directory.mkdir(parents=True, exist_ok=True)
    with _locked(directory):
        signal.signal(signal.SIGTERM, _end)
        with contextlib.suppress(_Ended):
            _run(directory.resolve(), nodes, delivery)


def _run(directory: Path, nodes: int, delivery: str) -> None:
    _clear(directory)
    engine = deliveries.named(delivery)
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - started:5.1f} s  {text}", flush=True)

    cluster = engine.cluster(directory / "servers", nodes)
    say("the servers are built; starting etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kwok")
    with cluster:
        _note_groups(directory, cluster.servers)
        say(f"the cluster is ready: {nodes} nodes at {cluster.url}")
        shutil.copy(cluster.kubeconfig, directory / "kubeconfig")
        with (
            engine.open(cluster, directory / "product") as product,
            _console(cluster, directory / "product", product) as console,
        ):
            _note_groups(directory, [*cluster.servers, *product.servers, console.server])
            say("functions, delivery and console are ready")
            _announce(directory, _title(delivery), product, console)
            while True:
                signal.pause()


def _console(cluster: LocalCluster, directory: Path, product: deliveries.Running) -> Console:
    where = {"functions": product.functions_url, "broker": product.broker_url}
    return Console(cluster, directory, "--journal", product.journal, **where)


class _Ended(BaseException):
    """SIGTERM came; passes through whatever is under way, and what was started is stopped on the way out."""


def _end(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Ended


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold the pid file's lock, and have every child hold it too."""
    with (directory / PID_FILE).open("a+") as file:
        deadline = time.monotonic() + LOCK_SECONDS
        while not _lock(file.fileno(), fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise LocalClusterError(f"{directory} is in use by another supervisor; `make down` ends it")
            time.sleep(processes.POLL_SECONDS)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        processes.inherited.append(file.fileno())
        yield


def _clear(directory: Path) -> None:
    """Take away what an earlier cluster left, and nothing that is not ours."""
    for name in ("servers", "product"):
        shutil.rmtree(directory / name, ignore_errors=True)
    for name in (READY_FILE, GROUPS_FILE, "kubeconfig", "supervisor.log"):
        (directory / name).unlink(missing_ok=True)


def _title(delivery: str) -> str:
    """Begin what is printed when all is ready."""
    return f"DELIVERY={delivery}: the product is at work\n"


def _announce(directory: Path, title: str, product: deliveries.Running, console: Console) -> None:
    """Print how to go on, note that all is ready, and turn to the log file, which ends the wait of `up`.

    An empty FUNCTIONS is said, too: the shell may still have that of another delivery.
    """
    programs = shlex.quote(f"{Path(sys.executable).parent}:{build.target()}")
    journal = shlex.quote(str(product.journal.absolute()))
    hints = title + (
        f"export KUBECONFIG={shlex.quote(str(directory / 'kubeconfig'))}\n"
        f'export PATH={programs}:"$PATH"\n'
        f"export JOURNAL={journal} FUNCTIONS={product.functions_url} BROKER={product.broker_url}\n"
        f"console: {console.url}\n"
        f"broker: {product.broker_url}\n"
        f"a function, cordon: {product.function_url('cordon')}\n"
        "next: kubectl maintenance start node-1 --reason trial; kubectl maintenance status --watch\n"
        "      make down\n"
    )
    print(hints, end="", flush=True)
    (directory / READY_FILE).write_text(hints)
    with (directory / "supervisor.log").open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)


def _note_groups(directory: Path, servers: list[processes.Server]) -> None:
    (directory / GROUPS_FILE).write_text("\n".join(str(server.pid) for server in servers))


def _await_end(directory: Path, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while running(directory):
        if time.monotonic() > deadline:
            return False
        time.sleep(processes.POLL_SECONDS)
    return True
