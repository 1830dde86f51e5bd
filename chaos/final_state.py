"""Checks the final state: each node matches its NodeMaintenances, and no lease is left over. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kube.maintenance import leases, objects
from kube.maintenance.groups import DRAIN_TAINTS
from kube.maintenance.objects import Maintenance
from kube.nodes import BEFORE, EXCLUDED, LABEL, NO_SCHEDULE, UNSCHEDULABLE, Node, is_closed, is_cordoned, labelled_for
from kube.paths import Object
from kube.pods import key, stays


def wrong(
    nodes: Iterable[Node], maintenances: Iterable[Maintenance], found: Iterable[Object], pods: Iterable[Object]
) -> list[str]:
    """Return one line per problem.

    Args:
        nodes: All nodes.
        maintenances: The NodeMaintenances of all API groups.
        found: All node leases.
        pods: All pods.
    """
    there, made, running = list(nodes), list(maintenances), list(pods)
    held = {leases.node_of(lease): lease for lease in found}
    known = [node["metadata"]["name"] for node in there]
    lines = [f"{item['metadata']['name']} is still being deleted" for item in made if objects.is_deleting(item)]
    lines += [f"the lease of {name} is left, and no such node" for name in held if name and name not in known]
    for node in there:
        name = node["metadata"]["name"]
        wanted = [item for item in made if objects.node_name(item) == name and not objects.is_deleting(item)]
        lines += _maintained(node, wanted, held.get(name), running) if wanted else _free(node, held.get(name))
    return lines


def _free(node: Node, lease: Object | None) -> Iterator[str]:
    """Yield the problems of a node without a NodeMaintenance."""
    name, labels = node["metadata"]["name"], node["metadata"].get("labels") or {}
    taints = {(taint["key"], taint.get("effect")) for taint in node["spec"].get("taints") or []}
    if is_cordoned(node):
        yield f"{name} is cordoned, and nobody maintains it"
    for taint in sorted(taint for taint in (*DRAIN_TAINTS, UNSCHEDULABLE) if (taint, NO_SCHEDULE) in taints):
        yield f"{name} has the taint {taint}, and nobody maintains it"
    for label in (LABEL, BEFORE, EXCLUDED):
        if label in labels:
            yield f"{name} has the label {label}, and nobody maintains it"
    if lease is not None:
        yield f"the lease of {name} is left, and nobody maintains it"


def _maintained(node: Node, wanted: list[Maintenance], lease: Object | None, pods: list[Object]) -> Iterator[str]:
    """Yield the problems of a node with NodeMaintenances: one holds the lease and has drained it, the others wait."""
    name = node["metadata"]["name"]
    holders = [item for item in wanted if lease is not None and leases.is_holder(lease, item)]
    if not holders:
        yield f"{name} has no lease for any of {', '.join(item['metadata']['name'] for item in wanted)}"
        return
    (holder,) = holders
    called = holder["metadata"]["name"]
    if not is_closed(node, objects.group(holder).drain_taint):
        yield f"{name} is not cordoned and tainted as {called} wants it"
    if labelled_for(node) is None or (node["metadata"].get("labels") or {}).get(EXCLUDED) != "true":
        yield f"{name} has not the labels of a node that {called} maintains"
    if not objects.has_begun(holder):
        yield f"{called} has the lease of {name}, and no finalizer or counts"
    if objects.phase(holder) != objects.SUCCEEDED:
        yield f"{called} on {name} is {objects.phase(holder) or 'without a phase'}: {objects.last_error(holder)}"
    left = [key(pod) for pod in pods if pod["spec"].get("nodeName") == name and not stays(pod)]
    if left:
        yield f"{name} has {', '.join(left)} left, which {called} should have drained"
    for other in wanted:
        if other is not holder and objects.phase(other) == objects.SUCCEEDED:
            yield f"{other['metadata']['name']} is Succeeded, and the lease of {name} is held for {called}"
