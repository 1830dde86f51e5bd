"""How a demo tells its story: headings, lines, and what kubectl says, with our commands, asked as a person would."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from kube.paths import Object
from kube.words import counted
from localcluster import access
from localcluster.cluster import LocalCluster
from localcluster.servers import ROOT
from localcluster.trouble import LocalClusterError


class DemoError(LocalClusterError):
    """The demo did not show what it promises."""


def title(text: str) -> None:
    """A heading."""
    print(f"\n── {text} " + "─" * max(0, 100 - len(text)))


def say(text: str) -> None:
    """A line of the story."""
    print(f"• {text}")


def show(cluster: LocalCluster, *words: str) -> None:
    """A command of kubectl, and what it says."""
    print(f"$ kubectl {shlex.join(words)}")
    print(kubectl(cluster, *words))


def kubectl(cluster: LocalCluster, *words: str, **more: Any) -> str:
    """What kubectl says. Raises `LocalClusterError`, which quotes it."""
    return str(cluster.kubectl(*words, **more).stdout)


def maintenance(cluster: LocalCluster, *words: str, silent: bool = False) -> str:
    """A command of `kubectl maintenance`, and what it says; its output. Raises `LocalClusterError`, which quotes it."""
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig_for(access.ADMIN))}
    command = [sys.executable, "-m", "console.cli", *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LocalClusterError(f"kubectl maintenance {' '.join(words)}: {done.stderr.strip()}")
    if not silent:
        print(f"$ kubectl maintenance {shlex.join(words)}")
        print(done.stderr + done.stdout)
    return done.stdout


def drain_line(status: Object) -> str:
    """The status of a NodeMaintenance in one line: phase, bar, pending pods, and who is blocked by what."""
    done = int(status.get("drainProgress") or 0)
    bar = "█" * (done // 5) + "░" * (20 - done // 5)
    blocked = [f"{item['name']}: {item['message']}" for item in status.get("blockedPods") or []]
    why = f"; {len(blocked)} blocked, e.g. {blocked[0]}" if blocked else ""
    left = counted(status["pendingCount"], "pod") if "pendingCount" in status else "? pods"
    return f"{status.get('phase') or 'new':9} {bar} {done:3d} %  {left} left{why}"


def tell(story: Callable[[], int]) -> None:
    """Tell a story; its exit status is the program's, and what went wrong is one line."""
    try:
        sys.exit(story())
    except LocalClusterError as error:
        raise SystemExit(f"error: {error}") from None
    except KeyboardInterrupt:
        say("interrupted; everything that was started is stopped")
        raise SystemExit(130) from None
