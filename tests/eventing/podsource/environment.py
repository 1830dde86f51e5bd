"""Test environment: PodSource as a process on a real cluster, its event sink, and replacements for the functions."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import requests

from kube.client.sync_client import SyncClient
from kube.evictions.requests import build_eviction, build_eviction_path
from kube.maintenance import objects as m
from kube.maintenance.groups import MEDIK8S
from kube.nodes import build_node_path
from kube.paths import Object
from kube.pods import Pod
from localcluster import access
from localcluster.cluster import LocalCluster
from localcluster.http_receiver import ReceivedRequest, Receiver
from localcluster.processes import Server, reserve_port, wait_until_ready
from localcluster.servers import NO_PROXY_LOCAL_ENV, ROOT
from tests.workload import Workload

BUDGET_OPENED, PODS_GONE = "dev.nodemaintenance.budget.opened", "dev.nodemaintenance.pods.gone"
PODS_ADDED = "dev.nodemaintenance.pods.added"
PODSOURCE_COMMAND = [sys.executable, "-m", "eventing.podsource"]


class PodSourceEnvironment:
    """A test's namespace, event sink and PodSource process; `start` starts the process."""

    def __init__(self, cluster: LocalCluster, client: SyncClient, directory: Path) -> None:
        self.cluster, self.client = cluster, client
        self.workload = Workload(cluster, client)
        self.sink = Receiver()
        self.url = f"http://127.0.0.1:{(port := reserve_port())}"
        self.log = directory / "podsource.log"
        identity = str(cluster.ensure_kubeconfig(access.make_username("podsource")))
        self.environment = {**NO_PROXY_LOCAL_ENV, "KUBECONFIG": identity, "K_SINK": self.sink.url, "PORT": str(port)}
        self.source = Server("podsource", PODSOURCE_COMMAND, self.log, self.environment, ROOT)

    def start(self) -> None:
        """Start PodSource, and wait until it is ready."""
        self.source.start()
        self.wait_for_endpoint("/readyz")

    def wait_for_endpoint(self, endpoint: str) -> None:
        """Wait until the endpoint responds with 200."""
        wait_until_ready(endpoint, lambda: self.get_status(endpoint) == 200, [self.source], timeout=60)

    def get_status(self, endpoint: str) -> int:
        """Return the HTTP status of an endpoint, or 0 if the connection is refused."""
        try:
            return requests.get(self.url + endpoint, timeout=5).status_code
        except requests.ConnectionError:
            return 0

    def get_metric(self, metric: str) -> float:
        """Return the value of a metric from /metrics, or 0 if it is missing."""
        lines = requests.get(self.url + "/metrics", timeout=5).text.splitlines()
        values = [line.rpartition(" ")[2] for line in lines if line.startswith(f"nodemaintenance_podsource_{metric} ")]
        return float(values[0]) if values else 0.0

    def wait_for_metric(self, metric: str, minimum: float) -> None:
        """Wait until the value of a metric is at least `minimum`."""
        wait_until_ready(metric, lambda: self.get_metric(metric) >= minimum, [self.source], timeout=30)

    def create_maintenance(self, node: str, drain: Object | None = None) -> Object:
        """Create a NodeMaintenance whose drain has not begun, and return the NodeMaintenance."""
        return self.workload.create_maintenance(node, drain=drain)

    def begin_drains(self, *nodes: str, drain: Object | None = None) -> float:
        """Create a maintenance for each node, mark it as begun, and return the time just before the first mark."""
        maintenances = {node: self.create_maintenance(node, drain) for node in nodes}
        self.wait_until_nodes_are_watched(*nodes)
        live_nodes = self.client.gather_all(*(self.client.api.get(build_node_path(node)) for node in nodes))
        counts = {"totalpods": 1, "evictionPods": 1}
        patches = {
            m.build_path(maintenances[node]): m.build_begin_patch(maintenances[node], live_node, counts)
            for node, live_node in zip(nodes, live_nodes, strict=True)
        }
        before = time.monotonic()
        self.client.gather_all(*(self.client.api.patch(path, patch) for path, patch in patches.items()))
        return before

    def wait_until_nodes_are_watched(self, *nodes: str) -> None:
        """Wait until PodSource, if started, watches PodDisruptionBudgets and the pods on as many nodes as are given."""
        if self.source.is_alive:
            self.wait_for_metric('watches{resource="pods"}', len(nodes))
            self.wait_for_metric('watches{resource="poddisruptionbudgets"}', 1)

    def evict_pod(self, pod: Pod) -> None:
        """Evict a pod in any phase, as the function `evict` does."""
        live_pod = self.client.get(f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}")
        self.client.create(build_eviction_path(pod), build_eviction(live_pod))

    def change_budget(self, budget: Object, **spec: object) -> None:
        """Patch a PodDisruptionBudget's spec, and wait until its status reflects the new spec."""
        path = self.build_budget_path(budget)
        generation = self.client.patch(path, {"spec": spec})["metadata"]["generation"]
        self.workload.wait_for_object(
            path, lambda budget: bool(budget and budget["status"].get("observedGeneration") == generation)
        )

    @staticmethod
    def build_budget_path(budget: Object) -> str:
        """Return the API path of a PodDisruptionBudget."""
        metadata = budget["metadata"]
        return f"/apis/policy/v1/namespaces/{metadata['namespace']}/poddisruptionbudgets/{metadata['name']}"

    def list_hints(self, event_type: str, *nodes: str) -> list[ReceivedRequest]:
        """Return the received hint events of this type for these nodes."""
        return [
            request
            for request in list(self.sink.requests)
            if request.headers["ce-type"] == event_type and request.headers["ce-node"] in nodes
        ]

    def wait_for_hints(self, event_type: str, *nodes: str, count: int = 1) -> list[ReceivedRequest]:
        """Wait until the sink has received `count` hint events of this type for these nodes, and return them."""
        self.sink.wait_until(lambda: len(self.list_hints(event_type, *nodes)) >= count)
        return self.list_hints(event_type, *nodes)

    def run_until_exit(self, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run another PodSource process until it exits, and return the completed process."""
        process_environment = {**os.environ, **self.environment, **environment}
        return subprocess.run(
            PODSOURCE_COMMAND,
            env=process_environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def clean_up(self) -> None:
        """Stop PodSource, and delete all maintenances."""
        self.source.stop()
        self.sink.close()
        paths = [m.build_path(maintenance) for maintenance in self.client.list(MEDIK8S.path)["items"]]
        self.client.gather_all(*(self.client.api.patch(path, {"metadata": {"finalizers": []}}) for path in paths))
        self.client.gather_all(*(self.client.api.request("DELETE", path) for path in paths))
