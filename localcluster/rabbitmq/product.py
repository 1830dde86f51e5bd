"""The product on a RabbitMQ Broker: processes for the Broker's data plane, the functions and the source adapters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from eventing.local import manifests
from eventing.local.manifests import Document
from localcluster.cluster import LocalCluster
from localcluster.components import overlay
from localcluster.components.selection import DEFAULT_COMPONENTS, Components
from localcluster.engine_product import EngineProduct
from localcluster.processes import reserve_port
from localcluster.programs import build
from localcluster.rabbitmq import adapters
from localcluster.rabbitmq.adapters import SourceAdapters
from localcluster.rabbitmq.planes import RabbitPlanes
from localcluster.servers import LOOPBACK, ROOT

RABBITMQ_OVERLAY, V1ALPHA1_DIR = ROOT / "manifests" / "overlays" / "rabbitmq", ROOT / "manifests" / "v1alpha1"


class RabbitProduct(EngineProduct):
    """The product with a RabbitMQ Broker, whose data plane runs as local processes.

    Args:
        cluster: A cluster with the CRDs and ServiceAccounts installed.
        directory: The directory for logs, RabbitMQ's data and the journal.
        components: The installed components.
    """

    planes: RabbitPlanes

    def __init__(self, cluster: LocalCluster, directory: Path, components: Components = DEFAULT_COMPONENTS) -> None:
        port = reserve_port()
        super().__init__(cluster, directory, f"http://{LOOPBACK}:{port}", components)
        self._overlay = overlay.ensure_overlay(RABBITMQ_OVERLAY, components, directory / "overlay")
        documents = self._load_documents(self.get_function_url)
        broker = next(document.name for document in documents if document.kind == "Broker")
        self.planes = RabbitPlanes(
            directory / "rabbitmq", broker, port, manifests.parse_triggers(documents, "").values()
        )
        adapters.install_broker_and_triggers(cluster, documents, self.broker_url)
        self.adapters = SourceAdapters(
            cluster, build.ensure_programs(build.RABBITMQ), directory, self.broker_url
        ).build_servers(documents)

    def _start_and_wait(self) -> None:
        """Start all processes; return when events are delivered."""
        self._functions.launch()  # The functions take the longest to start, and depend on no other process.
        self.start_delivery()
        self.start_functions()

    def route_triggers(self, get_url: Callable[[str], str]) -> None:
        """Make every Trigger call its function at the URL from `get_url`; the dead letter sinks do not change."""
        self.planes.route_triggers(manifests.parse_triggers(self._load_documents(get_url), "").values())

    def add_trigger(self, body: dict[str, Any]) -> None:
        """Start delivering events to a new Trigger; its subscriber and dead letter sink must be given as `uri`."""
        (trigger,) = manifests.parse_triggers([Document(self._directory / "added", body)], "").values()
        self.planes.add_trigger(trigger)

    def _load_documents(self, get_url: Callable[[str], str]) -> list[Document]:
        """Render the overlay's manifests, and parse them as the local delivery does."""
        file = self._directory / "manifests.yaml"
        file.write_text(yaml.safe_dump_all(self._render_manifests(self._overlay, V1ALPHA1_DIR, get_url=get_url)))
        return manifests.read_documents([file])
