"""Builds the rows of the console's node list: each node's state, and the action that the row offers. Pure functions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from console.operations.descriptions import (
    PHASE_CORDONING,
    PHASE_FAILING,
    find_error_not_in_blocked_pods,
    get_phase_label,
)
from kube.maintenance.blocked_groups import group_blocked_pods
from kube.maintenance.objects import (
    FAILED,
    RUNNING,
    SUCCEEDED,
    Maintenance,
    format_full_name,
    get_node_name,
    get_requester,
    get_spec,
    get_status,
    is_deleting,
    is_released,
    select_unreleased,
)
from kube.nodes import build_natural_sort_key, has_maintenance_label, is_cordoned
from kube.paths import Object
from kube.pods import is_ready
from kube.text_limits import format_count

START, STOP = "start", "stop"
STATE_LABELS = {
    RUNNING: "Draining",
    SUCCEEDED: "Drained",
    "Ending": "Restoring",
    "Waiting": "Starting",
    PHASE_FAILING: "Step failed",
}
"""Map from phase label to text in the list."""
STATE_TONES = {
    **{RUNNING: "busy", SUCCEEDED: "done", FAILED: "bad", PHASE_FAILING: "bad"},
    **{"Ending": "busy", "Waiting": "busy", PHASE_CORDONING: "busy"},
}
"""Map from phase label to CSS class of its color."""
STATE_CORDONED, STATE_IN_SERVICE = "Cordoned", "In service"
"""States of nodes without a maintenance; a node counts as cordoned by others only in the first."""
ROLE_PREFIX = "node-role.kubernetes.io/"
"""Prefix of the labels from which `kubectl get nodes` reads a node's roles."""

MANUAL_CORDON_NOTE = "Cordoned without a maintenance: to uncordon the node, run kubectl maintenance uncordon."
LEFTOVER_CORDON_NOTE = (
    "Cordoned by a maintenance that no longer exists: the functions restore the node. To restore it now, run "
    "kubectl maintenance uncordon."
)


@dataclass(frozen=True)
class NodeFacts:
    """The fields of a Node that the console shows; changes to other fields are not published."""

    name: str
    is_ready: bool
    is_cordoned: bool
    version: str
    taints: tuple[str, ...]
    is_labelled: bool = False
    roles: tuple[str, ...] = ()

    @classmethod
    def from_node(cls, node: Object) -> NodeFacts:
        """Extract these fields from a Node object."""
        info = (node.get("status") or {}).get("nodeInfo") or {}
        taints = tuple(f"{taint['key']}:{taint['effect']}" for taint in node["spec"].get("taints") or [])
        version = str(info.get("kubeletVersion") or "")
        labels = node["metadata"].get("labels") or {}
        roles = tuple(sorted(label.removeprefix(ROLE_PREFIX) for label in labels if label.startswith(ROLE_PREFIX)))
        name, is_labelled = node["metadata"]["name"], has_maintenance_label(node)
        return cls(name, is_ready(node), is_cordoned(node), version, taints, is_labelled, roles)


@dataclass(frozen=True)
class Row:
    """One node in the list.

    Attributes:
        readiness: "Ready", "NotReady", or "gone" if the node does not exist.
        state: One or two words; `tone` is the CSS class of their color.
        percent: Progress of the drain; None if the node is not in maintenance.
        remaining_pods, total_pods: Pods to evict, now and at the start; None before the first count.
        blocked_pods: Number of blocked pods.
        blocker: What blocks the drain: the latest error, or the cause that blocks most pods.
        reason: Why the node is in maintenance, as the requester wrote it.
        since, requester: When the maintenance was created, and by whom; "" without a maintenance.
        roles, version: The node's roles, separated by commas, and its kubelet's version.
        last_change: When the status last changed, or when the end of the maintenance was requested; "" without a
            maintenance. Rows that differ only in this time are equal, because the list does not show it.
        offered_action: START, STOP, or "" if neither applies now; `note` explains the state.
    """

    name: str
    readiness: str
    state: str
    tone: str
    offered_action: str
    percent: int | None = None
    remaining_pods: int | None = None
    total_pods: int | None = None
    blocked_pods: int = 0
    blocker: str = ""
    reason: str = ""
    note: str = ""
    since: str = ""
    requester: str = ""
    roles: str = ""
    version: str = ""
    last_change: str = field(default="", compare=False)

    @property
    def is_in_maintenance(self) -> bool:
        """Return whether an unreleased maintenance names the node."""
        return self.percent is not None

    @property
    def is_stuck(self) -> bool:
        """Return whether an administrator must act: pods are blocked, a step failed, or the maintenance failed."""
        return self.is_in_maintenance and self.tone == "bad"

    @property
    def urgency(self) -> int:
        """Return the rank in the default order: 0 stuck, 1 in progress, 2 drained, 3 other problem, 4 in service."""
        if self.is_in_maintenance:
            return 0 if self.is_stuck else 2 if self.tone == "done" else 1
        return 4 if self.state == STATE_IN_SERVICE and self.readiness == "Ready" else 3

    @property
    def filters(self) -> str:
        """Return the names of the `STATE_FILTERS` that select the row, separated by spaces."""
        return " ".join(name for name, matches in STATE_FILTERS.items() if matches(self))

    @property
    def html_id(self) -> str:
        """Return an id that is safe in HTML and CSS; a maintenance's `nodeName` may contain any characters."""
        return build_html_id(self.name)


