"""*fake-mco* and *fake-cvo*: simulate the parts of OpenShift that an upgrade run depends on. For tests only.

`fake-mco` upgrades a node whose pool is not paused: after a delay it writes the version label. Like the real operator,
it prefers a node's custom pool over the pool `worker`, and never upgrades a node of a paused pool. The real operator
needs minutes to render the configuration of a new version, and an upgrade run pauses the pools in that time. `fake-mco`
therefore also waits before the first upgrade to a version. `tests.fakes` runs both as processes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar

from kube.client.sync_client import Cluster
from kube.mutex.pools import CLUSTER_VERSIONS, POOLS
from kube.mutex.versions import VERSION_LABEL, WORKER
from kube.nodes import NODES, node_path
from kube.paths import Object
from kube.selectors import matches
from tests.fake_controller import Player

MASTER = "master"
IMAGE = "quay.io/openshift-release-dev/ocp-release"
RENDERING_SECONDS = 2.0
NEVER = "1970-01-01T00:00:00Z"


def pool(name: str, labels: Mapping[str, str], expressions: list[Object] | None = None) -> Object:
    """Build a MachineConfigPool that selects nodes with these labels."""
    chosen: Object = {"matchLabels": dict(labels), **({"matchExpressions": expressions} if expressions else {})}
    roles = {"matchLabels": {"machineconfiguration.openshift.io/role": "worker"}}
    return {
        "apiVersion": "machineconfiguration.openshift.io/v1",
        "kind": "MachineConfigPool",
        "metadata": {"name": name},
        "spec": {"machineConfigSelector": roles, "nodeSelector": chosen, "paused": False},
    }


class FakeCvo:
    """A fake cluster-version-operator, which writes the ClusterVersion."""

    def __init__(self, admin: Cluster) -> None:
        self._admin = admin

    def install(self, version: str) -> None:
        """Create the ClusterVersion at this version, without a desired update."""
        body = {
            "apiVersion": "config.openshift.io/v1",
            "kind": "ClusterVersion",
            "metadata": {"name": "version"},
            "spec": {"clusterID": "00000000-0000-4000-8000-000000000000"},
        }
        self._admin.create(CLUSTER_VERSIONS, body)
        self.write(version, "Completed")

    def want(self, version: str, state: str = "Completed", reached: str = "") -> None:
        """Set the desired version, and a control plane that has reached it or, with `state` Partial, is upgrading."""
        wanted = {"desiredUpdate": {"version": version} if version else None}
        self._admin.patch(f"{CLUSTER_VERSIONS}/version", {"spec": wanted})
        self.write(reached or version, state)

    def write(self, version: str, state: str) -> None:
        """Write the control plane's version, and whether its upgrade is complete."""
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
        whole = {**self._admin.get(path), "status": status}  # a patch cannot write the nulls that the schema requires
        self._admin.run(self._admin.api.request("PUT", f"{path}/status", body=whole))


class FakeMco(Player):
    """A thread that upgrades nodes while its `with` block runs; `upgraded` lists their names in upgrade order."""

    watched: ClassVar[Mapping[str, str]] = {CLUSTER_VERSIONS: "", POOLS: "", NODES: WORKER}

    def __init__(self, admin: Cluster, seconds: float = 0.05) -> None:
        super().__init__(admin, seconds)
        self._holding: set[str] = set()
        self._rendered: dict[str, float] = {}
        self.upgraded: list[str] = []

    def hold(self, *names: str) -> None:
        """Do not upgrade these nodes, even if their pools are not paused."""
        self._holding = set(names)
        self._changed.set()

    def look(self) -> None:
        """Upgrade the nodes whose pools are not paused, as a machine-config-daemon does."""
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
    """Return the desired version if the control plane has reached it, "" otherwise."""
    wanted = str(version["spec"].get("desiredUpdate", {}).get("version", ""))
    newest = (version.get("status", {}).get("history") or [{}])[0]
    return wanted if (newest.get("version"), newest.get("state")) == (wanted, "Completed") else ""


def upgrades(labels: Mapping[str, str], pools: list[Mapping[str, Any]]) -> bool:
    """Return whether a node with these labels may be upgraded: by its custom pools, or by `worker` if it has none."""
    mine = [each for each in pools if matches(each["spec"].get("nodeSelector"), labels)]
    custom = [each for each in mine if each["metadata"]["name"] != "worker"] or mine
    return bool(custom) and not any(each["spec"].get("paused") for each in custom)
