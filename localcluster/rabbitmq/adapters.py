"""The sources as processes: Knative's adapters for ApiServerSource and PingSource, and PodSource's container."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from eventing.local import container_source
from eventing.local.manifests import Document
from localcluster import access
from localcluster.cluster import LocalCluster
from localcluster.knative.fake_kubelet import write_account_kubeconfig
from localcluster.processes import Server
from localcluster.rabbitmq import environment, ping
from localcluster.servers import NO_PROXY_LOCAL_ENV, ROOT


class SourceAdapters:
    """Builds a process for each source, with the permissions of the source's ServiceAccount.

    Args:
        programs: The directory of the built binaries.
        logs: The directory for logs.
        sink_url: The URL to which the sources send events.
    """

    def __init__(self, cluster: LocalCluster, programs: Path, logs: Path, sink_url: str) -> None:
        self._cluster, self._programs, self._logs, self._sink_url = cluster, programs, logs, sink_url

    def build_servers(self, documents: Iterable[Document]) -> dict[str, Server]:
        """Return the processes by the names of the sources, not started yet."""
        builders = {
            "ApiServerSource": self._build_api_server_source,
            "PingSource": self._build_ping_source,
            "ContainerSource": self._build_container_source,
        }
        return {document.name: builders[document.kind](document) for document in documents if document.kind in builders}

    def _build_api_server_source(self, document: Document) -> Server:
        account = document.require("spec.serviceAccountName", str)
        variables = environment.build_api_server_source_env(document, self._sink_url)
        return self._build_server(document, [self._programs / "apiserver_receive_adapter"], account, variables)

    def _build_ping_source(self, document: Document) -> Server:
        ping.install_ping_source(self._cluster, document, self._sink_url)
        variables = environment.build_ping_source_env(
            str(write_account_kubeconfig(self._cluster, environment.SYSTEM_NAMESPACE, ping.SERVICE_ACCOUNT))
        )
        # The ping adapter is the only replica, so it needs no leader election.
        command: list[str | Path] = [self._programs / "mtping", "-disable-ha"]
        return Server(document.name, command, self._logs / f"{document.name}.log", {**NO_PROXY_LOCAL_ENV, **variables})

    def _build_container_source(self, document: Document) -> Server:
        account = document.require("spec.template.spec.serviceAccountName", str)
        program = container_source.parse_command(document)
        variables = {"K_SINK": self._sink_url, "SIGNING_KEY": access.ensure_event_signing_key(self._cluster.directory)}
        return self._build_server(document, list(program.command), account, {**program.variables, **variables})

    def _build_server(
        self, document: Document, command: list[str | Path], account: str, variables: dict[str, str]
    ) -> Server:
        identity = write_account_kubeconfig(self._cluster, document.namespace, account)
        environment_variables = {**NO_PROXY_LOCAL_ENV, "KUBECONFIG": str(identity), "PROFILING_PORT": "0", **variables}
        return Server(document.name, command, self._logs / f"{document.name}.log", environment_variables, ROOT)