def build_html_id(name: str) -> str:
    """Return the HTML id for a node's name."""
    return "n" + hashlib.sha256(name.encode()).hexdigest()[:16]


def build_rows(nodes: Mapping[str, NodeFacts], maintenances: Iterable[Maintenance]) -> list[Row]:
    """Build a row for every node, and for every node name in an unreleased maintenance, in natural sort order."""
    by_node: dict[str, list[Maintenance]] = {}
    for maintenance in select_unreleased(maintenances):
        by_node.setdefault(get_node_name(maintenance), []).append(maintenance)
    return [
        build_row(name, nodes.get(name), by_node.get(name, []))
        for name in sorted({*nodes, *by_node}, key=build_natural_sort_key)
    ]


def build_row(node_name: str, node: NodeFacts | None, maintenances: Sequence[Maintenance]) -> Row:
    """Build the row of one node, which shows the unreleased maintenance that drains the node, if there is one."""
    if unreleased := select_unreleased(maintenances):
        return _build_maintenance_row(node_name, node, select_draining_maintenance(unreleased), len(unreleased))
    readiness = _get_readiness(node)
    if node is None:
        return Row(
            node_name,
            readiness,
            "Gone",
            "off",
            "",
            note="The node does not exist, so you can neither start nor stop a maintenance.",
        )
    if node.is_cordoned:
        note = LEFTOVER_CORDON_NOTE if node.is_labelled else MANUAL_CORDON_NOTE
        state, tone = STATE_CORDONED, "off"
    else:
        note, state, tone = "", STATE_IN_SERVICE, "ok" if node.is_ready else "off"
    return Row(node_name, readiness, state, tone, START, note=note, roles=", ".join(node.roles), version=node.version)


def _get_readiness(node: NodeFacts | None) -> str:
    return "gone" if node is None else "Ready" if node.is_ready else "NotReady"


def select_draining_maintenance(maintenances: Sequence[Maintenance]) -> Maintenance:
    """Return the maintenance that drains the node, preferably one that is not released, ending or failed."""
    return min(
        maintenances,
        key=lambda maintenance: (
            is_released(maintenance),
            is_deleting(maintenance),
            get_phase_label(maintenance) == FAILED,
        ),
    )


def _build_maintenance_row(name: str, node: NodeFacts | None, maintenance: Maintenance, count: int) -> Row:
    status = get_status(maintenance)
    blocked = status.get("blockedPods") or []
    phase = get_phase_label(maintenance)
    has_counts = "evictionPods" in status
    is_blocked = phase == RUNNING and bool(blocked)
    is_ending, metadata = is_deleting(maintenance), maintenance["metadata"]
    created = str(metadata.get("creationTimestamp") or "")
    return Row(
        name,
        _get_readiness(node),
        state=("Blocked" if is_blocked else STATE_LABELS.get(phase, phase)) + (f" (1 of {count})" if count > 1 else ""),
        tone="bad" if is_blocked else STATE_TONES.get(phase, "off"),
        offered_action="" if is_ending else STOP,
        percent=int(status.get("drainProgress") or 0),
        remaining_pods=len(status.get("pendingPods") or []) if has_counts else None,
        total_pods=int(status["evictionPods"]) if has_counts else None,
        blocked_pods=len(blocked),
        blocker=_summarize_cause(status),
        reason=str(get_spec(maintenance).get("reason") or ""),
        note=f"{format_full_name(maintenance)} is being deleted; the functions restore the node." if is_ending else "",
        since=created,
        requester=get_requester(maintenance),
        roles=", ".join(node.roles) if node else "",
        version=node.version if node else "",
        last_change=str(metadata["deletionTimestamp"] if is_ending else status.get("lastUpdate") or created),
    )


