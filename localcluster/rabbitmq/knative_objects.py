"""Applies Knative's CRDs and the product's objects of these kinds to a cluster without Knative's controllers.

The module writes the status fields that the controllers would write.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from eventing.local.manifests import YAML_LOADER, Document
from localcluster.cluster import LocalCluster
from localcluster.programs import build

MODULE = "knative.dev/eventing"
CRD_FILES = ("config/core/resources/broker.yaml", "config/core/resources/trigger.yaml")
Object = dict[str, Any]


def install_broker_and_triggers(cluster: LocalCluster, documents: Sequence[Document], broker_url: str) -> None:
    """Apply the product's Broker and Triggers, each with the address that its controller would publish in the status.

    Args:
        documents: The manifests, with absolute addresses of the Triggers' subscribers.
        broker_url: The URL at which the Broker accepts events.
    """
    brokers_and_triggers = [document for document in documents if document.kind in ("Broker", "Trigger")]
    objects = [(document.body, _build_status(document, broker_url)) for document in brokers_and_triggers]
    install_objects(cluster, CRD_FILES, objects)


def install_objects(cluster: LocalCluster, files: Sequence[str], objects: Sequence[tuple[Object, Object]]) -> None:
    """Apply Knative's own objects from these files of its Go module, then `objects`, each with its status."""
    module = build.download_program_module("rabbitmq", MODULE)
    knative_objects = [item for name in files for item in _load_objects(module / name)]
    kinds = [item["metadata"]["name"] for item in knative_objects if item["kind"] == "CustomResourceDefinition"]
    cluster.apply(knative_objects)
    cluster.wait_for_crds(*kinds)
    cluster.apply([body for body, _ in objects])
    cluster.apply([{**_build_reference(body), "status": status} for body, status in objects], "--subresource=status")


def _build_status(document: Document, broker_url: str) -> Object:
    if document.kind == "Broker":
        return {"address": {"url": broker_url}}
    return {"subscriberUri": document.require("spec.subscriber.uri", str)}


def _load_objects(file: Path) -> Iterator[Object]:
    for item in yaml.load_all(file.read_text(), Loader=YAML_LOADER):
        if item and item["kind"] == "CustomResourceDefinition":
            # One version is enough here, and the conversion webhook does not run.
            item["spec"]["conversion"] = {"strategy": "None"}
        if item:
            yield item


def _build_reference(body: Object) -> Object:
    metadata = {key: body["metadata"][key] for key in ("name", "namespace")}
    return {"apiVersion": body["apiVersion"], "kind": body["kind"], "metadata": metadata}
