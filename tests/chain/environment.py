"""The environment of the chain tests: creates, watches and reads nodes, pods, budgets and maintenances."""

from __future__ import annotations

import itertools
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing, contextmanager
from http import HTTPStatus
from typing import Any, TypeVar

from eventing.events import TICK
from eventing.replay.function_client import post
from kube.client.sync_client import Cluster
from kube.maintenance import objects as m
from kube.maintenance.groups import GROUPS, MEDIK8S
from kube.maintenance.leases import lease_name
from kube.nodes import node_path
from kube.paths import Object
from localcluster.cluster import LocalCluster
from localcluster.demo.event_log import Flow
from localcluster.processes import await_ready
from localcluster.product import Product
from tests.functions.event_builders import tick
from tests.waiting import between
from tests.workload import Workload, audit, pod_on

T = TypeVar("T")
NUMBERS = itertools.count(1)
LEFT = "SELECT count(*) FROM delivery"


def finished(item: Object) -> bool:
    """Return whether the phase is Succeeded."""
    return m.phase(item) == "Succeeded"


class Scene:
    """One cluster with the running product."""

    def __init__(self, cluster: LocalCluster, product: Product, journal: str = "") -> None:
        self.cluster, self.product = cluster, product
        self.journal = journal or str(product.journal)
        self.admin = Cluster(str(cluster.kubeconfig))
        self.work = Workload(cluster, self.admin)
        self._audit = audit(cluster)

    def node(self, name: str = "") -> str:
        """Create a node and wait until it is Ready; return its name."""
        name = name or f"chain-{next(NUMBERS)}"
        self.cluster.add_named(name)
        return name

    def namespace(self) -> str:
        """Create a namespace and wait for its service account; return its name."""
        return self.work.add_namespace()

    def pods(
        self, node: str, count: int, *, namespace: str = "", labels: Object | None = None, **more: Any
    ) -> list[Object]:
        """Create bare pods on the node and return them once all are Ready.

        `delete` and `ready` are the delays of kwok's stages, `grace` is the termination grace period in seconds.
        Without `ready_awaited` the function returns at once.
        """
        namespace = namespace or self.namespace()
        delays = {
            f"pod-{stage}.stage.kwok.x-k8s.io/delay": more[stage] for stage in ("delete", "ready") if stage in more
        }
        names = [f"pod-{next(NUMBERS)}" for _ in range(count)]
        finalizers = tuple(more.get("finalizers", ()))
        bodies = [pod_on(node, name, labels=labels, annotations=delays, finalizers=finalizers) for name in names]
        for body in bodies:
            body["spec"] |= {"terminationGracePeriodSeconds": more["grace"]} if "grace" in more else {}
        return self.work.put(namespace, bodies, ready=more.get("ready_awaited", True))

    def deployment(
        self,
        namespace: str,
        node: str,
        replicas: int,
        *,
        tolerations: Iterable[Object] = (),
        bound: bool = False,
        **delays: str,
    ) -> None:
        """Create the Deployment `web` and wait until all replicas are available.

        `delays` are those of kwok's stages `delete` and `ready`. The pods are scheduled on the nodes given to `allow`,
        at first on this node only. If `bound`, the pod template sets `nodeName`.
        """
        self.allow(namespace, node)
        labels = {"app": "web"}
        annotations = {f"pod-{stage}.stage.kwok.x-k8s.io/delay": delay for stage, delay in delays.items()}
        template = {
            "metadata": {"labels": labels, "annotations": annotations},
            "spec": {
                "nodeSelector": {"pool": namespace},
                "containers": [{"name": "main", "image": "fake"}],
                "tolerations": list(tolerations),
                **({"nodeName": node} if bound else {}),
            },
        }
        spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
        body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}
        where = f"/apis/apps/v1/namespaces/{namespace}/deployments"
        self.admin.create(where, body)
        self.until(where, "web", lambda item: (item.get("status") or {}).get("availableReplicas") == replicas)

    def allow(self, namespace: str, node: str) -> None:
        """Allow the namespace's Deployment to run on this node as well."""
        self.admin.patch(node_path(node), {"metadata": {"labels": {"pool": namespace}}})

    def maintain_with_pods(self, node: str, count: int) -> str:
        """Create pods on the node and drain it; return the path of its finished maintenance."""
        self.pods(node, count)
        path = self.maintain(node)
        self.reaches(path)
        return path

    @contextmanager
    def aside(self, work: Callable[[], None]) -> Iterator[None]:
        """Run `work` in a thread while the block runs, then join the thread."""
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        yield
        thread.join(timeout=30)

    def budget(self, namespace: str, labels: Object, *, name: str = "budget", allowed: int, **spec: Any) -> Object:
        """Create a PodDisruptionBudget and return it once it allows `allowed` disruptions."""
        path = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
        body = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name}}
        self.admin.create(path, {**body, "spec": {"selector": {"matchLabels": labels}, **spec}})
        return self.until(path, name, lambda item: _allows(item, allowed))

    def maintain(
        self,
        node: str,
        *,
        group: str = MEDIK8S.api_version,
        name: str = "",
        reason: str = "test",
        drain: Object | None = None,
    ) -> str:
        """Create a NodeMaintenance and return its path."""
        name = name or f"m-{next(NUMBERS)}"
        body = {"apiVersion": group, "kind": "NodeMaintenance", "metadata": {"name": name}}
        spec: Object = {"nodeName": node, "reason": reason, **({"drain": drain} if drain else {})}
        self.admin.create(GROUPS[group].path, {**body, "spec": spec})
        return f"{GROUPS[group].path}/{name}"

    def history(self, path: str, done: Callable[[Object], bool], seconds: float = 30.0) -> list[Object]:
        """Return the successive states of the object at `path`, up to the first that is `done`."""
        states: list[Object] = []

        def take(item: Object | None) -> bool:
            if item is None:
                return False
            states.append(item)
            return done(item)

        self.work.wait_for(path, take, seconds)
        return states

    def until(self, collection: str, name: str, done: Callable[[Object], bool], seconds: float = 30.0) -> Object:
        """Return the first state of the object that is `done`."""
        return self.history(f"{collection}/{name}", done, seconds)[-1]

    def reaches(self, path: str, done: Callable[[Object], bool] = finished, seconds: float = 30.0) -> Object:
        """Return the first state of the object at `path` that is `done`."""
        return self.history(path, done, seconds)[-1]

    def gone(self, path: str, seconds: float = 30.0) -> float:
        """Wait until the object at `path` is deleted; return the elapsed seconds."""
        started = time.monotonic()
        self.work.wait_for(path, lambda item: item is None, seconds)
        return time.monotonic() - started

    def tick(self) -> None:
        """Send a tick now; return when the delivery has no event left, neither of this tick nor of earlier ones."""
        self._post_tick()
        self.await_delivered()

    def _post_tick(self) -> None:
        assert post(tick(), self.product.broker_url).status_code == HTTPStatus.ACCEPTED

    def by_ticks(self, wait: Callable[[], T], seconds: float = 60.0) -> T:
        """Return what `wait` returns; send a tick at first and whenever `wait` raises `TimeoutError`.

        Raises the `TimeoutError` after `seconds`. Use it to wait for the work of a tick: PingSource sends one only
        every 15 s.
        """
        return between(self._post_tick, wait, seconds)

    def await_delivered(self) -> None:
        """Wait until the delivery has no event left."""
        with closing(sqlite3.connect(f"file:{self.product.database}?mode=ro", uri=True)) as outbox:
            await_ready("an empty outbox", lambda: outbox.execute(LEFT).fetchone() == (0,), self.product.servers)

    def give_back(self, nodes: Collection[str]) -> None:
        """Delete the maintenances of these nodes, and wait until all are deleted."""
        found = [m.path(item) for item in self.admin.list(MEDIK8S.path)["items"] if m.node_name(item) in nodes]
        for path in found:
            self.delete(path)
        for path in found:
            self.gone(path)

    def delete(self, path: str) -> None:
        """Request the deletion of a maintenance without waiting for it."""
        self.work.delete(path)

    def spec(self, node: str) -> Object:
        """Return the node's spec."""
        spec: Object = self.admin.get(node_path(node))["spec"]
        return spec

    def pods_on(self, node: str) -> list[Object]:
        """Return the pods that are on the node now."""
        items: list[Object] = self.admin.list("/api/v1/pods", fields=f"spec.nodeName={node}")["items"]
        return items

    def audit(self) -> list[Object]:
        """Return the API server's audit log: all writes by all users, in order."""
        return self._audit.entries()

    def our_writes(self) -> list[Object]:
        """Return the writes by the product's service accounts."""
        return self._audit.writes_by()

    def evictions(self, pods: list[Object]) -> list[Object]:
        """Return the eviction requests for these pods, whose names are unique in the cluster."""
        return self._audit.evictions(*(pod["metadata"]["name"] for pod in pods)) if pods else []


