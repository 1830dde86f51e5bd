"""`python -m localcluster.simulators CONTROLLER` simulates a controller of OpenShift or KubeVirt.

The controller uses the cluster in `$KUBECONFIG`.

`fake-cvo` creates the ClusterVersion, and upgrades the control plane to the desired version. `fake-mco` creates the two
default MachineConfigPools, and upgrades nodes. It also labels each node as a worker with its version, as
node-feature-discovery does on a real cluster. `fake-virt` starts, migrates and restarts virtual machines.
`fake-virt-handler` replaces KubeVirt's virt-handlers next to the real KubeVirt control plane. The controllers keep no
state outside of the cluster, so they can be killed and restarted at any time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from kube.client.api_errors import Conflict, NotFound
from kube.client.list_watch import follow
from kube.client.sync_client import SyncClient
from kube.mutex.pools import CLUSTER_VERSIONS_PATH, POOLS_PATH
from kube.mutex.versions import VERSION_LABEL, WORKER_LABEL
from kube.nodes import NODES_PATH, build_node_path
from kube.paths import Object
from localcluster.components.fakes import UNVERSIONED_SELECTOR
from localcluster.simulators.kubevirt import FakeKubeVirtController, FakeVirt
from localcluster.simulators.openshift import MASTER, FakeCvo, FakeMco, build_pool
from localcluster.simulators.virt_handler import FakeVirtHandler

FIRST_VERSION = "4.15.9"
"""The version with which the cluster is first installed."""
CONTROL_PLANE_SECONDS = 2.0
"""Duration of a control-plane upgrade."""
MIN_INTERVAL_SECONDS = 0.5
"""Minimum interval between two reconciliations of fake-mco, fake-virt and fake-virt-handler."""


def main() -> None:
    """Run the simulated controller that is named on the command line until the process is killed."""
    fakes = {
        "fake-cvo": run_fake_cvo,
        "fake-mco": run_fake_mco,
        "fake-virt": run_fake_virt,
        "fake-virt-handler": run_fake_virt_handler,
    }
    if len(sys.argv) != 2 or sys.argv[1] not in fakes:
        raise SystemExit(f"error: name one of {', '.join(fakes)}")
    fakes[sys.argv[1]](SyncClient())


def run_fake_cvo(client: SyncClient) -> None:
    """Create the ClusterVersion unless it exists, then upgrade the control plane to each desired version."""
    cvo = FakeCvo(client)
    try:
        client.get(f"{CLUSTER_VERSIONS_PATH}/version")
    except NotFound:
        cvo.install(FIRST_VERSION)
    for cluster_version in iter_changes(client, CLUSTER_VERSIONS_PATH):
        if next_version := get_next_version_and_state(cluster_version):
            if next_version[1] == "Completed":
                time.sleep(CONTROL_PLANE_SECONDS)
            cvo.write_status(*next_version)


def get_next_version_and_state(cluster_version: Object) -> tuple[str, str] | None:
    """Return the version and the state to write next to a ClusterVersion's history, or None if it is up to date.

    For a newly desired version, the state is first Partial, then Completed.
    """
    history = cluster_version.get("status", {}).get("history")
    if not history:
        return FIRST_VERSION, "Completed"
    desired = cluster_version["spec"].get("desiredUpdate", {}).get("version")
    if desired and desired != history[0]["version"]:
        return desired, "Partial"
    return (history[0]["version"], "Completed") if history[0]["state"] == "Partial" else None


def run_fake_mco(client: SyncClient) -> None:
    """Create the MachineConfigPools, then label new nodes and upgrade nodes."""
    next(
        cluster_version
        for cluster_version in iter_changes(client, CLUSTER_VERSIONS_PATH)
        if cluster_version.get("status", {}).get("history")
    )
    for body in (
        build_pool(MASTER, {"node-role.kubernetes.io/control-plane": ""}),
        build_pool("worker", {WORKER_LABEL: ""}),
    ):
        try:
            client.create(POOLS_PATH, body)
        except Conflict:  # A previous fake-mco process has created the pool.
            continue
    with FakeMco(client, MIN_INTERVAL_SECONDS):
        for node in iter_changes(client, NODES_PATH, UNVERSIONED_SELECTOR):
            current_version = client.get(f"{CLUSTER_VERSIONS_PATH}/version")["status"]["history"][0]["version"]
            labels = {WORKER_LABEL: "", VERSION_LABEL: current_version}
            client.patch(build_node_path(node["metadata"]["name"]), {"metadata": {"labels": labels}})


def run_fake_virt(client: SyncClient) -> None:
    """Simulate KubeVirt's control plane and nodes."""
    run_fake_controller(FakeVirt(client, MIN_INTERVAL_SECONDS))


def run_fake_virt_handler(client: SyncClient) -> None:
    """Simulate KubeVirt's virt-handlers."""
    run_fake_controller(FakeVirtHandler(client, MIN_INTERVAL_SECONDS))


def run_fake_controller(fake: FakeKubeVirtController) -> None:
    """Run a simulated controller and print its errors."""
    with fake as controller:
        while True:
            time.sleep(MIN_INTERVAL_SECONDS)
            while controller.errors:
                print(controller.errors.pop(0), file=sys.stderr, flush=True)


def iter_changes(client: SyncClient, path: str, labels: str = "") -> Iterator[Object]:
    """Yield each object of a collection, first as it is, then after each change."""
    changes = follow(client.api, path, label_selector=labels)
    while True:
        change = client.run(changes.__anext__())
        if change.change_type in ("ADDED", "MODIFIED"):
            yield change.object


if __name__ == "__main__":
    main()
