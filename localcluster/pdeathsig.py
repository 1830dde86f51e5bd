"""Runs a program that the kernel kills when its owner process dies: `python pdeathsig.py OWNER_PID PROGRAM [ARG...]`.

The module `processes` starts this program. It is a separate program because the child process itself must make the
system call, and Python code must not run between fork and exec. Only Linux has this system call. On other systems, the
servers keep running after their owner process is killed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # From linux/prctl.h. The parent-death signal stays set after exec.


def main(owner_pid: int, command: list[str]) -> None:
    """Make the kernel send SIGKILL to this process when its owner process dies, then exec the program."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
            sys.exit(f"prctl(PR_SET_PDEATHSIG): {os.strerror(ctypes.get_errno())}")
    if os.getppid() != owner_pid:
        sys.exit("the owner process has already exited")
    os.execvp(command[0], command)  # noqa: S606 - becoming the program is the point


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
