"""Test environment for the chain tests, with helpers for nodes, pods, PodDisruptionBudgets and maintenances."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, TypeVar

from eventing.events import TICK
from eventing.replay.function_client import post_event
from kube.client.sync_client import SyncClient
from kube.maintenance import objects as m
from kube.maintenance.groups import GROUPS, MEDIK8S
from kube.maintenance.leases import build_lease_name
from kube.nodes import build_node_path
from kube.paths import Object
from localcluster.audit_log import AuditLog
from localcluster.cluster import LocalCluster
from localcluster.demo.event_log import EventLogFollower
from localcluster.product import Product
from localcluster.waiting import retry_action
from tests.functions.event_builders import build_tick
from tests.workload import Workload, build_pod

T = TypeVar("T")
NAME_NUMBERS = itertools.count(1)
TIMEOUT_SECONDS = 90.0
"""Maximum seconds of a wait, long enough for a busy machine."""


def has_succeeded(maintenance: Object) -> bool:
    """Return whether the maintenance's phase is Succeeded."""
    return m.get_phase(maintenance) == "Succeeded"


class EventChainEnvironment:
    """A cluster on which the product runs, with helpers that act as the administrator."""

    def __init__(self, cluster: LocalCluster, product: Product, journal: str = "") -> None:
        self.cluster, self.product = cluster, product
        self.journal = journal or str(product.journal)
        self.client = SyncClient(str(cluster.kubeconfig))
        self.workload = Workload(cluster, self.client)
        self._audit = AuditLog(cluster.audit_log)

    def create_node(self, name: str = "") -> str:
        """Create a node and wait until it is Ready; return its name."""
        name = name or f"chain-{next(NAME_NUMBERS)}"
        self.cluster.create_nodes(name)
        return name

    def create_namespace(self) -> str:
        """Create a namespace and wait for its service account; return its name."""
        return self.workload.create_namespace()

    def create_pods(
        self, node: str, count: int, *, namespace: str = "", labels: Object | None = None, **options: Any
    ) -> list[Object]:
        """Create bare pods on the node and return them once all are Ready.

        The options `delete` and `ready` are delays of kwok's stages of the same name; `grace` is the termination grace
        period in seconds.
        """
        namespace = namespace or self.create_namespace()
        delays = {
            f"pod-{kwok_stage}.stage.kwok.x-k8s.io/delay": options[kwok_stage]
            for kwok_stage in ("delete", "ready")
            if kwok_stage in options
        }
        names = [f"pod-{next(NAME_NUMBERS)}" for _ in range(count)]
        finalizers = tuple(options.get("finalizers", ()))
        pods = [build_pod(node, name, labels=labels, annotations=delays, finalizers=finalizers) for name in names]
        for body in pods:
            body["spec"] |= {"terminationGracePeriodSeconds": options["grace"]} if "grace" in options else {}
        return self.workload.create_pods(namespace, pods)

    def create_deployment(
        self,
        namespace: str,
        node: str,
        replicas: int,
        *,
        tolerations: Iterable[Object] = (),
        sets_node_name: bool = False,
        **delays: str,
    ) -> None:
        """Create the Deployment `web`, and wait until all its replicas are available.

        `delays` are delays of kwok's stages `delete` and `ready`. The pods can be scheduled only on this node and on
        nodes later passed to `allow_deployment_on_node`. If `sets_node_name` is true, the pod template sets `nodeName`.
        """
        self.allow_deployment_on_node(namespace, node)
        labels = {"app": "web"}
        annotations = {f"pod-{kwok_stage}.stage.kwok.x-k8s.io/delay": delay for kwok_stage, delay in delays.items()}
        template = {
            "metadata": {"labels": labels, "annotations": annotations},
            "spec": {
                "nodeSelector": {"pool": namespace},
                "containers": [{"name": "main", "image": "fake"}],
                "tolerations": list(tolerations),
                **({"nodeName": node} if sets_node_name else {}),
            },
        }
        spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
        body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}
        deployments_path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
        self.client.create(deployments_path, body)
        self.wait_for_object_state(
            deployments_path,
            "web",
            lambda deployment: (deployment.get("status") or {}).get("availableReplicas") == replicas,
        )

    def allow_deployment_on_node(self, namespace: str, node: str) -> None:
        """Allow the namespace's Deployment to run on this node too, in addition to those already allowed."""
        self.client.patch(build_node_path(node), {"metadata": {"labels": {"pool": namespace}}})

    def drain_node_with_pods(self, node: str, count: int) -> str:
        """Create pods on the node and drain the node; return the API path of the finished maintenance."""
        self.create_pods(node, count)
        path = self.create_maintenance(node)
        self.wait_for_state(path)
        return path

    @contextmanager
    def run_in_thread(self, work: Callable[[], None]) -> Iterator[None]:
        """Run `work` in a thread while the block runs, then join the thread."""
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        yield
        thread.join(timeout=30)

    def create_budget(
        self, namespace: str, labels: Object, *, name: str = "budget", disruptions_allowed: int, **spec: Any
    ) -> Object:
        """Create a PodDisruptionBudget and return it once it allows `disruptions_allowed` disruptions."""
        path = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
        body = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name}}
        self.client.create(path, {**body, "spec": {"selector": {"matchLabels": labels}, **spec}})
        return self.wait_for_object_state(path, name, lambda budget: _allows_disruptions(budget, disruptions_allowed))

    def create_maintenance(
        self,
        node: str,
        *,
        api_version: str = MEDIK8S.api_version,
        name: str = "",
        reason: str = "test",
        drain: Object | None = None,
    ) -> str:
        """Create a NodeMaintenance and return its path."""
        name = name or f"m-{next(NAME_NUMBERS)}"
        body = {"apiVersion": api_version, "kind": "NodeMaintenance", "metadata": {"name": name}}
        spec: Object = {"nodeName": node, "reason": reason, **({"drain": drain} if drain else {})}
        self.client.create(GROUPS[api_version].path, {**body, "spec": spec})
        return f"{GROUPS[api_version].path}/{name}"

    def record_states_until(
        self, path: str, predicate: Callable[[Object], bool], timeout: float = TIMEOUT_SECONDS
    ) -> list[Object]:
        """Return the successive states of the object at `path`, up to the first state that satisfies `predicate`."""
        states: list[Object] = []

        def record_and_test_state(state: Object | None) -> bool:
            if state is None:
                return False
            states.append(state)
            return predicate(state)

        self.workload.wait_for_object(path, record_and_test_state, timeout)
        return states

    def wait_for_object_state(
        self, collection: str, name: str, predicate: Callable[[Object], bool], timeout: float = TIMEOUT_SECONDS
    ) -> Object:
        """Wait until the object `name` in a collection satisfies `predicate`, and return the object in this state."""
        return self.record_states_until(f"{collection}/{name}", predicate, timeout)[-1]

    def wait_for_state(
        self, path: str, predicate: Callable[[Object], bool] = has_succeeded, timeout: float = TIMEOUT_SECONDS
    ) -> Object:
        """Wait until the object at `path` satisfies `predicate`, and return the object in this state."""
        return self.record_states_until(path, predicate, timeout)[-1]

    def wait_for_deletion(self, path: str, timeout: float = TIMEOUT_SECONDS) -> float:
        """Wait until the object at `path` is deleted; return the elapsed seconds."""
        started = time.monotonic()
        self.workload.wait_for_object(path, lambda item: item is None, timeout)
        return time.monotonic() - started

    def send_tick(self) -> None:
        """Send a resync tick, and wait until no events are pending delivery."""
        self._post_tick()
        self.wait_until_delivered()

    def _post_tick(self) -> None:
        assert post_event(build_tick(), self.product.broker_url).status_code == HTTPStatus.ACCEPTED

    def wait_with_ticks(self, wait: Callable[[], T], timeout: float = 60.0) -> T:
        """Send a resync tick, call `wait` and return its result; repeat both while `wait` raises `TimeoutError`.

        Raises the last `TimeoutError` after `timeout` seconds. PingSource alone sends a tick only every 15 s.
        """
        return retry_action(self._post_tick, wait, timeout)

    def wait_until_delivered(self) -> None:
        """Wait until no events are pending delivery."""
        self.product.wait_until_delivered()

    def delete_maintenances_of(self, node_names: Collection[str]) -> None:
        """Delete the maintenances of these nodes, and wait until all are deleted."""
        paths = [
            m.build_path(maintenance)
            for maintenance in self.client.list(MEDIK8S.path)["items"]
            if m.get_node_name(maintenance) in node_names
        ]
        for path in paths:
            self.request_deletion(path)
        for path in paths:
            self.wait_for_deletion(path)

    def request_deletion(self, path: str) -> None:
        """Request the deletion of a maintenance without waiting until it is deleted."""
        self.workload.delete(path)

    def get_node_spec(self, node: str) -> Object:
        """Return the node's spec."""
        spec: Object = self.client.get(build_node_path(node))["spec"]
        return spec

    def list_pods_on(self, node: str) -> list[Object]:
        """Return the pods that currently exist on the node."""
        pods: list[Object] = self.client.list("/api/v1/pods", field_selector=f"spec.nodeName={node}")["items"]
        return pods

    def read_audit_log(self) -> list[Object]:
        """Return the API server's audit log: all writes by all users, in order."""
        return self._audit.read_entries()

    def list_product_writes(self) -> list[Object]:
        """Return all writes by the product's ServiceAccounts."""
        return self._audit.list_writes_by()

    def list_evictions(self, pods: list[Object]) -> list[Object]:
        """Return the audit entries of eviction requests for these pods, whose names are unique in the cluster."""
        return self._audit.list_evictions(*(pod["metadata"]["name"] for pod in pods)) if pods else []


