"""Pods for the tests of the command line, and what is left of them."""

from __future__ import annotations

import json
from typing import Any

from localcluster.cluster import LocalCluster

KEEP_OUT = "test.nodemaintenance.dev/console"
"""Taint of the nodes of these tests, which only their own pods tolerate."""
Manifest = dict[str, Any]


def pod(name: str, node: str, **more: Any) -> Manifest:
    """A bare pod on a node; `labels`, `annotations` and `volumes` as given."""
    metadata = {"name": name, "namespace": "default", "labels": {"on": node, **more.get("labels", {})}}
    metadata["annotations"] = more.get("annotations", {})
    spec = {**_pod_spec(node), "nodeName": node, "volumes": more.get("volumes", [])}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def controlled(kind: str, node: str, labels: dict[str, str] | None = None, replicas: int = 1) -> Manifest:
    """A ReplicaSet or DaemonSet whose pods all want this node."""
    wanted = {"on": node, "by": kind.lower(), **(labels or {})}
    template = {"metadata": {"labels": wanted}, "spec": _pod_spec(node)}
    spec: Manifest = {"selector": {"matchLabels": wanted}, "template": template}
    if kind == "ReplicaSet":
        spec["replicas"] = replicas
    metadata = {"name": f"{kind.lower()}-{node}", "namespace": "default", "labels": {"on": node}}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": spec}


def budget(name: str, node: str, labels: dict[str, str] | None = None, **rule: int) -> Manifest:
    """A PodDisruptionBudget over pods of this node."""
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
    """Create the objects; return when their pods are Ready and their budgets counted."""
    body = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
    cluster.kubectl("create", "-f", "-", input=json.dumps(body))
    for item in manifests:
        name = f"{item['kind'].lower()}/{item['metadata']['name']}"
        cluster.kubectl("wait", f"--for={_settled(item)}", "--timeout=20s", name)


def _settled(item: Manifest) -> str:
    """What `kubectl wait` waits for."""
    return {
        "Pod": "condition=Ready",
        "ReplicaSet": f"jsonpath={{.status.readyReplicas}}={item['spec'].get('replicas')}",
        "DaemonSet": "jsonpath={.status.numberReady}=1",
        "PodDisruptionBudget": "jsonpath={.status.observedGeneration}=1",
    }[item["kind"]]


def clear(cluster: LocalCluster, node: str) -> None:
    """Delete what `apply` made for the node."""
    kinds = "replicasets,daemonsets,poddisruptionbudgets,pods"
    cluster.kubectl("delete", kinds, "-l", f"on={node}", "--force", "--grace-period=0", "--wait=false")


def pods_on(cluster: LocalCluster, node: str) -> list[Manifest]:
    """The pods that are on the node."""
    listed = cluster.kubectl("get", "pods", "-A", f"--field-selector=spec.nodeName={node}", "-o", "json")
    items: list[Manifest] = json.loads(listed.stdout)["items"]
    return items


def is_cordoned(cluster: LocalCluster, node: str) -> bool:
    """Whether the node takes no new pods."""
    return cluster.kubectl("get", "node", node, "-o", "jsonpath={.spec.unschedulable}").stdout == "true"
