"""Runs the sources as processes: Knative's adapters for ApiServerSource and PingSource, and PodSource's container.

Knative's controllers do not run in this setup. So this module also installs the objects that the adapters and the
dispatchers read, and writes the status fields that the controllers would write.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from eventing.local import container_source
from eventing.local.manifests import YAML_LOADER, Document
from localcluster import access
from localcluster.cluster import LocalCluster
from localcluster.knative.fake_kubelet import write_account_kubeconfig
from localcluster.processes import Server
from localcluster.programs import build
from localcluster.rabbitmq import environment
from localcluster.rabbitmq.environment import SYSTEM_NAMESPACE
from localcluster.servers import NO_PROXY_LOCAL_ENV, ROOT

SERVICE_ACCOUNT = "pingsource-mt-adapter"
FILES = (
    "config/core/resources/pingsource.yaml",
    "config/core/200-pingsource-mt-adapter-serviceaccount.yaml",
    "config/core/roles/pingsource-mt-adapter-clusterrole.yaml",
    "config/core/configmaps/logging.yaml",
    "config/core/configmaps/observability.yaml",
)
MODULE = "knative.dev/eventing"
CRD_FILES = ("config/core/resources/broker.yaml", "config/core/resources/trigger.yaml")
Object = dict[str, Any]


class SourceAdapters:
    """Builds a process for each source; each process has the permissions of the source's ServiceAccount.

    Args:
        programs: The directory of the built binaries.
        logs: The directory for logs.
        sink_url: The URL to which the sources send events.
    """

    def __init__(self, cluster: LocalCluster, programs: Path, logs: Path, sink_url: str) -> None:
        self._cluster, self._programs, self._logs, self._sink_url = cluster, programs, logs, sink_url

    def build_servers(self, documents: Iterable[Document]) -> dict[str, Server]:
        """Build the processes by the sources' names, without starting them."""
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
        install_ping_source(self._cluster, document, self._sink_url)
        variables = environment.build_ping_source_env(
            str(write_account_kubeconfig(self._cluster, environment.SYSTEM_NAMESPACE, SERVICE_ACCOUNT))
        )
        # This ping adapter is the only replica, so it needs no leader election.
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


def install_ping_source(cluster: LocalCluster, source: Document, sink_url: str) -> None:
    """Apply Knative's objects for PingSource, then the product's PingSource with a status in which it is Ready."""
    cluster.kubectl("create", "namespace", SYSTEM_NAMESPACE)
    install_objects(cluster, FILES, [(source.body, _build_ping_source_status(sink_url))])


def _build_ping_source_status(sink_url: str) -> Object:
    """Return the status of a PingSource whose sink is resolved and whose adapter is deployed."""
    ready = {"status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    kinds = ("Deployed", "OIDCIdentityCreated", "Ready", "SinkProvided")
    return {"observedGeneration": 1, "sinkUri": sink_url, "conditions": [{"type": kind, **ready} for kind in kinds]}


def install_broker_and_triggers(cluster: LocalCluster, documents: Sequence[Document], broker_url: str) -> None:
    """Apply the product's Broker and Triggers, each with the URL that its controller would write to the status.

    Args:
        documents: The manifests; the Triggers' subscribers must have absolute URLs.
        broker_url: The URL at which the Broker accepts events.
    """
    brokers_and_triggers = [document for document in documents if document.kind in ("Broker", "Trigger")]
    objects = [
        (document.body, _build_broker_or_trigger_status(document, broker_url)) for document in brokers_and_triggers
    ]
    install_objects(cluster, CRD_FILES, objects)


def install_objects(cluster: LocalCluster, files: Sequence[str], objects: Sequence[tuple[Object, Object]]) -> None:
    """Apply Knative's objects from these files of its Go module, then the `objects`, each given with its status."""
    module = build.download_program_module("rabbitmq", MODULE)
    knative_objects = [item for name in files for item in _load_objects(module / name)]
    kinds = [item["metadata"]["name"] for item in knative_objects if item["kind"] == "CustomResourceDefinition"]
    cluster.apply(knative_objects)
    cluster.wait_for_crds(*kinds)
    cluster.apply([body for body, _ in objects])
    cluster.apply(
        [{**_build_object_reference(body), "status": status} for body, status in objects], "--subresource=status"
    )


def _build_broker_or_trigger_status(document: Document, broker_url: str) -> Object:
    if document.kind == "Broker":
        return {"address": {"url": broker_url}}
    return {"subscriberUri": document.require("spec.subscriber.uri", str)}


def _load_objects(file: Path) -> Iterator[Object]:
    for item in yaml.load_all(file.read_text(), Loader=YAML_LOADER):
        if item and item["kind"] == "CustomResourceDefinition":
            # The objects use only one version of each CRD, and no conversion webhook runs.
            item["spec"]["conversion"] = {"strategy": "None"}
        if item:
            yield item


def _build_object_reference(body: Object) -> Object:
    metadata = {key: body["metadata"][key] for key in ("name", "namespace")}
    return {"apiVersion": body["apiVersion"], "kind": body["kind"], "metadata": metadata}
