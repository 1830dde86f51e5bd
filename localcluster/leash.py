"""Runs one program that dies with its owner: `python leash.py OWNER_PID PROGRAM [ARG...]`. `processes` starts it.

A program of its own, since what it sets must be set in the child, and Python code between fork and exec is not safe.
Only Linux has such a leash; elsewhere a killed owner leaves its servers behind.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h; the setting survives exec


def main(owner: int, command: list[str]) -> None:
    """Ask the kernel for SIGKILL at the owner's end, then become the program."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
            sys.exit(f"prctl(PR_SET_PDEATHSIG): {os.strerror(ctypes.get_errno())}")
    if os.getppid() != owner:
        sys.exit("the owner is gone already")
    os.execvp(command[0], command)  # noqa: S606 - becoming the program is the point


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
