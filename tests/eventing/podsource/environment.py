"""PodSource as a process on a real cluster, a sink for its hints, and helpers that do the work of the functions."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import requests

from kube.client.sync_client import Cluster
from kube.evictions import eviction_of, eviction_path
from kube.maintenance import objects as m
from kube.maintenance.groups import MEDIK8S
from kube.nodes import node_path
from kube.paths import Object
from kube.pods import Pod
from localcluster import access
from localcluster.cluster import LocalCluster
from localcluster.processes import Server, await_ready, free_port
from localcluster.servers import DIRECT, ROOT
from tests.receiver import Received, Receiver
from tests.workload import Workload

OPENED, GONE = "dev.nodemaintenance.budget.opened", "dev.nodemaintenance.pods.gone"
CAME = "dev.nodemaintenance.pods.came"
MODULE = [sys.executable, "-m", "eventing.podsource"]


class Bench:
    """One test's namespace, sink and PodSource process, which is not started yet."""

    def __init__(self, cluster: LocalCluster, admin: Cluster, folder: Path) -> None:
        self.cluster, self.admin = cluster, admin
        self.work = Workload(cluster, admin)
        self.sink = Receiver()
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        self.log = folder / "podsource.log"
        identity = str(cluster.kubeconfig_for(access.service_account("podsource")))
        self.environment = {**DIRECT, "KUBECONFIG": identity, "K_SINK": self.sink.url, "PORT": str(port)}
        self.source = Server("podsource", MODULE, self.log, self.environment, ROOT)

    def start(self) -> None:
        """Start PodSource, and wait until it is ready."""
        self.source.start()
        self.await_page("/readyz")

    def await_page(self, page: str) -> None:
        """Wait until the endpoint responds with 200."""
        await_ready(page, lambda: self.answers(page) == 200, [self.source], seconds=60)

    def answers(self, page: str) -> int:
        """Return the HTTP status of an endpoint, 0 if the connection is refused."""
        try:
            return requests.get(self.url + page, timeout=5).status_code
        except requests.ConnectionError:
            return 0

    def figure(self, metric: str) -> float:
        """Return the value of a metric of /metrics, 0 if it is missing."""
        lines = requests.get(self.url + "/metrics", timeout=5).text.splitlines()
        found = [line.rpartition(" ")[2] for line in lines if line.startswith(f"nodemaintenance_podsource_{metric} ")]
        return float(found[0]) if found else 0.0

    def await_figure(self, metric: str, least: float) -> None:
        """Wait until the value of a metric is at least `least`."""
        await_ready(metric, lambda: self.figure(metric) >= least, [self.source], seconds=30)

    def maintain(self, node: str, drain: Object | None = None) -> Object:
        """Create a NodeMaintenance whose drain has not begun, and return it."""
        return self.work.maintenance(node, drain=drain)

    def begin(self, *nodes: str, drain: Object | None = None) -> float:
        """Create a maintenance for each node and mark it as begun, as `begin` does; return a time just before."""
        items = {node: self.maintain(node, drain) for node in nodes}
        self.await_watched(*nodes)
        closed = self.admin.together(*(self.admin.api.get(node_path(node)) for node in nodes))
        counts = {"totalpods": 1, "evictionPods": 1}
        patches = {
            m.path(items[node]): m.begin_patch(items[node], there, counts)
            for node, there in zip(nodes, closed, strict=True)
        }
        before = time.monotonic()
        self.admin.together(*(self.admin.api.patch(path, patch) for path, patch in patches.items()))
        return before

    def await_watched(self, *nodes: str) -> None:
        """Wait until this number of nodes' pods and the budgets are watched, if PodSource runs."""
        if self.source.alive:
            self.await_figure('watches{resource="pods"}', len(nodes))
            self.await_figure('watches{resource="poddisruptionbudgets"}', 1)

    def evict(self, pod: Pod) -> None:
        """Evict a pod in any state, as `evict` does."""
        current = self.admin.get(f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}")
        self.admin.create(eviction_path(pod), eviction_of(current))

    def change(self, budget: Object, **spec: object) -> None:
        """Patch a budget's spec, and wait until its status reflects the new spec."""
        path = self.path(budget)
        written = self.admin.patch(path, {"spec": spec})["metadata"]["generation"]
        self.work.wait_for(path, lambda item: bool(item and item["status"].get("observedGeneration") == written))

    @staticmethod
    def path(budget: Object) -> str:
        """Return the path of a budget."""
        metadata = budget["metadata"]
        return f"/apis/policy/v1/namespaces/{metadata['namespace']}/poddisruptionbudgets/{metadata['name']}"

    def hints(self, kind: str, *nodes: str) -> list[Received]:
        """Return the received hints of this type for these nodes."""
        return [
            request
            for request in list(self.sink.requests)
            if request.headers["ce-type"] == kind and request.headers["ce-node"] in nodes
        ]

    def wait(self, kind: str, *nodes: str, count: int = 1) -> list[Received]:
        """Wait until `count` hints of this type for these nodes have arrived in total, and return them."""
        self.sink.wait(lambda: len(self.hints(kind, *nodes)) >= count)
        return self.hints(kind, *nodes)

    def ends(self, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run another PodSource that is expected to end by itself, and return its result."""
        merged = {**os.environ, **self.environment, **environment}
        return subprocess.run(MODULE, env=merged, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)

    def clear(self) -> None:
        """Stop PodSource, and delete all maintenances."""
        self.source.stop()
        self.sink.close()
        paths = [m.path(item) for item in self.admin.list(MEDIK8S.path)["items"]]
        self.admin.together(*(self.admin.api.patch(path, {"metadata": {"finalizers": []}}) for path in paths))
        self.admin.together(*(self.admin.api.request("DELETE", path) for path in paths))
