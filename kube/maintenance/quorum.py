"""Decides whether a control-plane node may be disrupted: etcd needs more than half of its members (NMO-23).

OpenShift runs an etcd guard pod on each control-plane node. The PodDisruptionBudget (PDB) of these pods determines
whether a node may be disrupted. If the PDB is missing or selects no pods, the ready control-plane nodes are counted
instead. A node that is already down may always be maintained.
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
"""Labels of control-plane nodes: the current label and the former one."""
ETCD_NAMESPACE = "openshift-etcd"
GUARD_BUDGET_NAMES = ("etcd-guard-pdb", "etcd-quorum-guard")
"""Names of OpenShift's PodDisruptionBudget for the etcd guard pods: since OpenShift 4.11, and before 4.11."""
LEASE_NAME = "nodemaintenance-control-plane"
"""Name of the Lease whose holder may begin a maintenance on a control-plane node; other maintenances wait."""
LEASE_PATH = f"{LEASES_PATH}/{LEASE_NAME}"
LEASE_DURATION = timedelta(seconds=15)
"""Duration of the control-plane Lease, which is much longer than a function's response deadline.

A holder therefore never writes after its Lease has expired.
"""


@dataclass(frozen=True)
class ControlPlaneSnapshot:
    """The state of the control plane.

    Attributes:
        nodes: All control-plane nodes, with their conditions.
        maintained_nodes: Names of the nodes that another maintenance owns or is about to own.
        guard_budgets: OpenShift's PodDisruptionBudgets (PDBs) for the etcd guard pods.
        pods: The pods in the namespace of these PDBs.
    """

    nodes: Sequence[Node]
    maintained_nodes: Collection[str] = ()
    guard_budgets: Sequence[Budget] = ()
    pods: Sequence[Pod] = ()


def is_control_plane(node: Node) -> bool:
    """Return whether the node has the label of a control-plane node."""
    return any(label in (node["metadata"].get("labels") or {}) for label in CONTROL_PLANE_LABELS)


def is_node_ready(node: Node) -> bool:
    """Return whether the node's Ready condition is True."""
    return _get_ready_status(node) == "True"


def has_single_control_plane_node(control_plane: ControlPlaneSnapshot) -> bool:
    """Return whether the cluster has only one control-plane node."""
    return len(control_plane.nodes) == 1


def find_disruption_blocker(node: Node, control_plane: ControlPlaneSnapshot) -> str:
    """Return why the node must not be disrupted now, with the remedy; "" if it may be disrupted.

    The message begins with the wording of the replaced operator.
    """
    if not is_control_plane(node):
        return ""
    name = node["metadata"]["name"]
    pods_by_guard_budget = [
        (guard_budget, pods)
        for guard_budget in control_plane.guard_budgets
        if (pods := _select_guarded_pods(guard_budget, control_plane.pods))
    ]
    if pods_by_guard_budget:
        reason = next(
            (
                blocker
                for guard_budget, pods in pods_by_guard_budget
                if (blocker := _find_guard_blocker(name, guard_budget, pods, control_plane))
            ),
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
    """Return why the PodDisruptionBudget forbids disrupting the node, "" if it does not.

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
    """Return why etcd would have too few members without this node, "" if it would have enough.

    A node that is down may be disrupted, and so may the only control-plane node.
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
    """Return whether the pod's Ready condition is True, or is Unknown and may become True again."""
    return _get_ready_status(pod) in ("True", "Unknown")


def _get_ready_status(node_or_pod: Mapping[str, object]) -> str:
    status = node_or_pod.get("status")
    conditions = (status.get("conditions") if isinstance(status, dict) else None) or []
    return next((str(condition["status"]) for condition in conditions if condition["type"] == "Ready"), "")


def is_disruption(maintenance: m.Maintenance) -> bool:
    """Return whether the maintenance disrupts its node, or is about to disrupt it."""
    return m.owns_or_awaits_node(maintenance) and (m.has_begun(maintenance) or m.get_phase(maintenance) != m.FAILED)


def build_lease(maintenance: m.Maintenance, now: datetime) -> Object:
    """Build the control-plane Lease, which `maintenance` holds from `now` on."""
    spec = build_holder_spec(maintenance["metadata"]["uid"], LEASE_DURATION, now)
    metadata = {"name": LEASE_NAME, "namespace": NAMESPACE}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


def may_acquire(lease: Lease, maintenance: m.Maintenance, now: datetime) -> bool:
    """Return whether the Lease is free, has expired, or is already held by this maintenance."""
    holder = lease["spec"].get("holderIdentity")
    return not holder or holder == maintenance["metadata"]["uid"] or is_expired(lease, now)
