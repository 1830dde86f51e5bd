"""Holds the namespaces of one node: `python namespaces.py FOLDER NAME`; `rooms` starts it. Standard library only.

When the first process of a PID namespace ends, the kernel kills all others in it. The mounts, network devices and
packet filters go with the last process. So killing this process ends the node. FOLDER must have two shell scripts.
`outside` runs in the original namespaces, with the first process's id in $PID. Then `inside` runs in the new
namespaces. Finally, the program writes the file `pid`.
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


def main(folder: Path, name: str) -> None:
    """Create the namespaces, and exit when their first process ends."""
    file = folder / "pid"
    file.unlink(missing_ok=True)
    (told, tell), (ready, say) = os.pipe(), os.pipe()
    here = os.open("/proc/self/ns/pid", os.O_RDONLY)
    _must(LIBC.unshare(CLONE_NEWPID), "unshare")  # all later children are in it
    first = os.fork()
    if not first:
        os.close(tell)
        os.close(ready)
        _be_first(folder, name, told, say)
    os.close(told)
    os.close(say)
    _must(LIBC.setns(here, CLONE_NEWPID), "setns")  # applies to children after the first one
    if os.read(ready, 1):
        _run(folder / "outside", PID=str(first))
        os.write(tell, b"!")
    if os.read(ready, 1):
        fresh = file.with_suffix(".new")
        fresh.write_text(str(first))
        fresh.replace(file)
    _, status = os.waitpid(first, 0)
    sys.exit(f"{name} ended: status {status}")


def _be_first(folder: Path, name: str, told: int, say: int) -> None:
    """Run as the first process: set up the new namespaces, then reap orphaned processes forever."""
    _must(LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    _must(LIBC.unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET), "unshare")
    os.write(say, b"!")
    if not os.read(told, 1):
        sys.exit("the outside was not set up")
    _must(LIBC.sethostname(name.encode(), len(name)), "sethostname")
    _run(folder / "inside")
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    os.write(say, b"!")
    while True:
        signal.sigwait({signal.SIGCHLD})
        _bury()


def _bury() -> None:
    while True:
        try:
            if not os.waitpid(-1, os.WNOHANG)[0]:
                return
        except ChildProcessError:
            return


def _run(script: Path, **more: str) -> None:
    done = subprocess.run(["sh", "-e", script], env={**os.environ, **more}, check=False)
    if done.returncode:
        sys.exit(f"{script} failed; it says why above")


def _must(result: int, what: str) -> None:
    if result:
        sys.exit(f"{what}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
