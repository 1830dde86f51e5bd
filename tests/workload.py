"""Nodes, namespaces, pods, budgets, workloads and NodeMaintenances of a test on a real cluster, and its audit log.

All waiting uses watches.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from kube import install_lease
from kube.client.api import absent_ok
from kube.client.sync_client import Cluster
from kube.maintenance.groups import MEDIK8S, Group
from kube.maintenance.objects import path as maintenance_path
from kube.nodes import node_path
from kube.paths import Object
from kube.pods import is_ready
from localcluster.cluster import LocalCluster
from tests.waiting import SECONDS, Known, until, wait_for

OURS = "system:serviceaccount:node-maintenance:"
"""Prefix of the user names of the product's ServiceAccounts."""
READS = ("get", "list", "watch")
"""Read-only verbs; the audit log also contains those of the product."""
ASKED = "selfsubjectreviews"
"""Resource that a client creates to ask for its own user name; the API server stores nothing."""
OVERTAKEN = (HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY)
"""Status codes of a write based on stale data: a stale resourceVersion, or a failed `test` of a JSON patch."""
NODES = 8
"""Number of nodes that are created together, which takes hardly longer than one; tests take them one by one."""
_numbers = itertools.count(1)
_stocks: WeakKeyDictionary[LocalCluster, list[str]] = WeakKeyDictionary()
_stocking = threading.Lock()


class Workload:
    """A namespace of one test on a real cluster, and the objects that the test creates."""

    def __init__(self, local: LocalCluster, admin: Cluster) -> None:
        self.local = local
        self.admin = admin
        self.namespace = self.add_namespace()
        self._deployments: list[str] = []
        self._nodes: list[str] = []

    def end(self) -> None:
        """Delete this test's Deployments and nodes.

        The controllers of remaining Deployments would retry their pods whenever a node changes. Listing the nodes of
        hundreds of earlier tests would take ten times as long.
        """
        for path in self._deployments:
            self.delete(path)
        api = self.admin.api
        self.admin.together(*(absent_ok(api.request("DELETE", node_path(name))) for name in self._nodes))
        self._deployments.clear()
        self._nodes.clear()

    def add_namespace(self) -> str:
        """Create another namespace, wait until it accepts pods, and return its name."""
        name = f"work-{next(_numbers)}"
        made = self.admin.create("/api/v1/namespaces", {"metadata": {"name": name}})
        accounts, empty = f"/api/v1/namespaces/{name}/serviceaccounts", Known((), made["metadata"]["resourceVersion"])
        self.until(accounts, lambda known: "default" in known, known=empty)
        return name

    def node(self) -> str:
        """Return the name of a node that no other test uses."""
        with _stocking:
            stock = _stocks.setdefault(self.local, [])
            if not stock:
                stock += self.local.add_nodes(NODES)
            self._nodes.append(stock.pop(0))
            return self._nodes[-1]

    def read_node(self, name: str) -> Object:
        """Read the current state of the node."""
        return self.admin.get(f"/api/v1/nodes/{name}")

    def pods(self, node: str, *names: str, namespace: str = "", ready: bool = True, **options: Any) -> list[Object]:
        """Create bare pods on `node` (see `pod_on`); return them when all are Ready, or at once without `ready`."""
        bodies = [pod_on(node, name, **options) for name in names]
        return self.put(namespace or self.namespace, bodies, ready=ready)

    def put(self, namespace: str, bodies: list[Object], *, ready: bool = True) -> list[Object]:
        """Create these pods; return them when all are Ready, or at once without `ready`."""
        where = f"/api/v1/namespaces/{namespace}/pods"
        created = self.admin.together(*(self.admin.api.create(where, body) for body in bodies))
        if not (ready and created):
            return created
        names = [pod["metadata"]["name"] for pod in created]
        known = self.until(
            where,
            lambda pods: all(name in pods and is_ready(pods[name]) for name in names),
            known=Known(created),
        )
        return [known[name] for name in names]

    def budget(
        self, name: str, labels: Mapping[str, str], minimum: int, *, counted: int, namespace: str = ""
    ) -> Object:
        """Create a PodDisruptionBudget with `minAvailable`; return it when its status counts `counted` healthy pods."""
        where = f"/apis/policy/v1/namespaces/{namespace or self.namespace}/poddisruptionbudgets"
        spec = {"minAvailable": minimum, "selector": {"matchLabels": dict(labels)}}
        self.admin.create(where, {"metadata": {"name": name}, "spec": spec})

        def is_counted(budget: Object | None) -> bool:
            status = (budget or {}).get("status") or {}
            return bool(status.get("observedGeneration")) and status.get("currentHealthy") == counted

        return self.wait_for(f"{where}/{name}", is_counted)

    def deployment(self, name: str, node: str, replicas: int) -> list[Object]:
        """Create a Deployment whose pods can only run on `node`; return its pods when they are Ready."""
        spec = {"replicas": replicas, **_pods_of(name, node)}
        where = f"/apis/apps/v1/namespaces/{self.namespace}/deployments"
        self.admin.create(where, {"metadata": {"name": name}, "spec": spec})
        self._deployments.append(f"{where}/{name}")
        return self._ready_pods_of(name, replicas)

    def daemonset(self, name: str, node: str) -> Object:
        """Create a DaemonSet on `node` only; return its pod when it is Ready."""
        self.admin.create(
            f"/apis/apps/v1/namespaces/{self.namespace}/daemonsets",
            {"metadata": {"name": name}, "spec": _pods_of(name, node)},
        )
        return self._ready_pods_of(name, 1)[0]

    def _ready_pods_of(self, app: str, count: int) -> list[Object]:
        known = self.until(
            f"/api/v1/namespaces/{self.namespace}/pods",
            lambda pods: sum(is_ready(pod) for pod in pods.values()) >= count,
            labels=f"app={app}",
        )
        return list(known.values())

    def maintenance(
        self, node: str, group: Group = MEDIK8S, *, reason: str = "test", drain: Object | None = None, **metadata: Any
    ) -> Object:
        """Create a NodeMaintenance of `node`, with `spec.drain` if it is given, and return it."""
        body = {
            "apiVersion": group.api_version,
            "kind": "NodeMaintenance",
            "metadata": {"name": f"maintenance-{next(_numbers)}", **metadata},
            "spec": {"nodeName": node, "reason": reason, **({"drain": drain} if drain is not None else {})},
        }
        return self.admin.create(group.path, body)

    def again(self, maintenance: Object) -> Object:
        """Read the current state of the NodeMaintenance."""
        return self.admin.get(maintenance_path(maintenance))

    def delete(self, path: str) -> None:
        """Request the deletion of the object at `path`, whatever its uid."""
        self.admin.run(self.admin.api.request("DELETE", path))

    def vanish(self, maintenance: Object) -> None:
        """Remove a NodeMaintenance without a cleanup: remove its finalizers, and delete it."""
        path = maintenance_path(maintenance)
        self.admin.patch(path, {"metadata": {"finalizers": []}})
        self.delete(path)

    def wait_for(self, path: str, predicate: Callable[[Object | None], bool], seconds: float = SECONDS) -> Object:
        """Wait until the object at `path` satisfies `predicate`; return it, or {} if it does not exist.

        The predicate gets None for an object that does not exist.
        """
        return wait_for(self.admin, path, predicate, seconds)

    def until(
        self,
        path: str,
        predicate: Callable[[dict[str, Object]], bool],
        seconds: float = SECONDS,
        *,
        fields: str = "",
        labels: str = "",
        known: Known | None = None,
    ) -> dict[str, Object]:
        """Wait until the collection at `path`, as name → object, satisfies `predicate`; return it.

        With `known`, only later changes are checked.
        """
        return until(self.admin, path, predicate, seconds, fields=fields, labels=labels, known=known)


