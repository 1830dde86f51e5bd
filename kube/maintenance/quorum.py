"""Decides whether a control-plane node may be disrupted: etcd needs more than half of its members (NMO-23).

OpenShift runs an etcd guard pod on each control-plane node, and the disruption budget of these pods decides. If the
budget is missing or selects no pods, the control-plane nodes are counted. A node that is already down may always be
maintained.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from kube.budgets import Budget, has_current_status
from kube.maintenance import objects as m
from kube.maintenance.leases import LEASES_PATH, NAMESPACE, Lease, build_holder_spec, is_expired
from kube.nodes import Node
from kube.paths import Object
from kube.pods import Pod
from kube.selectors import matches

CONTROL_PLANE_LABELS = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")
"""Labels of control-plane nodes: the current label and the former label."""
ETCD_NAMESPACE = "openshift-etcd"
GUARD_BUDGET_NAMES = ("etcd-guard-pdb", "etcd-quorum-guard")
"""Names of OpenShift's budget for etcd: since OpenShift 4.11, and before 4.11."""
LEASE_NAME = "nodemaintenance-control-plane"
"""Lease whose holder may begin a maintenance on a control-plane node; all other maintenances wait."""
LEASE_PATH = f"{LEASES_PATH}/{LEASE_NAME}"
LEASE_DURATION = timedelta(seconds=15)
"""Duration of the control-plane lease: much longer than a function's response deadline.

A holder therefore never writes after its lease has expired.
"""


@dataclass(frozen=True)
class ControlPlaneSnapshot:
    """Snapshot of the control plane.

    Attributes:
        nodes: all control-plane nodes, with their conditions.
        maintained_nodes: names of the nodes that another maintenance owns or is about to own.
        guard_budgets: OpenShift's budgets for etcd.
        pods: the pods in the namespace of these budgets.
    """

    nodes: Sequence[Node]
    maintained_nodes: Collection[str] = ()
    guard_budgets: Sequence[Budget] = ()
    pods: Sequence[Pod] = ()


def is_control_plane(node: Node) -> bool:
    """Return whether the node carries a label of a control-plane node."""
    return any(label in (node["metadata"].get("labels") or {}) for label in CONTROL_PLANE_LABELS)


def is_node_ready(node: Node) -> bool:
    """Return whether the node's condition Ready is True."""
    return _get_ready_status(node) == "True"


def has_single_node(control_plane: ControlPlaneSnapshot) -> bool:
    """Return whether there is only one control-plane node."""
    return len(control_plane.nodes) == 1


def find_disruption_blocker(node: Node, control_plane: ControlPlaneSnapshot) -> str:
    """Return why the node must not be disrupted now, with the remedy; "" if disruption is allowed.

    The message starts with the wording of the replaced operator.
    """
    if not is_control_plane(node):
        return ""
    name = node["metadata"]["name"]
    guards = [
        (guard, pods)
        for guard in control_plane.guard_budgets
        if (pods := _select_guarded_pods(guard, control_plane.pods))
    ]
    if guards:
        reason = next(
            (blocker for guard, pods in guards if (blocker := _find_guard_blocker(name, guard, pods, control_plane))),
            "",
        )
    else:
        reason = _find_member_count_blocker(node, control_plane)
    if not reason:
        return ""
    return (
        "can not put master/control-plane node into maintenance at this moment, "
        f"disrupting node {name} will violate etcd quorum: {reason}"
    )


def _find_guard_blocker(
    node_name: str, guard_budget: Budget, pods: list[Pod], control_plane: ControlPlaneSnapshot
) -> str:
    """Return why the budget does not allow disrupting the node, or "" if it does.

    If the node's guard pod is missing or not ready, the node is already down and may be disrupted.
    """
    if not any(_may_be_ready(pod) for pod in pods if pod["spec"].get("nodeName") == node_name):
        return ""
    reserved = sum(_may_be_ready(pod) for pod in pods if pod["spec"].get("nodeName") in control_plane.maintained_nodes)
    allowed = (guard_budget.get("status") or {}).get("disruptionsAllowed", 0) if has_current_status(guard_budget) else 0
    if allowed > reserved:
        return ""
    budget_name = guard_budget["metadata"]["name"]
    return f"budget {ETCD_NAMESPACE}/{budget_name} allows no disruption; {_build_remedy(control_plane)}"


def _find_member_count_blocker(node: Node, control_plane: ControlPlaneSnapshot) -> str:
    """Return why etcd would have too few members without this node, or "" if it would have enough.

    A node that is down, or the only control-plane node, may be disrupted.
    """
    name, total = node["metadata"]["name"], len(control_plane.nodes)
    if not is_node_ready(node) or total <= 1:
        return ""
    ready_names = [other["metadata"]["name"] for other in control_plane.nodes if is_node_ready(other)]
    remaining_names = [other for other in ready_names if other != name and other not in control_plane.maintained_nodes]
    needed = total // 2 + 1
    if len(remaining_names) >= needed:
        return ""
    return (
        f"{needed} of {total} control-plane nodes must stay ready, but only {len(remaining_names)} would; "
        f"{_build_remedy(control_plane)}"
    )


def _build_remedy(control_plane: ControlPlaneSnapshot) -> str:
    maintained = ", ".join(sorted(control_plane.maintained_nodes))
    down = ", ".join(sorted(node["metadata"]["name"] for node in control_plane.nodes if not is_node_ready(node)))
    remedies = [f"end the maintenance of {maintained}"] if maintained else []
    remedies += [f"repair {down}"] if down else []
    return f"{' or '.join(remedies) or 'add a control-plane node'} first"


def _select_guarded_pods(guard_budget: Budget, pods: Iterable[Pod]) -> list[Pod]:
    return [pod for pod in pods if matches(guard_budget["spec"].get("selector"), pod["metadata"].get("labels") or {})]


def _may_be_ready(pod: Pod) -> bool:
    """Return whether the pod is Ready, or its readiness is Unknown and it may become Ready again."""
    return _get_ready_status(pod) in ("True", "Unknown")


def _get_ready_status(node_or_pod: Mapping[str, object]) -> str:
    status = node_or_pod.get("status")
    conditions = (status.get("conditions") if isinstance(status, dict) else None) or []
    return next((str(condition["status"]) for condition in conditions if condition["type"] == "Ready"), "")


def is_disruption(maintenance: m.Maintenance) -> bool:
    """Return whether the maintenance disrupts its node or is about to do so."""
    return m.claims_node(maintenance) and (m.has_begun(maintenance) or m.get_phase(maintenance) != m.FAILED)


def build_lease(maintenance: m.Maintenance, now: datetime) -> Object:
    """Build the control-plane lease, held by `maintenance` from `now` on."""
    spec = build_holder_spec(maintenance["metadata"]["uid"], LEASE_DURATION, now)
    metadata = {"name": LEASE_NAME, "namespace": NAMESPACE}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


def may_acquire(lease: Lease, maintenance: m.Maintenance, now: datetime) -> bool:
    """Return whether the lease is free or expired, or the maintenance holds the lease already."""
    holder = lease["spec"].get("holderIdentity")
    return not holder or holder == maintenance["metadata"]["uid"] or is_expired(lease, now)
