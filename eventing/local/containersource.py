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
from eventing.local.outlet import Outlet
from eventing.local.triggers import broker_sink
from eventing.logs import log
from kube.backoff import pauses

PR_SET_PDEATHSIG = 1  # linux/prctl.h
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0
"""Seconds before a child that ended is started again, doubling; after a run of LONGEST_PAUSE it begins anew."""
STOP_SECONDS = 5.0
"""What a child gets between SIGTERM and SIGKILL."""
CONTAINERS = "spec.template.spec.containers"
OWN_HOST = "PORT"
"""The variable that says where a container serves. It is alone there; here many share one host, and none serves."""
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(frozen=True)
class Program:
    """A command line and what it finds in its environment beside ours."""

    command: Sequence[str]
    environment: Mapping[str, str]


class ContainerSource:
    """Keeps one child running; `ready` while it does."""

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
        except (OSError, ValueError) as error:  # no such program; a word or a name that no program can be given
            return f"not started: {error}"
        self.ready = True
        try:
            return f"exit {await child.wait()}"
        finally:
            self.ready = False
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
    """Name to value, of those that have one: what `valueFrom` names is not here."""
    entries = container.get("env") or []
    if not isinstance(entries, list):
        raise document.wrong(f"{CONTAINERS}[0].env", f"must be a list, is {entries!r}")
    for place, entry in enumerate(entries):
        known = [entry.get("name"), entry.get("value", "")] if isinstance(entry, dict) else [None]
        if not all(isinstance(each, str) for each in known):
            raise document.wrong(f"{CONTAINERS}[0].env[{place}]", "must have a name, and a value that is a string")
    return {entry["name"]: entry["value"] for entry in entries if "value" in entry}
