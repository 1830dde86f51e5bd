"""ContainerSource for the local delivery: runs the container's command as a child process that emits to `$K_SINK`."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eventing.local.envelope import EmitEvent
from eventing.local.manifests import Document, require_broker_sink
from eventing.logs import log
from kube.backoff import generate_delays

PR_SET_PDEATHSIG = 1  # linux/prctl.h
MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.5, 10.0
"""Initial and maximum seconds until a child process that exited is restarted; the delay doubles each time.

The delay is reset after a child process has run for longer than `MAX_BACKOFF_SECONDS`.
"""
STOP_TIMEOUT_SECONDS = 5.0
"""Seconds between SIGTERM and SIGKILL for a child process."""
CONTAINERS_FIELD = "spec.template.spec.containers"
PORT_VARIABLE = "PORT"
"""Environment variable with the port on which a container serves HTTP.

In a pod, the container can use any port. The child processes of the local delivery share one host, so none of them gets
a port.
"""
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(frozen=True)
class ContainerCommand:
    """A command line, and environment variables in addition to those of this process."""

    command: Sequence[str]
    variables: Mapping[str, str]


class ContainerSource:
    """Keeps one child process running; `is_ready` is true while it runs."""

    def __init__(self, name: str, command: ContainerCommand) -> None:
        self.name = name
        self.is_ready = False
        self._command = command

    async def run(self, emit: EmitEvent, sink_url: str) -> None:
        """Start the child process, restart it whenever it exits, and stop it on cancellation."""
        backoff = generate_delays(MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
        while True:
            started = time.monotonic()
            status = await self._run_child(sink_url)
            if time.monotonic() - started > MAX_BACKOFF_SECONDS:
                backoff = generate_delays(MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
            pause = next(backoff)
            log("source process exited, restarting", logging.WARNING, source=self.name, status=status, pause=pause)
            await asyncio.sleep(pause)

    async def _run_child(self, sink_url: str) -> str:
        """Run the child process until it exits; return its exit status, or why it did not start."""
        try:
            child = await asyncio.create_subprocess_exec(
                *self._command.command,
                env={**os.environ, **self._command.variables, "K_SINK": sink_url},
                stdin=asyncio.subprocess.DEVNULL,
                preexec_fn=_build_pdeathsig_hook(os.getpid()),
            )
        except (OSError, ValueError) as error:  # the program does not exist, or an argument or variable is invalid
            return f"not started: {error}"
        self.is_ready = True
        try:
            return f"exit {await child.wait()}"
        finally:
            self.is_ready = False
            await _stop_child(child)


def _build_pdeathsig_hook(parent_pid: int) -> Callable[[], None] | None:
    """Return the child's `preexec_fn`, which ties the child process to the lifetime of this process.

    On Linux, the function requests SIGKILL for the child process when this process exits for any reason. Other systems
    lack this mechanism: the result is None, and a child process survives if this process is killed.
    """
    libc = LIBC
    if libc is None:
        return None

    def set_pdeathsig() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_pid:
            os._exit(1)

    return set_pdeathsig


async def _stop_child(child: Process) -> None:
    if child.returncode is not None:
        return
    child.terminate()
    try:
        await asyncio.wait_for(child.wait(), STOP_TIMEOUT_SECONDS)
    except asyncio.TimeoutError:
        child.kill()
        await child.wait()


def parse_source(document: Document, kubeconfig: str | None) -> ContainerSource:
    """Build the source from a manifest; its child process uses `kubeconfig`, or this process's kubeconfig if None."""
    document.refuse_unknown_fields("spec", {"template", "sink"})
    require_broker_sink(document)
    container = parse_command(document)
    identity = {"KUBECONFIG": kubeconfig} if kubeconfig else {}
    return ContainerSource(document.name, ContainerCommand(container.command, {**identity, **container.variables}))


def parse_command(document: Document) -> ContainerCommand:
    """Return the command of the source's only container; `$PORT` is set to "", so that the command serves no port."""
    containers = document.require(CONTAINERS_FIELD, list)
    if len(containers) != 1 or not isinstance(containers[0], dict):
        raise document.build_error(CONTAINERS_FIELD, "must have exactly one container")
    command, args = (_parse_string_list(document, containers[0], name) for name in ("command", "args"))
    if not command:
        raise document.build_error(
            f"{CONTAINERS_FIELD}[0].command", "is missing: the local delivery cannot run an image"
        )
    if command[0] in ("python", "python3"):
        command[0] = sys.executable
    return ContainerCommand([*command, *args], {**_parse_variables(document, containers[0]), PORT_VARIABLE: ""})


def _parse_string_list(document: Document, container: Mapping[str, Any], field: str) -> list[str]:
    values = container.get(field) or []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise document.build_error(f"{CONTAINERS_FIELD}[0].{field}", f"must be a list of strings, is {values!r}")
    return list(values)


def _parse_variables(document: Document, container: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables by name, except for those with `valueFrom`, because its source does not exist here."""
    entries = container.get("env") or []
    if not isinstance(entries, list):
        raise document.build_error(f"{CONTAINERS_FIELD}[0].env", f"must be a list, is {entries!r}")
    for index, entry in enumerate(entries):
        fields = [entry.get("name"), entry.get("value", "")] if isinstance(entry, dict) else [None]
        if not all(isinstance(field, str) for field in fields):
            raise document.build_error(
                f"{CONTAINERS_FIELD}[0].env[{index}]", "must have a name and a value, both strings"
            )
    return {entry["name"]: entry["value"] for entry in entries if "value" in entry}
