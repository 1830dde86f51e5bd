"""The stepwise install files have the objects and names of the oldest operator's files, and then the workloads."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from eventing.local.manifests import LOADER
from kube.maintenance.groups import GROUPS
from kube.pods import is_ready
from localcluster.cluster import LocalCluster
from localcluster.product import MUTEX_KINDS
from tests.manifests.rendering import MANIFESTS, ROOT, Manifest, identity, overlay, rendered
from tests.manifests.running_install import Running, deployment_of, drained_and_given_back
from tests.proofs import proves

NAME = "node-maintenance-operator"
STEPS = (
    "crds/nodemaintenance_crd.yaml",
    "namespace.yaml",
    "service_account.yaml",
    "role.yaml",
    "role_binding.yaml",
    "operator.yaml",
)


def step(name: str) -> list[Manifest]:
    return list(yaml.load_all((ROOT / "deploy" / name).read_text(), Loader=LOADER))


def rights(objects: list[Manifest]) -> set[tuple[str, str, str, str]]:
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
def cleared(knative: LocalCluster) -> LocalCluster:
    """Return the cluster with Knative's CRDs and without an install."""
    knative.kubectl("delete", "crd", "nodemaintenances.kubevirt.io", "--ignore-not-found")
    for name in ("role_binding.yaml", "role.yaml", "namespace.yaml", "crds/nodemaintenance_crd.yaml"):
        knative.kubectl("delete", "-f", ROOT / "deploy" / name, "--ignore-not-found")
    return knative


@pytest.fixture(scope="module")
def too_early(cleared: LocalCluster) -> subprocess.CompletedProcess[str]:
    """Return the result of creating a file whose namespace does not exist yet."""
    return cleared.kubectl("create", "-f", ROOT / "deploy" / "service_account.yaml", check=False)


@pytest.fixture(scope="module")
def created(cleared: LocalCluster, too_early: subprocess.CompletedProcess[str]) -> LocalCluster:
    """Return that cluster with the stepwise install; each file was created without an error."""
    assert too_early.returncode
    for name in STEPS:
        cleared.kubectl("create", "-f", ROOT / "deploy" / name)
    return cleared


@proves("DRN-14")
def test_the_files_create_an_install_in_their_order(
    too_early: subprocess.CompletedProcess[str], created: LocalCluster
) -> None:
    """DRN-14: each `create -f` succeeds in the documented order; in another order it fails and can be repeated."""
    assert too_early.returncode == 1
    assert f'namespaces "{NAME}" not found' in too_early.stderr

    service = created.kubectl("get", "services.serving.knative.dev", "-n", NAME, "-o", "name").stdout
    assert service.split() == [f"service.serving.knative.dev/{NAME}"]


@pytest.mark.slow
@proves("DRN-14")
def test_the_workloads_become_ready_in_the_operators_namespace(created: LocalCluster) -> None:
    """Check that the pods of the last file's Serving and Eventing objects are admitted, scheduled and run.

    The document's `kubectl get deployment` prints the operator's Deployment with its one ready pod.
    """
    workloads = [item for item in step("operator.yaml") if item["kind"] in ("Service", "ContainerSource")]
    deployments = [deployment_of(item) for item in workloads]

    for item in deployments:
        created.kubectl("create", "-f", "-", input=json.dumps(item))
    for item in deployments:
        name = f"deployment/{item['metadata']['name']}"
        created.kubectl("rollout", "status", name, "-n", NAME, "--timeout=30s")

    head, *rows = (row.split() for row in created.kubectl("get", "deployment", "-n", NAME).stdout.splitlines())
    assert head == ["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE"]
    (shown,) = (row for row in rows if row[0].startswith(NAME))
    assert shown[:4] == [f"{NAME}-00001-deployment", "1/1", "1", "1"]

    pods = json.loads(created.kubectl("get", "pods", "-n", NAME, "-o", "json").stdout)["items"]
    assert sorted(pod["metadata"]["labels"]["app"] for pod in pods) == [NAME, "podsource"]
    assert {pod["spec"]["serviceAccountName"] for pod in pods} == {NAME}
    assert all(is_ready(pod) for pod in pods)


@proves("DRN-12", "DRN-14")
def test_the_install_drains_by_an_object_of_the_oldest_api(created: LocalCluster, tmp_path: Path) -> None:
    """Check that the files' single account has all rights for a complete maintenance."""
    with Running(created, step("operator.yaml"), tmp_path):
        drained_and_given_back(created)


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
    assert [item["metadata"]["name"] for item in step(file) if item["kind"] == kind][:1] == [NAME]


def test_the_last_file_is_what_the_overlay_makes() -> None:
    """Check that the overlay `operator` generates the last file; the file's comment has the command."""
    assert step("operator.yaml") == overlay("operator")


def test_the_one_account_may_do_what_all_accounts_together_may() -> None:
    """Check that the single account has the same rights as all accounts in manifests/base/rbac together."""
    assert rights(step("role.yaml")) == rights(rendered(MANIFESTS / "base" / "rbac"))


@proves("DRN-14")
def test_every_object_of_the_last_file_is_where_the_earlier_files_made_room() -> None:
    """DRN-14: all objects of the last file use the namespace and the account of the earlier files."""
    objects = step("operator.yaml")
    accounts = {
        item["spec"].get("serviceAccountName") or item["spec"]["template"]["spec"]["serviceAccountName"]
        for item in objects
        if item["kind"] in ("ApiServerSource", "ContainerSource", "Service")
    }

    assert {identity(item)[2] for item in objects} == {NAME}
    assert accounts == {NAME}


@proves("DRN-15")
def test_beside_hyperconverged_the_pods_have_the_operators_name() -> None:
    """DRN-15: pods are named `node-maintenance-operator-*` in `kubevirt-hyperconverged`, after the Knative Service."""
    services = [identity(item) for item in overlay("hyperconverged") if item["kind"] == "Service"]

    assert services == [("serving.knative.dev/v1", "Service", "kubevirt-hyperconverged", NAME)]


def test_there_is_one_copy_of_each_crd() -> None:
    """DRN-12, DRN-14: each CRD has one file; the document's path is a link to it."""
    documents = [
        file for file in ROOT.glob("manifests/**/*.yaml") if "kind: CustomResourceDefinition\n" in file.read_text()
    ]
    names = [yaml.safe_load(file.read_text())["metadata"]["name"] for file in documents]
    copies = [file for file in Path(ROOT / "deploy").rglob("*.yaml") if "CustomResourceDefinition" in file.read_text()]

    assert len(names) == len(set(names)) == len(GROUPS) + len(MUTEX_KINDS)
    assert [file.is_symlink() and file.resolve() in documents for file in copies] == [True]
