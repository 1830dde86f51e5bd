"""Estimates the duration of a drain from recorded drains. Pure functions, which import nothing of the journal."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from statistics import median
from typing import NamedTuple

from kube.text_limits import format_count


class RecordedDrain(NamedTuple):
    """A finished drain of a node, and its duration."""

    node: str
    seconds: float


class RecordedEstimate(NamedTuple):
    """The duration of a drain that recorded drains suggest.

    Attributes:
        seconds: The median of the recorded durations.
        drains: The number of these drains.
        node: The node of all these drains, "" if they are of other nodes.
    """

    seconds: int
    drains: int
    node: str

    def format_source(self) -> str:
        """Return which drains the estimate is based on."""
        return f"{format_count(self.drains, 'recorded drain')} of {self.node or 'other nodes'}"


def estimate_from_drains(drains: Collection[RecordedDrain], nodes: Iterable[str]) -> RecordedEstimate | None:
    """Estimate the duration until all these nodes are drained, which is that of the slowest; None without drains.

    The drains of a node itself count, or those of all other nodes if it was never drained.
    """
    estimates = [estimate for node in nodes if (estimate := _estimate_node(drains, node))]
    return max(estimates, key=lambda estimate: estimate.seconds, default=None)


def _estimate_node(drains: Iterable[RecordedDrain], node: str) -> RecordedEstimate | None:
    all_drains = list(drains)
    own = [drain.seconds for drain in all_drains if drain.node == node]
    durations = own or [drain.seconds for drain in all_drains]
    if not durations:
        return None
    return RecordedEstimate(max(1, round(median(durations))), len(durations), node if own else "")
