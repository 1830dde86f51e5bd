"""Tests for the Helm chart's life on a real API server with Knative's CRDs: install, upgrade, rollback, uninstall."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kube.mutex.objects import DEFAULT_NAMESPACE
from localcluster.access import NAMESPACE
from localcluster.cluster import LocalCluster
from tests.e2e.environment import DELETE_DELAY_ANNOTATION
from tests.manifests.documented_commands import read_commands
from tests.manifests.helm import (
    IMAGE_NAME,
    RELEASE,
    Values,
    normalize,
    read_documented_arguments,
    render_release,
    run_helm,
)
from tests.manifests.helm_release import (
    CHECK_JOB,
    COMPACT_VALUES,
    Release,
    run_hook,
    select_hooks,
    uninstall_with_check,
)
from tests.manifests.rendering import (
    MANIFESTS,
    ROOT,
    SKIP_SCHEMA_OPTION,
    filter_by_kind,
    get_identity,
    install_knative_crds,
    render_overlay,
)
from tests.manifests.running_install import RunningInstall
from tests.proofs import proves
from tests.workload import build_pod

pytestmark = [pytest.mark.distribution, pytest.mark.timeout(480)]
LEASE_NAMESPACE = "medik8s-leases"
OWNER_ANNOTATION = "meta.helm.sh/release-name"
SIGNING_SECRET = "secret/signing"  # noqa: S105 - a name, not a secret
CRD_PREFIX = "customresourcedefinition.apiextensions.k8s.io/"
KEPT_OBJECTS = {
    SIGNING_SECRET,
    f"namespace/{LEASE_NAMESPACE}",
    *(
        f"{CRD_PREFIX}nodemaintenances.{group}"
        for group in ("nodemaintenance.medik8s.io", "nodemaintenance.kubevirt.io")
    ),
}
"""The objects of a release with the default components that an uninstall keeps."""
ALPHA_CRD = "nodemaintenances.kubevirt.io"
LEFT_OBJECTS = (
    *(KEPT_OBJECTS - {SIGNING_SECRET}),
    *(
        f"{CRD_PREFIX}{kind}.openshift-optional.skrzypek.io"
        for kind in ("mutexrules", "mutextargets", "mutexrunconfigs")
    ),
    f"{CRD_PREFIX}{ALPHA_CRD}",
    f"namespace/{DEFAULT_NAMESPACE}",
    f"namespace/{NAMESPACE}",
)
"""What the releases of all tests leave, and what the tests create."""
MAINTENANCE = """
apiVersion: nodemaintenance.medik8s.io/v1beta1
kind: NodeMaintenance
metadata: {name: node-1}
spec: {nodeName: node-1, reason: upgrade}
"""


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
    running.run("uninstall", RELEASE, "--ignore-not-found", "--no-hooks")
    knative_cluster.kubectl("delete", "--ignore-not-found", *LEFT_OBJECTS)


def test_install_without_knative_creates_nothing(bare_cluster: LocalCluster) -> None:
    """NMO-24: without Knative, the install fails before it creates an object, and names the missing kind."""
    release = Release(bare_cluster)

    output = release.install(check=False)

    assert 'no matches for kind "Broker" in version "eventing.knative.dev/v1"' in output
    created = bare_cluster.kubectl("get", "crd,clusterrole,clusterrolebinding,priorityclass", "-o", "name").stdout
    assert "maintenance" not in created
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
    secrets = release.cluster.kubectl("get", "secrets", "-n", NAMESPACE, "-o", "name").stdout.split()
    assert secrets == [SIGNING_SECRET], "the uninstall left other Secrets"

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


def test_account_of_helm_test_may_try_maintenance(release: Release, tmp_path: Path) -> None:
    """Check that the account of `helm test` has the permissions for the test pod's command.

    The test pod itself runs in tests/real.
    """
    release.install()

    done = run_hook(release, release.get_hooks("test"), tmp_path, NODE="node-2")

    assert done.returncode == 0, done.stderr
    assert "nodemaintenance.medik8s.io/node-2 would be created" in done.stdout + done.stderr
    assert "cannot preview" not in done.stderr
    assert release.cluster.kubectl("get", "nm", "-o", "name").stdout == ""


def test_uninstall_is_refused_during_maintenance(release: Release, tmp_path: Path) -> None:
    """Check that a maintenance prevents the uninstall, and that the release can then be kept or uninstalled."""
    release.install()
    objects = release.get_objects()
    versions = release.list_versions(objects)
    release.cluster.kubectl("create", "-f", "-", input=MAINTENANCE)

    uninstall, check = uninstall_with_check(release, tmp_path)

    assert uninstall.returncode != 0
    assert f"Job/{NAMESPACE}/{CHECK_JOB}" in uninstall.stderr
    assert "error: nothing was uninstalled: these objects change nodes" in check.stderr
    assert "\nnodemaintenance.nodemaintenance.medik8s.io/node-1\n" in check.stderr
    assert f"\nDelete the objects, then run helm uninstall {RELEASE} -n {NAMESPACE} again.\n" in check.stderr
    assert "--no-hooks" not in check.stderr
    assert release.list_versions(objects) == versions
    assert list_check_objects(release) == {f"job.batch/{CHECK_JOB}"}

    assert "has no deployed releases" in release.upgrade(COMPACT_VALUES, check=False)
    run_helm(*read_rollback_arguments(check.stderr), kubeconfig=release.cluster.kubeconfig)
    assert release.list_versions(objects) == versions
    release.upgrade(COMPACT_VALUES)
    assert uninstall_with_check(release, tmp_path)[1].stderr.endswith(f" rollback {RELEASE} 3 -n {NAMESPACE}\n")

    release.cluster.kubectl("delete", "nm/node-1")
    uninstall, check = uninstall_with_check(release, tmp_path)

    assert (uninstall.returncode, check.returncode) == (0, 0), uninstall.stderr + check.stderr
    assert release.list_live_names(objects) == KEPT_OBJECTS
    assert list_check_objects(release) == set()


def read_rollback_arguments(refusal: str) -> list[str]:
    """Return the arguments of the Helm command in the check's output that keeps the release."""
    command = refusal.rpartition("\nTo keep the release instead, run helm ")[2]
    return command.split()


