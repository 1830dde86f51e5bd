"""The sources as processes: Knative's adapters for ApiServerSource and PingSource, and PodSource's container."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from eventing.local import container_source
from eventing.local.manifests import Document
from localcluster import access
from localcluster.cluster import LocalCluster
from localcluster.knative.fake_kubelet import kubeconfig
from localcluster.processes import Server
from localcluster.rabbitmq import environment, ping
from localcluster.servers import DIRECT, ROOT


class Sources:
    """Builds a process for each source, with the permissions of the source's ServiceAccount.

    Args:
        programs: The directory of the built programs.
        logs: The directory for logs.
        sink: The URL to which the sources send events.
    """

    def __init__(self, cluster: LocalCluster, programs: Path, logs: Path, sink: str) -> None:
        self._cluster, self._programs, self._logs, self._sink = cluster, programs, logs, sink

    def servers(self, documents: Iterable[Document]) -> dict[str, Server]:
        """Return the processes by the names of the sources, not started yet."""
        makers = {"ApiServerSource": self._api_server, "PingSource": self._ping, "ContainerSource": self._container}
        return {document.name: makers[document.kind](document) for document in documents if document.kind in makers}

    def _api_server(self, document: Document) -> Server:
        account = document.need("spec.serviceAccountName", str)
        found = environment.api_server_source(document, self._sink)
        return self._server(document, [self._programs / "apiserver_receive_adapter"], account, found)

    def _ping(self, document: Document) -> Server:
        ping.install(self._cluster, document, self._sink)
        found = environment.ping_source(str(kubeconfig(self._cluster, environment.SYSTEM, ping.ACCOUNT)))
        # It is the only replica, so it needs no leader election.
        command: list[str | Path] = [self._programs / "mtping", "-disable-ha"]
        return Server(document.name, command, self._logs / f"{document.name}.log", {**DIRECT, **found})

    def _container(self, document: Document) -> Server:
        account = document.need("spec.template.spec.serviceAccountName", str)
        program = container_source.program(document)
        own = {"K_SINK": self._sink, "SIGNING_KEY": access.signing_key(self._cluster.directory)}
        return self._server(document, list(program.command), account, {**program.environment, **own})

    def _server(self, document: Document, command: list[str | Path], account: str, found: dict[str, str]) -> Server:
        identity = kubeconfig(self._cluster, document.namespace, account)
        everything = {**DIRECT, "KUBECONFIG": str(identity), **found}
        return Server(document.name, command, self._logs / f"{document.name}.log", everything, ROOT)
