"""Builds the process that serves functions: gunicorn's command line and environment, the same on every engine."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from eventing import endpoints
from localcluster.processes import Server
from localcluster.servers import LOOPBACK, NO_PROXY_LOCAL_ENV, ROOT

GUNICORN_COMMAND = ("gunicorn", "-c", "functions/gunicorn.conf.py", "functions.app:create_app()")
"""The image's command (see the Dockerfile), which runs in the directory of the sources."""
MALLOC_ENV = {"MALLOC_ARENA_MAX": "2"}
"""The image's setting for the C library, which saves memory if many threads allocate."""
CLEARED_ENV = {"DATABASE_URL": "", "GUNICORN_CMD_ARGS": ""}
"""Clears variables of the user's shell that would change the journal's database or the server's address."""


def build_command() -> list[str | Path]:
    """Return the image's command with this host's Python."""
    return [sys.executable, "-m", *GUNICORN_COMMAND]


def build_bind_env(port: int) -> dict[str, str]:
    """Return the variable that makes the server listen on a loopback port."""
    return {"BIND": f"{LOOPBACK}:{port}"}


@dataclass(frozen=True)
class FunctionConfig:
    """The configuration that all functions share.

    Attributes:
        sink_url: The URL to which events are posted.
        journal: The file or URL of the journal.
        record_url: The address of the function `record`.
        signing_key: The secret that signs events; "" disables signing.
        token_file: The file with the sink's token, which may be absent; "" if a SinkBinding mounts the token.
    """

    sink_url: str
    journal: str
    record_url: str
    signing_key: str = ""
    token_file: str = ""

    def build_environment(self) -> dict[str, str]:
        """Return the environment variables that the functions read."""
        variables = {
            "K_SINK": self.sink_url,
            "JOURNAL": self.journal,
            "RECORD": self.record_url,
            "SIGNING_KEY": self.signing_key,
        }
        return {**variables, endpoints.TOKEN_FILE_VARIABLE: self.token_file}


def build_function_server(
    name: str, port: int, log: Path, kubeconfig: Path, config: FunctionConfig, function: str = "", sources: Path = ROOT
) -> Server:
    """Return the process that serves one function, or all functions if `function` is "".

    Args:
        name: The name of the process.
        port: The loopback port.
        log: The log file.
        kubeconfig: The credentials of the function.
        config: The shared configuration.
        function: The name of the function.
        sources: The directory of the sources to run.
    """
    variables = {"KUBECONFIG": str(kubeconfig), "FUNCTION": function, **build_bind_env(port)}
    return Server(
        name,
        build_command(),
        log,
        {**NO_PROXY_LOCAL_ENV, **CLEARED_ENV, **MALLOC_ENV, **config.build_environment(), **variables},
        sources,
    )