def list_check_objects(release: Release) -> set[str]:
    """Return the names of the objects that exist for the check before an uninstall."""
    kinds = "job,serviceaccount,clusterrole,clusterrolebinding"
    names = release.cluster.kubectl("get", kinds, "-n", NAMESPACE, "-o", "name").stdout.split()
    return {name for name in names if "uninstall-check" in name}


def test_uninstall_without_hooks_skips_check(release: Release) -> None:
    release.install()
    objects = release.get_objects()
    release.cluster.kubectl("create", "-f", "-", input=MAINTENANCE)

    arguments = read_documented_arguments("Uninstall without the check", "uninstall")
    run_helm(*arguments, kubeconfig=release.cluster.kubeconfig)

    assert release.list_live_names(objects) == KEPT_OBJECTS
    assert list_check_objects(release) == set()


def test_permissions_of_rejected_check_are_deleted_by_documented_command(release: Release) -> None:
    """Check that a quota for Jobs prevents the uninstall, and that the documented command deletes what Helm leaves."""
    release.install()
    objects = release.get_objects()
    versions = release.list_versions(objects)
    release.cluster.kubectl("create", "quota", "no-jobs", "-n", NAMESPACE, "--hard=count/jobs.batch=0")

    uninstall = release.run("uninstall", RELEASE, check=False)

    assert uninstall.returncode != 0
    assert f'jobs.batch "{CHECK_JOB}" is forbidden' in uninstall.stderr
    assert release.list_versions(objects) == versions
    assert list_check_objects(release) == {
        f"serviceaccount/{CHECK_JOB}",
        f"clusterrole.rbac.authorization.k8s.io/nodemaintenance-{CHECK_JOB}",
        f"clusterrolebinding.rbac.authorization.k8s.io/nodemaintenance-{CHECK_JOB}",
    }
    (command,) = read_commands("helm.md", "If the check cannot be created")
    release.cluster.kubectl(*command.split()[1:])
    assert list_check_objects(release) == set()


