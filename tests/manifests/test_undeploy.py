"""Tests that `make undeploy` restores all nodes, and then leaves the cluster as before the install."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kube.maintenance.groups import MEDIK8S
from kube.nodes import build_node_path
from kube.paths import LEASES_PATH
from kube.virtualization import migration_claims
from localcluster.cluster import LocalCluster
from localcluster.deploy import removal
from localcluster.errors import LocalClusterError
from tests.manifests.rendering import MANIFESTS, SKIP_SCHEMA_OPTION, install_knative_crds, render_overlay
from tests.manifests.running_install import RunningInstall
from tests.proofs import proves

pytestmark = pytest.mark.slow

OVERLAY = "compact"
NODE = "node-1"
CHANGING_KINDS = ("events", "leases", "endpointslices", "endpoints", "componentstatuses", "pods", "nodes")
"""Resources whose objects Kubernetes itself creates and deletes all the time."""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    """Yield a cluster with Knative's CRDs, which is kubectl's current cluster."""
    with LocalCluster(tmp_path / "servers", nodes=1) as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
        install_knative_crds(cluster)
        yield cluster


def list_objects(cluster: LocalCluster) -> set[str]:
    """Return the names of all objects that no controller of Kubernetes replaces."""
    resources = cluster.kubectl("api-resources", "--verbs=list", "-o", "name").stdout.split()
    kinds = ",".join(name for name in resources if name.split(".")[0] not in CHANGING_KINDS)
    names = "{range .items[*]}{.apiVersion}/{.kind}/{.metadata.namespace}/{.metadata.name} {end}"
    return set(cluster.kubectl("get", kinds, "-A", f"-o=jsonpath={names}").stdout.split())


def apply_overlay(cluster: LocalCluster, overlay: str) -> None:
    """Apply an overlay without the checks of `make deploy`, and without its Secret."""
    cluster.kubectl("apply", SKIP_SCHEMA_OPTION, "-k", MANIFESTS / "overlays" / overlay)


def create_maintenance(cluster: LocalCluster) -> None:
    """Create a NodeMaintenance for the node."""
    body = {"apiVersion": MEDIK8S.api_version, "kind": "NodeMaintenance", "metadata": {"name": "kept"}}
    cluster.get_client().create(MEDIK8S.path, {**body, "spec": {"nodeName": NODE}})


def create_migrations_lease(cluster: LocalCluster) -> None:
    """Create the Lease that the function `migrate` creates."""
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": migration_claims.LEASE_NAME}}
    cluster.get_client().create(LEASES_PATH, lease)


@proves("NMO-26a")
def test_undeploy_leaves_no_objects(cluster: LocalCluster) -> None:
    """Check that the cluster has the same objects before `make deploy` and after `make undeploy`."""
    objects_before = list_objects(cluster)
    apply_overlay(cluster, "mutex")
    assert list_objects(cluster) > objects_before

    removal.remove("mutex", force=False)

    shared_namespaces = {"v1/Namespace//medik8s-leases"}
    left = {name for name in list_objects(cluster) - objects_before if "/medik8s-leases/" not in name}
    assert left == shared_namespaces
    assert not objects_before - list_objects(cluster)


@proves("NMO-26a")
def test_undeploy_is_rejected_during_maintenance_and_restores_node_if_forced(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Check that `make undeploy` fails during a maintenance, and that it restores the node first if it is forced."""
    apply_overlay(cluster, OVERLAY)
    install = RunningInstall(cluster, render_overlay(OVERLAY), tmp_path)
    node_before = cluster.get_client().get(build_node_path(NODE))["spec"]
    with install:
        create_maintenance(cluster)
        create_migrations_lease(cluster)
        cluster.kubectl("wait", "nm/kept", "--for=jsonpath={.status.phase}", "--timeout=60s")
        objects_before = list_objects(cluster)

        with pytest.raises(LocalClusterError, match=r"not removed: .*medik8s\.io: kept: end them .* FORCE=1"):
            removal.remove(OVERLAY, force=False)
        assert list_objects(cluster) == objects_before

        removal.remove(OVERLAY, force=True)

    assert cluster.get_client().get(build_node_path(NODE))["spec"] == node_before
    assert not [name for name in list_objects(cluster) if "node-maintenance" in name]
    assert cluster.get_client().list(LEASES_PATH)["items"] == []


@proves("NMO-26a")
def test_forced_undeploy_stops_if_functions_do_not_run(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a maintenance that no function releases stops `make undeploy`, so that the node can be restored."""
    monkeypatch.setattr(removal, "END_TIMEOUT_SECONDS", 1)
    apply_overlay(cluster, OVERLAY)
    create_maintenance(cluster)
    patch = json.dumps({"metadata": {"finalizers": ["foregroundDeleteNodeMaintenance"]}})
    cluster.kubectl("patch", "nm/kept", "--type=merge", "-p", patch)
    objects_before = list_objects(cluster)

    with pytest.raises(LocalClusterError, match=r"medik8s\.io kept did not end within 1 s: check with `kubectl get"):
        removal.remove(OVERLAY, force=True)

    assert list_objects(cluster) == objects_before


@proves("NMO-26a")
def test_undeploy_is_rejected_if_another_install_exists(cluster: LocalCluster) -> None:
    """Check that `make undeploy` fails if another install exists, which needs the CRDs and ClusterRoles."""
    apply_overlay(cluster, OVERLAY)
    apply_overlay(cluster, "hyperconverged")

    with pytest.raises(LocalClusterError, match="namespace kubevirt-hyperconverged has another install"):
        removal.remove(OVERLAY, force=True)
