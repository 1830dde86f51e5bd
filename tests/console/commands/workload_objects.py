"""Helpers that create and delete pods, their controllers and budgets for the tests of the command line."""

from __future__ import annotations

from typing import Any

from kube.nodes import build_node_path
from kube.pods import is_ready
from localcluster.cluster import LocalCluster
from tests.waiting import wait_for_object

NODE_TAINT_KEY = "test.nodemaintenance.dev/console"
"""Taint key of these tests' nodes; only the pods of this module tolerate it."""
COLLECTIONS = {
    "ReplicaSet": "/apis/apps/v1/namespaces/default/replicasets",
    "DaemonSet": "/apis/apps/v1/namespaces/default/daemonsets",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
    "Pod": "/api/v1/namespaces/default/pods",
}
Manifest = dict[str, Any]


def build_pod(name: str, node: str, **fields: Any) -> Manifest:
    """Build a bare pod on a node; `fields` may hold `labels`, `annotations` and `volumes`."""
    metadata = {"name": name, "namespace": "default", "labels": {"on": node, **fields.get("labels", {})}}
    metadata["annotations"] = fields.get("annotations", {})
    spec = {**_pod_spec(node), "nodeName": node, "volumes": fields.get("volumes", [])}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def build_controller(kind: str, node: str, labels: dict[str, str] | None = None, replicas: int = 1) -> Manifest:
    """Build a ReplicaSet or DaemonSet whose pods are scheduled to this node only."""
    all_labels = {"on": node, "by": kind.lower(), **(labels or {})}
    template = {"metadata": {"labels": all_labels}, "spec": _pod_spec(node)}
    spec: Manifest = {"selector": {"matchLabels": all_labels}, "template": template}
    if kind == "ReplicaSet":
        spec["replicas"] = replicas
    metadata = {"name": f"{kind.lower()}-{node}", "namespace": "default", "labels": {"on": node}}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": spec}


def build_budget(name: str, node: str, labels: dict[str, str] | None = None, **rule: int) -> Manifest:
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
        "tolerations": [{"key": NODE_TAINT_KEY, "operator": "Exists"}],
    }


def create_and_wait(cluster: LocalCluster, *manifests: Manifest) -> None:
    """Create the objects, and wait until their pods are Ready and their budgets have a status."""
    client = cluster.get_client()
    client.gather_all(*(client.api.create(COLLECTIONS[item["kind"]], item) for item in manifests))
    for item in manifests:
        path = f"{COLLECTIONS[item['kind']]}/{item['metadata']['name']}"
        wait_for_object(client, path, lambda live_object: live_object is not None and _is_settled(live_object), 20)


def _is_settled(item: Manifest) -> bool:
    status = item.get("status") or {}
    settled: dict[str, bool] = {
        "Pod": is_ready(item),
        "ReplicaSet": status.get("readyReplicas") == item["spec"].get("replicas"),
        "DaemonSet": status.get("numberReady") == 1,
        "PodDisruptionBudget": status.get("observedGeneration") == 1,
    }
    return settled[item["kind"]]


def delete_objects(cluster: LocalCluster, node: str) -> None:
    """Delete all objects that `create_and_wait` created for the node."""
    client = cluster.get_client()
    selector, immediately = {"labelSelector": f"on={node}"}, {"gracePeriodSeconds": 0}
    client.gather_all(
        *(client.api.request("DELETE", path, query=selector, body=immediately) for path in COLLECTIONS.values())
    )


def list_pods(cluster: LocalCluster, node: str) -> list[Manifest]:
    """Return the pods on the node."""
    items: list[Manifest] = cluster.get_client().list("/api/v1/pods", field_selector=f"spec.nodeName={node}")["items"]
    return items


def is_cordoned(cluster: LocalCluster, node: str) -> bool:
    """Return whether the node is cordoned."""
    return cluster.get_client().get(build_node_path(node))["spec"].get("unschedulable") is True
