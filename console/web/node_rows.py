"""A node as a row of the console's list: its state, and the action that it offers. Pure functions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from console.operations.descriptions import full_name, held_up, phase_word
from kube.maintenance.objects import (
    FAILED,
    RUNNING,
    SUCCEEDED,
    Maintenance,
    is_deleting,
    is_over,
    node_name,
    spec_of,
    standing,
    status_of,
)
from kube.nodes import is_cordoned, is_labelled, natural
from kube.paths import Object
from kube.pods import is_ready

START, STOP = "start", "stop"
STATES = {RUNNING: "Draining", SUCCEEDED: "Drained", "Ending": "Coming back", "Waiting": "Starting"}
"""Phase word → text in the list."""
TONES = {RUNNING: "busy", SUCCEEDED: "done", FAILED: "bad", "Ending": "busy", "Waiting": "busy"}
"""Phase word → CSS class of its color."""

BY_HAND = "Cordoned by hand: there is no maintenance to stop. kubectl maintenance uncordon ends the cordon."
LEFT = "Left so by a maintenance that is gone: it is given back by itself, at once by kubectl maintenance uncordon."


@dataclass(frozen=True)
class NodeFacts:
    """The fields of a Node that the console shows; changes to other fields are not published."""

    name: str
    ready: bool
    cordoned: bool
    version: str
    taints: tuple[str, ...]
    labelled: bool = False

    @classmethod
    def of(cls, node: Object) -> NodeFacts:
        """Extract these fields from a Node object."""
        info = (node.get("status") or {}).get("nodeInfo") or {}
        taints = tuple(f"{taint['key']}:{taint['effect']}" for taint in node["spec"].get("taints") or [])
        version = str(info.get("kubeletVersion") or "")
        return cls(node["metadata"]["name"], is_ready(node), is_cordoned(node), version, taints, is_labelled(node))


@dataclass(frozen=True)
class Row:
    """One node in the list.

    Attributes:
        ready: "Ready", "NotReady", or "gone" if the node does not exist.
        state: One or two words; `tone` is the CSS class of their color.
        percent: Progress of the drain, None outside maintenance.
        left, total: Pods to evict, now and at the start; None before the first count.
        blocked: Number of blocked pods.
        why: What blocks the drain: the first blocked pod's message, or the latest error.
        reason: Why the node is in maintenance, as the requester wrote it.
        offers: START, STOP, or "" if neither applies now; `note` explains the state.
    """

    name: str
    ready: str
    state: str
    tone: str
    offers: str
    percent: int | None = None
    left: int | None = None
    total: int | None = None
    blocked: int = 0
    why: str = ""
    reason: str = ""
    note: str = ""

    @property
    def key(self) -> str:
        """Return an id for HTML and CSS, because a maintenance may name its node with any characters."""
        return key(self.name)


def key(name: str) -> str:
    """Return the HTML id for a node's name."""
    return "n" + hashlib.sha256(name.encode()).hexdigest()[:16]


def rows(nodes: Mapping[str, NodeFacts], maintenances: Iterable[Maintenance]) -> list[Row]:
    """Build a row for every node, and for every node name in an unreleased maintenance, in natural order."""
    by_node: dict[str, list[Maintenance]] = {}
    for item in standing(maintenances):
        by_node.setdefault(node_name(item), []).append(item)
    return [row(name, nodes.get(name), by_node.get(name, [])) for name in sorted({*nodes, *by_node}, key=natural)]


def row(name: str, node: NodeFacts | None, found: Sequence[Maintenance]) -> Row:
    """Build the row of one node; of several maintenances it shows the one that drains the node, and no released one."""
    ready = "gone" if node is None else "Ready" if node.ready else "NotReady"
    if claims := standing(found):
        return _in_maintenance(name, ready, leading(claims), len(claims))
    if node is None:
        return Row(name, ready, "Gone", "off", "", note="The node is gone: there is nothing to start or stop.")
    if node.cordoned:
        note = LEFT if node.labelled else BY_HAND
        return Row(name, ready, "Cordoned", "off", START, note=note)
    return Row(name, ready, "In service", "ok" if ready == "Ready" else "off", START)


def leading(found: Sequence[Maintenance]) -> Maintenance:
    """Return the maintenance that drains the node: one that failed, ends or is released only if all others are too."""
    return min(found, key=lambda item: (is_over(item), is_deleting(item), phase_word(item) == FAILED))


def _in_maintenance(name: str, ready: str, item: Maintenance, count: int) -> Row:
    status = status_of(item)
    blocked = status.get("blockedPods") or []
    word = phase_word(item)
    known = "evictionPods" in status
    stuck = word == RUNNING and bool(blocked)
    ending = is_deleting(item)
    return Row(
        name,
        ready,
        state=("Blocked" if stuck else STATES.get(word, word)) + (f" (1 of {count})" if count > 1 else ""),
        tone="bad" if stuck else TONES.get(word, "off"),
        offers="" if ending else STOP,
        percent=int(status.get("drainProgress") or 0),
        left=len(status.get("pendingPods") or []) if known else None,
        total=int(status["evictionPods"]) if known else None,
        blocked=len(blocked),
        why=held_up(status),
        reason=str(spec_of(item).get("reason") or ""),
        note=f"{full_name(item)} is being ended; the node comes back by itself." if ending else "",
    )


@dataclass(frozen=True)
class Wanted:
    """The filter of a list: `text` is part of the name, `state` is a key of `STATE_FILTERS` or ""."""

    text: str = ""
    state: str = ""

    def __call__(self, row: Row) -> bool:
        """Return whether the filter selects the row."""
        return self.text.lower() in row.name.lower() and (not self.state or STATE_FILTERS[self.state](row))


STATE_FILTERS: dict[str, Callable[[Row], bool]] = {
    "maintenance": lambda row: row.percent is not None,
    "blocked": lambda row: row.blocked > 0,
    "service": lambda row: row.percent is None,
}


NEW, CHANGED, GONE = "new", "changed", "gone"


@dataclass(frozen=True)
class Step:
    """One change of a list: a row is NEW (after the row with id `after`, "" for the first), CHANGED or GONE.

    `offers_differ` is true if the offered action or its note has changed.
    """

    kind: str
    row: Row
    after: str = ""
    offers_differ: bool = False


def steps(before: Sequence[Row], after: Sequence[Row]) -> Iterator[Step]:
    """Yield the changes that turn the first list into the second."""
    old, names = {item.name: item for item in before}, {item.name for item in after}
    yield from (Step(GONE, item) for item in before if item.name not in names)
    previous = ""
    for item in after:
        was = old.get(item.name)
        if was is None:
            yield Step(NEW, item, after=previous)
        elif was != item:
            yield Step(CHANGED, item, offers_differ=(was.offers, was.note) != (item.offers, item.note))
        previous = item.key
