"""The process that serves functions: gunicorn's command line and environment, alike on every engine."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from eventing import sinks
from localcluster.processes import Server
from localcluster.servers import DIRECT, LOOPBACK, ROOT

SERVE = ("gunicorn", "-c", "functions/gunicorn.conf.py", "functions.app:create_app()")
"""What the image runs when a container names no command (see the Dockerfile), in the folder of the sources."""
THRIFT = {"MALLOC_ARENA_MAX": "2"}
"""What the image tells the C library: some MiB less, where many threads take turns."""
FOREIGN = {"DATABASE_URL": "", "GUNICORN_CMD_ARGS": ""}
"""What a shell may have for programs of its own: a journal in somebody's database, a server on another address."""


def command() -> list[str | Path]:
    """Give the image's command as it is run on this machine."""
    return [sys.executable, "-m", *SERVE]


def listening(port: int) -> dict[str, str]:
    """Give the variable that has it listen on a port of this machine alone."""
    return {"BIND": f"{LOOPBACK}:{port}"}


@dataclass(frozen=True)
class Wiring:
    """What every function is told beside who it is.

    Attributes:
        sink: where events are posted.
        journal: file or URL of the journal.
        record: the address of the function `record`.
        key: the secret that events are signed with; "" signs none.
        token: the file with the token for the sink, which need not be there; "" where a SinkBinding mounts it.
    """

    sink: str
    journal: str
    record: str
    key: str = ""
    token: str = ""

    def environment(self) -> dict[str, str]:
        """Give it as the functions read it."""
        known = {"K_SINK": self.sink, "JOURNAL": self.journal, "RECORD": self.record, "SIGNING_KEY": self.key}
        return {**known, sinks.FILE: self.token}


def function_server(
    name: str, port: int, log: Path, kubeconfig: Path, wiring: Wiring, function: str = "", sources: Path = ROOT
) -> Server:
    """Give the process that serves one function, or all if none is named; in: also the folder of the sources."""
    own = {"KUBECONFIG": str(kubeconfig), "FUNCTION": function, **listening(port)}
    return Server(name, command(), log, {**DIRECT, **FOREIGN, **THRIFT, **wiring.environment(), **own}, sources)
