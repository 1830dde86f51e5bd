"""Holds one node's namespaces: `sandbox` runs `python namespace_holder.py DIRECTORY NAME`, with no third-party package.

When the first process of a PID namespace exits, the kernel kills all other processes in it. When the last process has
exited, the kernel removes the mounts, network devices and packet filters. So killing this process stops the node.
DIRECTORY must contain two shell scripts. `outside` runs in the original namespaces, with the first process's id in
$PID. Then `inside` runs in the new namespaces. Finally, this program writes the first process's id to the file `pid`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

# linux/sched.h, linux/prctl.h
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWPID, CLONE_NEWNET = (1 << bit for bit in (17, 26, 27, 29, 30))
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)


def main(directory: Path, name: str) -> None:
    """Create the namespaces, and exit when the first process in them exits."""
    file = directory / "pid"
    file.unlink(missing_ok=True)
    (setup_read, setup_write), (ready_read, ready_write) = os.pipe(), os.pipe()
    original_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY)
    _exit_if_call_failed(LIBC.unshare(CLONE_NEWPID), "unshare")  # Later children are in the new PID namespace.
    first = os.fork()
    if not first:
        os.close(setup_write)
        os.close(ready_read)
        _run_init(directory, name, setup_read, ready_write)
    os.close(setup_read)
    os.close(ready_write)
    # Later children are in the original namespace again.
    _exit_if_call_failed(LIBC.setns(original_namespace, CLONE_NEWPID), "setns")
    if os.read(ready_read, 1):
        _run_script(directory / "outside", PID=str(first))
        os.write(setup_write, b"!")
    if os.read(ready_read, 1):
        temporary = file.with_suffix(".new")
        temporary.write_text(str(first))
        temporary.replace(file)
    _, status = os.waitpid(first, 0)
    sys.exit(f"the first process of {name} exited: wait status {status}")


def _run_init(directory: Path, name: str, read_fd: int, write_fd: int) -> None:
    """Run as the first process: set up the new namespaces, then reap orphaned processes until the process is killed."""
    _exit_if_call_failed(LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    _exit_if_call_failed(LIBC.unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET), "unshare")
    os.write(write_fd, b"!")
    if not os.read(read_fd, 1):
        sys.exit("the script `outside` did not complete")
    _exit_if_call_failed(LIBC.sethostname(name.encode(), len(name)), "sethostname")
    _run_script(directory / "inside")
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    os.write(write_fd, b"!")
    while True:
        signal.sigwait({signal.SIGCHLD})
        _reap_children()


def _reap_children() -> None:
    while True:
        try:
            if not os.waitpid(-1, os.WNOHANG)[0]:
                return
        except ChildProcessError:
            return


def _run_script(script: Path, **variables: str) -> None:
    done = subprocess.run(["sh", "-e", script], env={**os.environ, **variables}, check=False)
    if done.returncode:
        sys.exit(f"{script} failed with exit status {done.returncode}: see its output above")


def _exit_if_call_failed(result: int, call: str) -> None:
    if result:
        sys.exit(f"{call}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
