"""Runs servers in sandboxes: sets of Linux namespaces, each kept alive by one process, with which the servers end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from localcluster.errors import LocalClusterError
from localcluster.processes import Server, wait_until_ready
from localcluster.servers import NO_PROXY_ALL_ENV

HOLDER_PROGRAM = Path(__file__).with_name("namespace_holder.py")
ENTER_COMMAND = 'exec nsenter --target "$(cat "$0")" --mount --uts --ipc --net --pid -- "$@"'
"""Shell command that enters the namespaces; it reads the pid file each time, because a restart changes the id."""


class Sandbox:
    """A set of Linux namespaces in which servers can run.

    Args:
        name: The sandbox's name.
        directory: A directory that only this sandbox uses.
        outside_script: Shell script that runs in the original namespaces, with the sandbox's first process in $PID.
        inside_script: Shell script that runs in the sandbox's namespaces.
    """

    def __init__(self, name: str, directory: Path, outside_script: str, inside_script: str) -> None:
        directory.mkdir(parents=True)
        (directory / "outside").write_text(outside_script)
        (directory / "inside").write_text(inside_script)
        self.name, self.directory = name, directory
        self.pid_file = directory / "pid"
        self.holder = Server(
            name, [sys.executable, "-I", "-S", HOLDER_PROGRAM, directory, name], directory / "namespaces.log"
        )

    def start(self) -> None:
        """Create the namespaces; return when servers can start in them."""
        self.holder.start()
        wait_until_ready(f"the namespaces of {self.name}", self.pid_file.exists, [self.holder], 30)

    def kill(self) -> None:
        """Kill all processes in the sandbox."""
        self.holder.kill()

    def build_server(self, name: str, *command: str | Path) -> Server:
        """Build a server that runs in the sandbox without a proxy, and logs to the sandbox's directory."""
        server = Server(
            f"{self.name}-{name}", self._build_enter_command(*command), self.directory / f"{name}.log", NO_PROXY_ALL_ENV
        )
        server.may_restart = lambda: self.holder.is_alive and self.pid_file.exists()
        return server

    def run(self, *command: str | Path) -> str:
        """Run a program in the sandbox and return its output. Raises `LocalClusterError` if it fails."""
        done = subprocess.run(self._build_enter_command(*command), capture_output=True, text=True, check=False)
        if done.returncode:
            command_line = " ".join(map(str, command))
            raise LocalClusterError(f"{self.name}: {command_line}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def _build_enter_command(self, *command: str | Path) -> list[str | Path]:
        return ["sh", "-c", ENTER_COMMAND, self.pid_file, *command]
