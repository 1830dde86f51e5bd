"""Test environment for CPU labels: racks of nodes with equal CPUs, a HyperConverged, and the audited node patches."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import requests

from eventing.replay.function_client import post_event
from kube.client.api import METADATA_ONLY
from kube.client.sync_client import SyncClient
from kube.cpu_labels import capabilities, hyperconverged
from kube.cpu_labels.node_patch import MODEL_LABEL_PREFIX
from kube.nodes import NODES_PATH as COLLECTION
from kube.paths import DEFAULT_NAMESPACE, Object
from localcluster.audit_log import OWN_USER_PREFIX, AuditLog, is_dry_run
from localcluster.cluster import LocalCluster
from localcluster.engine_product import EngineProduct
from localcluster.processes import wait_until_ready
from localcluster.product import Product
from tests.functions.event_builders import build_tick

NODE_COUNT = 1000
NODE_NAMES = [f"node-{number}" for number in range(1, NODE_COUNT + 1)]
HASWELL_NODES, PENRYN_NODES = NODE_NAMES[:600], NODE_NAMES[600:900]
"""The nodes of the two racks. The last hundred nodes are in no rack and not in the ConfigMap of CPU capabilities."""
CONFIGMAPS_PATH = f"/api/v1/namespaces/{DEFAULT_NAMESPACE}/configmaps"
HYPERCONVERGEDS_PATH = f"/apis/{hyperconverged.API_VERSION}/namespaces/default/hyperconvergeds"
HASWELL_SELECTOR = f"{MODEL_LABEL_PREFIX}Haswell=true"
LOST_RESPONSE_STATUS = 504
BUCKET_PATTERN = re.compile(r'nodemaintenance_function_seconds_bucket\{function="label-cpu",le="([^"]+)"\} (\S+)')


class CpuLabelsEnvironment:
    """The cluster, the product, and the administrator's API client."""

    def __init__(self, cluster: LocalCluster, product: Product | EngineProduct) -> None:
        self.cluster, self.product = cluster, product
        self.client = SyncClient(str(cluster.kubeconfig))
        self.metrics_url = f"{product.functions_url}/metrics"
        type_fields = {"apiVersion": hyperconverged.API_VERSION, "kind": hyperconverged.KIND}
        self.client.create(
            HYPERCONVERGEDS_PATH, {**type_fields, "metadata": {"name": hyperconverged.HYPERCONVERGED_NAME}, "spec": {}}
        )

    def write_capabilities(self, penryn_features: str = "avx") -> None:
        """Write the racks' CPU capabilities to a ConfigMap; `penryn_features` are the Penryn rack's CPU features."""
        capabilities_by_rack = {
            "a": {"nodes": HASWELL_NODES, "models": ["Haswell", "Penryn"], "cpu": "Haswell"},
            "b": {"nodes": PENRYN_NODES, "models": ["Penryn"], "features": penryn_features.split()},
        }
        data = {name: json.dumps(rack_capabilities) for name, rack_capabilities in capabilities_by_rack.items()}
        body = {"metadata": {"name": "racks", "labels": {capabilities.CAPABILITIES_LABEL: ""}}, "data": data}
        if self.client.list(CONFIGMAPS_PATH, label_selector=capabilities.CAPABILITIES_LABEL)["items"]:
            self.client.patch(f"{CONFIGMAPS_PATH}/racks", body)
        else:
            self.client.create(CONFIGMAPS_PATH, body)

    def set_obsolete_cpus(self, obsolete_cpus: Mapping[str, Any]) -> None:
        """Set the HyperConverged's `spec.obsoleteCPUs`."""
        self.client.patch(
            f"{HYPERCONVERGEDS_PATH}/{hyperconverged.HYPERCONVERGED_NAME}",
            {"spec": {"obsoleteCPUs": dict(obsolete_cpus)}},
        )

    def delete_inputs(self) -> None:
        """Delete the inputs of the label computation: the CPU capabilities' ConfigMap and the HyperConverged."""
        for path in (f"{CONFIGMAPS_PATH}/racks", f"{HYPERCONVERGEDS_PATH}/{hyperconverged.HYPERCONVERGED_NAME}"):
            self.client.run(self.client.api.request("DELETE", path))

    def count_nodes(self, label_selector: str) -> int:
        """Return the number of nodes that match the label selector."""
        nodes = self.client.run(
            self.client.api.list(COLLECTION, label_selector=label_selector, resource_version="0", accept=METADATA_ONLY)
        )
        return len(nodes["items"] or [])

    def wait_for_node_count(self, label_selector: str, count: int, timeout: float = 180.0) -> float:
        """Wait until `count` nodes match the label selector; return the elapsed seconds."""
        started = time.monotonic()
        wait_until_ready(
            f"{label_selector} on {count} nodes",
            lambda: self.count_nodes(label_selector) == count,
            self.product.servers,
            timeout,
        )
        return time.monotonic() - started

    def send_tick(self) -> None:
        """Send a resync tick, and wait until the tick and all resulting events are delivered."""
        post_event(build_tick(), self.product.broker_url)
        self.wait_until_delivered()

    def wait_until_delivered(self) -> None:
        """Wait until no events are pending local delivery."""
        assert isinstance(self.product, Product)
        self.product.wait_until_delivered()

    def start_audit(self) -> AuditLog:
        """Return an audit log of all writes to the API server after this call."""
        return AuditLog(self.cluster.audit_log)

    def read_duration_buckets(self) -> dict[str, float]:
        """Return a map from bucket bound in seconds to number of events that `label-cpu` handled within it."""
        page = requests.get(self.metrics_url, timeout=10).text
        return {limit: float(count) for limit, count in BUCKET_PATTERN.findall(page)}


def count_patches_by_node(audit: AuditLog) -> Counter[str]:
    """Return a map from node name to number of the product's successful patches."""
    return Counter(
        entry["objectRef"]["name"]
        for entry in audit.list_writes_by(OWN_USER_PREFIX)
        if entry["objectRef"]["resource"] == "nodes" and entry["responseStatus"]["code"] < 300 and not is_dry_run(entry)
    )


def list_nodes_with_lost_response(audit: AuditLog) -> set[str]:
    """Return the nodes for which the client of a patch was killed or timed out before it received the response.

    The API server may have applied such a patch.
    """
    entries = audit.list_writes_by(OWN_USER_PREFIX)
    return {entry["objectRef"]["name"] for entry in entries if entry["responseStatus"]["code"] == LOST_RESPONSE_STATUS}


def assert_each_node_patched_once(audit: AuditLog, node_names: Sequence[str]) -> None:
    """Assert that exactly these nodes were patched, and no node more than once.

    A node counts as patched if the response to its patch was lost.
    """
    patch_counts = count_patches_by_node(audit)
    assert max(patch_counts.values()) == 1
    assert patch_counts.keys() | list_nodes_with_lost_response(audit) == set(node_names)


def measure_round_seconds(audit: AuditLog) -> float:
    """Return the seconds from the administrator's first write to the product's last write."""
    entries = audit.read_entries()
    started_at = min(parse_completion_time(entry) for entry in entries if entry["user"]["username"] == "admin")
    return (
        max(parse_completion_time(entry) for entry in audit.list_writes_by(OWN_USER_PREFIX)) - started_at
    ).total_seconds()


def parse_completion_time(audit_entry: Object) -> datetime:
    """Return the time at which the API server completed the request in an audit log entry."""
    return datetime.fromisoformat(audit_entry["stageTimestamp"].replace("Z", "+00:00"))
