"""The product with `record` in a separate process, as on a real cluster, so that a test can stop it alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from localcluster import access
from localcluster.cluster import LocalCluster
from localcluster.function_server import Wiring, function_server
from localcluster.processes import await_ready, free_port
from localcluster.product import FLOW, Product
from localcluster.readiness import is_ready
from localcluster.servers import LOOPBACK


class Apart(Product):
    """The product with a separate process for `record`.

    Args:
        cluster: A cluster with the manifests installed.
        directory: The directory for logs and databases.
        journal: The journal's location: a file's path, or a PostgreSQL URL.
    """

    def __init__(self, cluster: LocalCluster, directory: Path, journal: str) -> None:
        super().__init__(cluster, directory)
        self.journal_url = journal
        port = free_port()
        self._record_url = f"http://{LOOPBACK}:{port}"
        identity = cluster.kubeconfig_for(access.service_account("record"))
        wiring = Wiring("", _as_url(journal), "")
        self.record = function_server("record", port, directory / "record.log", identity, wiring, function="record")
        self.functions.env["RECORD"] = f"{self._record_url}/record"
        manifests = directory / "manifests.yaml"
        found = yaml.safe_load_all(cluster.kubectl("kustomize", FLOW[0]).stdout)
        manifests.write_text(yaml.safe_dump_all(self._addressed(item) for item in found))
        words = self.delivery.command
        self.delivery.command = [str(manifests) if word == str(FLOW[0]) else word for word in words]

    def _bring_up(self) -> None:
        self.start_record()
        super()._bring_up()

    def stop(self) -> None:
        """Stop all processes, `record` last."""
        super().stop()
        self.record.stop()

    def start_record(self) -> None:
        """Start `record`; return when it is ready."""
        self.record.start()
        await_ready("record", lambda: is_ready(self._record_url), [self.record], 30)

    def accepted(self) -> set[str]:
        """Return the ids of all events that the delivery has accepted."""
        found: set[str] = set()
        for line in self.delivery_log.read_text().splitlines():
            if '"accepted"' in line:
                found.add(json.loads(line)["id"])
        return found

    def _addressed(self, item: dict[str, Any]) -> dict[str, Any]:
        """Return the manifest; in a Trigger, replace the reference to `record` with its URL."""
        if item["kind"] == "Trigger":
            spec, record = item["spec"], {"uri": f"{self._record_url}/record"}
            if spec["subscriber"]["ref"]["name"] == "record":
                spec["subscriber"] = record
            if "deadLetterSink" in spec["delivery"]:
                spec["delivery"]["deadLetterSink"] = record
        return item


def _as_url(journal: str) -> str:
    return journal if "://" in journal else f"sqlite:///{journal}"
