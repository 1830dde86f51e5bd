"""What the end-to-end tests stand on: a cluster with the product on a real engine, and drains of many nodes at once."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterable

from kube.door.sync_client import Cluster
from kube.maintenance import objects as m
from kube.maintenance.groups import GROUPS, MEDIK8S, Group
from kube.paths import Object
from kube.pods import is_ready, is_terminating
from localcluster.cluster import LocalCluster
from localcluster.engine import EngineProduct
from tests.e2e.histogram import Histogram
from tests.workload import Audit, Workload, audit, pod_on

WITH_WINGS = ["knative+wings", "rabbitmq+wings"]
"""Parameters of the fixture `stage`: clusters with all wings, the opt-in ones, too."""
NODES = 20
PODS = 10
"""On each node."""
FEWER = 10
"""Nodes amid whose drains something breaks: they show what twenty do, in half the time. `make chaos` has twenty."""
DELAY = "pod-delete.stage.kwok.x-k8s.io/delay"
UNHEARD = 504
"""What the audit log has for a request whose sender was killed before the answer; the eviction may have happened."""
NUMBERS = itertools.count(1)
PATIENCE = 150.0
"""Seconds that anything may take before a test gives up; how long it took is judged apart."""
REPAIRED = 45.0
"""Seconds from the repair of a fault until all is as it should be."""


class Stage:
    """One cluster with the product on it."""

    def __init__(self, local: LocalCluster, product: EngineProduct) -> None:
        self.local, self.product = local, product
        self.admin = Cluster(str(local.kubeconfig))
        self.histogram = Histogram(product)
        self.nodes = [f"node-{number}" for number in range(1, NODES + 1)]
        self.fewer = self.nodes[:FEWER]

    def close(self) -> None:
        """Close the connections."""
        self.admin.close()

    def clear(self) -> None:
        """Take away the maintenances that a failed test left, and wait until the product gave their nodes back."""
        left = [item for group in GROUPS.values() for item in self.admin.list(group.path)["items"]]
        for item in left:
            self.admin.run(self.admin.api.request("DELETE", m.path(item)))
        deadline = time.monotonic() + PATIENCE
        while any(self.admin.list(group.path)["items"] for group in GROUPS.values()):
            assert time.monotonic() < deadline, "maintenances that a failed test left do not end"
            time.sleep(0.2)

    def drains(self, going: str = "5s", nodes: Iterable[str] = ()) -> Drains:
        """Fill nodes, all if none is named, with pods that take so long to end."""
        return Drains(self, list(nodes) or self.nodes, going)


class Drains:
    """Full nodes, then their maintenances, made at once; and what has to be true of them at the end."""

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
        """Create the maintenances of these nodes, all if none is named, at once."""
        self.started = time.monotonic()
        bodies = [_maintenance(node, group) for node in nodes or self.nodes]
        self.maintenances += self.admin.together(*(self.admin.api.create(group.path, body) for body in bodies))

    def await_going(self, count: int) -> None:
        """Wait until so many pods are being deleted, or are gone."""
        all_pods = len(self.pods)
        self.work.until(
            self._where, lambda pods: sum(map(is_terminating, pods.values())) + all_pods - len(pods) >= count, 30
        )

    def await_succeeded(self, seconds: float = PATIENCE) -> float:
        """Wait until all maintenances are Succeeded; returns the seconds since they were begun."""
        for group in {m.group(item) for item in self.maintenances}:
            names = {item["metadata"]["name"] for item in self.maintenances if m.group(item) is group}
            self.work.until(
                group.path,
                lambda items, names=names: all(name in items and m.phase(items[name]) == m.SUCCEEDED for name in names),  # type: ignore[misc]
                seconds,
            )
        return time.monotonic() - self.started

    def end(self, seconds: float = PATIENCE) -> None:
        """Delete all maintenances and wait until they are gone and their nodes are as they were."""
        for item in self.maintenances:
            self.request_end(item)
        self.await_gone(seconds)

    def live(self) -> list[Object]:
        """The maintenances as they are now."""
        return [self.work.again(item) for item in self.maintenances]

    def request_end(self, maintenance: Object) -> None:
        """Ask for the deletion of one maintenance."""
        self.work.delete(m.path(maintenance))

    def await_gone(self, seconds: float = PATIENCE) -> None:
        """Wait until none of the maintenances is there, and see that their nodes are as they were."""
        for group in {m.group(item) for item in self.maintenances}:
            names = {item["metadata"]["name"] for item in self.maintenances if m.group(item) is group}
            self.work.until(group.path, lambda items, names=names: not names & set(items), seconds)  # type: ignore[misc]
        for item in self.maintenances:
            spec = self.work.read_node(m.node_name(item))["spec"]
            assert not spec.get("unschedulable")
            assert "taints" not in spec
        self.maintenances.clear()

    def check(self, *, log_is_whole: bool = True) -> None:
        """Every pod was evicted exactly once by its uid, and none was left when its node was said to be drained.

        An API server that is killed may have granted an eviction and not logged it yet: then `log_is_whole` is False.
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
        """The claims, once there is one for each node: a watch may show a write before the log does."""
        wanted = {m.node_name(item) for item in self.maintenances}
        deadline = time.monotonic() + seconds
        while not wanted <= (claims := self._claims()).keys():
            assert time.monotonic() < deadline, f"not in the audit log: {wanted - claims.keys()} Succeeded"
            time.sleep(0.05)
        return claims

    def _claims(self) -> dict[str, str]:
        """Node → when it was first said to be drained."""
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
        """Pod → when the kubelet let it go."""
        ends: dict[str, str] = {}
        for entry in self.audit.writes_by("kwok"):
            reference = entry["objectRef"]
            ours = entry["verb"] == "delete" and reference.get("namespace") == self.work.namespace
            if ours and entry["responseStatus"]["code"] < 300:
                ends.setdefault(reference["name"], entry["requestReceivedTimestamp"])
        return ends


def _uid(eviction: Object) -> str:
    """The pod that an eviction in the audit log names."""
    return str(eviction["requestObject"]["deleteOptions"]["preconditions"]["uid"])


def _maintenance(node: str, group: Group) -> Object:
    return {
        "apiVersion": group.api_version,
        "kind": "NodeMaintenance",
        "metadata": {"name": f"{node}-{next(NUMBERS)}"},
        "spec": {"nodeName": node, "reason": "test"},
    }