def test_check_names_runs_and_maintenances_of_own_groups(release: Release, tmp_path: Path) -> None:
    """Check that the check counts upgrade runs, and `kubevirt.io/v1alpha1` only if the release serves that group."""
    cluster = release.cluster
    with_mutex: Values = {**COMPACT_VALUES, "components": {"mutex": True}}
    with_alpha: Values = {**COMPACT_VALUES, "components": {"v1alpha1": True}}

    def run_check(values: Values) -> str:
        """Return what the check reports; "" if it permits the uninstall."""
        done = run_hook(release, select_hooks(render_release(values), "pre-delete"), tmp_path)
        return done.stderr if done.returncode else ""

    release.install()
    assert run_check(with_mutex) == "", "the cluster does not serve MutexRunConfigs"
    release.upgrade(with_mutex)
    assert run_check(with_mutex) == ""

    cluster.kubectl("create", "-f", ROOT / "deploy" / "crds" / "nodemaintenance_crd.yaml")
    cluster.wait_for_crds(ALPHA_CRD)
    cluster.kubectl("create", "-f", ROOT / "deploy" / "crds" / "nodemaintenance_cr.yaml")
    assert run_check(with_mutex) == ""
    assert "\nnodemaintenance.kubevirt.io/nodemaintenance-xyz\n" in run_check(with_alpha)

    run_file = ROOT / "config" / "samples" / "mutex_v1alpha1_mutexrunconfig.yaml"
    cluster.kubectl("create", "-n", DEFAULT_NAMESPACE, "-f", run_file)
    assert f"\n{DEFAULT_NAMESPACE}   example " in run_check(with_mutex)
    assert run_check(COMPACT_VALUES) == ""


def test_check_that_cannot_list_warns_of_uninstall_without_hooks(release: Release, tmp_path: Path) -> None:
    """Check that only a failed list request names `--no-hooks`, and its consequence in the same line."""
    with_mutex: Values = {**COMPACT_VALUES, "components": {"mutex": True}}
    release.install(values=with_mutex)
    hooks = release.get_hooks("pre-delete")
    (role,) = filter_by_kind(hooks, "ClusterRole")
    rules = role["rules"]

    for number, kind in enumerate(("maintenances", "upgrade runs")):
        role["rules"] = rules[:number]
        done = run_hook(release, hooks, tmp_path)

        assert done.returncode != 0
        assert f"error: nothing was uninstalled: cannot list the {kind}" in done.stderr
        (line,) = (line for line in done.stderr.splitlines() if "--no-hooks" in line)
        assert line.startswith("Only if no maintenance or upgrade run exists, run helm uninstall ")
        assert line.endswith("nodes stay cordoned, pools stay paused, and the objects cannot be deleted.")


def test_documented_commands_install_upgrade_and_uninstall(release: Release) -> None:
    """Check that the commands of docs/helm.md install, upgrade and uninstall a release as they are written.

    They also run in tests/real, in a cluster whose nodes run containers.
    """
    kubeconfig = release.cluster.kubeconfig
    installed = run_helm(*read_documented_arguments("Install", "install"), kubeconfig=kubeconfig)
    (list_command,) = re.findall("kubectl get .*", installed.stdout)
    assert list_command == "kubectl get nm"  # `nodemaintenances` is the name of several API groups.
    objects = release.get_objects()
    assert len(release.list_live_names(objects)) > 50

    run_helm(*read_documented_arguments("Upgrade", "upgrade"), kubeconfig=kubeconfig)
    assert [revision["status"] for revision in release.list_history()] == ["superseded", "deployed"]
    images = "jsonpath={.items[*].spec.template.spec.containers[*].image}"
    kinds = "services.serving.knative.dev,deployments"
    listed = release.cluster.kubectl("get", kinds, "-n", NAMESPACE, "-o", images).stdout.split()
    assert set(listed) == {f"{IMAGE_NAME}:v0.1.1"}

    *ending, uninstall = read_commands("helm.md", "Uninstall")
    for command in ending:
        program, *arguments = command.split()
        assert program == "kubectl"
        release.cluster.kubectl(*arguments)
    assert uninstall.split()[1:] == read_documented_arguments("Uninstall", "uninstall")
    run_helm(*uninstall.split()[1:], kubeconfig=kubeconfig)
    assert release.list_live_names(objects) == KEPT_OBJECTS

    for command in read_commands("helm.md", "Remove the kept objects"):
        release.cluster.kubectl(*command.split()[1:])
    assert release.list_live_names(objects) == {f"namespace/{LEASE_NAMESPACE}"}


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
