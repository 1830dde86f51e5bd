"""Estimates the duration of a drain from recorded drains. Pure functions that do not import the journal's modules."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from statistics import median
from typing import NamedTuple

from kube.text_limits import format_count


class RecordedDrain(NamedTuple):
    """A finished drain: its node and its duration."""

    node: str
    seconds: float


class RecordedEstimate(NamedTuple):
    """Estimated duration of a drain, based on recorded drains.

    Attributes:
        seconds: The median duration of the recorded drains.
        drains: The number of recorded drains.
        node: The node's name if the recorded drains are its own; "" if they are drains of other nodes.
    """

    seconds: int
    drains: int
    node: str

    def format_source(self) -> str:
        """Return the basis of the estimate as text, such as `3 recorded drains of node-1`."""
        return f"{format_count(self.drains, 'recorded drain')} of {self.node or 'other nodes'}"


def estimate_from_drains(drains: Collection[RecordedDrain], nodes: Iterable[str]) -> RecordedEstimate | None:
    """Estimate the time until all these nodes are drained, which is the slowest node's; return None without drains.

    A node's estimate is based on its own recorded drains, or on those of all other nodes if it has none.
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