class FinishedMaintenances:
    """Context manager that creates three maintenances, and lists the product's writes since they have succeeded."""

    def __init__(self, environment: EventChainEnvironment) -> None:
        self._environment = environment
        self._nodes = [environment.create_node() for _ in range(3)]
        self._paths = [environment.create_maintenance(node) for node in self._nodes]
        self._event_log = EventLogFollower(environment.product.delivery_log)
        self._write_count_before = 0

    def __enter__(self) -> FinishedMaintenances:
        for path in self._paths:
            self._environment.wait_for_state(path)
        self._environment.send_tick()
        self.initial_resource_versions = self.list_resource_versions()
        self._write_count_before = len(self._environment.list_product_writes())
        self._event_log.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._event_log.__exit__(None, None, None)
        for path in self._paths:
            self._environment.request_deletion(path)
            self._environment.wait_for_deletion(path)

    def wait_for_tick_count(self, count: int) -> None:
        """Wait until the delivery has accepted `count` resync ticks, whether sent by PingSource or by a test."""
        self._event_log.wait_for_events(TICK, 30.0 * count, count=count)

    def list_resource_versions(self) -> list[str]:
        """Return the maintenances' current resourceVersions."""
        return [self._environment.client.get(path)["metadata"]["resourceVersion"] for path in self._paths]

    def list_writes_after_success(self) -> list[Object]:
        """Return the product's writes to the maintenances, and to their nodes and Leases, since their success."""
        names = {*self._nodes, *map(build_lease_name, self._nodes), *(path.rsplit("/", 1)[1] for path in self._paths)}
        writes = self._environment.list_product_writes()[self._write_count_before :]
        return [entry for entry in writes if entry["objectRef"].get("name") in names]


def _allows_disruptions(budget: Object, allowed: int) -> bool:
    status = budget.get("status") or {}
    is_processed = status.get("observedGeneration") == budget["metadata"]["generation"]
    return is_processed and status.get("disruptionsAllowed") == allowed
