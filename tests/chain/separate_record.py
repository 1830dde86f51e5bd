"""The product with the function `record` in a separate process, so that a test can stop only `record`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from localcluster import access
from localcluster.cluster import LocalCluster
from localcluster.function_server import FunctionConfig, build_function_server
from localcluster.processes import reserve_port, wait_until_ready
from localcluster.product import EVENTING_MANIFESTS, Product
from localcluster.readiness import is_ready
from localcluster.servers import LOOPBACK


class ProductWithSeparateRecord(Product):
    """The product with a separate process for the function `record`.

    Args:
        cluster: A cluster with the manifests installed.
        directory: The directory for logs and databases.
        journal_url: The location of the journal: a file path or a PostgreSQL URL.
    """

    def __init__(self, cluster: LocalCluster, directory: Path, journal_url: str) -> None:
        super().__init__(cluster, directory)
        self.journal_url = journal_url
        port = reserve_port()
        self._record_url = f"http://{LOOPBACK}:{port}"
        identity = cluster.ensure_kubeconfig(access.make_username("record"))
        config = FunctionConfig("", _build_journal_url(journal_url), "")
        self.record = build_function_server(
            "record", port, directory / "record.log", identity, config, function="record"
        )
        self.functions.env["RECORD"] = f"{self._record_url}/record"
        manifests = directory / "manifests.yaml"
        documents = yaml.safe_load_all(cluster.kubectl("kustomize", EVENTING_MANIFESTS[0]).stdout)
        manifests.write_text(yaml.safe_dump_all(self._replace_record_address(document) for document in documents))
        command = self.delivery.command
        self.delivery.command = [
            str(manifests) if argument == str(EVENTING_MANIFESTS[0]) else argument for argument in command
        ]

    def _start_and_wait(self) -> None:
        self.start_record()
        super()._start_and_wait()

    def stop(self) -> None:
        """Stop all processes; `record` is stopped last."""
        super().stop()
        self.record.stop()

    def start_record(self) -> None:
        """Start `record` and wait until it is ready."""
        self.record.start()
        wait_until_ready("record", lambda: is_ready(self._record_url), [self.record], 30)

    def list_accepted_event_ids(self) -> set[str]:
        """Return the ids of all events that the delivery has accepted."""
        accepted_ids: set[str] = set()
        for line in self.delivery_log.read_text().splitlines():
            if '"accepted"' in line:
                accepted_ids.add(json.loads(line)["id"])
        return accepted_ids

    def _replace_record_address(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Return the manifest; if it is a Trigger, references to `record` are replaced with its URL."""
        if manifest["kind"] == "Trigger":
            spec, record = manifest["spec"], {"uri": f"{self._record_url}/record"}
            if spec["subscriber"]["ref"]["name"] == "record":
                spec["subscriber"] = record
            if "deadLetterSink" in spec["delivery"]:
                spec["delivery"]["deadLetterSink"] = record
        return manifest


def _build_journal_url(journal: str) -> str:
    return journal if "://" in journal else f"sqlite:///{journal}"
