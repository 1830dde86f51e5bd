"""Installs what Knative's ping adapter needs in the cluster: its CRD, its RBAC, and a PingSource that is ready.

Only the adapter runs here, not the controller that would write the PingSource's status.
"""

from __future__ import annotations

from eventing.local.manifests import Document
from localcluster.cluster import LocalCluster
from localcluster.rabbitmq import knative_objects
from localcluster.rabbitmq.environment import SYSTEM_NAMESPACE
from localcluster.rabbitmq.knative_objects import Object

SERVICE_ACCOUNT = "pingsource-mt-adapter"
FILES = (
    "config/core/resources/pingsource.yaml",
    "config/core/200-pingsource-mt-adapter-serviceaccount.yaml",
    "config/core/roles/pingsource-mt-adapter-clusterrole.yaml",
    "config/core/configmaps/logging.yaml",
    "config/core/configmaps/observability.yaml",
)


def install_ping_source(cluster: LocalCluster, source: Document, sink_url: str) -> None:
    """Apply Knative's own objects for PingSource and the product's PingSource, with a status that is ready."""
    cluster.kubectl("create", "namespace", SYSTEM_NAMESPACE)
    knative_objects.install_objects(cluster, FILES, [(source.body, _build_status(sink_url))])


def _build_status(sink_url: str) -> Object:
    """Return the status of a PingSource whose sink is resolved and whose adapter is deployed."""
    ready = {"status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    kinds = ("Deployed", "OIDCIdentityCreated", "Ready", "SinkProvided")
    return {"observedGeneration": 1, "sinkUri": sink_url, "conditions": [{"type": kind, **ready} for kind in kinds]}