def pod_on(
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


def _pods_of(app: str, node: str) -> Object:
    """Build selector and template of a workload whose pods can only run on `node`."""
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


class Audit:
    """The writes in the API server's audit log since this object was created, including rejected ones. Thread-safe."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._end = file.read_bytes().rfind(b"\n") + 1  # a line may be incomplete
        self._known: list[Object] = []
        self._reading = threading.Lock()

    def entries(self) -> list[Object]:
        """Return all entries in the order of their completion. Each line is parsed once, since the log can be long."""
        with self._reading, self._file.open("rb") as log:
            log.seek(self._end)
            whole, newline, _ = log.read().rpartition(b"\n")
            self._end += len(whole) + len(newline)
            found = [json.loads(line) for line in whole.split(b"\n") if line]
            self._known += [
                entry for entry in found if entry["verb"] not in READS and entry["objectRef"]["resource"] != ASKED
            ]
            return list(self._known)

    def writes_by(self, prefix: str = OURS) -> list[Object]:
        """Return the writes by users whose name begins with `prefix`, except those of the install Lease.

        A function renews that Lease when its time is over, independently of the test.
        """
        entries = [entry for entry in self.entries() if entry["user"].get("username", "").startswith(prefix)]
        return [entry for entry in entries if entry["objectRef"].get("name") != install_lease.CLAIM]

    def kept(self) -> list[Object]:
        """Return the entries that were not a dry run."""
        return [entry for entry in self.entries() if not is_dry(entry)]

    def evictions(self, *names: str) -> list[Object]:
        """Return the evictions of all pods, or of the pods with these names."""
        wanted = [entry for entry in self.entries() if entry["objectRef"].get("subresource") == "eviction"]
        return [entry for entry in wanted if not names or entry["objectRef"]["name"] in names]


def is_dry(entry: Object) -> bool:
    """Return whether the entry is a dry run. A DELETE carries its options in the body."""
    if entry["verb"] == "delete":
        return bool((entry.get("requestObject") or {}).get("dryRun") == ["All"])
    return "dryRun=All" in entry["requestURI"]


def audit(cluster: LocalCluster) -> Audit:
    """Return an audit log that contains the writes from now on."""
    return Audit(cluster.audit_log)


def written(entries: list[Object]) -> list[tuple[str, str, str]]:
    """Return audit entries as (verb, resource or resource/subresource, name), without overtaken writes.

    The API server rejects a write if another client changed the object in between. For example, the controller manager
    taints a node as soon as it is cordoned, and the product then repeats its patch.
    """
    taken = [entry for entry in entries if entry["responseStatus"]["code"] not in OVERTAKEN]
    return [(entry["verb"], _resource(entry["objectRef"]), entry["objectRef"].get("name", "")) for entry in taken]


def _resource(reference: Mapping[str, str]) -> str:
    subresource = reference.get("subresource")
    return reference["resource"] + (f"/{subresource}" if subresource else "")
