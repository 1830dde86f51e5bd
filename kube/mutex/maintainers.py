"""Maintenance of a run's node: a release waits for it, unless a Job of the same run requested it."""

from __future__ import annotations

from typing import NamedTuple

from kube.nodes import Node, is_labelled


class Maintainer(NamedTuple):
    """The NodeMaintenance that owns a node.

    Attributes:
        name: name of the NodeMaintenance.
        by: who requested it, "" if unknown.
        run: id of the run whose Job created it, according to its label; "" for none.
    """

    name: str
    by: str
    run: str


def hindrance(node: Node, maintainer: Maintainer | None, run_id: str) -> str:
    """Return why this run must not release the node now, "" if no other requester maintains it.

    If the node is under maintenance and `maintainer` is None, the object is gone and the node is about to be restored.
    """
    if not is_labelled(node):
        return ""
    if maintainer is None:
        return "it is under a maintenance that is gone, and is released when it is given back"
    if maintainer.run == run_id:
        return ""
    asked = f", asked for by {maintainer.by}," if maintainer.by else ""
    return f"it is under maintenance by NodeMaintenance {maintainer.name}{asked} and is released when that ends"
