"""*fake-mco* and *fake-cvo* simulate the parts of OpenShift on which an upgrade run depends.

`fake-mco` upgrades a node whose MachineConfigPool is not paused: after a delay, it writes the version label. Like the
real operator, it prefers a node's custom pool over the pool `worker`, and does not upgrade nodes of a paused pool. The
real operator takes minutes to render the configuration of a new version, and an upgrade run pauses the pools during
that time. So `fake-mco` also waits before the first upgrade to a version. `localcluster.simulators` runs both
simulators as processes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar

from kube.client.sync_client import SyncClient
from kube.mutex.pools import CLUSTER_VERSIONS_PATH, POOLS_PATH
from kube.mutex.versions import VERSION_LABEL, WORKER_LABEL
from kube.nodes import NODES_PATH, build_node_path
from kube.paths import Object
from kube.selectors import matches
from localcluster.simulators.controller import FakeController

MASTER = "master"
IMAGE = "quay.io/openshift-release-dev/ocp-release"
RENDER_SECONDS = 2.0
EPOCH = "1970-01-01T00:00:00Z"


def build_pool(name: str, labels: Mapping[str, str], expressions: list[Object] | None = None) -> Object:
    """Build a MachineConfigPool that selects the nodes with these labels."""
    selector: Object = {"matchLabels": dict(labels), **({"matchExpressions": expressions} if expressions else {})}
    roles = {"matchLabels": {"machineconfiguration.openshift.io/role": "worker"}}
    return {
        "apiVersion": "machineconfiguration.openshift.io/v1",
        "kind": "MachineConfigPool",
        "metadata": {"name": name},
        "spec": {"machineConfigSelector": roles, "nodeSelector": selector, "paused": False},
    }


class FakeCvo:
    """A fake cluster-version-operator, which writes the ClusterVersion's status."""

    def __init__(self, client: SyncClient) -> None:
        self._admin = client

    def install(self, version: str) -> None:
        """Create the ClusterVersion with this version and without a desired update."""
        body = {
            "apiVersion": "config.openshift.io/v1",
            "kind": "ClusterVersion",
            "metadata": {"name": "version"},
            "spec": {"clusterID": "00000000-0000-4000-8000-000000000000"},
        }
        self._admin.create(CLUSTER_VERSIONS_PATH, body)
        self.write_status(version, "Completed")

    def set_desired_version(self, version: str, state: str = "Completed", completed_version: str = "") -> None:
        """Set the desired version, and report that the upgrade to it is completed, or in progress for state Partial.

        If `completed_version` is given, the status reports this version instead of the desired one.
        """
        spec = {"desiredUpdate": {"version": version} if version else None}
        self._admin.patch(f"{CLUSTER_VERSIONS_PATH}/version", {"spec": spec})
        self.write_status(completed_version or version, state)

    def write_status(self, version: str, state: str) -> None:
        """Write the control plane's version, and the state of its upgrade, to the ClusterVersion's status."""
        update = {"state": state, "version": version, "image": IMAGE, "startedTime": EPOCH, "verified": True}
        completion_time = EPOCH if state == "Completed" else None
        status = {
            "history": [{**update, "completionTime": completion_time}],
            "desired": {"version": version, "image": IMAGE},
            "observedGeneration": 1,
            "versionHash": "x",
            "availableUpdates": None,
        }
        path = f"{CLUSTER_VERSIONS_PATH}/version"
        body = {**self._admin.get(path), "status": status}  # A merge patch cannot write the required nulls.
        self._admin.run(self._admin.api.request("PUT", f"{path}/status", body=body))


class FakeMco(FakeController):
    """A thread that upgrades nodes during its `with` block; `upgraded` lists the nodes' names in upgrade order."""

    watched: ClassVar[Mapping[str, str]] = {CLUSTER_VERSIONS_PATH: "", POOLS_PATH: "", NODES_PATH: WORKER_LABEL}

    def __init__(self, client: SyncClient, min_interval_seconds: float = 0.05) -> None:
        super().__init__(client, min_interval_seconds)
        self._skipped_nodes: set[str] = set()
        self._rendered_at: dict[str, float] = {}
        self.upgraded: list[str] = []

    def skip_nodes(self, *names: str) -> None:
        """Exclude these nodes from upgrades, even if their pools are not paused; each call replaces the exclusions."""
        self._skipped_nodes = set(names)
        self._changed.set()

    def reconcile(self) -> None:
        """Upgrade the nodes whose pools are not paused, as the machine-config-daemons would."""
        desired_version = get_completed_version(self._admin.get(f"{CLUSTER_VERSIONS_PATH}/version"))
        if not desired_version:
            return
        rendered_at = self._rendered_at.setdefault(desired_version, time.monotonic() + RENDER_SECONDS)
        if (seconds_left := rendered_at - time.monotonic()) > 0:
            self._idle_seconds = seconds_left
            return
        pools = self._admin.list(POOLS_PATH, resource_version="0")["items"]
        for node in self._admin.list(NODES_PATH, label_selector=WORKER_LABEL, resource_version="0")["items"]:
            name, labels = node["metadata"]["name"], node["metadata"]["labels"]
            if labels.get(VERSION_LABEL) == desired_version or name in self._skipped_nodes:
                continue
            current_labels = self._admin.get(build_node_path(name))["metadata"]["labels"]
            if is_upgrade_allowed(current_labels, pools):
                self._admin.patch(build_node_path(name), {"metadata": {"labels": {VERSION_LABEL: desired_version}}})
                self.upgraded.append(name)


def get_completed_version(cluster_version: Object) -> str:
    """Return the desired version if the control plane's upgrade to it is completed, otherwise ""."""
    desired_version = str(cluster_version["spec"].get("desiredUpdate", {}).get("version", ""))
    latest_update = (cluster_version.get("status", {}).get("history") or [{}])[0]
    return (
        desired_version
        if (latest_update.get("version"), latest_update.get("state")) == (desired_version, "Completed")
        else ""
    )


def is_upgrade_allowed(labels: Mapping[str, str], pools: list[Mapping[str, Any]]) -> bool:
    """Return whether no pool of the node is paused; the pool `worker` counts only without a custom pool."""
    selecting_pools = [pool for pool in pools if matches(pool["spec"].get("nodeSelector"), labels)]
    effective_pools = [pool for pool in selecting_pools if pool["metadata"]["name"] != "worker"] or selecting_pools
    return bool(effective_pools) and not any(pool["spec"].get("paused") for pool in effective_pools)