def _summarize_cause(status: Mapping[str, Any]) -> str:
    """Return what blocks a drain, the cause first because a list may cut the text; the error of a failed step wins."""
    if error := find_error_not_in_blocked_pods(status):
        return error
    if not (groups := group_blocked_pods(status.get("blockedPods") or [])):
        return ""
    more = f" ({format_count(len(groups) - 1, 'more cause')})" if len(groups) > 1 else ""
    return f"{groups[0].message}: {groups[0].format_pods()}{more}"


@dataclass(frozen=True)
class RowFilter:
    """The filter of a list: `text` must occur in the name, and `state` is a key of `STATE_FILTERS` or ""."""

    text: str = ""
    state: str = ""

    def __call__(self, row: Row) -> bool:
        """Return whether the filter selects the row."""
        return self.text.lower() in row.name.lower() and (not self.state or STATE_FILTERS[self.state](row))


STATE_FILTERS: dict[str, Callable[[Row], bool]] = {
    "maintenance": lambda row: row.is_in_maintenance,
    "blocked": lambda row: row.is_stuck,
    "cordoned": lambda row: not row.is_in_maintenance and row.state == STATE_CORDONED,
}

SORT_KEYS: dict[str, Callable[[Row], str]] = {
    "state": lambda row: str(row.urgency),
    "name": lambda row: row.name,
    "roles": lambda row: row.roles,
    "ready": lambda row: row.readiness.capitalize(),
    "version": lambda row: row.version,
    "since": lambda row: row.since,
    "requester": lambda row: row.requester,
    "reason": lambda row: row.blocker or row.reason,
}
"""Map from column to the text by which the column sorts; numbers in it are compared numerically."""
DEFAULT_SORT = "state"
"""The default order: stuck maintenances first, then those in progress; each group by name."""


@dataclass(frozen=True)
class RowOrder:
    """The order of a list: `column` is a key of `SORT_KEYS`. The browser applies the same order to later changes."""

    column: str = DEFAULT_SORT
    is_descending: bool = False

    def sort(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows in this order; rows without a value are last in both directions.

        In: rows in the order of their names, which is also the order of rows with equal values.
        """
        get_key = SORT_KEYS[self.column]
        with_value = sorted(
            (row for row in rows if get_key(row)),
            key=lambda row: build_natural_sort_key(get_key(row)),
            reverse=self.is_descending,
        )
        return [*with_value, *(row for row in rows if not get_key(row))]


ROW_NEW, ROW_CHANGED, ROW_GONE = "new", "changed", "gone"


@dataclass(frozen=True)
class RowChange:
    """One change of a list: a row is new, changed or gone. A new row follows the row with HTML id `after`, "" if first.

    `action_differs` is true if the offered action or its note has changed.
    """

    kind: str
    row: Row
    after: str = ""
    action_differs: bool = False


def diff_rows(before: Sequence[Row], after: Sequence[Row]) -> Iterator[RowChange]:
    """Yield the changes that turn the first list into the second."""
    rows_before, names = {row.name: row for row in before}, {row.name for row in after}
    yield from (RowChange(ROW_GONE, row) for row in before if row.name not in names)
    previous_id = ""
    for row in after:
        previous_row = rows_before.get(row.name)
        if previous_row is None:
            yield RowChange(ROW_NEW, row, after=previous_id)
        elif previous_row != row:
            yield RowChange(
                ROW_CHANGED,
                row,
                action_differs=(previous_row.offered_action, previous_row.note) != (row.offered_action, row.note),
            )
        previous_id = row.html_id
