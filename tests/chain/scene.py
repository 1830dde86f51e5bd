"""What the chain's tests stand on: nodes, pods, budgets and maintenances made, watched and read back."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kube.cluster import Cluster
from kube.groups import GROUPS, MEDIK8S
from kube.maintenance import phase
from kube.nodes import node_path
from localcluster.cluster import LocalCluster
from localcluster.product import Product

Object = dict[str, Any]
OURS = "system:serviceaccount:node-maintenance:"
NUMBERS = itertools.count(1)


def finished(item: Object) -> bool:
    """Phase is Succeeded."""
    return phase(item) == "Succeeded"


class Scene:
    """One cluster with the product at work on it."""

    def __init__(self, cluster: LocalCluster, product: Product) -> None:
        self.cluster, self.product = cluster, product
        self.admin = Cluster(str(cluster.kubeconfig))

    def node(self, name: str = "") -> str:
        """Make a node and wait until it is Ready; returns its name."""
        name = name or f"chain-{next(NUMBERS)}"
        labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
        metadata = {"name": name, "annotations": {"kwok.x-k8s.io/node": "fake"}, "labels": labels}
        size = {"cpu": "32", "memory": "256Gi", "pods": "250"}
        self.admin.create(
            "/api/v1/nodes",
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": metadata,
                "status": {"capacity": size, "allocatable": size},
            },
        )
        self.until("/api/v1/nodes", name, _is_ready)
        return name

    def namespace(self) -> str:
        """Make a namespace with its service account; returns its name."""
        name = f"scene-{next(NUMBERS)}"
        self.cluster.kubectl("create", "namespace", name)
        self.cluster.kubectl("wait", "--for=create", "serviceaccount/default", "-n", name, "--timeout=30s")
        return name

    def pods(
        self, node: str, count: int, *, namespace: str = "", labels: Object | None = None, **more: Any
    ) -> list[Object]:
        """Make bare pods on the node and wait until all are Ready; `delete` and `ready` are kwok's delays."""
        namespace = namespace or self.namespace()
        delays = {
            f"pod-{stage}.stage.kwok.x-k8s.io/delay": more[stage] for stage in ("delete", "ready") if stage in more
        }
        names = [f"pod-{next(NUMBERS)}" for _ in range(count)]
        for name in names:
            metadata = {"name": name, "labels": labels or {}, "annotations": delays}
            metadata |= {"finalizers": more["finalizers"]} if "finalizers" in more else {}
            spec = {"nodeName": node, "containers": [{"name": "main", "image": "fake"}]}
            spec |= {"terminationGracePeriodSeconds": more["grace"]} if "grace" in more else {}
            body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
            self.admin.create(f"/api/v1/namespaces/{namespace}/pods", body)
        if more.get("ready_awaited", True):
            return [self.until(f"/api/v1/namespaces/{namespace}/pods", name, _is_ready) for name in names]
        return [self.admin.get(f"/api/v1/namespaces/{namespace}/pods/{name}") for name in names]

    def deployment(self, namespace: str, node: str, replicas: int, **delays: str) -> None:
        """Make the Deployment `web`, all replicas Ready on this node; `delete` and `ready` as in `pods`.

        Its pods run where `allow` says: on this node only, for now.
        """
        self.allow(namespace, node)
        labels = {"app": "web"}
        annotations = {f"pod-{stage}.stage.kwok.x-k8s.io/delay": delay for stage, delay in delays.items()}
        template = {
            "metadata": {"labels": labels, "annotations": annotations},
            "spec": {"nodeSelector": {"pool": namespace}, "containers": [{"name": "main", "image": "fake"}]},
        }
        spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
        body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}
        self.admin.create(f"/apis/apps/v1/namespaces/{namespace}/deployments", body)
        self.cluster.kubectl("rollout", "status", "deployment/web", "-n", namespace, "--timeout=30s")

    def allow(self, namespace: str, node: str) -> None:
        """Let the namespace's Deployment run on this node, too."""
        self.cluster.kubectl("label", "node", node, f"pool={namespace}")

    def maintain_with_pods(self, node: str, count: int) -> str:
        """Put pods on the node and drain it; returns the path of its finished maintenance."""
        self.pods(node, count)
        path = self.maintain(node)
        self.reaches(path)
        return path

    @contextmanager
    def aside(self, work: Callable[[], None]) -> Iterator[None]:
        """Do `work` in a thread while the block runs, and wait for its end."""
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        yield
        thread.join(timeout=30)

    def budget(self, namespace: str, labels: Object, *, name: str = "budget", allowed: int, **spec: Any) -> Object:
        """Make a disruption budget and wait until it allows that many disruptions."""
        path = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
        body = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name}}
        self.admin.create(path, {**body, "spec": {"selector": {"matchLabels": labels}, **spec}})
        return self.until(path, name, lambda item: _allows(item, allowed))

    def maintain(self, node: str, *, group: str = MEDIK8S.api_version, name: str = "", reason: str = "test") -> str:
        """Create a NodeMaintenance; returns its path."""
        name = name or f"m-{next(NUMBERS)}"
        body = {"apiVersion": group, "kind": "NodeMaintenance", "metadata": {"name": name}}
        self.admin.create(GROUPS[group].path, {**body, "spec": {"nodeName": node, "reason": reason}})
        return f"{GROUPS[group].path}/{name}"

    def history(self, path: str, done: Callable[[Object], bool], seconds: float = 30.0) -> Iterator[Object]:
        """Yield each state of the object at `path` as it comes, up to the one that is `done`."""
        collection, name = path.rsplit("/", 1)
        deadline = time.monotonic() + seconds
        for change in self.cluster.api().watch(f"{collection}?fieldSelector=metadata.name={name}", seconds=seconds):
            item = change["object"]
            if change["type"] != "DELETED":
                yield item
                if done(item):
                    return
            assert time.monotonic() < deadline, f"{path} is still {item.get('status')} after {seconds} s"
        raise AssertionError(f"the watch on {path} ended")

    def until(self, collection: str, name: str, done: Callable[[Object], bool], seconds: float = 30.0) -> Object:
        """The first state of the object that is `done`."""
        *_, last = self.history(f"{collection}/{name}", done, seconds)
        return last

    def reaches(self, path: str, done: Callable[[Object], bool] = finished, seconds: float = 30.0) -> Object:
        """The first state of the object at `path` that is `done`."""
        *_, last = self.history(path, done, seconds)
        return last

    def gone(self, path: str, seconds: float = 10.0) -> float:
        """Wait until the object at `path` is gone; returns the seconds that took."""
        started = time.monotonic()
        collection, name = path.rsplit("/", 1)
        resource = f"nodemaintenances.{collection.split('/')[2]}"
        self.cluster.kubectl("wait", "--for=delete", f"{resource}/{name}", f"--timeout={seconds}s")
        return time.monotonic() - started

    def delete(self, path: str) -> None:
        """Request the deletion of a maintenance, and do not wait for it."""
        self.admin.delete(path, uid=self.admin.get(path)["metadata"]["uid"])

    def spec(self, node: str) -> Object:
        """The node's spec."""
        spec: Object = self.admin.get(node_path(node))["spec"]
        return spec

    def pods_on(self, node: str) -> list[Object]:
        """The pods on the node now."""
        items: list[Object] = self.admin.list("/api/v1/pods", fields=f"spec.nodeName={node}")["items"]
        return items

    def audit(self) -> list[Object]:
        """The API server's audit log: every write of anybody, in order."""
        whole, _, _ = self.cluster.audit_log.read_text().rpartition("\n")  # the last line may be half written
        return [json.loads(line) for line in whole.split("\n") if line]

    def our_writes(self) -> list[Object]:
        """The writes of the product's accounts."""
        return [entry for entry in self.audit() if entry["user"]["username"].startswith(OURS)]

    def evictions(self, pods: list[Object]) -> list[Object]:
        """The eviction requests for these pods, by uid where the request names one."""
        keys = {(pod["metadata"]["namespace"], pod["metadata"]["name"]) for pod in pods}
        return [
            entry
            for entry in self.audit()
            if entry["verb"] == "create"
            and entry["objectRef"].get("subresource") == "eviction"
            and (entry["objectRef"]["namespace"], entry["objectRef"]["name"]) in keys
        ]


def _is_ready(item: Object) -> bool:
    conditions = (item.get("status") or {}).get("conditions") or []
    return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)


def _allows(item: Object, allowed: int) -> bool:
    status = item.get("status") or {}
    processed = status.get("observedGeneration") == item["metadata"]["generation"]
    return processed and status.get("disruptionsAllowed") == allowed
