"""The stepwise install files have the objects and names of the oldest operator's files, and then the workloads."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from eventing.local.manifests import YAML_LOADER
from kube.maintenance.groups import GROUPS
from kube.pods import is_ready
from localcluster.cluster import LocalCluster
from localcluster.product import MUTEX_RESOURCES
from tests.manifests.rendering import MANIFESTS, ROOT, Manifest, get_identity, render, render_overlay
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


def list_rights(objects: list[Manifest]) -> set[tuple[str, str, str, str]]:
    """Return (namespace, group, resource, verb) of all roles."""
    return {
        (item["metadata"].get("namespace", ""), group, resource, verb)
        for item in objects
        for rule in item.get("rules", [])
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.fixture(scope="module")
def uninstalled_cluster(knative_cluster: LocalCluster) -> LocalCluster:
    """Return the cluster with Knative's CRDs and without an install."""
    knative_cluster.kubectl("delete", "crd", "nodemaintenances.kubevirt.io", "--ignore-not-found")
    for name in ("role_binding.yaml", "role.yaml", "namespace.yaml", "crds/nodemaintenance_crd.yaml"):
        knative_cluster.kubectl("delete", "-f", ROOT / "deploy" / name, "--ignore-not-found")
    return knative_cluster


@pytest.fixture(scope="module")
def premature_result(uninstalled_cluster: LocalCluster) -> subprocess.CompletedProcess[str]:
    """Return the result of creating a file whose namespace does not exist yet."""
    return uninstalled_cluster.kubectl("create", "-f", ROOT / "deploy" / "service_account.yaml", check=False)


@pytest.fixture(scope="module")
def installed_stepwise(
    uninstalled_cluster: LocalCluster, premature_result: subprocess.CompletedProcess[str]
) -> LocalCluster:
    """Return that cluster with the stepwise install; each file was created without an error."""
    assert premature_result.returncode
    for name in STEP_FILES:
        uninstalled_cluster.kubectl("create", "-f", ROOT / "deploy" / name)
    return uninstalled_cluster


@proves("DRN-14")
def test_files_create_an_install_in_documented_order(
    premature_result: subprocess.CompletedProcess[str], installed_stepwise: LocalCluster
) -> None:
    """DRN-14: each `create -f` succeeds in the documented order; in another order it fails and can be repeated."""
    assert premature_result.returncode == 1
    assert f'namespaces "{OPERATOR_NAME}" not found' in premature_result.stderr

    service = installed_stepwise.kubectl(
        "get", "services.serving.knative.dev", "-n", OPERATOR_NAME, "-o", "name"
    ).stdout
    assert service.split() == [f"service.serving.knative.dev/{OPERATOR_NAME}"]


@pytest.mark.slow
@proves("DRN-14")
def test_the_workloads_become_ready_in_the_operators_namespace(installed_stepwise: LocalCluster) -> None:
    """Check that the pods of the last file's Serving and Eventing objects are admitted, scheduled and run.

    The document's `kubectl get deployment` prints the operator's Deployment with its one ready pod.
    """
    workloads = [item for item in load_step_file("operator.yaml") if item["kind"] in ("Service", "ContainerSource")]
    deployments = [build_deployment(item) for item in workloads]

    for item in deployments:
        installed_stepwise.kubectl("create", "-f", "-", input=json.dumps(item))
    for item in deployments:
        name = f"deployment/{item['metadata']['name']}"
        installed_stepwise.kubectl("rollout", "status", name, "-n", OPERATOR_NAME, "--timeout=30s")

    head, *rows = (
        row.split() for row in installed_stepwise.kubectl("get", "deployment", "-n", OPERATOR_NAME).stdout.splitlines()
    )
    assert head == ["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE"]
    (operator_row,) = (row for row in rows if row[0].startswith(OPERATOR_NAME))
    assert operator_row[:4] == [f"{OPERATOR_NAME}-00001-deployment", "1/1", "1", "1"]

    pods = json.loads(installed_stepwise.kubectl("get", "pods", "-n", OPERATOR_NAME, "-o", "json").stdout)["items"]
    assert sorted(pod["metadata"]["labels"]["app"] for pod in pods) == [OPERATOR_NAME, "podsource"]
    assert {pod["spec"]["serviceAccountName"] for pod in pods} == {OPERATOR_NAME}
    assert all(is_ready(pod) for pod in pods)


@proves("DRN-12", "DRN-14")
def test_the_install_drains_by_an_object_of_the_oldest_api(installed_stepwise: LocalCluster, tmp_path: Path) -> None:
    """Check that the files' single account has all rights for a complete maintenance."""
    with RunningInstall(installed_stepwise, load_step_file("operator.yaml"), tmp_path):
        check_drain_and_restore(installed_stepwise)


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
def test_the_objects_have_the_names_of_the_document(file: str, kind: str) -> None:
    """DRN-14: the objects have the document's names."""
    assert [item["metadata"]["name"] for item in load_step_file(file) if item["kind"] == kind][:1] == [OPERATOR_NAME]


def test_last_file_is_the_rendered_overlay() -> None:
    """Check that the overlay `operator` generates the last file; the file's comment has the command."""
    assert load_step_file("operator.yaml") == render_overlay("operator")


def test_single_account_has_rights_of_all_accounts() -> None:
    """Check that the single account has the same rights as all accounts in manifests/base/rbac together."""
    assert list_rights(load_step_file("role.yaml")) == list_rights(render(MANIFESTS / "base" / "rbac"))


@proves("DRN-14")
def test_last_file_uses_earlier_namespace_and_account() -> None:
    """DRN-14: all objects of the last file use the namespace and the account of the earlier files."""
    objects = load_step_file("operator.yaml")
    accounts = {
        item["spec"].get("serviceAccountName") or item["spec"]["template"]["spec"]["serviceAccountName"]
        for item in objects
        if item["kind"] in ("ApiServerSource", "ContainerSource", "Service")
    }

    assert {get_identity(item)[2] for item in objects} == {OPERATOR_NAME}
    assert accounts == {OPERATOR_NAME}


@proves("DRN-15")
def test_hyperconverged_service_has_operator_name() -> None:
    """DRN-15: pods are named `node-maintenance-operator-*` in `kubevirt-hyperconverged`, after the Knative Service."""
    services = [get_identity(item) for item in render_overlay("hyperconverged") if item["kind"] == "Service"]

    assert services == [("serving.knative.dev/v1", "Service", "kubevirt-hyperconverged", OPERATOR_NAME)]


def test_there_is_one_copy_of_each_crd() -> None:
    """DRN-12, DRN-14: each CRD has one file; the document's path is a link to it."""
    documents = [
        file for file in ROOT.glob("manifests/**/*.yaml") if "kind: CustomResourceDefinition\n" in file.read_text()
    ]
    names = [yaml.safe_load(file.read_text())["metadata"]["name"] for file in documents]
    copies = [file for file in Path(ROOT / "deploy").rglob("*.yaml") if "CustomResourceDefinition" in file.read_text()]

    assert len(names) == len(set(names)) == len(GROUPS) + len(MUTEX_RESOURCES)
    assert [file.is_symlink() and file.resolve() in documents for file in copies] == [True]
