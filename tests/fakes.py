"""`python -m tests.fakes PART` simulates another project's controller on the cluster of `$KUBECONFIG`.

`fake-cvo` creates the ClusterVersion and moves the control plane to the desired version. `fake-mco` creates the two
default pools and upgrades nodes. It also labels each node as a worker with its version, which node-feature-discovery
does on a real cluster. `fake-virt` starts, migrates and restarts virtual machines. `fake-virt-handler` does the work of
KubeVirt's virt-handlers next to the real KubeVirt control plane. Each part reads its state from the cluster only, so it
can be killed and restarted at any time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from kube.client.api_errors import Conflict, NotFound
from kube.client.list_watch import follow
from kube.client.sync_client import Cluster
from kube.mutex.pools import CLUSTER_VERSIONS, POOLS
from kube.mutex.versions import VERSION_LABEL, WORKER
from kube.nodes import NODES, node_path
from kube.paths import Object
from localcluster.components.fakes import UNTOLD
from tests.fake_virt import FakeVirt
from tests.fake_virt_handler import FakeVirtHandler
from tests.openshift import MASTER, FakeCvo, FakeMco, pool
from tests.fake_kubevirt_base import Actor

FIRST = "4.15.9"
"""The version with which the cluster is installed."""
CONTROL_PLANE_SECONDS = 2.0
"""Duration of a control-plane upgrade."""
LOOK_SECONDS = 0.5
"""Minimum interval between two reconciliations of fake-mco, fake-virt and fake-virt-handler."""


def main() -> None:
    """Run the part that the command line names until the process is stopped."""
    parts = {"fake-cvo": play_cvo, "fake-mco": play_mco, "fake-virt": play_virt, "fake-virt-handler": play_handler}
    if len(sys.argv) != 2 or sys.argv[1] not in parts:
        raise SystemExit(f"error: name one of {', '.join(parts)}")
    parts[sys.argv[1]](Cluster())


def play_cvo(admin: Cluster) -> None:
    """Install the first version, then apply each desired version."""
    cvo = FakeCvo(admin)
    try:
        admin.get(f"{CLUSTER_VERSIONS}/version")
    except NotFound:
        cvo.install(FIRST)
    for version in changes(admin, CLUSTER_VERSIONS):
        if told := next_state(version):
            if told[1] == "Completed":
                time.sleep(CONTROL_PLANE_SECONDS)
            cvo.write(*told)


def next_state(version: Object) -> tuple[str, str] | None:
    """Return the next version and state of a ClusterVersion, or None if it is up to date.

    A desired version becomes Partial first, then Completed.
    """
    history = version.get("status", {}).get("history")
    if not history:
        return FIRST, "Completed"
    wanted = version["spec"].get("desiredUpdate", {}).get("version")
    if wanted and wanted != history[0]["version"]:
        return wanted, "Partial"
    return (history[0]["version"], "Completed") if history[0]["state"] == "Partial" else None


def play_mco(admin: Cluster) -> None:
    """Create the pools, then label and upgrade nodes."""
    next(version for version in changes(admin, CLUSTER_VERSIONS) if version.get("status", {}).get("history"))
    for body in (pool(MASTER, {"node-role.kubernetes.io/control-plane": ""}), pool("worker", {WORKER: ""})):
        try:
            admin.create(POOLS, body)
        except Conflict:  # it existed before this start
            continue
    with FakeMco(admin, LOOK_SECONDS):
        for node in changes(admin, NODES, UNTOLD):
            newest = admin.get(f"{CLUSTER_VERSIONS}/version")["status"]["history"][0]["version"]
            labels = {WORKER: "", VERSION_LABEL: newest}
            admin.patch(node_path(node["metadata"]["name"]), {"metadata": {"labels": labels}})


def play_virt(admin: Cluster) -> None:
    """Simulate KubeVirt's control plane and nodes."""
    play(FakeVirt(admin, LOOK_SECONDS))


def play_handler(admin: Cluster) -> None:
    """Simulate KubeVirt's virt-handlers."""
    play(FakeVirtHandler(admin, LOOK_SECONDS))


def play(part: Actor) -> None:
    """Run a simulated controller and print its errors."""
    with part as actor:
        while True:
            time.sleep(LOOK_SECONDS)
            while actor.trouble:
                print(actor.trouble.pop(0), file=sys.stderr, flush=True)


def changes(admin: Cluster, path: str, labels: str = "") -> Iterator[Object]:
    """Yield the objects of a collection, and each of them again when it changes."""
    found = follow(admin.api, path, labels=labels)
    while True:
        change = admin.run(found.__anext__())
        if change.kind in ("ADDED", "MODIFIED"):
            yield change.object


if __name__ == "__main__":
    main()
