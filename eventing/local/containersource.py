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

from eventing.local.manifests import Document
from eventing.local.outlet import Outlet
from eventing.local.triggers import broker_sink
from eventing.logs import log
from kube.backoff import pauses

PR_SET_PDEATHSIG = 1  # linux/prctl.h
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0
"""Seconds before a child that ended is started again, doubling; after a run of LONGEST_PAUSE it begins anew."""
STOP_SECONDS = 5.0
"""What a child gets between SIGTERM and SIGKILL."""
OWN_HOST = "PORT"
"""The variable that says where a container serves. It is alone there; here many share one host, and none serves."""
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(frozen=True)
class Program:
    """A command line and what it finds in its environment beside ours."""

    command: Sequence[str]
    environment: Mapping[str, str]


class ContainerSource:
    """Keeps one child running."""

    def __init__(self, name: str, program: Program) -> None:
        self.name = name
        self.ready = False
        self._program = program

    async def run(self, outlet: Outlet) -> None:
        """Start the child, and again whenever it ends; stop it when cancelled."""
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
        """Start the child and await its end; returns how it ended."""
        try:
            child = await asyncio.create_subprocess_exec(
                *self._program.command,
                env={**os.environ, **self._program.environment, "K_SINK": outlet.url},
                stdin=asyncio.subprocess.DEVNULL,
                preexec_fn=_die_with(os.getpid()),
            )
        except OSError as error:
            return f"not started: {error}"
        self.ready = True
        try:
            return f"exit {await child.wait()}"
        finally:
            await _stop(child)


def _die_with(parent: int) -> Callable[[], None] | None:
    """What the child does before its program: ask Linux for SIGKILL at our end, however we end. Elsewhere there is no
    such thing, and a child outlives a broker that was killed."""
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
    """The source that a manifest describes; `kubeconfig` is the child's identity, ours when None."""
    document.only("spec", {"template", "sink"})
    broker_sink(document)
    found = program(document)
    identity = {"KUBECONFIG": kubeconfig} if kubeconfig else {}
    return ContainerSource(document.name, Program(found.command, {**identity, **found.environment}))


def program(document: Document) -> Program:
    """What the one container of the source would run; it is told no port to serve at."""
    containers = document.need("spec.template.spec.containers", list)
    if len(containers) != 1 or not isinstance(containers[0], dict):
        raise document.wrong("spec.template.spec.containers", "must be one container")
    container = containers[0]
    command = [str(word) for word in [*(container.get("command") or []), *(container.get("args") or [])]]
    if not container.get("command"):
        raise document.wrong("spec.template.spec.containers[0].command", "is missing: an image has no meaning here")
    if command[0] in ("python", "python3"):
        command[0] = sys.executable
    entries = container.get("env") or []
    environment = {entry["name"]: str(entry["value"]) for entry in entries if "value" in entry}
    return Program(command, {**environment, OWN_HOST: ""})
