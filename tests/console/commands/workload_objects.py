"""Helpers that create and delete pods, controllers and PodDisruptionBudgets for the command-line tests."""

from __future__ import annotations

from typing import Any

from kube.nodes import build_node_path
from kube.pods import is_ready
from localcluster.cluster import LocalCluster
from localcluster.waiting import wait_for_object

NODE_TAINT_KEY = "test.nodemaintenance.dev/console"
"""Key of the taint on the nodes of these tests; only pods that this module builds tolerate it."""
COLLECTIONS = {
    "ReplicaSet": "/apis/apps/v1/namespaces/default/replicasets",
    "DaemonSet": "/apis/apps/v1/namespaces/default/daemonsets",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
    "Pod": "/api/v1/namespaces/default/pods",
}
Manifest = dict[str, Any]


def build_pod(name: str, node: str, **fields: Any) -> Manifest:
    """Build a bare pod on a node; `fields` may contain `labels`, `annotations` and `volumes`."""
    metadata = {"name": name, "namespace": "default", "labels": {"on": node, **fields.get("labels", {})}}
    metadata["annotations"] = fields.get("annotations", {})
    spec = {**_build_pod_spec(node), "nodeName": node, "volumes": fields.get("volumes", [])}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def build_controller(kind: str, node: str, labels: dict[str, str] | None = None, replicas: int = 1) -> Manifest:
    """Build a ReplicaSet or DaemonSet whose pods can be scheduled only to this node."""
    all_labels = {"on": node, "by": kind.lower(), **(labels or {})}
    template = {"metadata": {"labels": all_labels}, "spec": _build_pod_spec(node)}
    spec: Manifest = {"selector": {"matchLabels": all_labels}, "template": template}
    if kind == "ReplicaSet":
        spec["replicas"] = replicas
    metadata = {"name": f"{kind.lower()}-{node}", "namespace": "default", "labels": {"on": node}}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": spec}


def build_budget(name: str, node: str, labels: dict[str, str] | None = None, **rule: int) -> Manifest:
    """Build a PodDisruptionBudget for pods on this node; `rule` contains `minAvailable` or `maxUnavailable`."""
    metadata = {"name": name, "namespace": "default", "labels": {"on": node}}
    spec = {"selector": {"matchLabels": {"on": node, **(labels or {})}}, **rule}
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata, "spec": spec}


def _build_pod_spec(node: str) -> Manifest:
    containers = [{"name": "main", "image": "registry.invalid/main"}]
    selector = {"kubernetes.io/hostname": node}
    return {
        "containers": containers,
        "nodeSelector": selector,
        "tolerations": [{"key": NODE_TAINT_KEY, "operator": "Exists"}],
    }


def create_and_wait(cluster: LocalCluster, *manifests: Manifest) -> None:
    """Create the objects, and wait until all pods are Ready and all PodDisruptionBudgets have a status."""
    client = cluster.get_client()
    client.gather_all(*(client.api.create(COLLECTIONS[manifest["kind"]], manifest) for manifest in manifests))
    for manifest in manifests:
        path = f"{COLLECTIONS[manifest['kind']]}/{manifest['metadata']['name']}"
        wait_for_object(client, path, lambda live_object: live_object is not None and _is_settled(live_object), 20)


def _is_settled(manifest: Manifest) -> bool:
    status = manifest.get("status") or {}
    is_settled_by_kind: dict[str, bool] = {
        "Pod": is_ready(manifest),
        "ReplicaSet": status.get("readyReplicas") == manifest["spec"].get("replicas"),
        "DaemonSet": status.get("numberReady") == 1,
        "PodDisruptionBudget": status.get("observedGeneration") == 1,
    }
    return is_settled_by_kind[manifest["kind"]]


def delete_objects(cluster: LocalCluster, node: str) -> None:
    """Delete all objects that `create_and_wait` has created for the node."""
    client = cluster.get_client()
    selector, delete_options = {"labelSelector": f"on={node}"}, {"gracePeriodSeconds": 0}
    client.gather_all(
        *(client.api.request("DELETE", path, query=selector, body=delete_options) for path in COLLECTIONS.values())
    )


def list_pods(cluster: LocalCluster, node: str) -> list[Manifest]:
    """Return the pods on the node."""
    pods: list[Manifest] = cluster.get_client().list("/api/v1/pods", field_selector=f"spec.nodeName={node}")["items"]
    return pods


def is_cordoned(cluster: LocalCluster, node: str) -> bool:
    """Return whether the node is cordoned."""
    return cluster.get_client().get(build_node_path(node))["spec"].get("unschedulable") is True
