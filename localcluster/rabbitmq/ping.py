"""What Knative's ping adapter needs in the cluster: its kind, its rights, and a PingSource that is ready.

Only the adapter runs here, not the controller that writes a PingSource's status; so that status is written here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from eventing.manifests import Document
from localcluster import build
from localcluster.cluster import LocalCluster
from localcluster.rabbitmq.environment import SYSTEM

MODULE = "knative.dev/eventing"
ACCOUNT = "pingsource-mt-adapter"
FILES = (
    "config/core/resources/pingsource.yaml",
    "config/core/200-pingsource-mt-adapter-serviceaccount.yaml",
    "config/core/roles/pingsource-mt-adapter-clusterrole.yaml",
    "config/core/configmaps/logging.yaml",
    "config/core/configmaps/observability.yaml",
)
Object = dict[str, Any]


def install(cluster: LocalCluster, source: Document, sink: str) -> None:
    """Apply Knative's own objects for PingSource and ours, and say in its status that it is ready."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}}
    module = build.module_folder("rabbitmq", MODULE)
    _apply(cluster, [namespace, *(item for name in FILES for item in _objects(module / name))])
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd", "pingsources.sources.knative.dev")
    _apply(cluster, [source.body])
    patch = json.dumps({"status": _status(sink)})
    where = ("pingsource", source.name, "-n", source.namespace)
    cluster.kubectl("patch", *where, "--subresource=status", "--type=merge", "-p", patch)


def _objects(file: Path) -> Iterator[Object]:
    for item in yaml.safe_load_all(file.read_text()):
        if item and item["kind"] == "CustomResourceDefinition":
            # One version is enough here, and the webhook that converts is not there.
            item["spec"]["conversion"] = {"strategy": "None"}
        if item:
            yield item


def _apply(cluster: LocalCluster, items: list[Object]) -> None:
    cluster.kubectl("apply", "--server-side", "-f", "-", input=yaml.safe_dump_all(items))


def _status(sink: str) -> Object:
    """The status of a PingSource whose sink was found and whose adapter is up."""
    ready = {"status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    kinds = ("Deployed", "OIDCIdentityCreated", "Ready", "SinkProvided")
    return {"observedGeneration": 1, "sinkUri": sink, "conditions": [{"type": kind, **ready} for kind in kinds]}
