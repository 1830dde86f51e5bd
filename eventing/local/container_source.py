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

from eventing.local.manifests import Document
from eventing.local.source_sink import Outlet
from eventing.local.triggers import broker_sink
from eventing.logs import log
from kube.backoff import pauses

PR_SET_PDEATHSIG = 1  # linux/prctl.h
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0
"""Initial and maximum seconds before an ended child is restarted, doubling.

The backoff is reset after a child has run for longer than LONGEST_PAUSE.
"""
STOP_SECONDS = 5.0
"""Seconds that a child has between SIGTERM and SIGKILL."""
CONTAINERS = "spec.template.spec.containers"
OWN_HOST = "PORT"
"""Environment variable with the port at which a container serves HTTP.

In a pod the container can use any port. Here all children share one host, so none of them gets a port.
"""
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(frozen=True)
class Program:
    """A command line, and its environment variables in addition to those of this process."""

    command: Sequence[str]
    environment: Mapping[str, str]


class ContainerSource:
    """Keeps one child process running; `ready` is true while it runs."""

    def __init__(self, name: str, program: Program) -> None:
        self.name = name
        self.ready = False
        self._program = program

    async def run(self, outlet: Outlet) -> None:
        """Start the child, restart it whenever it ends, and stop it on cancellation."""
        backoff = pauses(FIRST_PAUSE, LONGEST_PAUSE)
        while True:
            started = time.monotonic()
            status = await self._run_once(outlet)
            if time.monotonic() - started > LONGEST_PAUSE:
                backoff = pauses(FIRST_PAUSE, LONGEST_PAUSE)
            pause = next(backoff)
            log("source ended", logging.WARNING, source=self.name, status=status, pause=pause)
            await asyncio.sleep(pause)

    async def _run_once(self, outlet: Outlet) -> str:
        """Start the child, wait for its end, and return how it ended."""
        try:
            child = await asyncio.create_subprocess_exec(
                *self._program.command,
                env={**os.environ, **self._program.environment, "K_SINK": outlet.url},
                stdin=asyncio.subprocess.DEVNULL,
                preexec_fn=_die_with(os.getpid()),
            )
        except (OSError, ValueError) as error:  # program not found; invalid argument or variable, such as one with NUL
            return f"not started: {error}"
        self.ready = True
        try:
            return f"exit {await child.wait()}"
        finally:
            self.ready = False
            await _stop(child)


def _die_with(parent: int) -> Callable[[], None] | None:
    """Return a function that the child runs before its program, so that the child ends with this process.

    On Linux it requests SIGKILL for the child when this process ends, for whatever reason. Other systems lack this
    mechanism: there the result is None, and a child outlives a broker that was killed.
    """
    libc = LIBC
    if libc is None:
        return None

    def tie() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return tie


async def _stop(child: Process) -> None:
    if child.returncode is not None:
        return
    child.terminate()
    try:
        await asyncio.wait_for(child.wait(), STOP_SECONDS)
    except asyncio.TimeoutError:
        child.kill()
        await child.wait()


def read(document: Document, kubeconfig: str | None) -> ContainerSource:
    """Build the source from a manifest; `kubeconfig` is the child's identity, None for this process's own."""
    document.only("spec", {"template", "sink"})
    broker_sink(document)
    found = program(document)
    identity = {"KUBECONFIG": kubeconfig} if kubeconfig else {}
    return ContainerSource(document.name, Program(found.command, {**identity, **found.environment}))


def program(document: Document) -> Program:
    """Return the program of the source's only container, without a port to serve."""
    containers = document.need(CONTAINERS, list)
    if len(containers) != 1 or not isinstance(containers[0], dict):
        raise document.wrong(CONTAINERS, "must be one container")
    command, args = (_words(document, containers[0], name) for name in ("command", "args"))
    if not command:
        raise document.wrong(f"{CONTAINERS}[0].command", "is missing: an image has no meaning here")
    if command[0] in ("python", "python3"):
        command[0] = sys.executable
    return Program([*command, *args], {**_environment(document, containers[0]), OWN_HOST: ""})


def _words(document: Document, container: Mapping[str, Any], name: str) -> list[str]:
    words = container.get(name) or []
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise document.wrong(f"{CONTAINERS}[0].{name}", f"must be a list of strings, is {words!r}")
    return list(words)


def _environment(document: Document, container: Mapping[str, Any]) -> dict[str, str]:
    """Return variable names and values; entries with `valueFrom` are left out: what they refer to is not here."""
    entries = container.get("env") or []
    if not isinstance(entries, list):
        raise document.wrong(f"{CONTAINERS}[0].env", f"must be a list, is {entries!r}")
    for place, entry in enumerate(entries):
        known = [entry.get("name"), entry.get("value", "")] if isinstance(entry, dict) else [None]
        if not all(isinstance(each, str) for each in known):
            raise document.wrong(f"{CONTAINERS}[0].env[{place}]", "must have a name, and a value that is a string")
    return {entry["name"]: entry["value"] for entry in entries if "value" in entry}
