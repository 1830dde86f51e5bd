"""Two installs on one cluster, each running in its namespace with its own accounts: one is active, one passive."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from eventing.replay.function_client import post
from kube import install_lease
from kube.maintenance.groups import MEDIK8S
from kube.paths import LEASE_NAMESPACE, LEASES, events_path
from localcluster.cluster import LocalCluster
from localcluster.processes import await_ready
from tests.functions.event_builders import tick
from tests.manifests.rendering import MANIFESTS, SPARING, knative_crds, overlay
from tests.manifests.running_install import Running
from tests.proofs import proves
from tests.workload import Audit, audit, pod_on

pytestmark = pytest.mark.slow

FIRST, SECOND = "node-maintenance", "kubevirt-hyperconverged"
OVERLAYS = {FIRST: "compact", SECOND: "hyperconverged"}
SECONDS = 30


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[LocalCluster]:
    """Yield a cluster to which both installs were applied."""
    with LocalCluster(tmp_path / "servers", nodes=1) as cluster:
        files = [word for file in knative_crds() for word in ("-f", str(file))]
        cluster.kubectl("apply", "--server-side", *files)
        cluster.await_kinds()
        for name in OVERLAYS.values():
            cluster.kubectl("apply", SPARING, "-k", MANIFESTS / "overlays" / name)
        yield cluster


def running(cluster: LocalCluster, namespace: str, folder: Path) -> Running:
    """Build the processes of an install."""
    (folder / namespace).mkdir()
    return Running(cluster, overlay(OVERLAYS[namespace]), folder / namespace)


def asked(install: Running) -> None:
    """Send a tick to an install."""
    assert post(tick(), install.broker_url).status_code == 202


def holder(cluster: LocalCluster) -> str:
    """Return the namespace of the install Lease's holder, "" if there is none."""
    claims = cluster.door().list(LEASES, fields=f"metadata.name={install_lease.CLAIM}")["items"]
    return next((account.namespace for item in claims if (account := install_lease.holder(item))), "")


def wrote(seen: Audit, namespace: str) -> set[str]:
    """Return the resources that an install's accounts wrote."""
    by = seen.writes_by(f"system:serviceaccount:{namespace}:")
    return {entry["objectRef"]["resource"] for entry in by}


def maintain(cluster: LocalCluster, node: str) -> None:
    """Create a node with a pod and a NodeMaintenance of the same name; return when the node is drained."""
    body = {"apiVersion": MEDIK8S.api_version, "kind": "NodeMaintenance", "metadata": {"name": node}}
    pod = {"apiVersion": "v1", "kind": "Pod", **pod_on(node, f"web-{node}")}
    cluster.add_named(node)
    cluster.kubectl("create", "-n", "default", "-f", "-", input=json.dumps(pod))
    cluster.door().create(MEDIK8S.path, {**body, "spec": {"nodeName": node}})
    cluster.kubectl("wait", "--for=condition=Drained", f"nm/{node}", f"--timeout={SECONDS}s")


@proves("DRN-15")
def test_of_two_installs_one_acts_until_it_is_gone(shared: LocalCluster, tmp_path: Path) -> None:
    """Check that one install is active until its accounts are gone, and that the other one then takes over.

    The passive install only logs, sets a metric and records an Event. It later finishes the maintenance that the first
    install began.
    """
    with running(shared, FIRST, tmp_path) as first, running(shared, SECOND, tmp_path) as second:
        asked(first)
        await_ready("the first install's claim", lambda: holder(shared) == FIRST, [], SECONDS)
        seen = audit(shared)
        asked(second)
        maintain(shared, "drained-by-first")
        where, about = events_path(LEASE_NAMESPACE), f"involvedObject.name={install_lease.CLAIM}"
        await_ready("the Event", lambda: shared.door().list(where, fields=about)["items"], [], SECONDS)
        (said,) = shared.door().list(where, fields=about)["items"]
        metrics = {run: requests.get(f"{run.functions_url}/metrics", timeout=SECONDS).text for run in (first, second)}
        log = (tmp_path / SECOND / "functions.log").read_text()

        assert wrote(seen, SECOND) == {"events"}
        assert {"nodes", "pods", "nodemaintenances"} <= wrote(seen, FIRST)
        assert "nodemaintenance_install_passive 0.0" in metrics[first]
        assert "nodemaintenance_install_passive 1.0" in metrics[second]
        assert said["message"] in log
        assert (said["reason"], f"one in namespace {FIRST} does" in said["message"]) == (install_lease.PASSIVE, True)

        first.stop()
        shared.kubectl("delete", "serviceaccount", "--all", "-n", FIRST)
        seen = audit(shared)
        asked(second)
        await_ready("the second install's claim", lambda: holder(shared) == SECOND, [], SECONDS)
        shared.kubectl("delete", "nm/drained-by-first", f"--timeout={SECONDS}s")
        maintain(shared, "drained-by-second")

        restored = shared.door().get("/api/v1/nodes/drained-by-first")
        assert not restored["spec"].get("unschedulable")
        assert {"nodes", "pods", "nodemaintenances", "leases"} <= wrote(seen, SECOND)
        assert "nodemaintenance_install_passive 0.0" in requests.get(f"{second.functions_url}/metrics", timeout=5).text
