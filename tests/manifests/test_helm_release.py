"""Tests for the Helm chart's life on a real API server with Knative's CRDs: install, upgrade, rollback, uninstall."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from localcluster.access import NAMESPACE
from localcluster.chart.templates import CHART_DIR
from localcluster.cluster import LocalCluster
from localcluster.knative.fake_kubelet import write_account_kubeconfig
from tests.e2e.environment import DELETE_DELAY_ANNOTATION
from tests.manifests.helm import IMAGE_VALUES, RELEASE, Values, normalize, parse_manifests, run_helm
from tests.manifests.rendering import (
    MANIFESTS,
    ROOT,
    SKIP_SCHEMA_OPTION,
    Manifest,
    get_identity,
    install_knative_crds,
    render_overlay,
)
from tests.manifests.running_install import RunningInstall
from tests.proofs import proves
from tests.workload import build_pod

pytestmark = pytest.mark.distribution
COMPACT_VALUES: Values = {**IMAGE_VALUES, "functions": "compact"}
LEASE_NAMESPACE = "medik8s-leases"
OWNER_ANNOTATION = "meta.helm.sh/release-name"
KEPT_OBJECTS = {
    f"namespace/{LEASE_NAMESPACE}",
    *(
        f"customresourcedefinition.apiextensions.k8s.io/nodemaintenances.{group}"
        for group in ("nodemaintenance.medik8s.io", "nodemaintenance.kubevirt.io")
    ),
}
"""The objects of a release with the default components that an uninstall keeps."""
MAINTENANCE = """
apiVersion: nodemaintenance.medik8s.io/v1beta1
kind: NodeMaintenance
metadata: {name: node-1}
spec: {nodeName: node-1, reason: upgrade}
"""


class Release:
    """The chart's release on a cluster."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster

    def run(
        self, *arguments: str | Path, values: Values | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run Helm in the release's namespace."""
        kubeconfig = self.cluster.kubeconfig
        return run_helm(*arguments, "--namespace", NAMESPACE, values=values, kubeconfig=kubeconfig, check=check)

    def install(self, *options: str, values: Values = COMPACT_VALUES, check: bool = True) -> str:
        """Install the release, and return Helm's error output."""
        return self.run(
            "install", RELEASE, CHART_DIR, "--create-namespace", *options, values=values, check=check
        ).stderr

    def upgrade(self, values: Values, check: bool = True) -> str:
        """Upgrade the release to these values, and return Helm's error output."""
        return self.run("upgrade", RELEASE, CHART_DIR, values=values, check=check).stderr

    def get_objects(self) -> list[Manifest]:
        """Return the objects of the release's current revision."""
        return parse_manifests(self.run("get", "manifest", RELEASE).stdout)

    def list_live_names(self, objects: list[Manifest]) -> set[str]:
        """Return those of the objects that exist, as kubectl names them."""
        found = self.kubectl_on(objects, "get", "--ignore-not-found", "-o", "name").stdout
        return set(found.split())

    def list_versions(self, objects: list[Manifest]) -> dict[str, str]:
        """Return the generation of each object, or the resourceVersion of an object without generation.

        Controllers change the status of the others, and with it the resourceVersion.
        """
        items = json.loads(self.kubectl_on(objects, "get", "-o", "json").stdout)["items"]
        metadata = [item["metadata"] for item in items]
        return {fields["uid"]: str(fields.get("generation", fields["resourceVersion"])) for fields in metadata}

    def kubectl_on(self, objects: list[Manifest], *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run kubectl with these objects as its input."""
        return self.cluster.kubectl(*arguments, "-f", "-", input=yaml.safe_dump_all(objects))


@pytest.fixture(scope="module")
def bare_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Yield a cluster without Knative and without the product; a second node receives evicted pods."""
    with LocalCluster(tmp_path_factory.mktemp("helm"), nodes=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def knative_cluster(bare_cluster: LocalCluster) -> LocalCluster:
    """Return the cluster with Knative's CRDs, without its controllers."""
    install_knative_crds(bare_cluster)
    return bare_cluster


@pytest.fixture
def release(knative_cluster: LocalCluster) -> Iterator[Release]:
    """Yield a release that is not installed; uninstall it after the test, and delete what the uninstall keeps."""
    running = Release(knative_cluster)
    yield running
    running.run("uninstall", RELEASE, "--ignore-not-found")
    for name in KEPT_OBJECTS:
        knative_cluster.kubectl("delete", name, "--ignore-not-found")
    knative_cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found")


def test_install_without_knative_creates_nothing(bare_cluster: LocalCluster) -> None:
    """NMO-24: without Knative, the install fails before it creates an object, and names the missing kind."""
    release = Release(bare_cluster)

    output = release.install(check=False)

    assert 'no matches for kind "Broker" in version "eventing.knative.dev/v1"' in output
    assert bare_cluster.kubectl("get", "crd", "-o", "name").stdout == ""
    assert bare_cluster.kubectl("get", "clusterrole", "-l", "nodemaintenance.dev/function", "-o", "name").stdout == ""
    bare_cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found")


@proves("NMO-24")
def test_release_is_installed_upgraded_rolled_back_and_uninstalled(release: Release) -> None:
    """NMO-24: an upgrade adds a component, a rollback removes it, and an uninstall leaves only the kept objects."""
    release.install()
    objects = release.get_objects()
    assert len(release.list_live_names(objects)) == len(objects)

    versions = release.list_versions(objects)
    release.upgrade(COMPACT_VALUES)
    assert release.list_versions(objects) == versions, "an upgrade with equal values changed objects"

    release.upgrade({**COMPACT_VALUES, "console": {"enabled": True}})
    console = [manifest for manifest in release.get_objects() if manifest["metadata"]["name"] == "console"]
    assert {manifest["kind"] for manifest in console} > {"Deployment", "Service", "ServiceAccount"}
    assert len(release.list_live_names(console)) == len(console)

    release.run("rollback", RELEASE, "1")
    assert normalize(release.get_objects()) == normalize(objects)
    assert release.list_live_names(console) == set()

    release.run("uninstall", RELEASE)
    assert release.list_live_names([*objects, *console]) == KEPT_OBJECTS
    secrets = release.cluster.kubectl("get", "secrets", "-n", NAMESPACE, "-o", "name").stdout
    assert secrets == "", "the uninstall left Secrets"

    release.install()
    assert len(release.list_live_names(objects)) == len(objects)


def test_upgrade_keeps_signing_key(release: Release) -> None:
    """Check that an upgrade does not replace the signing key: running functions would reject each other's events."""
    get_key = ("get", "secret", "signing", "-n", NAMESPACE, "-o", "jsonpath={.data.key}")
    release.install()
    key = release.cluster.kubectl(*get_key).stdout
    assert len(key) > 40

    release.upgrade({**COMPACT_VALUES, "monitoring": {"enabled": False}})

    assert release.cluster.kubectl(*get_key).stdout == key


def test_namespace_of_other_product_stays_unowned(release: Release) -> None:
    """Check that a release neither takes over nor deletes a namespace that another product created."""
    release.cluster.kubectl("create", "namespace", LEASE_NAMESPACE)

    release.install()
    release.upgrade({**COMPACT_VALUES, "console": {"enabled": True}})
    release.run("uninstall", RELEASE)

    found: dict[str, Any] = json.loads(
        release.cluster.kubectl("get", "namespace", LEASE_NAMESPACE, "-o", "json").stdout
    )
    assert OWNER_ANNOTATION not in found["metadata"].get("annotations", {})
    assert found["status"]["phase"] == "Active"


def test_change_of_broker_is_rejected_before_any_change(release: Release) -> None:
    """Check that an upgrade to another broker names the command that makes it possible, and changes nothing."""
    release.install()
    versions = release.list_versions(release.get_objects())

    output = release.upgrade({**COMPACT_VALUES, "delivery": "kafka"}, check=False)

    assert f"Broker {NAMESPACE}/default has the class MTChannelBasedBroker, not Kafka: delete it first" in output
    assert release.list_versions(release.get_objects()) == versions
    release.cluster.kubectl("delete", "trigger,broker", "--all", "-n", NAMESPACE)
    release.upgrade({**COMPACT_VALUES, "delivery": "kafka"})
    assert len(release.list_live_names(release.get_objects())) == len(release.get_objects())


def test_release_takes_over_kustomize_install(release: Release) -> None:
    """Check that the documented options take over an overlay's objects, and that Helm rejects them otherwise."""
    release.cluster.kubectl("apply", "-k", MANIFESTS / "overlays" / "compact", SKIP_SCHEMA_OPTION)
    expected = {get_identity(manifest) for manifest in render_overlay("compact")}

    assert "invalid ownership metadata" in release.install(check=False)
    release.install("--take-ownership", "--force-conflicts")

    assert expected - set(normalize(release.get_objects())) == {("v1", "Namespace", "", NAMESPACE)} | {
        ("v1", "Namespace", "", LEASE_NAMESPACE)
    }
    service = release.cluster.kubectl(
        "get", "ksvc", "functions", "-n", NAMESPACE, "-o", "jsonpath={.spec.template.spec.containers[*].image}"
    )
    assert service.stdout == "registry.example/nodemaintenance:v1"


def test_account_of_helm_test_may_only_try_maintenance(release: Release, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the account of `helm test` has the permissions for the test pod's command, and no others.

    The test pod itself runs in tests/real.
    """
    release.install()
    hooks = parse_manifests(release.run("get", "hooks", RELEASE).stdout)
    (pod,) = (manifest for manifest in hooks if manifest["kind"] == "Pod")
    accounts = [manifest for manifest in hooks if manifest["kind"] != "Pod"]
    release.kubectl_on(accounts, "create")
    command = [part.replace("$(NODE)", "node-2") for part in pod["spec"]["containers"][0]["command"]]
    account = pod["spec"]["serviceAccountName"]
    monkeypatch.setenv("KUBECONFIG", str(write_account_kubeconfig(release.cluster, NAMESPACE, account)))

    done = subprocess.run(
        [sys.executable, *command[1:]], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )

    release.kubectl_on(accounts, "delete")
    assert done.returncode == 0, done.stderr
    assert "nodemaintenance.medik8s.io/node-2 would be created" in done.stdout + done.stderr
    assert "cannot preview" not in done.stderr
    assert release.cluster.kubectl("get", "nm", "-o", "name").stdout == ""


def test_node_is_drained_during_upgrade_of_release(release: Release, tmp_path: Path) -> None:
    """Check that a release drains a node, that an upgrade during the drain does not stop it, and the node is restored.

    The functions are local processes with the ServiceAccounts and Triggers of the release.
    """
    cluster = release.cluster
    release.install()
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        **build_pod("node-1", "web", annotations={DELETE_DELAY_ANNOTATION: "20s"}),
    }
    cluster.kubectl("create", "-n", "default", "-f", "-", input=json.dumps(pod))
    cluster.kubectl("wait", "-n", "default", "--for=condition=Ready", "pod/web", "--timeout=20s")
    with RunningInstall(cluster, release.get_objects(), tmp_path):
        cluster.kubectl("create", "-f", "-", input=MAINTENANCE)
        cluster.kubectl("wait", "nm/node-1", "--for=condition=Cordoned", "--timeout=30s")

        release.upgrade({**COMPACT_VALUES, "console": {"enabled": True}, "components": {"deleting": True}})
        assert cluster.kubectl("get", "nm/node-1", "-o", "jsonpath={.status.phase}").stdout == "Running"
        cluster.kubectl("wait", "nm/node-1", "--for=condition=Drained", "--timeout=60s")

        assert cluster.kubectl("get", "pods", "-n", "default", "-o", "name").stdout == ""
        cluster.kubectl("delete", "nm/node-1", "--timeout=20s")
        assert "SchedulingDisabled" not in cluster.kubectl("get", "node", "node-1").stdout
