"""The node and uptime of the demo's virtual machines; compares the forecasts with the outcomes. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import NamedTuple

from kube.paths import Object
from kube.times import parse_time_or_none
from kube.virtualization.drain_forecast import BLOCKS, MOVES, RESTARTS, STOPS
from kube.virtualization.vmis import get_node_name, is_running
from localcluster.demo.common import DemoError

BOOTED_ANNOTATION = "fake-virt/booted"
"""Annotation of a VMI with its boot time and its virt-launcher pod; it does not change until the VMI stops."""


class Uptime(NamedTuple):
    """The node on which a virtual machine runs, and the id of its boot; both are "" while it does not run."""

    node: str = ""
    boot_id: str = ""


Uptimes = Mapping[str, Uptime]
"""Uptimes by the names of the virtual machines."""


def read_uptime(instance: Object) -> Uptime:
    """Return the uptime of a VMI."""
    if not is_running(instance):
        return Uptime()
    return Uptime(get_node_name(instance), str(instance["metadata"]["annotations"][BOOTED_ANNOTATION]))


def format_uptimes(uptimes: Uptimes, now: datetime) -> str:
    """Return one line with the uptime and the node of every virtual machine."""
    return "   ".join(f"{name} {_format_uptime(uptime, now)}" for name, uptime in sorted(uptimes.items()))


def _format_uptime(uptime: Uptime, now: datetime) -> str:
    booted = parse_time_or_none(uptime.boot_id.split()[0]) if uptime.boot_id else None
    return f"up {max(0, int((now - booted).total_seconds()))} s on {uptime.node}" if booted else "down"


def describe_change(before: Uptime, after: Uptime) -> str:
    """Return a description of a virtual machine's latest change, "" if it did not change."""
    if not after.boot_id:
        return "is shut down" if before.boot_id else ""
    if not before.boot_id:
        return f"boots on {after.node}"
    if before.boot_id != after.boot_id:
        return f"reboots on {after.node}"
    return f"moves from {before.node} to {after.node} without interruption" if before.node != after.node else ""


def check_outcomes(node: str, preview: Mapping[str, str], before: Uptimes, after: Uptimes) -> Iterator[str]:
    """Yield one line per virtual machine: the forecast and the outcome. Raises `DemoError` if they differ."""
    for name, forecast in sorted(preview.items()):
        was, now = before[name], after.get(name, Uptime())
        has_moved = now.boot_id == was.boot_id and now.node not in ("", node)
        has_restarted = now.boot_id not in ("", was.boot_id) and now.node != node
        outcomes = {
            MOVES: (has_moved, f"moved to {now.node} without interruption"),
            BLOCKS: (has_moved, f"blocked until it could be migrated, then moved to {now.node} without interruption"),
            RESTARTS: (has_restarted, f"was shut down, and started again on {now.node}"),
            STOPS: (not now.boot_id, "was shut down, and stays down until a user starts it"),
        }
        has_happened, outcome = outcomes[forecast]
        if not has_happened:
            raise DemoError(
                f'virtual machine "{name}": the preview forecast is {forecast}, but it was {was} and is now {now}'
            )
        yield f"{name:8} {forecast:9} {outcome}"
