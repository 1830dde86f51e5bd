"""Decides whether a control-plane node may be disrupted: etcd needs more than half of its members (NMO-23).

OpenShift has a budget for etcd's guard pods, one on each control-plane node, and that budget decides. If it is missing
or selects no pods, the control-plane nodes are counted. A node that is already down may always be maintained.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from kube.budgets import Budget, is_counted
from kube.maintenance import objects as m
from kube.maintenance.leases import LEASES, NAMESPACE, Lease, acquired, is_expired
from kube.nodes import Node
from kube.paths import Object
from kube.pods import Pod
from kube.selectors import matches

CONTROL_PLANE = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")
"""Labels of control-plane nodes: the current and the former one."""
ETCD = "openshift-etcd"
GUARDS = ("etcd-guard-pdb", "etcd-quorum-guard")
"""Names of OpenShift's budget for etcd: since 4.11, and before."""
LEASE = "nodemaintenance-control-plane"
"""Lease whose holder may begin a maintenance on a control-plane node; all others wait."""
LEASE_PATH = f"{LEASES}/{LEASE}"
LEASE_DURATION = timedelta(seconds=15)
"""Many times a function's response deadline, so that a holder never writes after its lease has expired."""


@dataclass(frozen=True)
class ControlPlane:
    """Snapshot of the control plane.

    Attributes:
        nodes: all control-plane nodes, with their conditions.
        maintained: names of the nodes that another maintenance owns or is about to own.
        guards: OpenShift's budgets for etcd.
        pods: the pods in the namespace of these budgets.
    """

    nodes: Sequence[Node]
    maintained: Collection[str] = ()
    guards: Sequence[Budget] = ()
    pods: Sequence[Pod] = ()


def is_control_plane(node: Node) -> bool:
    """Return whether the node carries a label of a control-plane node."""
    return any(label in (node["metadata"].get("labels") or {}) for label in CONTROL_PLANE)


def is_up(node: Node) -> bool:
    """Return whether the node's condition Ready is True."""
    return _condition(node) == "True"


def is_sole(plane: ControlPlane) -> bool:
    """Return whether there is only one control-plane node."""
    return len(plane.nodes) == 1


def refusal(node: Node, plane: ControlPlane) -> str:
    """Return why the node must not be disrupted now, with the remedy; "" if it may be.

    The message starts with the wording of the replaced operator.
    """
    if not is_control_plane(node):
        return ""
    name = node["metadata"]["name"]
    guards = [(guard, pods) for guard in plane.guards if (pods := _guarded(guard, plane.pods))]
    if guards:
        reason = next((said for guard, pods in guards if (said := _guard_refuses(name, guard, pods, plane))), "")
    else:
        reason = _count_refuses(node, plane)
    if not reason:
        return ""
    return (
        "can not put master/control-plane node into maintenance at this moment, "
        f"disrupting node {name} will violate etcd quorum: {reason}"
    )


def _guard_refuses(name: str, guard: Budget, pods: list[Pod], plane: ControlPlane) -> str:
    """Return why the budget does not allow disrupting the node, "" if it does.

    If the node's guard pod is missing or not ready, the node is already down and may be disrupted.
    """
    if not any(_is_at_work(pod) for pod in pods if pod["spec"].get("nodeName") == name):
        return ""
    promised = sum(_is_at_work(pod) for pod in pods if pod["spec"].get("nodeName") in plane.maintained)
    allowed = (guard.get("status") or {}).get("disruptionsAllowed", 0) if is_counted(guard) else 0
    if allowed > promised:
        return ""
    return f"budget {ETCD}/{guard['metadata']['name']} allows no disruption; {_remedy(plane)}"


def _count_refuses(node: Node, plane: ControlPlane) -> str:
    """Return why etcd would have too few members without this node, "" if it would not.

    A node that is down, or the only control-plane node, may be disrupted.
    """
    name, total = node["metadata"]["name"], len(plane.nodes)
    if not is_up(node) or total <= 1:
        return ""
    others = [other["metadata"]["name"] for other in plane.nodes if is_up(other)]
    left = [other for other in others if other != name and other not in plane.maintained]
    needed = total // 2 + 1
    if len(left) >= needed:
        return ""
    return f"of {total} control-plane nodes {needed} must be up, and {len(left)} would be; {_remedy(plane)}"


def _remedy(plane: ControlPlane) -> str:
    maintained = ", ".join(sorted(plane.maintained))
    down = ", ".join(sorted(node["metadata"]["name"] for node in plane.nodes if not is_up(node)))
    words = [f"end the maintenance of {maintained}"] if maintained else []
    words += [f"repair {down}"] if down else []
    return f"{' or '.join(words) or 'add a control-plane node'} first"


def _guarded(guard: Budget, pods: Iterable[Pod]) -> list[Pod]:
    return [pod for pod in pods if matches(guard["spec"].get("selector"), pod["metadata"].get("labels") or {})]


def _is_at_work(pod: Pod) -> bool:
    """Return whether the pod is Ready, or its readiness is Unknown and it may become Ready again."""
    return _condition(pod) in ("True", "Unknown")


def _condition(item: Mapping[str, object]) -> str:
    status = item.get("status")
    conditions = (status.get("conditions") if isinstance(status, dict) else None) or []
    return next((str(found["status"]) for found in conditions if found["type"] == "Ready"), "")


def counts(item: m.Maintenance) -> bool:
    """Return whether the maintenance disrupts its node or is about to do so."""
    return m.claims_node(item) and (m.has_begun(item) or m.phase(item) != m.FAILED)


def lease_for(maintenance: m.Maintenance, now: datetime) -> Object:
    """Build the control-plane lease, held by `maintenance` from `now` on."""
    spec = acquired(maintenance["metadata"]["uid"], LEASE_DURATION, now)
    metadata = {"name": LEASE, "namespace": NAMESPACE}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


def may_take(lease: Lease, maintenance: m.Maintenance, now: datetime) -> bool:
    """Return whether the maintenance may take the lease: it is free, expired, or already its own."""
    holder = lease["spec"].get("holderIdentity")
    return not holder or holder == maintenance["metadata"]["uid"] or is_expired(lease, now)
