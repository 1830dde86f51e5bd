"""The environment of the tests on real nodes: creates pods from a minimal image, and reads their state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kube.client.sync_client import Cluster
from kube.pods import is_ready
from localcluster.cluster import LocalCluster
from localcluster.nodes.node import RealNode
from localcluster.nodes.real_nodes import RealNodes
from localcluster.nodes.node_config import PAUSE
from tests.waiting import until, wait_for

DEAF = "trap '' TERM; while true; do sleep 1; done"
GRACE = 3
"""Seconds of the termination grace period of a process that ignores SIGTERM."""
IMAGE = PAUSE
"""An image with busybox only (FROM scratch)."""
PODS = "/api/v1/namespaces/default/pods"
APPS = "/apis/apps/v1/namespaces/default"
SECONDS = 60.0
OF_CONTAINERS = ("readinessProbe", "livenessProbe", "lifecycle", "volumeMounts")
WEB = "mkdir -p /tmp/www; echo {says} > /tmp/www/index.html; exec httpd -f -p 80 -h /tmp/www"
SERVES = {"httpGet": {"path": "/", "port": 80}, "periodSeconds": 1}
"""A readiness probe of the web server."""


@dataclass(frozen=True)
class Real:
    """A cluster with real nodes."""

    cluster: LocalCluster
    nodes: RealNodes

    @property
    def door(self) -> Cluster:
        """Return the administrator's API client."""
        return self.cluster.door()

    def node(self, name: str) -> RealNode:
        """Return the node with this name."""
        return self.nodes.node(name)

    def pod(self, name: str, node: str, script: str, **more: Any) -> dict[str, Any]:
        """Create a pod that runs a script on a node."""
        labels = {"labels": {"app": name}}
        spec = {"nodeName": node, "terminationGracePeriodSeconds": 1, **template(script, **more)}
        return self.door.create(PODS, {"metadata": {"name": name, **labels}, "spec": spec})

    def until_pod(self, name: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until `holds` is true for the pod; return the pod."""
        return wait_for(self.door, f"{PODS}/{name}", lambda pod: pod is not None and holds(pod), SECONDS)

    def until_pods(self, app: str, holds: Callable[[Sequence[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
        """Wait until `holds` is true for the pods with this `app` label; return them."""
        found = until(self.door, PODS, lambda known: holds([*known.values()]), SECONDS, labels=f"app={app}")
        return [*found.values()]

    def delete(self, path: str) -> None:
        """Delete the object and its dependents."""
        self.door.run(self.door.api.request("DELETE", path))

    def logs(self, pod: str) -> str:
        """Return the pod's log, read from its kubelet."""
        return self.cluster.kubectl("logs", pod).stdout

    def service(self, name: str) -> None:
        """Create a Service at port 80 for the pods with this `app` label."""
        spec = {"selector": {"app": name}, "ports": [{"port": 80}]}
        self.door.create("/api/v1/namespaces/default/services", {"metadata": {"name": name}, "spec": spec})


def template(script: str, **more: Any) -> dict[str, Any]:
    """Build a pod spec with one container that runs a script; `more` has fields of the container or the pod spec."""
    own = {key: more.pop(key) for key in OF_CONTAINERS if key in more}
    container: dict[str, Any] = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", script],
        **own,
    }
    return {"containers": [container], **more}


def ready_and_whole(count: int) -> Callable[[Sequence[dict[str, Any]]], bool]:
    """Return a predicate: there are `count` pods, all Ready and none terminating."""
    return lambda pods: (
        len(pods) == count and all(is_ready(pod) and "deletionTimestamp" not in pod["metadata"] for pod in pods)
    )


def owner(name: str, more: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    """Build a Deployment or another workload; `more` has fields of its spec, `spec` is the pod spec."""
    labels = {"app": name}
    pods = {"metadata": {"labels": labels}, "spec": spec}
    return {"metadata": {"name": name}, "spec": {**more, "selector": {"matchLabels": labels}, "template": pods}}


def preferring(node: str) -> dict[str, Any]:
    """Build the affinity of pods that prefer a node and may run on another one."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    term = {"weight": 100, "preference": {"matchFields": [field]}}
    return {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}}
