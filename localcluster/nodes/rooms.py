"""A room is a set of namespaces with a process that holds them; servers run in it, and end with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from localcluster.processes import Server, await_ready
from localcluster.servers import UNPROXIED
from localcluster.trouble import LocalClusterError

PROGRAM = Path(__file__).with_name("namespaces.py")
ENTER = 'exec nsenter --target "$(cat "$0")" --mount --uts --ipc --net --pid -- "$@"'
"""The process that holds a room is another one when it was started again, so its number is read each time."""


class Room:
    """In: its name, a folder of its own, and what a shell does outside, with the first process in $PID, and inside."""

    def __init__(self, name: str, folder: Path, outside: str, inside: str) -> None:
        folder.mkdir(parents=True)
        (folder / "outside").write_text(outside)
        (folder / "inside").write_text(inside)
        self.name, self.folder = name, folder
        self.file = folder / "pid"
        self.holder = Server(name, [sys.executable, "-I", "-S", PROGRAM, folder, name], folder / "room.log")

    def open(self) -> None:
        """Make it; return when servers can be started in it."""
        self.holder.start()
        await_ready(f"the namespaces of {self.name}", self.file.exists, [self.holder], 30)

    def close(self) -> None:
        """End it, and all that is in it."""
        self.holder.kill()

    def server(self, name: str, *command: str | Path) -> Server:
        """Give a server that runs in it, from where it reaches no proxy, and logs into its folder."""
        server = Server(f"{self.name}-{name}", self._entering(*command), self.folder / f"{name}.log", UNPROXIED)
        server.may_restart = lambda: self.holder.alive and self.file.exists()
        return server

    def run(self, *command: str | Path) -> str:
        """Run a program in it to its end; gives what it prints. Raises `LocalClusterError`."""
        done = subprocess.run(self._entering(*command), capture_output=True, text=True, check=False)
        if done.returncode:
            words = " ".join(map(str, command))
            raise LocalClusterError(f"{self.name}: {words}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def _entering(self, *command: str | Path) -> list[str | Path]:
        return ["sh", "-c", ENTER, self.file, *command]