class Resting:
    """Three finished maintenances and the writes since; the block starts once their events are processed."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._nodes = [scene.node() for _ in range(3)]
        self._paths = [scene.maintain(node) for node in self._nodes]
        self._flow = Flow(scene.product.delivery_log)
        self._before = 0

    def __enter__(self) -> Resting:
        for path in self._paths:
            self._scene.reaches(path)
        self._scene.tick()
        self.first_versions = self.versions()
        self._before = len(self._scene.our_writes())
        self._flow.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._flow.__exit__(None, None, None)
        for path in self._paths:
            self._scene.delete(path)
            self._scene.gone(path)

    def await_ticks(self, times: int) -> None:
        """Wait until the delivery has accepted this number of ticks, sent by PingSource or by a test."""
        self._flow.await_type(TICK, 30.0 * times, times=times)

    def versions(self) -> list[str]:
        """Return the current resourceVersions of the maintenances."""
        return [self._scene.admin.get(path)["metadata"]["resourceVersion"] for path in self._paths]

    def writes(self) -> list[Object]:
        """Return the product's writes to the maintenances, to their nodes and to the nodes' leases."""
        names = {*self._nodes, *map(lease_name, self._nodes), *(path.rsplit("/", 1)[1] for path in self._paths)}
        written = self._scene.our_writes()[self._before :]
        return [entry for entry in written if entry["objectRef"].get("name") in names]


def _allows(item: Object, allowed: int) -> bool:
    status = item.get("status") or {}
    processed = status.get("observedGeneration") == item["metadata"]["generation"]
    return processed and status.get("disruptionsAllowed") == allowed
