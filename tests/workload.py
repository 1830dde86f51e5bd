"""Creates nodes, namespaces, pods, PDBs and NodeMaintenances for a test on a real cluster; reads the audit log.

All functions that wait use watches.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any
from weakref import WeakKeyDictionary

from kube.client.api import get_or_none
from kube.client.sync_client import SyncClient
from kube.maintenance.groups import MEDIK8S, ApiGroup
from kube.maintenance.objects import build_path as build_maintenance_path
from kube.nodes import build_node_path
from kube.paths import Object
from kube.pods import is_ready
from localcluster.cluster import LocalCluster
from localcluster.waiting import DEFAULT_TIMEOUT_SECONDS, KnownState, wait_for_collection, wait_for_object

STALE_WRITE_STATUSES = (HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY)
"""Status codes of writes based on stale data: a stale resourceVersion, or a failed `test` in a JSON patch."""
NODE_BATCH_SIZE = 8
"""Number of nodes that are created together, which is hardly slower than creating one; tests do not share nodes."""
_name_numbers = itertools.count(1)
_free_nodes: WeakKeyDictionary[LocalCluster, list[str]] = WeakKeyDictionary()
_free_nodes_lock = threading.Lock()


class Workload:
    """A test's namespace on a real cluster, and the objects that the test creates."""

    def __init__(self, local_cluster: LocalCluster, client: SyncClient) -> None:
        self.local_cluster = local_cluster
        self.client = client
        self.namespace = self.create_namespace()
        self._deployments: list[str] = []
        self._nodes: list[str] = []

    def delete_objects(self) -> None:
        """Delete this test's Deployments and nodes.

        The controllers of remaining Deployments would try to create pods whenever a node changes. With the nodes of
        hundreds of earlier tests, requests that list nodes would take ten times as long.
        """
        for path in self._deployments:
            self.delete(path)
        api = self.client.api
        self.client.gather_all(*(get_or_none(api.request("DELETE", build_node_path(name))) for name in self._nodes))
        self._deployments.clear()
        self._nodes.clear()

    def create_namespace(self) -> str:
        """Create a namespace, wait until pods can be created in it, and return its name."""
        name = f"work-{next(_name_numbers)}"
        created = self.client.create("/api/v1/namespaces", {"metadata": {"name": name}})
        path, known_state = (
            f"/api/v1/namespaces/{name}/serviceaccounts",
            KnownState((), created["metadata"]["resourceVersion"]),
        )
        self.wait_for_collection(path, lambda accounts: "default" in accounts, known_state=known_state)
        return name

    def take_node(self) -> str:
        """Return the name of a node that no other test uses."""
        with _free_nodes_lock:
            free_nodes = _free_nodes.setdefault(self.local_cluster, [])
            if not free_nodes:
                free_nodes += self.local_cluster.add_nodes(NODE_BATCH_SIZE)
            self._nodes.append(free_nodes.pop(0))
            return self._nodes[-1]

    def read_node(self, name: str) -> Object:
        """Return the node in its current state."""
        return self.client.get(f"/api/v1/nodes/{name}")

    def create_bare_pods(
        self, node: str, *names: str, namespace: str = "", ready: bool = True, **options: Any
    ) -> list[Object]:
        """Create bare pods with `build_pod`, wait until they are Ready unless `ready` is false, and return them."""
        bodies = [build_pod(node, name, **options) for name in names]
        return self.create_pods(namespace or self.namespace, bodies, ready=ready)

    def create_pods(self, namespace: str, bodies: list[Object], *, ready: bool = True) -> list[Object]:
        """Create these pods, wait until they are Ready unless `ready` is false, and return them."""
        path = f"/api/v1/namespaces/{namespace}/pods"
        created = self.client.gather_all(*(self.client.api.create(path, body) for body in bodies))
        if not (ready and created):
            return created
        names = [pod["metadata"]["name"] for pod in created]
        current_pods = self.wait_for_collection(
            path,
            lambda pods: all(name in pods and is_ready(pods[name]) for name in names),
            known_state=KnownState(created),
        )
        return [current_pods[name] for name in names]

    def create_budget(
        self, name: str, labels: Mapping[str, str], min_available: int, *, expected_healthy: int, namespace: str = ""
    ) -> Object:
        """Create a PodDisruptionBudget with `minAvailable`; return it once it has `expected_healthy` healthy pods."""
        path = f"/apis/policy/v1/namespaces/{namespace or self.namespace}/poddisruptionbudgets"
        spec = {"minAvailable": min_available, "selector": {"matchLabels": dict(labels)}}
        self.client.create(path, {"metadata": {"name": name}, "spec": spec})

        def is_reconciled(budget: Object | None) -> bool:
            status = (budget or {}).get("status") or {}
            return bool(status.get("observedGeneration")) and status.get("currentHealthy") == expected_healthy

        return self.wait_for_object(f"{path}/{name}", is_reconciled)

    def create_deployment(self, name: str, node: str, replicas: int) -> list[Object]:
        """Create a Deployment whose pods can run only on `node`; return its pods once they are Ready."""
        spec = {"replicas": replicas, **_build_pod_template_spec(name, node)}
        path = f"/apis/apps/v1/namespaces/{self.namespace}/deployments"
        self.client.create(path, {"metadata": {"name": name}, "spec": spec})
        self._deployments.append(f"{path}/{name}")
        return self._wait_for_ready_pods(name, replicas)

    def create_daemonset(self, name: str, node: str) -> Object:
        """Create a DaemonSet that runs only on `node`; return its pod once the pod is Ready."""
        self.client.create(
            f"/apis/apps/v1/namespaces/{self.namespace}/daemonsets",
            {"metadata": {"name": name}, "spec": _build_pod_template_spec(name, node)},
        )
        return self._wait_for_ready_pods(name, 1)[0]

    def _wait_for_ready_pods(self, app: str, count: int) -> list[Object]:
        current_pods = self.wait_for_collection(
            f"/api/v1/namespaces/{self.namespace}/pods",
            lambda pods: sum(is_ready(pod) for pod in pods.values()) >= count,
            labels=f"app={app}",
        )
        return list(current_pods.values())

    def create_maintenance(
        self,
        node: str,
        group: ApiGroup = MEDIK8S,
        *,
        reason: str = "test",
        drain: Object | None = None,
        **metadata: Any,
    ) -> Object:
        """Create a NodeMaintenance for `node`, with `spec.drain` if `drain` is given, and return it."""
        body = {
            "apiVersion": group.api_version,
            "kind": "NodeMaintenance",
            "metadata": {"name": f"maintenance-{next(_name_numbers)}", **metadata},
            "spec": {"nodeName": node, "reason": reason, **({"drain": drain} if drain is not None else {})},
        }
        return self.client.create(group.path, body)

    def read_maintenance(self, maintenance: Object) -> Object:
        """Return the NodeMaintenance in its current state."""
        return self.client.get(build_maintenance_path(maintenance))

    def delete(self, path: str) -> None:
        """Request the deletion of the object at `path`, without a precondition on its uid."""
        self.client.run(self.client.api.request("DELETE", path))

    def remove_maintenance(self, maintenance: Object) -> None:
        """Remove a NodeMaintenance without restoring its node: remove its finalizers, and delete it."""
        path = build_maintenance_path(maintenance)
        self.client.patch(path, {"metadata": {"finalizers": []}})
        self.delete(path)

    def wait_for_object(
        self, path: str, predicate: Callable[[Object | None], bool], seconds: float = DEFAULT_TIMEOUT_SECONDS
    ) -> Object:
        """Wait until the object at `path` satisfies `predicate`; return the object, or {} if it does not exist.

        The predicate gets None for an object that does not exist.
        """
        return wait_for_object(self.client, path, predicate, seconds)

    def wait_for_collection(
        self,
        path: str,
        predicate: Callable[[dict[str, Object]], bool],
        seconds: float = DEFAULT_TIMEOUT_SECONDS,
        *,
        fields: str = "",
        labels: str = "",
        known_state: KnownState | None = None,
    ) -> dict[str, Object]:
        """Wait until the objects at `path`, as a dictionary by name, satisfy `predicate`; return the dictionary.

        If `known_state` is given, only later changes are checked.
        """
        return wait_for_collection(
            self.client, path, predicate, seconds, fields=fields, labels=labels, known_state=known_state
        )


