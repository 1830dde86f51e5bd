"""The environment of the CPU label tests: racks of nodes with the same CPU, a HyperConverged, and the node patches."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import datetime
from typing import Any

import requests

from eventing.replay.function_client import post
from kube.cpu import capabilities, hyperconverged
from kube.cpu.node_patch import MODEL
from kube.client.api import METADATA
from kube.client.sync_client import Cluster
from kube.nodes import NODES as COLLECTION
from kube.paths import NAMESPACE, Object
from localcluster.cluster import LocalCluster
from localcluster.engine_product import EngineProduct
from localcluster.processes import await_ready
from localcluster.product import Product
from tests.functions.event_builders import tick
from tests.workload import OURS, Audit, audit, is_dry

NODES = 1000
NAMES = [f"node-{number}" for number in range(1, NODES + 1)]
HASWELLS, PENRYNS = NAMES[:600], NAMES[600:900]
"""The nodes of the two racks; no ConfigMap names the remaining nodes."""
MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
WISHES = f"/apis/{hyperconverged.API_VERSION}/namespaces/default/hyperconvergeds"
HASWELL = f"{MODEL}Haswell=true"
LEFT = "SELECT count(*) FROM delivery"
UNHEARD = 504
BUCKET = re.compile(r'nodemaintenance_function_seconds_bucket\{function="label-cpu",le="([^"]+)"\} (\S+)')


class Stage:
    """The cluster, the product, and the administrator's API client."""

    def __init__(self, cluster: LocalCluster, product: Product | EngineProduct) -> None:
        self.cluster, self.product = cluster, product
        self.admin = Cluster(str(cluster.kubeconfig))
        self.page = f"{product.functions_url}/metrics"
        known = {"apiVersion": hyperconverged.API_VERSION, "kind": hyperconverged.KIND}
        self.admin.create(WISHES, {**known, "metadata": {"name": hyperconverged.NAME}, "spec": {}})

    def offer(self, features: str = "avx") -> None:
        """Write the racks' CPU capabilities to a ConfigMap; the second rack has the model Penryn and these features."""
        racks = {
            "a": {"nodes": HASWELLS, "models": ["Haswell", "Penryn"], "cpu": "Haswell"},
            "b": {"nodes": PENRYNS, "models": ["Penryn"], "features": features.split()},
        }
        data = {name: json.dumps(rack) for name, rack in racks.items()}
        body = {"metadata": {"name": "racks", "labels": {capabilities.LABEL: ""}}, "data": data}
        if self.admin.list(MAPS, labels=capabilities.LABEL)["items"]:
            self.admin.patch(f"{MAPS}/racks", body)
        else:
            self.admin.create(MAPS, body)

    def wish(self, told: Mapping[str, Any]) -> None:
        """Set `spec.obsoleteCPUs` of the HyperConverged."""
        self.admin.patch(f"{WISHES}/{hyperconverged.NAME}", {"spec": {"obsoleteCPUs": dict(told)}})

    def withdraw(self) -> None:
        """Delete the ConfigMap of CPU capabilities and the HyperConverged."""
        for path in (f"{MAPS}/racks", f"{WISHES}/{hyperconverged.NAME}"):
            self.admin.run(self.admin.api.request("DELETE", path))

    def count(self, labels: str) -> int:
        """Return the number of nodes that carry these labels."""
        found = self.admin.run(self.admin.api.list(COLLECTION, labels=labels, version="0", accept=METADATA))
        return len(found["items"] or [])

    def reaches(self, labels: str, count: int, seconds: float = 180.0) -> float:
        """Wait until `count` nodes carry these labels; return the elapsed seconds."""
        started = time.monotonic()
        await_ready(f"{labels} on {count} nodes", lambda: self.count(labels) == count, self.product.servers, seconds)
        return time.monotonic() - started

    def tick(self) -> None:
        """Send a tick now; return when all events that follow from it are delivered."""
        post(tick(), self.product.broker_url)
        self.settle()

    def settle(self) -> None:
        """Wait until the local delivery has no event left."""
        assert isinstance(self.product, Product)
        with closing(sqlite3.connect(f"file:{self.product.database}?mode=ro", uri=True)) as outbox:
            await_ready("an empty outbox", lambda: outbox.execute(LEFT).fetchone() == (0,), self.product.servers)

    def audit(self) -> Audit:
        """Return an audit log that contains the writes from now on."""
        return audit(self.cluster)

    def longest(self) -> dict[str, float]:
        """Return upper bound in seconds → number of events that `label-cpu` handled within it, since its start."""
        page = requests.get(self.page, timeout=10).text
        return {limit: float(count) for limit, count in BUCKET.findall(page)}


def patched(audit: Audit) -> Counter[str]:
    """Return node name → number of successful patches by the product."""
    return Counter(
        entry["objectRef"]["name"]
        for entry in audit.writes_by(OURS)
        if entry["objectRef"]["resource"] == "nodes" and entry["responseStatus"]["code"] < 300 and not is_dry(entry)
    )


def unheard(audit: Audit) -> set[str]:
    """Return the nodes with a patch whose client was killed or timed out before the response.

    The API server may have applied such a patch.
    """
    entries = audit.writes_by(OURS)
    return {entry["objectRef"]["name"] for entry in entries if entry["responseStatus"]["code"] == UNHEARD}


def assert_each_once(audit: Audit, names: Sequence[str]) -> None:
    """Assert that these nodes and no others were patched, each once; a patch without a response may have been kept."""
    kept = patched(audit)
    assert max(kept.values()) == 1
    assert kept.keys() | unheard(audit) == set(names)


def seconds(audit: Audit) -> float:
    """Return the seconds from the administrator's first write to the product's last write."""
    entries = audit.entries()
    began = min(moment(entry) for entry in entries if entry["user"]["username"] == "admin")
    return (max(moment(entry) for entry in audit.writes_by(OURS)) - began).total_seconds()


def moment(entry: Object) -> datetime:
    """Return the time at which the API server completed the request."""
    return datetime.fromisoformat(entry["stageTimestamp"].replace("Z", "+00:00"))
