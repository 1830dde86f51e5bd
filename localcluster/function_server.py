"""The process that serves functions: gunicorn's command line and environment, the same on every engine."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from eventing import sinks
from localcluster.processes import Server
from localcluster.servers import DIRECT, LOOPBACK, ROOT

SERVE = ("gunicorn", "-c", "functions/gunicorn.conf.py", "functions.app:create_app()")
"""The image's command (see the Dockerfile), which runs in the directory of the sources."""
THRIFT = {"MALLOC_ARENA_MAX": "2"}
"""The image's setting for the C library, which saves some MiB if many threads allocate."""
FOREIGN = {"DATABASE_URL": "", "GUNICORN_CMD_ARGS": ""}
"""Clears variables of the user's shell that would change the journal's database or the server's address."""


def command() -> list[str | Path]:
    """Return the image's command as it runs on this host."""
    return [sys.executable, "-m", *SERVE]


def listening(port: int) -> dict[str, str]:
    """Return the variable that makes the server listen on a loopback port."""
    return {"BIND": f"{LOOPBACK}:{port}"}


@dataclass(frozen=True)
class Wiring:
    """The configuration that all functions share.

    Attributes:
        sink: The URL to which events are posted.
        journal: The file or URL of the journal.
        record: The address of the function `record`.
        key: The secret that signs events; "" disables signing.
        token: The file with the token for the sink, which may be absent; "" if a SinkBinding mounts it.
    """

    sink: str
    journal: str
    record: str
    key: str = ""
    token: str = ""

    def environment(self) -> dict[str, str]:
        """Return the environment variables that the functions read."""
        known = {"K_SINK": self.sink, "JOURNAL": self.journal, "RECORD": self.record, "SIGNING_KEY": self.key}
        return {**known, sinks.FILE: self.token}


def function_server(
    name: str, port: int, log: Path, kubeconfig: Path, wiring: Wiring, function: str = "", sources: Path = ROOT
) -> Server:
    """Return the process that serves one function, or all functions if `function` is "".

    Args:
        name: The name of the process.
        port: The loopback port.
        log: The log file.
        kubeconfig: The credentials of the function.
        wiring: The shared configuration.
        function: The name of the function.
        sources: The directory of the sources to run.
    """
    own = {"KUBECONFIG": str(kubeconfig), "FUNCTION": function, **listening(port)}
    return Server(name, command(), log, {**DIRECT, **FOREIGN, **THRIFT, **wiring.environment(), **own}, sources)
