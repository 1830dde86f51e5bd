"""Test environment for end-to-end tests: a cluster with the product on a real engine, and drains of many nodes."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterable

from kube.client.sync_client import SyncClient
from kube.maintenance import objects as m
from kube.maintenance.groups import GROUPS, MEDIK8S, ApiGroup
from kube.paths import Object
from kube.pods import is_ready, is_terminating
from localcluster.audit_log import AuditLog
from localcluster.cluster import LocalCluster
from localcluster.engine_product import EngineProduct
from tests.e2e.histogram import FunctionDurations
from tests.workload import Workload, build_pod

WITH_ALL_COMPONENTS = ["knative+components", "rabbitmq+components"]
"""Parameters of the fixture `environment` for clusters with all components, even those that are disabled by default."""
NODE_COUNT = 20
PODS_PER_NODE = 10
FAULT_NODE_COUNT = 10
"""Number of nodes to drain during an injected fault; `make chaos` drains twenty, which takes twice as long."""
DELETE_DELAY_ANNOTATION = "pod-delete.stage.kwok.x-k8s.io/delay"
LOST_RESPONSE_STATUS = 504
"""Status code in the audit log if the client was killed before the response; the pod may nevertheless be evicted."""
NAME_NUMBERS = itertools.count(1)
TIMEOUT_SECONDS = 150.0
"""Timeout of all waits; tests check their duration limits separately."""
MAX_RECOVERY_SECONDS = 45.0
"""Maximum seconds from the end of a fault to the completion of the drains."""


class E2eEnvironment:
    """A cluster that runs the product."""

    def __init__(self, cluster: LocalCluster, product: EngineProduct) -> None:
        self.cluster, self.product = cluster, product
        self.client = SyncClient(str(cluster.kubeconfig))
        self.histogram = FunctionDurations(product)
        self.nodes = [f"node-{number}" for number in range(1, NODE_COUNT + 1)]
        self.fault_nodes = self.nodes[:FAULT_NODE_COUNT]

    def close(self) -> None:
        """Close the API client."""
        self.client.close()

    def delete_maintenances(self) -> None:
        """Delete the maintenances that a failed test has left, and wait until the product has released them."""
        maintenances = [item for group in GROUPS.values() for item in self.client.list(group.path)["items"]]
        for maintenance in maintenances:
            self.client.run(self.client.api.request("DELETE", m.build_path(maintenance)))
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while any(self.client.list(group.path)["items"] for group in GROUPS.values()):
            assert time.monotonic() < deadline, "NodeMaintenances of a failed test were not released"
            time.sleep(0.2)

    def prepare_drains(self, termination_delay: str = "5s", nodes: Iterable[str] = ()) -> NodeDrains:
        """Create pods on the given nodes, by default on all nodes, and return the drains of these nodes.

        `termination_delay` is the time that kwok takes to delete an evicted pod.
        """
        return NodeDrains(self, list(nodes) or self.nodes, termination_delay)


class NodeDrains:
    """Drains of several nodes: an instance creates pods and maintenances on these nodes, and checks the evictions."""

    def __init__(self, environment: E2eEnvironment, nodes: list[str], termination_delay: str) -> None:
        self.client, self.nodes = environment.client, nodes
        self.workload = Workload(environment.cluster, environment.client)
        self.maintenances: list[Object] = []
        self._pods_path = f"/api/v1/namespaces/{self.workload.namespace}/pods"
        pod_bodies = [
            build_pod(node, f"{node}-{number}", annotations={DELETE_DELAY_ANNOTATION: termination_delay})
            for node in nodes
            for number in range(PODS_PER_NODE)
        ]
        self.client.gather_all(*(self.client.api.create(self._pods_path, body) for body in pod_bodies))
        ready_pods = self.workload.wait_for_collection(
            self._pods_path, lambda pods: all(is_ready(pod) for pod in pods.values()), 60
        )
        self.pods = list(ready_pods.values())
        self.audit: AuditLog = AuditLog(environment.cluster.audit_log)

    def create_maintenances(self, nodes: Iterable[str] = (), group: ApiGroup = MEDIK8S) -> None:
        """Concurrently create maintenances for the given nodes, by default for all nodes."""
        self.started = time.monotonic()
        manifests = [_build_maintenance(node, group) for node in nodes or self.nodes]
        self.maintenances += self.client.gather_all(*(self.client.api.create(group.path, body) for body in manifests))

    def wait_for_terminating_pods(self, count: int) -> None:
        """Wait until `count` pods are terminating or deleted."""
        pod_count = len(self.pods)
        self.workload.wait_for_collection(
            self._pods_path, lambda pods: sum(map(is_terminating, pods.values())) + pod_count - len(pods) >= count, 30
        )

    def wait_until_succeeded(self, timeout: float = TIMEOUT_SECONDS) -> float:
        """Wait until all maintenances have succeeded; return the seconds since their creation."""
        for group in {m.get_group(maintenance) for maintenance in self.maintenances}:
            names = self._list_names(group)
            self.workload.wait_for_collection(
                group.path,
                lambda current, names=names: all(
                    name in current and m.get_phase(current[name]) == m.SUCCEEDED for name in names
                ),  # type: ignore[misc]
                timeout,
            )
        return time.monotonic() - self.started

    def _list_names(self, group: ApiGroup) -> set[str]:
        return {
            maintenance["metadata"]["name"] for maintenance in self.maintenances if m.get_group(maintenance) is group
        }

    def end_maintenances(self, timeout: float = TIMEOUT_SECONDS) -> None:
        """Delete all maintenances, and wait until they are deleted and their nodes are restored."""
        for maintenance in self.maintenances:
            self.request_deletion(maintenance)
        self.wait_until_restored(timeout)

    def get_current_maintenances(self) -> list[Object]:
        """Return the maintenances in their current state."""
        return [self.workload.read_maintenance(maintenance) for maintenance in self.maintenances]

    def request_deletion(self, maintenance: Object) -> None:
        """Request the deletion of a maintenance without waiting until it is deleted."""
        self.workload.delete(m.build_path(maintenance))

    def wait_until_restored(self, timeout: float = TIMEOUT_SECONDS) -> None:
        """Wait until all maintenances are deleted, and assert that the nodes are restored."""
        for group in {m.get_group(maintenance) for maintenance in self.maintenances}:
            names = self._list_names(group)
            self.workload.wait_for_collection(group.path, lambda items, names=names: not names & set(items), timeout)  # type: ignore[misc]
        for maintenance in self.maintenances:
            spec = self.workload.read_node(m.get_node_name(maintenance))["spec"]
            assert not spec.get("unschedulable")
            assert "taints" not in spec
        self.maintenances.clear()

    def assert_each_pod_evicted_once(self, *, is_log_complete: bool = True) -> None:
        """Assert that each pod was evicted exactly once, and was deleted before its maintenance succeeded.

        Pass `is_log_complete=False` if the API server was killed, which may then have granted evictions without logging
        them.
        """
        codes = [(_get_evicted_uid(entry), entry["responseStatus"]["code"]) for entry in self.audit.list_evictions()]
        granted_eviction_counts = Counter(uid for uid, code in codes if code < 300)
        evicted_uids = granted_eviction_counts.keys() | {uid for uid, code in codes if code == LOST_RESPONSE_STATUS}
        uids = {pod["metadata"]["uid"] for pod in self.pods}
        assert set(granted_eviction_counts.values()) == {1}
        assert evicted_uids <= uids
        assert evicted_uids == uids or not is_log_complete
        succeeded_times, deletion_times = self._wait_for_succeeded_times(), self._get_deletion_times()
        for pod in self.pods:
            assert deletion_times.get(pod["metadata"]["name"], "") < succeeded_times[pod["spec"]["nodeName"]]

    def _wait_for_succeeded_times(self, timeout: float = 5.0) -> dict[str, str]:
        """Wait until the audit log shows each maintenance's success; return the result of `_get_succeeded_times`.

        A watch may show a write before the audit log does.
        """
        node_names = {m.get_node_name(maintenance) for maintenance in self.maintenances}
        deadline = time.monotonic() + timeout
        while not node_names <= (succeeded_times := self._get_succeeded_times()).keys():
            assert time.monotonic() < deadline, (
                f"no success in the audit log for nodes {node_names - succeeded_times.keys()}"
            )
            time.sleep(0.05)
        return succeeded_times

    def _get_succeeded_times(self) -> dict[str, str]:
        """Return a map from node name to time of the first status write with the phase Succeeded."""
        node_by_name = {
            maintenance["metadata"]["name"]: m.get_node_name(maintenance) for maintenance in self.maintenances
        }
        succeeded_times: dict[str, str] = {}
        for entry in self.audit.list_writes_by():
            reference = entry["objectRef"]
            if reference["resource"] != "nodemaintenances" or reference.get("subresource") != "status":
                continue
            if (entry["requestObject"].get("status") or {}).get("phase") == m.SUCCEEDED:
                succeeded_times.setdefault(node_by_name[reference["name"]], entry["requestReceivedTimestamp"])
        return succeeded_times

    def _get_deletion_times(self) -> dict[str, str]:
        """Return a map from pod name to time at which kwok deleted the pod."""
        deletion_times: dict[str, str] = {}
        for entry in self.audit.list_writes_by("kwok"):
            reference = entry["objectRef"]
            is_drained_pod = entry["verb"] == "delete" and reference.get("namespace") == self.workload.namespace
            if is_drained_pod and entry["responseStatus"]["code"] < 300:
                deletion_times.setdefault(reference["name"], entry["requestReceivedTimestamp"])
        return deletion_times


def _get_evicted_uid(eviction: Object) -> str:
    """Return the uid of the pod in an audit log entry for an eviction."""
    return str(eviction["requestObject"]["deleteOptions"]["preconditions"]["uid"])


def _build_maintenance(node: str, group: ApiGroup) -> Object:
    return {
        "apiVersion": group.api_version,
        "kind": "NodeMaintenance",
        "metadata": {"name": f"{node}-{next(NAME_NUMBERS)}"},
        "spec": {"nodeName": node, "reason": "test"},
    }
