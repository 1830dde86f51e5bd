"""Runs a program that the kernel kills when its owner dies: `python pdeathsig.py OWNER_PID PROGRAM [ARG...]`.

`processes` starts this program. The program is separate because the setting must be made in the child, and running
Python code between fork and exec is unsafe. Only Linux supports the setting; on other systems the servers of a killed
owner keep running.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h; the setting survives exec


def main(owner_pid: int, command: list[str]) -> None:
    """Make the kernel send SIGKILL to this process when the owner dies, then exec the program."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
            sys.exit(f"prctl(PR_SET_PDEATHSIG): {os.strerror(ctypes.get_errno())}")
    if os.getppid() != owner_pid:
        sys.exit("the owner process has already exited")
    os.execvp(command[0], command)  # noqa: S606 - becoming the program is the point


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
