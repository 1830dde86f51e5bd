"""Starts a cluster with the product, with a proxy that disturbs event delivery, and with a proxy for API faults."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import requests

from chaos.api_fault_proxy import FaultProxy
from chaos.event_fault_proxy import NetworkFaultProxy
from chaos.plan import App
from chaos.report import list_unexpected_exits
from chaos.targets import LocalOrEngineProduct, Targets, build_targets, list_product_servers
from kube.client.sync_client import SyncClient
from kube.paths import Object
from localcluster import delivery_engines
from localcluster import product as localproduct
from localcluster.cluster import LocalCluster
from localcluster.components import crds
from localcluster.components.selection import MAINTENANCE
from localcluster.engine_product import EngineProduct
from localcluster.http_receiver import ReceivedRequest, Receiver, Response
from localcluster.processes import Server
from localcluster.product import Product
from localcluster.up.restarter import Restarter
from localcluster.web_console import WebConsole

NAMESPACE = "chaos"
DELETING_RBAC = localproduct.COMPONENTS_DIR / "deleting" / "rbac.yaml"
"""The permission to delete pods, which the escalation requires."""
DELETE_DELAY_ANNOTATION = "pod-delete.stage.kwok.x-k8s.io/delay"


class EventNetwork(NetworkFaultProxy):
    """A proxy for events; a function's late reply, or its reply to a duplicate, is lost while the broker is down."""

    def publish_reply(self, reply: Response) -> None:
        """Send the reply to the broker; discard it if the connection fails."""
        with suppress(requests.RequestException):
            super().publish_reply(reply)


@dataclass(frozen=True)
class ChaosEnvironment:
    """A running cluster and product, into which a run injects faults.

    Attributes:
        cluster: The cluster.
        product: The product, with its functions and delivery.
        network: The proxy between the broker and the functions.
        faults: The proxy between the functions and the API server.
        client: The administrator's API client.
        servers: The processes of the product, of its engine and of the console.
        product_servers: Those of `servers` that run the product's own code.
        targets: The processes that may be killed, by kind of crash.
        restarter: Restarts processes that exit unexpectedly.
    """

    cluster: LocalCluster
    product: LocalOrEngineProduct
    network: EventNetwork
    faults: FaultProxy
    client: SyncClient
    servers: list[Server]
    product_servers: list[Server]
    targets: Targets
    restarter: Restarter

    def list_exited_servers(self) -> list[str]:
        """Return the names of processes that are down, and of the product's processes that exited unexpectedly."""
        down_names = [server.name for server in (*self.cluster.servers, *self.servers) if not server.is_alive]
        return [
            *down_names,
            *list_unexpected_exits(self.restarter.list_records(), {server.name for server in self.product_servers}),
        ]


@contextmanager
def start_environment(
    engine: str, directory: Path, nodes: int, component: str = MAINTENANCE
) -> Iterator[ChaosEnvironment]:
    """Yield an environment with this engine and component, in which exited processes are restarted."""
    with (
        delivery_engines.get_engine(engine).create_cluster(directory / "servers", nodes) as cluster,
        closing(FaultProxy(cluster.url, cluster.certificate)) as faults,
        closing(_EventProxy()) as event_proxy,
    ):
        product = _create_product(engine, cluster, directory / "product", event_proxy.url, faults.url, component)
        cluster.kubectl("apply", "--server-side", "-f", DELETING_RBAC)
        event_proxy.network = network = EventNetwork(product)
        with (
            product,
            _build_console(cluster, directory / "product", product) as console,
            Restarter() as restarter,
            closing(SyncClient(str(cluster.kubeconfig))) as client,
        ):
            if isinstance(product, EngineProduct):
                product.route_triggers(lambda name: f"{event_proxy.url}/{name}")
            servers = [*product.servers, console.server]
            restarter.add_servers(servers)
            product_servers, targets = (
                list_product_servers(product, console.server),
                build_targets(product, console.server),
            )
            yield ChaosEnvironment(
                cluster, product, network, faults, client, servers, product_servers, targets, restarter
            )


def _create_product(
    engine: str, cluster: LocalCluster, directory: Path, subscriber_url: str, api_url: str, component: str
) -> LocalOrEngineProduct:
    """Create the product without starting it; its functions call the API server at `api_url`.

    With the engine `local`, the delivery calls the functions at `subscriber_url`.
    """
    if engine == "local":
        crds.install_crds(cluster, (component,))
        localproduct.install_manifests(cluster, components=(component,))
        return Product(
            cluster,
            directory,
            subscriber_url=subscriber_url,
            api_url=api_url,
            eventing_manifests=localproduct.list_trigger_and_source_manifests((component,)),
        )
    product = delivery_engines.get_engine(engine).install_product(cluster, directory)
    if not isinstance(product, EngineProduct):
        raise TypeError(f"fault injection does not support engine {engine!r}")
    product.set_api_url(api_url)
    return product


def _build_console(cluster: LocalCluster, directory: Path, product: LocalOrEngineProduct) -> WebConsole:
    urls = {"functions_url": product.functions_url, "broker_url": product.broker_url}
    return WebConsole(cluster, directory, "--journal", product.journal, **urls)


class _EventProxy:
    """Receives the functions' events, and passes them to `network`, which is set after the product's creation."""

    def __init__(self) -> None:
        self.network: EventNetwork | None = None
        self._receiver = Receiver(default_answer=self._forward)
        self.url = self._receiver.url

    def _forward(self, request: ReceivedRequest) -> Response:
        return self.network(request) if self.network else Response(503)

    def close(self) -> None:
        self._receiver.close()


def deploy_apps(environment: ChaosEnvironment, apps: list[App]) -> None:
    """Create the apps' Deployments and PDBs; return when all pods are running."""
    environment.client.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    environment.cluster.kubectl("wait", "--for=create", "serviceaccount/default", "-n", NAMESPACE, "--timeout=30s")
    for app in apps:
        environment.client.create(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments", _build_deployment(app))
        if app.max_unavailable is not None:
            environment.client.create(
                f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets", _build_budget(app)
            )
    for app in apps:
        environment.cluster.kubectl("rollout", "status", f"deployment/{app.name}", "-n", NAMESPACE, "--timeout=60s")


def _build_deployment(app: App) -> Object:
    labels, containers = {"app": app.name}, [{"name": "main", "image": "fake"}]
    annotations = {DELETE_DELAY_ANNOTATION: f"{app.termination_seconds:g}s"}
    template = {"metadata": {"labels": labels, "annotations": annotations}, "spec": {"containers": containers}}
    spec = {"replicas": app.replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"metadata": {"name": app.name}, "spec": spec}


def _build_budget(app: App) -> Object:
    spec = {"maxUnavailable": app.max_unavailable, "selector": {"matchLabels": {"app": app.name}}}
    return {"metadata": {"name": app.name}, "spec": spec}
