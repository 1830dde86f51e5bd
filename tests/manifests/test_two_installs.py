"""Tests for two installs on one cluster, each with its own namespace and accounts; only one install is active."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from eventing.replay.function_client import post_event
from kube import install_lease
from kube.maintenance.groups import MEDIK8S
from kube.paths import LEASE_NAMESPACE, LEASES_PATH, build_events_path
from localcluster.audit_log import AuditLog
from localcluster.cluster import LocalCluster
from localcluster.processes import wait_until_ready
from tests.functions.event_builders import build_tick
from tests.manifests.rendering import MANIFESTS, SKIP_SCHEMA_OPTION, install_knative_crds, render_overlay
from tests.manifests.running_install import RunningInstall
from tests.proofs import proves
from tests.workload import build_pod

pytestmark = pytest.mark.slow

FIRST_NAMESPACE, SECOND_NAMESPACE = "node-maintenance", "kubevirt-hyperconverged"
OVERLAY_BY_NAMESPACE = {FIRST_NAMESPACE: "compact", SECOND_NAMESPACE: "hyperconverged"}
TIMEOUT_SECONDS = 30


@pytest.fixture
def two_install_cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Yield a cluster to which the manifests of both installs were applied."""
    with LocalCluster(tmp_path / "servers", nodes=1) as cluster:
        install_knative_crds(cluster)
        for name in OVERLAY_BY_NAMESPACE.values():
            cluster.kubectl("apply", SKIP_SCHEMA_OPTION, "-k", MANIFESTS / "overlays" / name)
        yield cluster


def build_install(cluster: LocalCluster, namespace: str, folder: Path) -> RunningInstall:
    """Build the processes of the install in this namespace, without starting them."""
    (folder / namespace).mkdir()
    return RunningInstall(cluster, render_overlay(OVERLAY_BY_NAMESPACE[namespace]), folder / namespace)


def send_tick(install: RunningInstall) -> None:
    """Send a resync tick to an install."""
    assert post_event(build_tick(), install.broker_url).status_code == 202


def get_holder_namespace(cluster: LocalCluster) -> str:
    """Return the namespace of the active install according to its Lease, or "" if there is none."""
    leases = cluster.get_client().list(LEASES_PATH, field_selector=f"metadata.name={install_lease.LEASE_NAME}")["items"]
    return next((account.namespace for lease in leases if (account := install_lease.parse_holder(lease))), "")


def list_written_resources(audit_log: AuditLog, namespace: str) -> set[str]:
    """Return the resource types that the accounts of an install have written."""
    writes = audit_log.list_writes_by(f"system:serviceaccount:{namespace}:")
    return {entry["objectRef"]["resource"] for entry in writes}


def drain_new_node(cluster: LocalCluster, node: str) -> None:
    """Create a node with a pod and a NodeMaintenance of the node's name; wait until the node is drained."""
    body = {"apiVersion": MEDIK8S.api_version, "kind": "NodeMaintenance", "metadata": {"name": node}}
    pod = {"apiVersion": "v1", "kind": "Pod", **build_pod(node, f"web-{node}")}
    cluster.create_nodes(node)
    cluster.kubectl("create", "-n", "default", "-f", "-", input=json.dumps(pod))
    cluster.get_client().create(MEDIK8S.path, {**body, "spec": {"nodeName": node}})
    cluster.kubectl("wait", "--for=condition=Drained", f"nm/{node}", f"--timeout={TIMEOUT_SECONDS}s")


@proves("DRN-15")
def test_passive_install_takes_over_after_active_install_is_removed(
    two_install_cluster: LocalCluster, tmp_path: Path
) -> None:
    """Check that one install is active until its accounts are deleted, and that the other one then takes over.

    Until then, the passive install only logs, sets a metric and records an Event. Later, it finishes the maintenance
    that the first install began.
    """
    with (
        build_install(two_install_cluster, FIRST_NAMESPACE, tmp_path) as first_install,
        build_install(two_install_cluster, SECOND_NAMESPACE, tmp_path) as second_install,
    ):
        send_tick(first_install)
        wait_until_ready(
            "the first install's Lease",
            lambda: get_holder_namespace(two_install_cluster) == FIRST_NAMESPACE,
            [],
            TIMEOUT_SECONDS,
        )
        audit = AuditLog(two_install_cluster.audit_log)
        send_tick(second_install)
        drain_new_node(two_install_cluster, "drained-by-first")
        events_path, field_selector = (
            build_events_path(LEASE_NAMESPACE),
            f"involvedObject.name={install_lease.LEASE_NAME}",
        )
        wait_until_ready(
            "the Event",
            lambda: two_install_cluster.get_client().list(events_path, field_selector=field_selector)["items"],
            [],
            TIMEOUT_SECONDS,
        )
        (event,) = two_install_cluster.get_client().list(events_path, field_selector=field_selector)["items"]
        metrics = {
            install: requests.get(f"{install.functions_url}/metrics", timeout=TIMEOUT_SECONDS).text
            for install in (first_install, second_install)
        }
        log = (tmp_path / SECOND_NAMESPACE / "functions.log").read_text()

        assert list_written_resources(audit, SECOND_NAMESPACE) == {"events"}
        assert {"nodes", "pods", "nodemaintenances"} <= list_written_resources(audit, FIRST_NAMESPACE)
        assert "nodemaintenance_install_passive 0.0" in metrics[first_install]
        assert "nodemaintenance_install_passive 1.0" in metrics[second_install]
        assert event["message"] in log
        assert (event["reason"], f"the install in namespace {FIRST_NAMESPACE} is active" in event["message"]) == (
            install_lease.PASSIVE_REASON,
            True,
        )

        first_install.stop()
        two_install_cluster.kubectl("delete", "serviceaccount", "--all", "-n", FIRST_NAMESPACE)
        audit = AuditLog(two_install_cluster.audit_log)
        send_tick(second_install)
        wait_until_ready(
            "the second install's Lease",
            lambda: get_holder_namespace(two_install_cluster) == SECOND_NAMESPACE,
            [],
            TIMEOUT_SECONDS,
        )
        two_install_cluster.kubectl("delete", "nm/drained-by-first", f"--timeout={TIMEOUT_SECONDS}s")
        drain_new_node(two_install_cluster, "drained-by-second")

        restored = two_install_cluster.get_client().get("/api/v1/nodes/drained-by-first")
        assert not restored["spec"].get("unschedulable")
        assert {"nodes", "pods", "nodemaintenances", "leases"} <= list_written_resources(audit, SECOND_NAMESPACE)
        assert (
            "nodemaintenance_install_passive 0.0"
            in requests.get(f"{second_install.functions_url}/metrics", timeout=5).text
        )
