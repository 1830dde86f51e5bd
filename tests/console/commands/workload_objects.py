"""Helpers that create and delete pods, their controllers and budgets for the tests of the command line."""

from __future__ import annotations

from typing import Any

from kube.nodes import node_path
from kube.pods import is_ready
from localcluster.cluster import LocalCluster
from tests.waiting import wait_for

KEEP_OUT = "test.nodemaintenance.dev/console"
"""Taint key of these tests' nodes; only the pods of this module tolerate it."""
COLLECTIONS = {
    "ReplicaSet": "/apis/apps/v1/namespaces/default/replicasets",
    "DaemonSet": "/apis/apps/v1/namespaces/default/daemonsets",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
    "Pod": "/api/v1/namespaces/default/pods",
}
Manifest = dict[str, Any]


def pod(name: str, node: str, **more: Any) -> Manifest:
    """Build a bare pod on a node; `more` may hold `labels`, `annotations` and `volumes`."""
    metadata = {"name": name, "namespace": "default", "labels": {"on": node, **more.get("labels", {})}}
    metadata["annotations"] = more.get("annotations", {})
    spec = {**_pod_spec(node), "nodeName": node, "volumes": more.get("volumes", [])}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def controlled(kind: str, node: str, labels: dict[str, str] | None = None, replicas: int = 1) -> Manifest:
    """Build a ReplicaSet or DaemonSet whose pods are scheduled to this node only."""
    wanted = {"on": node, "by": kind.lower(), **(labels or {})}
    template = {"metadata": {"labels": wanted}, "spec": _pod_spec(node)}
    spec: Manifest = {"selector": {"matchLabels": wanted}, "template": template}
    if kind == "ReplicaSet":
        spec["replicas"] = replicas
    metadata = {"name": f"{kind.lower()}-{node}", "namespace": "default", "labels": {"on": node}}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": spec}


def budget(name: str, node: str, labels: dict[str, str] | None = None, **rule: int) -> Manifest:
    """Build a PodDisruptionBudget for pods of this node; `rule` holds `minAvailable` or `maxUnavailable`."""
    metadata = {"name": name, "namespace": "default", "labels": {"on": node}}
    spec = {"selector": {"matchLabels": {"on": node, **(labels or {})}}, **rule}
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata, "spec": spec}


def _pod_spec(node: str) -> Manifest:
    containers = [{"name": "main", "image": "registry.invalid/main"}]
    selector = {"kubernetes.io/hostname": node}
    return {
        "containers": containers,
        "nodeSelector": selector,
        "tolerations": [{"key": KEEP_OUT, "operator": "Exists"}],
    }


def apply(cluster: LocalCluster, *manifests: Manifest) -> None:
    """Create the objects, and wait until their pods are Ready and their budgets have a status."""
    door = cluster.door()
    door.together(*(door.api.create(COLLECTIONS[item["kind"]], item) for item in manifests))
    for item in manifests:
        path = f"{COLLECTIONS[item['kind']]}/{item['metadata']['name']}"
        wait_for(door, path, lambda found: found is not None and _is_settled(found), 20)


def _is_settled(item: Manifest) -> bool:
    status = item.get("status") or {}
    settled: dict[str, bool] = {
        "Pod": is_ready(item),
        "ReplicaSet": status.get("readyReplicas") == item["spec"].get("replicas"),
        "DaemonSet": status.get("numberReady") == 1,
        "PodDisruptionBudget": status.get("observedGeneration") == 1,
    }
    return settled[item["kind"]]


def clear(cluster: LocalCluster, node: str) -> None:
    """Delete all objects that `apply` created for the node."""
    door = cluster.door()
    wanted, at_once = {"labelSelector": f"on={node}"}, {"gracePeriodSeconds": 0}
    door.together(*(door.api.request("DELETE", path, query=wanted, body=at_once) for path in COLLECTIONS.values()))


def pods_on(cluster: LocalCluster, node: str) -> list[Manifest]:
    """Return the pods on the node."""
    items: list[Manifest] = cluster.door().list("/api/v1/pods", fields=f"spec.nodeName={node}")["items"]
    return items


def is_cordoned(cluster: LocalCluster, node: str) -> bool:
    """Return whether the node is cordoned."""
    return cluster.door().get(node_path(node))["spec"].get("unschedulable") is True
