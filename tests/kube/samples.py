"""Sample pods, PDBs, nodes and NodeMaintenances as plain dicts, and Hypothesis strategies that generate them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kube.maintenance.groups import MEDIK8S
from kube.maintenance.objects import FINALIZER, INITIAL_COUNTS_ANNOTATION
from kube.nodes import (
    EXCLUDE_LABEL,
    EXCLUDED_BEFORE_LABEL,
    MAINTENANCE_LABEL,
    NO_SCHEDULE,
    UNSCHEDULABLE_TAINT,
    UNSET_VALUE,
)
from kube.paths import Object

READY_CONDITIONS = [{"type": "Ready", "status": "True"}]


def make_pod(
    name: str = "pod",
    *,
    namespace: str = "ns",
    owner: str = "",
    phase: str = "Running",
    ready: bool = True,
    labels: dict[str, str] | None = None,
    **metadata: Any,
) -> Object:
    """Return a pod; `owner` is the kind of the pod's controller, or "" for a bare pod."""
    owners = [{"kind": owner, "name": owner.lower(), "controller": True, "uid": f"{owner}-uid"}] if owner else []
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"{namespace}-{name}-uid",
            "resourceVersion": "1",
            "labels": labels or {},
            "ownerReferences": owners,
            **metadata,
        },
        "spec": {},
        "status": {"phase": phase, "conditions": READY_CONDITIONS if ready else []},
    }


def make_budget(
    name: str = "budget",
    *,
    allowed: int = 0,
    healthy: int = 3,
    needed: int = 3,
    selector: Object | None = None,
    policy: str = "",
    observed: int = 1,
    namespace: str = "ns",
) -> Object:
    """Return a PodDisruptionBudget of generation 1, which by default selects the pods with the label app=db."""
    spec: Object = {"selector": {"matchLabels": {"app": "db"}} if selector is None else selector}
    if policy:
        spec["unhealthyPodEvictionPolicy"] = policy
    counts = {"disruptionsAllowed": allowed, "currentHealthy": healthy, "desiredHealthy": needed}
    return {
        "metadata": {"name": name, "namespace": namespace, "generation": 1},
        "spec": spec,
        "status": {**counts, "observedGeneration": observed},
    }


def make_node(*taints: tuple[str, str, str], cordoned: bool = False, maintenance_uid: str = "") -> Object:
    """Return a node with the taints (key, value, effect).

    The node's labels name the NodeMaintenance with the uid `maintenance_uid`. If that is "", the node has no labels.
    """
    spec: Object = {"unschedulable": True} if cordoned else {}
    if taints:
        spec["taints"] = [
            {"key": key, **({"value": value} if value else {}), "effect": effect} for key, value, effect in taints
        ]
    metadata: Object = {"name": "node-1", "uid": "node-uid"}
    labels = {MAINTENANCE_LABEL: maintenance_uid, EXCLUDED_BEFORE_LABEL: UNSET_VALUE, EXCLUDE_LABEL: "true"}
    return {"metadata": {**metadata, "labels": labels} if maintenance_uid else metadata, "spec": spec}


DRAIN_TAINTS = (("medik8s.io/drain", "", NO_SCHEDULE), (UNSCHEDULABLE_TAINT, "", NO_SCHEDULE))
NODE_IN_MAINTENANCE = make_node(*DRAIN_TAINTS, cordoned=True, maintenance_uid="nm-uid")


def make_maintenance(
    status: Object | None = None, *, counts: str = '{"totalpods": 9, "evictionPods": 5, "uid": "nm-uid"}'
) -> Object:
    """Return a NodeMaintenance with these annotated pod counts; with the counts "", it has not begun."""
    metadata: Object = {"name": "nm", "uid": "nm-uid", "resourceVersion": "7", "generation": 1}
    if counts:
        owner = {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "node-uid"}
        metadata |= {
            "finalizers": [FINALIZER],
            "annotations": {INITIAL_COUNTS_ANNOTATION: counts},
            "ownerReferences": [owner],
        }
    maintenance: Object = {
        "apiVersion": MEDIK8S.api_version,
        "kind": "NodeMaintenance",
        "metadata": metadata,
        "spec": {"nodeName": "node-1", "reason": "test"},
    }
    return maintenance if status is None else {**maintenance, "status": status}


short_names = st.text("abcdefgh", min_size=1, max_size=3)
pod_lists = st.lists(
    st.builds(
        make_pod,
        short_names,
        namespace=st.sampled_from(["ns", "other"]),
        owner=st.sampled_from(["", "ReplicaSet", "DaemonSet", "Job", "StatefulSet"]),
        phase=st.sampled_from(["Running", "Pending", "Succeeded", "Failed"]),
        ready=st.booleans(),
        labels=st.fixed_dictionaries({}, optional={"app": st.sampled_from(["db", "web"]), "tier": st.just("x")}),
        annotations=st.fixed_dictionaries({}, optional={"kubernetes.io/config.mirror": st.just("x")}),
        deletionTimestamp=st.sampled_from([None, "2026-01-01T00:00:00Z"]),
    ),
    max_size=12,
    unique_by=lambda pod: pod["metadata"]["uid"],
)
budget_lists = st.lists(
    st.builds(
        make_budget,
        short_names,
        allowed=st.integers(-1, 4),
        healthy=st.integers(0, 5),
        needed=st.integers(0, 5),
        selector=st.sampled_from([{}, {"matchLabels": {"app": "db"}}, {"matchLabels": {"tier": "x"}}]),
        policy=st.sampled_from(["", "IfHealthyBudget", "AlwaysAllow"]),
        observed=st.integers(0, 1),
        namespace=st.sampled_from(["ns", "other"]),
    ),
    max_size=3,
    unique_by=lambda budget: budget["metadata"]["name"],
)
