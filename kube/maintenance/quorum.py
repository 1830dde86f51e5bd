"""Whether a control-plane node may be disrupted: etcd needs more than half of its members (NMO-23). Pure.

OpenShift keeps a budget over etcd's guard pods, one on each control-plane node, and that budget decides. Where there is
none, or it selects no pod, control-plane nodes are counted. A node that is down already may always be maintained.
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
"""Labels of control-plane nodes, of today and of before."""
ETCD = "openshift-etcd"
GUARDS = ("etcd-guard-pdb", "etcd-quorum-guard")
"""Names of OpenShift's budget over etcd, since 4.11 and before."""
LEASE = "nodemaintenance-control-plane"
"""Who holds it begins on a control-plane node; all others wait."""
LEASE_PATH = f"{LEASES}/{LEASE}"
LEASE_DURATION = timedelta(seconds=15)
"""Many times as long as a function has for its answer, so that nobody holds it any more who still writes."""


@dataclass(frozen=True)
class ControlPlane:
    """The control plane as it was read.

    Attributes:
        nodes: all control-plane nodes, with their conditions.
        maintained: names of those among them that another maintenance has, or is about to have.
        guards: OpenShift's budgets over etcd.
        pods: the pods beside these budgets.
    """

    nodes: Sequence[Node]
    maintained: Collection[str] = ()
    guards: Sequence[Budget] = ()
    pods: Sequence[Pod] = ()


def is_control_plane(node: Node) -> bool:
    """It carries one of the labels of a control-plane node."""
    return any(label in (node["metadata"].get("labels") or {}) for label in CONTROL_PLANE)


def is_up(node: Node) -> bool:
    """Condition Ready is True."""
    return _condition(node) == "True"


def is_sole(plane: ControlPlane) -> bool:
    """There is no other control-plane node."""
    return len(plane.nodes) == 1


def refusal(node: Node, plane: ControlPlane) -> str:
    """Why the node must not be disrupted now, in the operator's words and with the remedy; "" when it may."""
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
    """A guard pod that is not ready, or missing, says that its node is down already."""
    if not any(_is_at_work(pod) for pod in pods if pod["spec"].get("nodeName") == name):
        return ""
    promised = sum(_is_at_work(pod) for pod in pods if pod["spec"].get("nodeName") in plane.maintained)
    allowed = (guard.get("status") or {}).get("disruptionsAllowed", 0) if is_counted(guard) else 0
    if allowed > promised:
        return ""
    return f"budget {ETCD}/{guard['metadata']['name']} allows no disruption; {_remedy(plane)}"


def _count_refuses(node: Node, plane: ControlPlane) -> str:
    """Whether the others would be fewer than etcd needs; a sole node has no quorum to break."""
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
    """Ready, or nobody knows: a pod that may be about to be ready again is not given up."""
    return _condition(pod) in ("True", "Unknown")


def _condition(item: Mapping[str, object]) -> str:
    status = item.get("status")
    conditions = (status.get("conditions") if isinstance(status, dict) else None) or []
    return next((str(found["status"]) for found in conditions if found["type"] == "Ready"), "")


def counts(item: m.Maintenance) -> bool:
    """Whether the node of a maintenance is as good as disrupted: it has the node, or is about to have it."""
    return m.claims_node(item) and (m.has_begun(item) or m.phase(item) != m.FAILED)


def lease_for(maintenance: m.Maintenance, now: datetime) -> Object:
    """The lease of the control plane with `maintenance` as its holder from `now`."""
    spec = acquired(maintenance["metadata"]["uid"], LEASE_DURATION, now)
    metadata = {"name": LEASE, "namespace": NAMESPACE}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


def may_take(lease: Lease, maintenance: m.Maintenance, now: datetime) -> bool:
    """Whether nobody else holds it now."""
    holder = lease["spec"].get("holderIdentity")
    return not holder or holder == maintenance["metadata"]["uid"] or is_expired(lease, now)
