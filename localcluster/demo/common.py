"""Helpers of the demos: headings, progress lines, and commands that are printed with their output."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from kube.client.api_errors import ApiError
from kube.maintenance.groups import MEDIK8S
from kube.paths import Object
from kube.text_limits import counted
from localcluster import access
from localcluster.cluster import LocalCluster
from localcluster.servers import ROOT
from localcluster.errors import LocalClusterError

ENDINGS = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a demo besides Ctrl-C: SIGTERM, and the SIGHUP of a terminal that closes."""


class DemoError(LocalClusterError):
    """An unexpected result in a demo."""


def title(text: str) -> None:
    """Print a heading."""
    print(f"\n── {text} " + "─" * max(0, 100 - len(text)))


def say(text: str) -> None:
    """Print a progress line."""
    print(f"• {text}")


def show(cluster: LocalCluster, *words: str) -> None:
    """Print a kubectl command and its output."""
    print(f"$ kubectl {shlex.join(words)}")
    print(kubectl(cluster, *words))


def kubectl(cluster: LocalCluster, *words: str, **more: Any) -> str:
    """Return the output of kubectl. Raises `LocalClusterError`, which quotes kubectl's error."""
    return str(cluster.kubectl(*words, **more).stdout)


def maintenance(cluster: LocalCluster, *words: str, silent: bool = False) -> str:
    """Run `kubectl maintenance`, print the command and its output unless `silent`, and return its standard output.

    Raises `LocalClusterError`, which quotes the error output.
    """
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig_for(access.ADMIN))}
    command = [sys.executable, "-m", "console.cli", *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LocalClusterError(f"kubectl maintenance {' '.join(words)}: {done.stderr.strip()}")
    if not silent:
        print(f"$ kubectl maintenance {shlex.join(words)}")
        print(done.stderr + done.stdout)
    return done.stdout


def apply_maintenance(cluster: LocalCluster, name: str, node: str) -> str:
    """Create a NodeMaintenance with `kubectl apply`; return kubectl's error output, which contains the warnings."""
    kind = {"apiVersion": MEDIK8S.api_version, "kind": "NodeMaintenance"}
    spec = {"nodeName": node, "reason": "a new power supply"}
    text = json.dumps({**kind, "metadata": {"name": name}, "spec": spec})
    print(f"$ kubectl apply -f - <<< '{text}'")
    done = cluster.kubectl("apply", "-f", "-", input=text, check=False)
    print(done.stderr + done.stdout, end="")
    return str(done.stderr)


def follow_drain(cluster: LocalCluster, name: str, seconds: float, line: Callable[[float, str], None]) -> float:
    """Print each change of a NodeMaintenance's status until it is Succeeded; return the seconds since the call.

    Raises `DemoError` if the maintenance fails, and `LocalClusterError` after `seconds` without a change.

    Args:
        name: The name of the NodeMaintenance.
        seconds: The longest allowed time without a change.
        line: Prints a line; also gets the seconds since the call.
    """
    started, shown = time.monotonic(), ""
    for change in cluster.watch(MEDIK8S.path, fields=f"metadata.name={name}", seconds=seconds):
        status = change.object.get("status") or {}
        if (news := drain_line(status)) != shown:
            line(time.monotonic() - started, news)
            shown = news
        if status.get("phase") == "Succeeded":
            return time.monotonic() - started
        if status.get("phase") == "Failed":
            raise DemoError(f"the maintenance failed: {status.get('lastError')}")
    raise DemoError("the drain fell silent")


def drain_line(status: Object) -> str:
    """Return the status of a NodeMaintenance as one line: phase, progress bar, pending pods and a blocked pod."""
    done = int(status.get("drainProgress") or 0)
    bar = "█" * (done // 5) + "░" * (20 - done // 5)
    blocked = [f"{item['name']}: {item['message']}" for item in status.get("blockedPods") or []]
    why = f"; {len(blocked)} blocked, e.g. {blocked[0]}" if blocked else ""
    left = counted(status["pendingCount"], "pod") if "pendingCount" in status else "? pods"
    return f"{status.get('phase') or 'new':9} {bar} {done:3d} %  {left} left{why}"


def tell(story: Callable[[], int]) -> None:
    """Run a demo and exit with its status; print an error as one line."""
    try:
        with _interruptible():
            sys.exit(story())
    except (LocalClusterError, ApiError, OSError) as error:
        raise SystemExit(f"error: {error}") from None
    except KeyboardInterrupt as interrupt:
        with contextlib.suppress(OSError):  # the terminal may have closed
            say("interrupted; everything that was started is stopped")
        raise SystemExit(128 + next(iter(interrupt.args), signal.SIGINT)) from None


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Handle `ENDINGS` like Ctrl-C, so that the cleanup runs.

    A signal that is ignored, as under nohup, stays ignored.
    """
    before = {number: signal.getsignal(number) for number in ENDINGS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: object) -> None:
    for each in ENDINGS:  # a second signal would abort the cleanup
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt(number)