def build_pod(
    node: str,
    name: str,
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    finalizers: tuple[str, ...] = (),
    empty_dir: bool = False,
) -> Object:
    """Build a bare pod that is already bound to `node`."""
    spec: Object = {
        "nodeName": node,
        "containers": [{"name": "main", "image": "fake"}],
        "tolerations": [{"operator": "Exists"}],
    }
    if empty_dir:
        spec["volumes"] = [{"name": "scratch", "emptyDir": {}}]
    metadata = {
        "name": name,
        "labels": dict(labels or {}),
        "annotations": dict(annotations or {}),
        "finalizers": list(finalizers),
    }
    return {"metadata": metadata, "spec": spec}


def _build_pod_template_spec(app: str, node: str) -> Object:
    """Build the selector and the pod template of a workload whose pods can run only on `node`."""
    return {
        "selector": {"matchLabels": {"app": app}},
        "template": {
            "metadata": {"labels": {"app": app}},
            "spec": {
                "nodeSelector": {"kubernetes.io/hostname": node},
                "containers": [{"name": "main", "image": "fake"}],
            },
        },
    }


def summarize_writes(entries: list[Object]) -> list[tuple[str, str, str]]:
    """Return audit log entries as (verb, resource or resource/subresource, name), without writes based on stale data.

    The API server rejects a write if another client has changed the object since it was read. For example, the
    controller manager taints a node as soon as it is cordoned, and the product then repeats its patch.
    """
    current = [entry for entry in entries if entry["responseStatus"]["code"] not in STALE_WRITE_STATUSES]
    return [
        (entry["verb"], _format_resource(entry["objectRef"]), entry["objectRef"].get("name", "")) for entry in current
    ]


def _format_resource(reference: Mapping[str, str]) -> str:
    subresource = reference.get("subresource")
    return reference["resource"] + (f"/{subresource}" if subresource else "")
