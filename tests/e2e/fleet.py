"""Twenty nodes drained at once, and what must be true whatever breaks meanwhile."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from kube.groups import GROUPS, MEDIK8S
from kube.maintenance import phase
from tests.chain.scene import Object, Scene

NODES, PODS = 20, 10
TERMINATION = "5s"


class Fleet:
    """Nodes that each test fills, drains and gives back."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.nodes = [scene.node() for _ in range(NODES)]
        self.pods: list[Object] = []
        self.paths: list[str] = []

    def fill(self) -> None:
        """Put pods on every node, all Ready."""
        namespace = self.scene.namespace()
        with ThreadPoolExecutor(8) as several:
            made = several.map(lambda node: self._fill(node, namespace), self.nodes)
            self.pods = [pod for pods in made for pod in pods]

    def _fill(self, node: str, namespace: str) -> list[Object]:
        return self.scene.pods(node, PODS, namespace=namespace, delete=TERMINATION)

    def drain(self) -> float:
        """Create all maintenances; returns the moment before the first."""
        started = time.monotonic()
        self.paths = [self.scene.maintain(node) for node in self.nodes]
        return started

    def await_terminating(self, count: int) -> None:
        """Return when so many of the pods are going."""
        namespace = self.pods[0]["metadata"]["namespace"]
        going: set[str] = set()
        for change in self.scene.cluster.api().watch(f"/api/v1/namespaces/{namespace}/pods", seconds=30):
            if change["object"]["metadata"].get("deletionTimestamp"):
                going.add(change["object"]["metadata"]["uid"])
            if len(going) >= count:
                return

    def await_succeeded(self, seconds: float) -> float:
        """Return the moment when the last one is Succeeded; no claim of Succeeded may leave a pod behind."""
        deadline = time.monotonic() + seconds
        wanted = {path.rsplit("/", 1)[1] for path in self.paths}
        collection = GROUPS[MEDIK8S.api_version].path
        for change in self.scene.cluster.api().watch(collection, seconds=seconds):
            item = change["object"]
            name = item["metadata"]["name"]
            if name in wanted and phase(item) == "Succeeded":
                wanted.discard(name)
                assert not self.left(item["spec"]["nodeName"]), f"{name} is Succeeded with pods left"
            if not wanted:
                return time.monotonic()
            assert time.monotonic() < deadline, self._late(wanted, seconds)
        raise AssertionError(self._late(wanted, seconds))

    def left(self, node: str) -> list[str]:
        """The fleet's pods that are still on a node."""
        ours = {pod["metadata"]["uid"] for pod in self.pods}
        return [pod["metadata"]["name"] for pod in self.scene.pods_on(node) if pod["metadata"]["uid"] in ours]

    def evicted(self) -> Counter[str]:
        """How often the eviction of each pod was granted, by uid."""
        granted = [entry for entry in self.scene.evictions(self.pods) if entry["responseStatus"]["code"] < 300]
        return Counter(entry["requestObject"]["deleteOptions"]["preconditions"]["uid"] for entry in granted)

    def restore(self) -> None:
        """Delete all maintenances; every node is as before."""
        for path in self.paths:
            self.scene.delete(path)
        for path in self.paths:
            self.scene.gone(path, seconds=30)
        assert not [node for node in self.nodes if self.scene.spec(node).get("unschedulable")]

    def _late(self, wanted: set[str], seconds: float) -> str:
        return f"not Succeeded after {seconds:.0f} s: {', '.join(sorted(wanted))}"
