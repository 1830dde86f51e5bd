"""The environment of the end-to-end tests: a cluster with the product on a real engine, and drains of many nodes."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterable

from kube.client.sync_client import Cluster
from kube.maintenance import objects as m
from kube.maintenance.groups import GROUPS, MEDIK8S, Group
from kube.paths import Object
from kube.pods import is_ready, is_terminating
from localcluster.cluster import LocalCluster
from localcluster.engine_product import EngineProduct
from tests.e2e.histogram import Histogram
from tests.workload import Audit, Workload, audit, pod_on

WITH_WINGS = ["knative+wings", "rabbitmq+wings"]
"""Parameters of the fixture `stage` for clusters with all components, also those that are off by default."""
NODES = 20
PODS = 10
"""Pods on each node."""
FEWER = 10
"""Nodes that are drained during an injected fault; `make chaos` drains twenty, which takes twice as long."""
DELAY = "pod-delete.stage.kwok.x-k8s.io/delay"
UNHEARD = 504
"""Status code in the audit log if the client was killed before the response; the pod may have been evicted."""
NUMBERS = itertools.count(1)
PATIENCE = 150.0
"""Timeout of every wait; limits on durations are checked separately."""
REPAIRED = 45.0
"""Maximum seconds from the repair of a fault until the drains are complete."""


class Stage:
    """One cluster with the running product."""

    def __init__(self, local: LocalCluster, product: EngineProduct) -> None:
        self.local, self.product = local, product
        self.admin = Cluster(str(local.kubeconfig))
        self.histogram = Histogram(product)
        self.nodes = [f"node-{number}" for number in range(1, NODES + 1)]
        self.fewer = self.nodes[:FEWER]

    def close(self) -> None:
        """Close the API client."""
        self.admin.close()

    def clear(self) -> None:
        """Delete the maintenances that a failed test left, and wait until the product has restored their nodes."""
        left = [item for group in GROUPS.values() for item in self.admin.list(group.path)["items"]]
        for item in left:
            self.admin.run(self.admin.api.request("DELETE", m.path(item)))
        deadline = time.monotonic() + PATIENCE
        while any(self.admin.list(group.path)["items"] for group in GROUPS.values()):
            assert time.monotonic() < deadline, "maintenances that a failed test left do not end"
            time.sleep(0.2)

    def drains(self, going: str = "5s", nodes: Iterable[str] = ()) -> Drains:
        """Create pods on the nodes, by default on all, and return the drains of these nodes.

        `going` is the duration of the pods' termination.
        """
        return Drains(self, list(nodes) or self.nodes, going)


class Drains:
    """Nodes with pods, their maintenances, and the checks that must hold at the end."""

    def __init__(self, stage: Stage, nodes: list[str], going: str) -> None:
        self.admin, self.nodes = stage.admin, nodes
        self.work = Workload(stage.local, stage.admin)
        self.maintenances: list[Object] = []
        self._where = f"/api/v1/namespaces/{self.work.namespace}/pods"
        bodies = [pod_on(node, f"{node}-{n}", annotations={DELAY: going}) for node in nodes for n in range(PODS)]
        self.admin.together(*(self.admin.api.create(self._where, body) for body in bodies))
        ready = self.work.until(self._where, lambda pods: all(is_ready(pod) for pod in pods.values()), 60)
        self.pods = list(ready.values())
        self.audit: Audit = audit(stage.local)

    def begin(self, nodes: Iterable[str] = (), group: Group = MEDIK8S) -> None:
        """Create the maintenances of these nodes, by default of all, concurrently."""
        self.started = time.monotonic()
        bodies = [_maintenance(node, group) for node in nodes or self.nodes]
        self.maintenances += self.admin.together(*(self.admin.api.create(group.path, body) for body in bodies))

    def await_going(self, count: int) -> None:
        """Wait until `count` pods are terminating or deleted."""
        all_pods = len(self.pods)
        self.work.until(
            self._where, lambda pods: sum(map(is_terminating, pods.values())) + all_pods - len(pods) >= count, 30
        )

    def await_succeeded(self, seconds: float = PATIENCE) -> float:
        """Wait until all maintenances are Succeeded; return the seconds since their creation."""
        for group in {m.group(item) for item in self.maintenances}:
            names = {item["metadata"]["name"] for item in self.maintenances if m.group(item) is group}
            self.work.until(
                group.path,
                lambda items, names=names: all(name in items and m.phase(items[name]) == m.SUCCEEDED for name in names),  # type: ignore[misc]
                seconds,
            )
        return time.monotonic() - self.started

    def end(self, seconds: float = PATIENCE) -> None:
        """Delete all maintenances, and wait until they are deleted and their nodes are restored."""
        for item in self.maintenances:
            self.request_end(item)
        self.await_gone(seconds)

    def live(self) -> list[Object]:
        """Return the maintenances in their current state."""
        return [self.work.again(item) for item in self.maintenances]

    def request_end(self, maintenance: Object) -> None:
        """Request the deletion of one maintenance."""
        self.work.delete(m.path(maintenance))

    def await_gone(self, seconds: float = PATIENCE) -> None:
        """Wait until all maintenances are deleted, and assert that their nodes are restored."""
        for group in {m.group(item) for item in self.maintenances}:
            names = {item["metadata"]["name"] for item in self.maintenances if m.group(item) is group}
            self.work.until(group.path, lambda items, names=names: not names & set(items), seconds)  # type: ignore[misc]
        for item in self.maintenances:
            spec = self.work.read_node(m.node_name(item))["spec"]
            assert not spec.get("unschedulable")
            assert "taints" not in spec
        self.maintenances.clear()

    def check(self, *, log_is_whole: bool = True) -> None:
        """Assert that each pod was evicted exactly once by its uid, and deleted before its node was reported drained.

        Set `log_is_whole` to False if the API server was killed: it may have granted an eviction without logging it.
        """
        asked = [(_uid(entry), entry["responseStatus"]["code"]) for entry in self.audit.evictions()]
        granted = Counter(uid for uid, code in asked if code < 300)
        known = granted.keys() | {uid for uid, code in asked if code == UNHEARD}
        uids = {pod["metadata"]["uid"] for pod in self.pods}
        assert set(granted.values()) == {1}
        assert known <= uids
        assert known == uids or not log_is_whole
        succeeded, ended = self._logged_claims(), self._ends()
        for pod in self.pods:
            assert ended.get(pod["metadata"]["name"], "") < succeeded[pod["spec"]["nodeName"]]

    def _logged_claims(self, seconds: float = 5.0) -> dict[str, str]:
        """Return the result of `_claims` once it has every node.

        A watch may show a write before the audit log does.
        """
        wanted = {m.node_name(item) for item in self.maintenances}
        deadline = time.monotonic() + seconds
        while not wanted <= (claims := self._claims()).keys():
            assert time.monotonic() < deadline, f"not in the audit log: {wanted - claims.keys()} Succeeded"
            time.sleep(0.05)
        return claims

    def _claims(self) -> dict[str, str]:
        """Return node → the time of the first status write with the phase Succeeded."""
        node_of = {item["metadata"]["name"]: m.node_name(item) for item in self.maintenances}
        claims: dict[str, str] = {}
        for entry in self.audit.writes_by():
            reference = entry["objectRef"]
            if reference["resource"] != "nodemaintenances" or reference.get("subresource") != "status":
                continue
            if (entry["requestObject"].get("status") or {}).get("phase") == m.SUCCEEDED:
                claims.setdefault(node_of[reference["name"]], entry["requestReceivedTimestamp"])
        return claims

    def _ends(self) -> dict[str, str]:
        """Return pod → the time at which kwok deleted it."""
        ends: dict[str, str] = {}
        for entry in self.audit.writes_by("kwok"):
            reference = entry["objectRef"]
            ours = entry["verb"] == "delete" and reference.get("namespace") == self.work.namespace
            if ours and entry["responseStatus"]["code"] < 300:
                ends.setdefault(reference["name"], entry["requestReceivedTimestamp"])
        return ends


def _uid(eviction: Object) -> str:
    """Return the uid of the pod that the eviction in the audit log names."""
    return str(eviction["requestObject"]["deleteOptions"]["preconditions"]["uid"])


def _maintenance(node: str, group: Group) -> Object:
    return {
        "apiVersion": group.api_version,
        "kind": "NodeMaintenance",
        "metadata": {"name": f"{node}-{next(NUMBERS)}"},
        "spec": {"nodeName": node, "reason": "test"},
    }
