"""A cluster with the product, a proxy that disturbs the delivery of events, and a proxy that injects API faults."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import requests

from chaos.plan import App
from chaos.report import ended_by_themselves
from chaos.targets import Opened, Targets, ours, targets
from kube.client.sync_client import Cluster
from kube.paths import Object
from localcluster import delivery_engines
from localcluster import product as localproduct
from localcluster.cluster import LocalCluster
from localcluster.engine_product import EngineProduct
from localcluster.processes import Server
from localcluster.product import Product
from localcluster.up.restarter import Keeper
from localcluster.web_console import Console
from localcluster.components import crds
from localcluster.components.selection import MAINTENANCE
from tests.e2e.fault_proxy import Mischief
from tests.fault_proxy import Faults
from tests.receiver import Answer, Received, Receiver

NAMESPACE = "chaos"
DELAY = "pod-delete.stage.kwok.x-k8s.io/delay"


class Network(Mischief):
    """Delivers events to the functions; a late or duplicate answer is lost if the broker is down."""

    def post(self, answer: Answer) -> None:
        """Send the answer to the broker, and ignore connection errors."""
        with suppress(requests.RequestException):
            super().post(answer)


@dataclass(frozen=True)
class Stage:
    """The environment of a run, into which faults are injected.

    Attributes:
        network: Delivers events to the functions.
        faults: The proxy for the functions' API requests.
        admin: The administrator's API client.
        servers: The processes of the product, its engine and the console.
        ours: The product's own processes among them.
        targets: The processes that each kind of crash may kill.
        keeper: Restarts processes that exit unexpectedly.
    """

    cluster: LocalCluster
    product: Opened
    network: Network
    faults: Faults
    admin: Cluster
    servers: list[Server]
    ours: list[Server]
    targets: Targets
    keeper: Keeper

    def ended(self) -> list[str]:
        """Return the processes that are down, and the product's processes that exited unexpectedly."""
        down = [server.name for server in (*self.cluster.servers, *self.servers) if not server.alive]
        return [*down, *ended_by_themselves(self.keeper.records(), {server.name for server in self.ours})]


@contextmanager
def stage(engine: str, directory: Path, nodes: int, wing: str = MAINTENANCE) -> Iterator[Stage]:
    """Yield the environment on an engine, with this component; processes that exit unexpectedly are restarted."""
    with (
        delivery_engines.named(engine).cluster(directory / "servers", nodes) as cluster,
        closing(Faults(cluster.url, cluster.certificate)) as faults,
        closing(_Between()) as between,
    ):
        product = _opened(engine, cluster, directory / "product", between.url, faults.url, wing)
        between.network = network = Network(product)
        with (
            product,
            _console(cluster, directory / "product", product) as console,
            Keeper() as keeper,
            closing(Cluster(str(cluster.kubeconfig))) as admin,
        ):
            if isinstance(product, EngineProduct):
                product.route(lambda name: f"{between.url}/{name}")
            servers = [*product.servers, console.server]
            keeper.keep(servers)
            parts = ours(product, console.server), targets(product, console.server)
            yield Stage(cluster, product, network, faults, admin, servers, *parts, keeper)


def _opened(engine: str, cluster: LocalCluster, directory: Path, called_at: str, asking: str, wing: str) -> Opened:
    """Return the product, not started; its functions send API requests to `asking`.

    On the local engine, the delivery calls the functions at `called_at`.
    """
    if engine == "local":
        crds.install(cluster, (wing,))
        localproduct.install(cluster, opted=(wing,))
        return Product(cluster, directory, called_at=called_at, asking=asking, flow=localproduct.flow((wing,)))
    product = delivery_engines.named(engine).open(cluster, directory)
    if not isinstance(product, EngineProduct):
        raise TypeError(f"no mischief is known for {engine}")
    product.ask_at(asking)
    return product


def _console(cluster: LocalCluster, directory: Path, product: Opened) -> Console:
    where = {"functions": product.functions_url, "broker": product.broker_url}
    return Console(cluster, directory, "--journal", product.journal, **where)


class _Between:
    """Receives the events for the functions; `network` is set later, since it needs the product's addresses."""

    def __init__(self) -> None:
        self.network: Network | None = None
        self._receiver = Receiver(otherwise=self._answer)
        self.url = self._receiver.url

    def _answer(self, request: Received) -> Answer:
        return self.network(request) if self.network else Answer(503)

    def close(self) -> None:
        self._receiver.close()


def fill(stage: Stage, apps: list[App]) -> None:
    """Create the workload; return when every pod runs."""
    stage.admin.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    stage.cluster.kubectl("wait", "--for=create", "serviceaccount/default", "-n", NAMESPACE, "--timeout=30s")
    for app in apps:
        stage.admin.create(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments", _deployment(app))
        if app.unavailable is not None:
            stage.admin.create(f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets", _budget(app))
    for app in apps:
        stage.cluster.kubectl("rollout", "status", f"deployment/{app.name}", "-n", NAMESPACE, "--timeout=60s")


def _deployment(app: App) -> Object:
    labels, containers = {"app": app.name}, [{"name": "main", "image": "fake"}]
    annotations = {DELAY: f"{app.ending:g}s"}
    template = {"metadata": {"labels": labels, "annotations": annotations}, "spec": {"containers": containers}}
    spec = {"replicas": app.replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"metadata": {"name": app.name}, "spec": spec}


def _budget(app: App) -> Object:
    spec = {"maxUnavailable": app.unavailable, "selector": {"matchLabels": {"app": app.name}}}
    return {"metadata": {"name": app.name}, "spec": spec}
