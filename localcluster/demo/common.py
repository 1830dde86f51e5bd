"""Helpers for the demos: headings, progress lines, and commands that are printed with their output."""

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
from kube.text_limits import format_count
from localcluster import access
from localcluster.cluster import LocalCluster
from localcluster.errors import LocalClusterError
from localcluster.servers import ROOT

TERMINATION_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a demo besides Ctrl-C: SIGTERM, and the SIGHUP of a terminal that closes."""


class DemoError(LocalClusterError):
    """An unexpected result in a demo."""


def print_heading(text: str) -> None:
    """Print a heading."""
    print(f"\n── {text} " + "─" * max(0, 100 - len(text)))


def print_line(text: str) -> None:
    """Print a progress line."""
    print(f"• {text}")


def show_kubectl(cluster: LocalCluster, *arguments: str) -> None:
    """Run kubectl, and print the command and its output."""
    print(f"$ kubectl {shlex.join(arguments)}")
    print(run_kubectl(cluster, *arguments))


def run_kubectl(cluster: LocalCluster, *arguments: str, **options: Any) -> str:
    """Run kubectl and return its standard output. Raises `LocalClusterError`, which quotes kubectl's error output."""
    return str(cluster.kubectl(*arguments, **options).stdout)


def run_maintenance_command(cluster: LocalCluster, *arguments: str, quiet: bool = False) -> str:
    """Run `kubectl maintenance`, print the command and its output unless `quiet`, and return its standard output.

    Raises `LocalClusterError`, which quotes the error output.
    """
    environment = {**os.environ, "KUBECONFIG": str(cluster.ensure_kubeconfig(access.ADMIN))}
    command = [sys.executable, "-m", "console.cli", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LocalClusterError(f"kubectl maintenance {' '.join(arguments)}: {done.stderr.strip()}")
    if not quiet:
        print(f"$ kubectl maintenance {shlex.join(arguments)}")
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


def follow_drain(cluster: LocalCluster, name: str, timeout: float, on_change: Callable[[float, str], None]) -> float:
    """Pass each change of a NodeMaintenance's status to `on_change` until its phase is Succeeded; return the seconds.

    Raises `DemoError` if the phase is Failed, and `LocalClusterError` after `timeout` seconds without a change.

    Args:
        name: The name of the NodeMaintenance.
        timeout: The longest allowed time without a change, in seconds.
        on_change: Called with the seconds since `follow_drain` was called, and the line to print.
    """
    started, printed = time.monotonic(), ""
    for change in cluster.watch(MEDIK8S.path, fields=f"metadata.name={name}", timeout=timeout):
        status = change.object.get("status") or {}
        if (line := format_drain_status(status)) != printed:
            on_change(time.monotonic() - started, line)
            printed = line
        if status.get("phase") == "Succeeded":
            return time.monotonic() - started
        if status.get("phase") == "Failed":
            raise DemoError(f'NodeMaintenance "{name}" failed: {status.get("lastError")}')
    raise DemoError(f'NodeMaintenance "{name}": the watch ended before the drain ended')


def format_drain_status(status: Object) -> str:
    """Return the status of a NodeMaintenance as one line: phase, progress bar, pending pods, and one blocked pod."""
    done = int(status.get("drainProgress") or 0)
    bar = "█" * (done // 5) + "░" * (20 - done // 5)
    blocked = [f"{item['name']}: {item['message']}" for item in status.get("blockedPods") or []]
    blocked_text = f"; {len(blocked)} blocked, e.g. {blocked[0]}" if blocked else ""
    pending = format_count(status["pendingCount"], "pod") if "pendingCount" in status else "? pods"
    return f"{status.get('phase') or 'new':9} {bar} {done:3d} %  {pending} left{blocked_text}"


def run_demo(demo: Callable[[], int]) -> None:
    """Run a demo and exit with its status; print an error as one line."""
    try:
        with _handle_signals():
            sys.exit(demo())
    except (LocalClusterError, ApiError, OSError) as error:
        raise SystemExit(f"error: {error}") from None
    except KeyboardInterrupt as interrupt:
        with contextlib.suppress(OSError):  # The terminal may have closed.
            print_line("interrupted; everything that was started is stopped")
        raise SystemExit(128 + next(iter(interrupt.args), signal.SIGINT)) from None


@contextlib.contextmanager
def _handle_signals() -> Iterator[None]:
    """Handle `TERMINATION_SIGNALS` like Ctrl-C, so that the cleanup runs.

    A signal that is ignored, as under nohup, stays ignored.
    """
    before = {number: signal.getsignal(number) for number in TERMINATION_SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _handle_termination_signal)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _handle_termination_signal(number: int, frame: object) -> None:
    for termination_signal in TERMINATION_SIGNALS:  # A second signal would abort the cleanup.
        signal.signal(termination_signal, signal.SIG_IGN)
    raise KeyboardInterrupt(number)
