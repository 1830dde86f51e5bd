"""`python -m tests.actors fake-cvo`, or another part: plays that part on the cluster of `$KUBECONFIG`.

fake-cvo makes the ClusterVersion, and has the control plane follow the version that somebody wants. fake-mco makes the
pools of every OpenShift, registers each node as a worker with its version, as the document's node-feature-discovery
does, and upgrades nodes. fake-virt starts, migrates and restarts virtual machines; fake-virt-handler does what KubeVirt
has done on each node, beside KubeVirt itself. All decide by what is on the cluster alone, so each may be killed and
started again.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from kube.door.api_errors import Conflict, NotFound
from kube.door.list_watch import follow
from kube.door.sync_client import Cluster
from kube.mutex.pools import CLUSTER_VERSIONS, POOLS
from kube.mutex.versions import VERSION_LABEL, WORKER
from kube.nodes import NODES, node_path
from kube.paths import Object
from localcluster.wings.actors import UNTOLD
from tests.fake_virt import FakeVirt
from tests.fake_virt_handler import FakeVirtHandler
from tests.openshift import MASTER, FakeCvo, FakeMco, pool
from tests.virt_actor import Actor

FIRST = "4.15.9"
"""The version that the cluster is installed with."""
CONTROL_PLANE_SECONDS = 2.0
"""How long the control plane takes for an upgrade."""
LOOK_SECONDS = 0.5
"""Between two looks of fake-mco at pools and nodes, and of those of KubeVirt at machines."""


def main() -> None:
    """Play the part that the command line names, until somebody ends it."""
    parts = {"fake-cvo": play_cvo, "fake-mco": play_mco, "fake-virt": play_virt, "fake-virt-handler": play_handler}
    if len(sys.argv) != 2 or sys.argv[1] not in parts:
        raise SystemExit(f"error: name one of {', '.join(parts)}")
    parts[sys.argv[1]](Cluster())


def play_cvo(admin: Cluster) -> None:
    """Install the first version, then follow what is wanted."""
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
    """What a ClusterVersion says next: the wanted version is Partial, then Completed; None where all is done."""
    history = version.get("status", {}).get("history")
    if not history:
        return FIRST, "Completed"
    wanted = version["spec"].get("desiredUpdate", {}).get("version")
    if wanted and wanted != history[0]["version"]:
        return wanted, "Partial"
    return (history[0]["version"], "Completed") if history[0]["state"] == "Partial" else None


def play_mco(admin: Cluster) -> None:
    """Make the pools, then register and upgrade nodes."""
    next(version for version in changes(admin, CLUSTER_VERSIONS) if version.get("status", {}).get("history"))
    for body in (pool(MASTER, {"node-role.kubernetes.io/control-plane": ""}), pool("worker", {WORKER: ""})):
        try:
            admin.create(POOLS, body)
        except Conflict:  # it was there before this start
            continue
    with FakeMco(admin, LOOK_SECONDS):
        for node in changes(admin, NODES, UNTOLD):
            newest = admin.get(f"{CLUSTER_VERSIONS}/version")["status"]["history"][0]["version"]
            labels = {WORKER: "", VERSION_LABEL: newest}
            admin.patch(node_path(node["metadata"]["name"]), {"metadata": {"labels": labels}})


def play_virt(admin: Cluster) -> None:
    """Look after virtual machines."""
    play(FakeVirt(admin, LOOK_SECONDS))


def play_handler(admin: Cluster) -> None:
    """Look after virtual machines as far as their nodes do."""
    play(FakeVirtHandler(admin, LOOK_SECONDS))


def play(part: Actor) -> None:
    """Have somebody at work, and say what went wrong."""
    with part as actor:
        while True:
            time.sleep(LOOK_SECONDS)
            while actor.trouble:
                print(actor.trouble.pop(0), file=sys.stderr, flush=True)


def changes(admin: Cluster, path: str, labels: str = "") -> Iterator[Object]:
    """The objects of a collection as they are, and as they become."""
    found = follow(admin.api, path, labels=labels)
    while True:
        change = admin.run(found.__anext__())
        if change.kind in ("ADDED", "MODIFIED"):
            yield change.object


if __name__ == "__main__":
    main()
