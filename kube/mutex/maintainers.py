"""Who maintains a node of a run: a Job of the run itself, or somebody else, whom the node's release waits for. Pure."""

from __future__ import annotations

from typing import NamedTuple

from kube.nodes import Node, is_labelled


class Maintainer(NamedTuple):
    """The NodeMaintenance that has a node.

    Attributes:
        name: its name.
        by: who asked for it, "" where that is not known.
        run: id of the run whose Job made it, as its label says, "" for none.
    """

    name: str
    by: str
    run: str


def hindrance(node: Node, maintainer: Maintainer | None, run_id: str) -> str:
    """Why a node is not released by this run now, "" when nobody else maintains it.

    None for the maintainer of a node under maintenance is one that is gone: the node is about to be given back.
    """
    if not is_labelled(node):
        return ""
    if maintainer is None:
        return "it is under a maintenance that is gone, and is released when it is given back"
    if maintainer.run == run_id:
        return ""
    asked = f", asked for by {maintainer.by}," if maintainer.by else ""
    return f"it is under maintenance by NodeMaintenance {maintainer.name}{asked} and is released when that ends"
