"""Test environment with real nodes, which creates pods from a minimal image and reads their state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kube.client.sync_client import SyncClient
from kube.pods import is_ready
from localcluster.cluster import LocalCluster
from localcluster.nodes.node import RealNode
from localcluster.nodes.node_config import PAUSE_IMAGE
from localcluster.nodes.real_nodes import RealNodes
from localcluster.waiting import wait_for_collection, wait_for_object

IGNORE_SIGTERM_SCRIPT = "trap '' TERM; while true; do sleep 1; done"
GRACE_SECONDS = 3
"""Termination grace period in seconds of the pods whose process ignores SIGTERM."""
IMAGE = PAUSE_IMAGE
"""Image that contains only busybox (FROM scratch)."""
PODS_PATH = "/api/v1/namespaces/default/pods"
APPS_PATH = "/apis/apps/v1/namespaces/default"
TIMEOUT_SECONDS = 60.0
CONTAINER_FIELDS = ("readinessProbe", "livenessProbe", "lifecycle", "volumeMounts")
WEB_SERVER_SCRIPT = "mkdir -p /tmp/www; echo {text} > /tmp/www/index.html; exec httpd -f -p 80 -h /tmp/www"
WEB_SERVER_PROBE = {"httpGet": {"path": "/", "port": 80}, "periodSeconds": 1}
"""Readiness probe for the web server in the pods."""


@dataclass(frozen=True)
class RealNodesEnvironment:
    """A cluster with real nodes."""

    cluster: LocalCluster
    nodes: RealNodes

    @property
    def client(self) -> SyncClient:
        """Return the administrator's API client."""
        return self.cluster.get_client()

    def get_node(self, name: str) -> RealNode:
        """Return the node with this name."""
        return self.nodes.get_node(name)

    def create_pod(self, name: str, node: str, script: str, **fields: Any) -> dict[str, Any]:
        """Create a pod on the node that runs a shell script; return the pod."""
        labels = {"labels": {"app": name}}
        spec = {"nodeName": node, "terminationGracePeriodSeconds": 1, **build_pod_spec(script, **fields)}
        return self.client.create(PODS_PATH, {"metadata": {"name": name, **labels}, "spec": spec})

    def wait_for_pod(self, name: str, predicate: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until the pod satisfies `predicate`, and return the pod."""
        return wait_for_object(
            self.client, f"{PODS_PATH}/{name}", lambda pod: pod is not None and predicate(pod), TIMEOUT_SECONDS
        )

    def wait_for_pods(self, app: str, predicate: Callable[[Sequence[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
        """Wait until the pods with this `app` label satisfy `predicate`, and return the pods."""
        pods = wait_for_collection(
            self.client,
            PODS_PATH,
            lambda pods_by_name: predicate([*pods_by_name.values()]),
            TIMEOUT_SECONDS,
            labels=f"app={app}",
        )
        return [*pods.values()]

    def delete(self, path: str) -> None:
        """Delete the object at this API path and its dependents."""
        self.client.run(self.client.api.request("DELETE", path))

    def read_log(self, pod_name: str) -> str:
        """Return the pod's log, which its kubelet serves."""
        return self.cluster.kubectl("logs", pod_name).stdout

    def create_service(self, name: str) -> None:
        """Create a Service with port 80 for the pods with this `app` label."""
        spec = {"selector": {"app": name}, "ports": [{"port": 80}]}
        self.client.create("/api/v1/namespaces/default/services", {"metadata": {"name": name}, "spec": spec})


def build_pod_spec(script: str, **fields: Any) -> dict[str, Any]:
    """Build a pod spec with one container that runs a script; `fields` belong to the container or to the pod spec."""
    container_fields = {key: fields.pop(key) for key in CONTAINER_FIELDS if key in fields}
    container: dict[str, Any] = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", script],
        **container_fields,
    }
    return {"containers": [container], **fields}


def build_pods_ready_predicate(count: int) -> Callable[[Sequence[dict[str, Any]]], bool]:
    """Return a predicate that is true if there are `count` pods, all of them Ready and none of them terminating."""
    return lambda pods: (
        len(pods) == count and all(is_ready(pod) and "deletionTimestamp" not in pod["metadata"] for pod in pods)
    )


def build_workload(name: str, workload_fields: Mapping[str, Any], pod_spec: Mapping[str, Any]) -> dict[str, Any]:
    """Build a workload such as a Deployment; its spec has the pod template and `workload_fields`."""
    labels = {"app": name}
    pods = {"metadata": {"labels": labels}, "spec": pod_spec}
    return {
        "metadata": {"name": name},
        "spec": {**workload_fields, "selector": {"matchLabels": labels}, "template": pods},
    }


def build_preferred_node_affinity(node: str) -> dict[str, Any]:
    """Build the affinity of pods that prefer this node but may run on another one."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    term = {"weight": 100, "preference": {"matchFields": [field]}}
    return {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}}
