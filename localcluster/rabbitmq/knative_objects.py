"""Knative's CRDs and the product's objects of these kinds, on a cluster without Knative's controllers.

The module writes the status fields that a controller would write.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from eventing.local.manifests import LOADER, Document
from localcluster.cluster import LocalCluster
from localcluster.programs import build

MODULE = "knative.dev/eventing"
ADDRESSED = ("config/core/resources/broker.yaml", "config/core/resources/trigger.yaml")
Object = dict[str, Any]


def install_flow(cluster: LocalCluster, documents: Sequence[Document], broker_url: str) -> None:
    """Apply the product's Broker and Triggers, each with the address that its controller would publish in the status.

    Args:
        documents: The manifests, with absolute addresses of the Triggers' subscribers.
        broker_url: The URL at which the Broker accepts events.
    """
    flow = [document for document in documents if document.kind in ("Broker", "Trigger")]
    ours = [(document.body, _address(document, broker_url)) for document in flow]
    install(cluster, ADDRESSED, ours)


def install(cluster: LocalCluster, files: Sequence[str], ours: Sequence[tuple[Object, Object]]) -> None:
    """Apply Knative's own objects from these files of its Go module, then the product's, each with its status."""
    module = build.module_folder("rabbitmq", MODULE)
    theirs = [item for name in files for item in _objects(module / name)]
    kinds = [item["metadata"]["name"] for item in theirs if item["kind"] == "CustomResourceDefinition"]
    cluster.apply(theirs)
    cluster.await_kinds(*kinds)
    cluster.apply([body for body, _ in ours])
    cluster.apply([{**_identity(body), "status": status} for body, status in ours], "--subresource=status")


def _address(document: Document, broker_url: str) -> Object:
    if document.kind == "Broker":
        return {"address": {"url": broker_url}}
    return {"subscriberUri": document.need("spec.subscriber.uri", str)}


def _objects(file: Path) -> Iterator[Object]:
    for item in yaml.load_all(file.read_text(), Loader=LOADER):
        if item and item["kind"] == "CustomResourceDefinition":
            # One version is enough here, and the conversion webhook does not run.
            item["spec"]["conversion"] = {"strategy": "None"}
        if item:
            yield item


def _identity(body: Object) -> Object:
    metadata = {key: body["metadata"][key] for key in ("name", "namespace")}
    return {"apiVersion": body["apiVersion"], "kind": body["kind"], "metadata": metadata}
