"""The product on a RabbitMQ Broker: the broker's data plane, a process per function, the sources."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from eventing.local import manifests, triggers
from eventing.local.manifests import Document
from localcluster.cluster import LocalCluster
from localcluster.engine_product import EngineProduct
from localcluster.processes import free_port
from localcluster.programs import build
from localcluster.rabbitmq import knative_objects
from localcluster.rabbitmq.adapters import Sources
from localcluster.rabbitmq.planes import Planes
from localcluster.servers import LOOPBACK, ROOT
from localcluster.components import overlay
from localcluster.components.selection import DEFAULT, Wings

DURABLE, V1ALPHA1 = ROOT / "manifests" / "overlays" / "rabbitmq", ROOT / "manifests" / "v1alpha1"


class RabbitProduct(EngineProduct):
    """The product as it runs on a cluster with RabbitMQ.

    Args:
        cluster: A cluster with the CRDs and ServiceAccounts installed.
        directory: The directory for logs, RabbitMQ's data and the journal.
        wings: The installed components.
    """

    planes: Planes

    def __init__(self, cluster: LocalCluster, directory: Path, wings: Wings = DEFAULT) -> None:
        port = free_port()
        super().__init__(cluster, directory, f"http://{LOOPBACK}:{port}", wings)
        self._overlay = overlay.folder_of(DURABLE, wings, directory / "overlay")
        found = self._documents(self.function_url)
        broker = next(document.name for document in found if document.kind == "Broker")
        self.planes = Planes(directory / "rabbitmq", broker, port, triggers.read(found, "").values())
        knative_objects.install_flow(cluster, found, self.broker_url)
        self.adapters = Sources(cluster, build.servers(build.RABBITMQ), directory, self.broker_url).servers(found)

    def _bring_up(self) -> None:
        """Start everything; return when events are delivered."""
        self._functions.launch()  # they start slowest, and depend on no other process
        self.start_delivery()
        self.start_functions()

    def route(self, url_of: Callable[[str], str]) -> None:
        """Make every Trigger call its function at another address; dead letters keep their address."""
        self.planes.route(triggers.read(self._documents(url_of), "").values())

    def add_trigger(self, body: dict[str, Any]) -> None:
        """Serve one more Trigger, all of whose addresses are given as `uri`."""
        (trigger,) = triggers.read([Document(self._directory / "added", body)], "").values()
        self.planes.add(trigger)

    def _documents(self, url_of: Callable[[str], str]) -> list[Document]:
        """Return the manifests, parsed as the local delivery parses them."""
        file = self._directory / "manifests.yaml"
        file.write_text(yaml.safe_dump_all(self._shipped(self._overlay, V1ALPHA1, url_of=url_of)))
        return manifests.read([file])
