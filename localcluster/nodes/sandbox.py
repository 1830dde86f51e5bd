"""Sandboxes: a sandbox is a set of namespaces with a process that holds them; its servers end with that process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from localcluster.processes import Server, await_ready
from localcluster.servers import UNPROXIED
from localcluster.errors import LocalClusterError

PROGRAM = Path(__file__).with_name("namespaces.py")
ENTER = 'exec nsenter --target "$(cat "$0")" --mount --uts --ipc --net --pid -- "$@"'
"""Reads the holder's process id at each use, since a restarted holder has another one."""


class Room:
    """A sandbox.

    Args:
        name: The sandbox's name.
        folder: A directory of its own.
        outside: Shell script for the original namespaces, with the holder's first process in $PID.
        inside: Shell script for the sandbox.
    """

    def __init__(self, name: str, folder: Path, outside: str, inside: str) -> None:
        folder.mkdir(parents=True)
        (folder / "outside").write_text(outside)
        (folder / "inside").write_text(inside)
        self.name, self.folder = name, folder
        self.file = folder / "pid"
        self.holder = Server(name, [sys.executable, "-I", "-S", PROGRAM, folder, name], folder / "room.log")

    def open(self) -> None:
        """Create the namespaces; return when servers can be started in them."""
        self.holder.start()
        await_ready(f"the namespaces of {self.name}", self.file.exists, [self.holder], 30)

    def close(self) -> None:
        """Kill the sandbox with all its processes."""
        self.holder.kill()

    def server(self, name: str, *command: str | Path) -> Server:
        """Return a server that runs in the sandbox, uses no proxy, and logs to the sandbox's directory."""
        server = Server(f"{self.name}-{name}", self._entering(*command), self.folder / f"{name}.log", UNPROXIED)
        server.may_restart = lambda: self.holder.alive and self.file.exists()
        return server

    def run(self, *command: str | Path) -> str:
        """Run a program in the sandbox and return its output. Raises `LocalClusterError`."""
        done = subprocess.run(self._entering(*command), capture_output=True, text=True, check=False)
        if done.returncode:
            words = " ".join(map(str, command))
            raise LocalClusterError(f"{self.name}: {words}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def _entering(self, *command: str | Path) -> list[str | Path]:
        return ["sh", "-c", ENTER, self.file, *command]
