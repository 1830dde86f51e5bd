"""Tests that the files of the stepwise install create the same objects as the oldest operator's files."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from eventing.local.manifests import YAML_LOADER
from kube.maintenance.groups import GROUPS
from kube.pods import is_ready
from localcluster.cluster import LocalCluster
from localcluster.product import MUTEX_RESOURCES
from tests.manifests.rendering import MANIFESTS, ROOT, Manifest, get_identity, list_rights, render, render_overlay
from tests.manifests.running_install import RunningInstall, build_deployment, check_drain_and_restore
from tests.proofs import proves

OPERATOR_NAME = "node-maintenance-operator"
STEP_FILES = (
    "crds/nodemaintenance_crd.yaml",
    "namespace.yaml",
    "service_account.yaml",
    "role.yaml",
    "role_binding.yaml",
    "operator.yaml",
)


def load_step_file(name: str) -> list[Manifest]:
    return list(yaml.load_all((ROOT / "deploy" / name).read_text(), Loader=YAML_LOADER))


@pytest.fixture(scope="module")
def uninstalled_cluster(knative_cluster: LocalCluster) -> LocalCluster:
    """Remove the stepwise install, if it exists, and return the cluster, which has Knative's CRDs."""
    knative_cluster.kubectl("delete", "crd", "nodemaintenances.kubevirt.io", "--ignore-not-found")
    for name in ("role_binding.yaml", "role.yaml", "namespace.yaml", "crds/nodemaintenance_crd.yaml"):
        knative_cluster.kubectl("delete", "-f", ROOT / "deploy" / name, "--ignore-not-found")
    return knative_cluster


@pytest.fixture(scope="module")
def result_without_namespace(uninstalled_cluster: LocalCluster) -> subprocess.CompletedProcess[str]:
    """Return the completed `kubectl create` for a ServiceAccount whose namespace does not exist yet."""
    return uninstalled_cluster.kubectl("create", "-f", ROOT / "deploy" / "service_account.yaml", check=False)


@pytest.fixture(scope="module")
def installed_stepwise(
    uninstalled_cluster: LocalCluster, result_without_namespace: subprocess.CompletedProcess[str]
) -> LocalCluster:
    """Create the objects of each file without an error, and return the cluster."""
    assert result_without_namespace.returncode
    for name in STEP_FILES:
        uninstalled_cluster.kubectl("create", "-f", ROOT / "deploy" / name)
    return uninstalled_cluster


@proves("DRN-14")
def test_files_can_be_created_only_in_documented_order(
    result_without_namespace: subprocess.CompletedProcess[str], installed_stepwise: LocalCluster
) -> None:
    """DRN-14: each `create -f` succeeds in the documented order; in another order it fails, and can be repeated."""
    assert result_without_namespace.returncode == 1
    assert f'namespaces "{OPERATOR_NAME}" not found' in result_without_namespace.stderr

    service = installed_stepwise.kubectl(
        "get", "services.serving.knative.dev", "-n", OPERATOR_NAME, "-o", "name"
    ).stdout
    assert service.split() == [f"service.serving.knative.dev/{OPERATOR_NAME}"]


@pytest.mark.slow
@proves("DRN-14")
def test_workloads_become_ready_in_operator_namespace(installed_stepwise: LocalCluster) -> None:
    """Check that the pods of the last file's Serving and Eventing objects are admitted, scheduled and started.

    The documented `kubectl get deployment` prints the operator's Deployment with its ready pod.
    """
    workloads = [
        workload for workload in load_step_file("operator.yaml") if workload["kind"] in ("Service", "ContainerSource")
    ]
    deployments = [build_deployment(workload) for workload in workloads]

    for deployment in deployments:
        installed_stepwise.kubectl("create", "-f", "-", input=json.dumps(deployment))
    for deployment in deployments:
        name = f"deployment/{deployment['metadata']['name']}"
        installed_stepwise.kubectl("rollout", "status", name, "-n", OPERATOR_NAME, "--timeout=30s")

    header, *rows = (
        row.split() for row in installed_stepwise.kubectl("get", "deployment", "-n", OPERATOR_NAME).stdout.splitlines()
    )
    assert header == ["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE"]
    (operator_row,) = (row for row in rows if row[0].startswith(OPERATOR_NAME))
    assert operator_row[:4] == [f"{OPERATOR_NAME}-00001-deployment", "1/1", "1", "1"]

    pods = json.loads(installed_stepwise.kubectl("get", "pods", "-n", OPERATOR_NAME, "-o", "json").stdout)["items"]
    assert sorted(pod["metadata"]["labels"]["app"] for pod in pods) == [OPERATOR_NAME, "podsource"]
    assert {pod["spec"]["serviceAccountName"] for pod in pods} == {OPERATOR_NAME}
    assert all(is_ready(pod) for pod in pods)


