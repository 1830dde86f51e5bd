"""Decides whether the release of a run's node must wait for a NodeMaintenance that the run did not request."""

from __future__ import annotations

from typing import NamedTuple

from kube.nodes import Node, has_maintenance_label


class Maintainer(NamedTuple):
    """The NodeMaintenance that owns a node.

    Attributes:
        name: Name of the NodeMaintenance.
        requester: User who requested it, "" if unknown.
        run_id: Id of the run whose Job created it, according to its label; "" for none.
    """

    name: str
    requester: str
    run_id: str


def find_release_blocker(node: Node, maintainer: Maintainer | None, run_id: str) -> str:
    """Return why this run must not release the node now, "" if no other requester's maintenance owns the node.

    If the node is under maintenance and `maintainer` is None, the NodeMaintenance no longer exists, and the node is
    about to be restored.
    """
    if not has_maintenance_label(node):
        return ""
    if maintainer is None:
        return "the node's label names a deleted NodeMaintenance; the run releases the node after its restoration"
    if maintainer.run_id == run_id:
        return ""
    requester_note = f", requested by {maintainer.requester}," if maintainer.requester else ""
    holder = f"NodeMaintenance {maintainer.name}{requester_note}"
    return f"{holder} holds the node; the run releases the node after that maintenance"
