"""A cluster with the product at work on it, and what stands between: a network that misbehaves, faulty answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import requests

from chaos.plan import App
from kube.door.cluster import Cluster
from kube.paths import Object
from localcluster import product as localproduct
from localcluster.cluster import LocalCluster
from localcluster.product import Product
from localcluster.up.keeper import Keeper
from tests.e2e.mischief import Mischief
from tests.faults import Faults
from tests.receiver import Answer, Received, Receiver

NAMESPACE = "chaos"
DELAY = "pod-delete.stage.kwok.x-k8s.io/delay"


class Network(Mischief):
    """Carries events to the functions; an answer that comes late, or twice, is lost where the delivery is away."""

    def post(self, answer: Answer) -> None:
        """Send it to the delivery."""
        with suppress(requests.RequestException):
            super().post(answer)


@dataclass(frozen=True)
class Stage:
    """What mischief is done to: `network` carries events to the functions, `faults` their requests."""

    cluster: LocalCluster
    product: Product
    network: Network
    faults: Faults
    admin: Cluster


@contextmanager
def local(directory: Path, nodes: int) -> Iterator[Stage]:
    """Give it on the local delivery; what ends by itself is started again, as on any cluster."""
    with LocalCluster(directory / "servers", nodes=nodes) as cluster:
        localproduct.install(cluster)
        with closing(Faults(cluster.url, cluster.certificate)) as faults, closing(_Between()) as between:
            product = Product(cluster, directory / "product", called_at=between.url, asking=faults.url)
            between.network = network = Network(product)
            with product, Keeper() as keeper, closing(Cluster(str(cluster.kubeconfig))) as admin:
                keeper.keep(product.servers)
                yield Stage(cluster, product, network, faults, admin)


class _Between:
    """Takes what is meant for the functions, for a network that knows the product's addresses."""

    def __init__(self) -> None:
        self.network: Network | None = None
        self._receiver = Receiver(otherwise=self._answer)
        self.url = self._receiver.url

    def _answer(self, request: Received) -> Answer:
        return self.network(request) if self.network else Answer(503)

    def close(self) -> None:
        self._receiver.close()


def fill(stage: Stage, apps: list[App]) -> None:
    """Put the workload there; returns when every pod runs."""
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
