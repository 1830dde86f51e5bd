"""How a demo tells its story: headings, lines, and what kubectl says, asked as a person would."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from typing import Any

from localcluster.cluster import LocalCluster
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


def tell(story: Callable[[], int]) -> None:
    """Tell a story; its exit status is the program's, and what went wrong is one line."""
    try:
        sys.exit(story())
    except LocalClusterError as error:
        raise SystemExit(f"error: {error}") from None
    except KeyboardInterrupt:
        say("interrupted; everything that was started is stopped")
        raise SystemExit(130) from None
