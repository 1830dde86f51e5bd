"""The node and uptime of the demo's virtual machines; compares the forecasts with the outcomes. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import NamedTuple

from kube.paths import Object
from kube.times import moment_or_none
from kube.virtualization.vmis import is_running, node_of
from kube.virtualization.drain_forecast import BLOCKS, MOVES, RESTARTS, STOPS
from localcluster.demo.common import DemoError

BOOTED = "fake-virt/booted"
"""Annotation of a VMI: its boot time and its virt-launcher pod, unchanged until the VMI stops."""


class Uptime(NamedTuple):
    """The node on which a virtual machine runs, and its boot; both are "" while it does not run."""

    node: str = ""
    boot: str = ""


Uptimes = Mapping[str, Uptime]
"""Uptimes by the names of the virtual machines."""


def uptime(instance: Object) -> Uptime:
    """Return the uptime of a VMI."""
    if not is_running(instance):
        return Uptime()
    return Uptime(node_of(instance), str(instance["metadata"]["annotations"][BOOTED]))


def counters(known: Uptimes, now: datetime) -> str:
    """Return one line with the uptime and the node of every virtual machine."""
    return "   ".join(f"{name} {_counter(each, now)}" for name, each in sorted(known.items()))


def _counter(each: Uptime, now: datetime) -> str:
    booted = moment_or_none(each.boot.split()[0]) if each.boot else None
    return f"up {max(0, int((now - booted).total_seconds()))} s on {each.node}" if booted else "down"


def told(before: Uptime, after: Uptime) -> str:
    """Return a description of a virtual machine's latest change, "" if it did not change."""
    if not after.boot:
        return "is shut down" if before.boot else ""
    if not before.boot:
        return f"boots on {after.node}"
    if before.boot != after.boot:
        return f"boots anew on {after.node}"
    return f"moves from {before.node} to {after.node} without a break" if before.node != after.node else ""


def outcomes(node: str, foretold: Mapping[str, str], before: Uptimes, after: Uptimes) -> Iterator[str]:
    """Yield one line per virtual machine: the forecast and the outcome. Raises `DemoError` if they differ."""
    for name, drain in sorted(foretold.items()):
        was, now = before[name], after.get(name, Uptime())
        unbroken = now.boot == was.boot and now.node not in ("", node)
        restarted = now.boot not in ("", was.boot) and now.node != node
        words = {
            MOVES: (unbroken, f"moved to {now.node} without a break"),
            BLOCKS: (unbroken, f"blocked until it could be migrated, then moved to {now.node} without a break"),
            RESTARTS: (restarted, f"was shut down, and started anew on {now.node}"),
            STOPS: (not now.boot, "was shut down, and stays so until somebody starts it"),
        }
        is_so, outcome = words[drain]
        if not is_so:
            raise DemoError(f"of {name} the preview said that it {drain}; it was {was} and is {now}")
        yield f"{name:8} {drain:9} {outcome}"
