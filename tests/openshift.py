"""OpenShift as far as a run of the upgrade mutex sees it, played: *fake-mco* and *fake-cvo*. Fixtures, never shipped.

fake-mco upgrades a node that belongs to a pool which is not paused: after a moment it writes the version label. As the
real one it takes a node's custom pool before the pool `worker`, and never upgrades one whose pool is paused. A new
version that the control plane has reached has to be rendered first, which takes minutes there: meanwhile the pools are
paused. `tests.actors` has both as processes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar

from kube.door.sync_client import Cluster
from kube.mutex.pools import CLUSTER_VERSIONS, POOLS
from kube.mutex.versions import VERSION_LABEL, WORKER
from kube.nodes import NODES, node_path
from kube.paths import Object
from kube.selectors import matches
from tests.player import Player

MASTER = "master"
IMAGE = "quay.io/openshift-release-dev/ocp-release"
RENDERING_SECONDS = 2.0
NEVER = "1970-01-01T00:00:00Z"


def pool(name: str, labels: Mapping[str, str], expressions: list[Object] | None = None) -> Object:
    """A MachineConfigPool whose nodes have these labels."""
    chosen: Object = {"matchLabels": dict(labels), **({"matchExpressions": expressions} if expressions else {})}
    roles = {"matchLabels": {"machineconfiguration.openshift.io/role": "worker"}}
    return {
        "apiVersion": "machineconfiguration.openshift.io/v1",
        "kind": "MachineConfigPool",
        "metadata": {"name": name},
        "spec": {"machineConfigSelector": roles, "nodeSelector": chosen, "paused": False},
    }


class FakeCvo:
    """Writes the one ClusterVersion as the cluster-version-operator does."""

    def __init__(self, admin: Cluster) -> None:
        self._admin = admin

    def install(self, version: str) -> None:
        """Say that the cluster is at this version, and wants no other."""
        body = {
            "apiVersion": "config.openshift.io/v1",
            "kind": "ClusterVersion",
            "metadata": {"name": "version"},
            "spec": {"clusterID": "00000000-0000-4000-8000-000000000000"},
        }
        self._admin.create(CLUSTER_VERSIONS, body)
        self.write(version, "Completed")

    def want(self, version: str, state: str = "Completed", reached: str = "") -> None:
        """Have `version` wanted, and the control plane at it, or on its way with `state` Partial."""
        wanted = {"desiredUpdate": {"version": version} if version else None}
        self._admin.patch(f"{CLUSTER_VERSIONS}/version", {"spec": wanted})
        self.write(reached or version, state)

    def write(self, version: str, state: str) -> None:
        """Say that the control plane is at this version, or on its way."""
        newest = {"state": state, "version": version, "image": IMAGE, "startedTime": NEVER, "verified": True}
        done = NEVER if state == "Completed" else None
        status = {
            "history": [{**newest, "completionTime": done}],
            "desired": {"version": version, "image": IMAGE},
            "observedGeneration": 1,
            "versionHash": "x",
            "availableUpdates": None,
        }
        path = f"{CLUSTER_VERSIONS}/version"
        whole = {**self._admin.get(path), "status": status}  # a patch cannot write the nulls that its schema requires
        self._admin.run(self._admin.api.request("PUT", f"{path}/status", body=whole))


class FakeMco(Player):
    """Upgrades nodes for as long as its block lasts; `upgraded` has their names in the order of their upgrades."""

    watched: ClassVar[Mapping[str, str]] = {CLUSTER_VERSIONS: "", POOLS: "", NODES: WORKER}

    def __init__(self, admin: Cluster, seconds: float = 0.05) -> None:
        super().__init__(admin, seconds)
        self._holding: set[str] = set()
        self._rendered: dict[str, float] = {}
        self.upgraded: list[str] = []

    def hold(self, *names: str) -> None:
        """Upgrade none of these nodes, whatever their pools say."""
        self._holding = set(names)
        self._changed.set()

    def look(self) -> None:
        """Upgrade the nodes whose pools are not paused, as a machine-config-daemon would be told to."""
        wanted = reached(self._admin.get(f"{CLUSTER_VERSIONS}/version"))
        if not wanted:
            return
        rendered = self._rendered.setdefault(wanted, time.monotonic() + RENDERING_SECONDS)
        if (left := rendered - time.monotonic()) > 0:
            self._rest = left
            return
        pools = self._admin.list(POOLS, version="0")["items"]
        for node in self._admin.list(NODES, labels=WORKER, version="0")["items"]:
            name, labels = node["metadata"]["name"], node["metadata"]["labels"]
            if labels.get(VERSION_LABEL) == wanted or name in self._holding:
                continue
            live = self._admin.get(node_path(name))["metadata"]["labels"]
            if upgrades(live, pools):
                self._admin.patch(node_path(name), {"metadata": {"labels": {VERSION_LABEL: wanted}}})
                self.upgraded.append(name)


def reached(version: Object) -> str:
    """The version that is wanted, once the control plane has it; "" before."""
    wanted = str(version["spec"].get("desiredUpdate", {}).get("version", ""))
    newest = (version.get("status", {}).get("history") or [{}])[0]
    return wanted if (newest.get("version"), newest.get("state")) == (wanted, "Completed") else ""


def upgrades(labels: Mapping[str, str], pools: list[Mapping[str, Any]]) -> bool:
    """Whether a node with these labels is upgraded: by its custom pool, without one by `worker`."""
    mine = [each for each in pools if matches(each["spec"].get("nodeSelector"), labels)]
    custom = [each for each in mine if each["metadata"]["name"] != "worker"] or mine
    return bool(custom) and not any(each["spec"].get("paused") for each in custom)