@proves("DRN-12", "DRN-14")
def test_stepwise_install_drains_node_with_oldest_api(installed_stepwise: LocalCluster, tmp_path: Path) -> None:
    """Check that the only ServiceAccount in the files has all permissions for a complete maintenance."""
    with RunningInstall(installed_stepwise, load_step_file("operator.yaml"), tmp_path):
        check_drain_and_restore(installed_stepwise)


@pytest.mark.slow
def test_documented_uninstall_removes_stepwise_install(installed_stepwise: LocalCluster) -> None:
    """Check that the command on the uninstall page deletes the objects of all files, except the shared namespace."""
    page = (ROOT / "docs" / "uninstall.md").read_text()
    steps, delete_command = re.findall(r"for step in (.*); do kubectl (delete .*); done", page)[0]
    for step in steps.split():
        installed_stepwise.kubectl(*shlex.split(delete_command.replace("$step", step)))

    objects = [manifest for name in STEP_FILES for manifest in load_step_file(name)]
    remaining = installed_stepwise.kubectl(
        "get", "-f", "-", "-o", "name", "--ignore-not-found", input=yaml.safe_dump_all(objects), check=False
    ).stdout.split()
    assert sorted(f"{step}.yaml" for step in steps.split()) == sorted(STEP_FILES)
    assert remaining == ["namespace/medik8s-leases"]


@proves("DRN-14")
@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("namespace.yaml", "Namespace"),
        ("service_account.yaml", "ServiceAccount"),
        ("role.yaml", "ClusterRole"),
        ("role_binding.yaml", "ClusterRoleBinding"),
        ("operator.yaml", "Service"),
    ],
)
def test_objects_have_documented_names(file: str, kind: str) -> None:
    """DRN-14: the objects in the files have the documented names."""
    assert [manifest["metadata"]["name"] for manifest in load_step_file(file) if manifest["kind"] == kind][:1] == [
        OPERATOR_NAME
    ]


def test_last_stepwise_file_equals_rendered_overlay() -> None:
    """Check that the last file equals the rendered overlay `operator`; a comment in the file contains the command."""
    assert load_step_file("operator.yaml") == render_overlay("operator")


def test_only_service_account_has_permissions_of_all_service_accounts() -> None:
    """Check that the only ServiceAccount has the permissions of all ServiceAccounts in manifests/base/rbac."""
    assert list_rights(load_step_file("role.yaml")) == list_rights(render(MANIFESTS / "base" / "rbac"))


@proves("DRN-14")
def test_last_stepwise_file_uses_namespace_and_account_of_earlier_files() -> None:
    """DRN-14: all objects of the last file use the namespace and the ServiceAccount of the earlier files."""
    objects = load_step_file("operator.yaml")
    accounts = {
        manifest["spec"].get("serviceAccountName") or manifest["spec"]["template"]["spec"]["serviceAccountName"]
        for manifest in objects
        if manifest["kind"] in ("ApiServerSource", "ContainerSource", "Service")
    }

    assert {get_identity(manifest)[2] for manifest in objects} == {OPERATOR_NAME}
    assert accounts == {OPERATOR_NAME}


@proves("DRN-15")
def test_hyperconverged_service_has_operator_name() -> None:
    """DRN-15: pods are named `node-maintenance-operator-*` in `kubevirt-hyperconverged`, after the Knative Service."""
    services = [
        get_identity(manifest) for manifest in render_overlay("hyperconverged") if manifest["kind"] == "Service"
    ]

    assert services == [("serving.knative.dev/v1", "Service", "kubevirt-hyperconverged", OPERATOR_NAME)]


def test_repository_has_only_one_copy_of_each_crd() -> None:
    """DRN-12, DRN-14: each CRD has only one file; the documented path is a link to this file."""
    crd_files = [
        file for file in ROOT.glob("manifests/**/*.yaml") if "kind: CustomResourceDefinition\n" in file.read_text()
    ]
    names = [yaml.safe_load(file.read_text())["metadata"]["name"] for file in crd_files]
    deploy_files = [
        file for file in Path(ROOT / "deploy").rglob("*.yaml") if "CustomResourceDefinition" in file.read_text()
    ]

    assert len(names) == len(set(names)) == len(GROUPS) + len(MUTEX_RESOURCES)
    assert [file.is_symlink() and file.resolve() in crd_files for file in deploy_files] == [True]
