"""Tests that OLM's bundle, catalog and deploy/olm.yaml match the manifests, and that OLM's validators accept them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from eventing.local.manifests import YAML_LOADER
from localcluster.cluster import LocalCluster
from localcluster.deploy.preflight import PLACEHOLDER_IMAGE
from localcluster.programs import build
from release.olm.bundle import BUNDLE_DIR, CATALOG_DIR, REMAINING_FILE, SOURCE_DIR, Images, build_files
from release.olm.bundle_objects import NAMESPACE, SUPPORTED_KINDS
from release.olm.service_version import PACKAGE
from release.versions import read_version
from tests.manifests.rendering import ROOT, Manifest, filter_by_kind, get_identity, list_rights, render, render_overlay
from tests.proofs import proves

OPERATOR_REGISTRY_MODULE = "github.com/operator-framework/operator-registry"
OPERATOR_API_MODULE = "github.com/operator-framework/api"
CSV_FILE = f"{BUNDLE_DIR}/manifests/{PACKAGE}.clusterserviceversion.yaml"
EXPECTED_WARNINGS = (
    r"\"operatorhub\" validator is deprecated",  # operator-verify has no option for the validators that replace it.
    "Migrate the API(s) for poddisruptionbudgets: ",  # RBAC rules contain no version; the product uses policy/v1.
)
"""Parts of the lines that `operator-verify --operatorhub_validate` prints for a valid bundle."""
OLM_NAMESPACE = "olm-install"
"""Namespace in which the tests create objects instead of the product's namespace."""
IMAGES = Images.from_repository(PLACEHOLDER_IMAGE, read_version())


def load_all(path: Path) -> list[Manifest]:
    return list(yaml.load_all(path.read_text(), Loader=YAML_LOADER))


@pytest.fixture(scope="module")
def rendered() -> list[Manifest]:
    """Return the rendered objects from which the bundle is generated, with the release's tag in their images."""
    objects = json.dumps(render(ROOT / SOURCE_DIR))
    objects = objects.replace(f'"image": "{PLACEHOLDER_IMAGE}"', f'"image": "{IMAGES.product}"')
    loaded: list[Manifest] = json.loads(objects)
    return loaded


@pytest.fixture(scope="module")
def bundle_objects() -> list[Manifest]:
    """Return the objects in the bundle's files, except the ClusterServiceVersion."""
    files = [path for path in sorted((ROOT / BUNDLE_DIR / "manifests").iterdir()) if path != ROOT / CSV_FILE]
    return [manifest for path in files for manifest in load_all(path)]


@pytest.fixture(scope="module")
def remaining_objects() -> list[Manifest]:
    """Return the objects that the administrator applies after OLM's installation."""
    return load_all(ROOT / REMAINING_FILE)


@pytest.fixture(scope="module")
def service_version() -> Manifest:
    (manifest,) = load_all(ROOT / CSV_FILE)
    return manifest


@proves("NMO-24", "KNM-7")
def test_generated_files_are_up_to_date() -> None:
    """NMO-24: the bundle files in the repository equal those that `make bundle` generates from the manifests."""
    files = build_files(ROOT, render(ROOT / SOURCE_DIR), read_version(), IMAGES)

    directories = [ROOT / BUNDLE_DIR, ROOT / CATALOG_DIR]
    present = {path.relative_to(ROOT).as_posix() for folder in directories for path in folder.rglob("*.*")}
    assert present == {name for name in files if name.startswith((f"{BUNDLE_DIR}/", f"{CATALOG_DIR}/"))}
    assert [name for name, content in files.items() if (ROOT / name).read_text() != content] == []


def test_bundle_image_has_name_of_product_image_with_suffix() -> None:
    """KNM-7: the bundle image has the name of the product's image with the documented suffix."""
    images = Images.from_repository("quay.io/kubevirt/node-maintenance-operator", "1.2.3")

    assert images.product == "quay.io/kubevirt/node-maintenance-operator:v1.2.3"
    assert images.bundle == "quay.io/kubevirt/node-maintenance-operator-bundle:v1.2.3"


@proves("NMO-24")
def test_every_object_is_installed_once(
    rendered: list[Manifest],
    bundle_objects: list[Manifest],
    remaining_objects: list[Manifest],
    service_version: Manifest,
) -> None:
    """NMO-24: each rendered object is in the bundle or in deploy/olm.yaml, or is created by OLM."""
    spec = service_version["spec"]
    install = spec["install"]["spec"]
    accounts = [permission["serviceAccountName"] for permission in install["clusterPermissions"]]
    webhook_services = {webhook["deploymentName"] for webhook in spec["webhookdefinitions"]}
    created = [
        *(("Deployment", deployment["name"]) for deployment in install["deployments"]),
        *(("ServiceAccount", account) for account in accounts),
        *(("Service", name) for name in webhook_services),
        *((kind, f"nodemaintenance-{name}") for kind in ("ClusterRole", "ClusterRoleBinding") for name in accounts),
        ("ValidatingWebhookConfiguration", "nodemaintenance-validate"),
    ]
    # `record` has no permissions in the cluster, so it has no ClusterRole.
    created = [key for key in created if key[0][:11] != "ClusterRole" or key[1] != "nodemaintenance-record"]
    separate = [get_identity(manifest)[1:] for manifest in (*bundle_objects, *remaining_objects)]

    expected = sorted(get_identity(manifest)[1:] for manifest in rendered)
    cluster_kinds = ("ClusterRole", "ClusterRoleBinding", "ValidatingWebhookConfiguration")
    installed = [*separate, *((kind, "" if kind in cluster_kinds else NAMESPACE, name) for kind, name in created)]
    assert sorted(installed) == expected


def test_service_version_contains_deployments_of_manifests(rendered: list[Manifest], service_version: Manifest) -> None:
    """Check that OLM creates the Deployments with the labels and specs of the manifests."""
    deployments = service_version["spec"]["install"]["spec"]["deployments"]

    assert {item["name"]: (item["label"], item["spec"]) for item in deployments} == {
        manifest["metadata"]["name"]: (manifest["metadata"]["labels"], manifest["spec"])
        for manifest in filter_by_kind(rendered, "Deployment")
    }
    assert [item["image"] for item in service_version["spec"]["relatedImages"]] == [IMAGES.product]


def test_bundle_differs_from_overlay_only_in_certificates(rendered: list[Manifest]) -> None:
    """Check that the bundle contains the overlay `plain` without the function that renews certificates."""
    overlay = {get_identity(manifest) for manifest in render_overlay("plain")}
    bundled = {get_identity(manifest) for manifest in rendered}

    assert bundled < overlay
    names = {identity[3].removeprefix("nodemaintenance-") for identity in overlay - bundled}
    functions_and_sources = {re.sub("-on-.*", "", name) for name in names}
    # The API server's source is named `certificates`, and the webhook's Secret has the name of its function.
    assert functions_and_sources == {"certificate-sources", "certificates", "renew-certificates", "validate"}


def test_each_service_account_has_permissions_of_manifests(
    rendered: list[Manifest], remaining_objects: list[Manifest], service_version: Manifest
) -> None:
    """Check that each ServiceAccount has the cluster-wide permissions of its own ClusterRole, and no others."""
    roles = {role["metadata"]["name"]: role for role in filter_by_kind(rendered, "ClusterRole")}
    for permission in service_version["spec"]["install"]["spec"]["clusterPermissions"]:
        account = permission["serviceAccountName"]
        expected = list_rights([roles[name]]) if (name := f"nodemaintenance-{account}") in roles else set()
        assert list_rights([{"metadata": {}, "rules": permission["rules"]}]) == expected

    # OLM would extend the rules of `permissions` to all namespaces.
    assert "permissions" not in service_version["spec"]["install"]["spec"]
    kinds = ("Role", "RoleBinding")
    assert filter_by_kind(remaining_objects, *kinds) == filter_by_kind(rendered, *kinds)


def test_webhook_of_service_version_equals_webhook_of_manifests(
    rendered: list[Manifest], service_version: Manifest
) -> None:
    """Check that OLM's webhook has the rules of the manifests, and that the server uses OLM's certificate."""
    (configuration,) = filter_by_kind(rendered, "ValidatingWebhookConfiguration")
    (webhook,) = configuration["webhooks"]
    (described,) = service_version["spec"]["webhookdefinitions"]
    (deployment,) = (
        item
        for item in service_version["spec"]["install"]["spec"]["deployments"]
        if item["name"] == described["deploymentName"]
    )
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]

    same_fields = webhook.keys() & described.keys()
    assert same_fields == webhook.keys() - {"name", "clientConfig"}
    assert {field: described[field] for field in same_fields} == {field: webhook[field] for field in same_fields}
    assert described["targetPort"] == container["ports"][0]["containerPort"]
    assert {"name": "CERTIFICATE", "value": "/tmp/k8s-webhook-server/serving-certs"} in container["env"]  # noqa: S108
    assert [volume["name"] for volume in pod["volumes"]] == ["tmp"]


def test_every_knative_kind_is_required(remaining_objects: list[Manifest], service_version: Manifest) -> None:
    """Check that OLM waits for each of Knative's kinds, because no catalog offers Knative's APIs as a dependency."""
    required = {(f"{api['group']}/{api['version']}", api["kind"]) for api in service_version["spec"]["nativeAPIs"]}

    assert required == {
        (manifest["apiVersion"], manifest["kind"])
        for manifest in remaining_objects
        if ".knative.dev/" in manifest["apiVersion"]
    }
    assert not (ROOT / BUNDLE_DIR / "metadata" / "dependencies.yaml").exists()


def test_required_kubernetes_version_equals_version_on_install_page(service_version: Manifest) -> None:
    """Check that OLM requires the Kubernetes version that docs/install.md names."""
    page = (ROOT / "docs" / "install.md").read_text()
    (version,) = re.findall(r"Kubernetes (1\.\d+) or newer", page)

    assert service_version["spec"]["minKubeVersion"] == f"{version}.0"


@pytest.fixture(scope="module")
def supported_kinds() -> set[str]:
    """Return the kinds that OLM accepts in a bundle, from opm's source."""
    module = build.download_program_module("olm", OPERATOR_REGISTRY_MODULE)
    source = (module / "pkg" / "lib" / "bundle" / "supported_resources.go").read_text()
    return set(re.findall(r'^\t\w+\s+= "(\w+)"$', source, re.MULTILINE))


def test_bundle_contains_only_supported_kinds(
    bundle_objects: list[Manifest], remaining_objects: list[Manifest], supported_kinds: set[str]
) -> None:
    """Check that OLM supports each object of the bundle, but no object of deploy/olm.yaml in its namespace."""
    assert supported_kinds >= {*SUPPORTED_KINDS, "ClusterServiceVersion"}
    assert {manifest["kind"] for manifest in bundle_objects} <= supported_kinds
    assert {manifest["metadata"].get("namespace", NAMESPACE) for manifest in bundle_objects} == {NAMESPACE}
    assert [
        get_identity(manifest)
        for manifest in remaining_objects
        if manifest["kind"] in supported_kinds and manifest["metadata"].get("namespace", NAMESPACE) == NAMESPACE
    ] == []


@pytest.fixture
def olm_cluster(knative_cluster: LocalCluster) -> Iterator[LocalCluster]:
    """Yield a cluster with the CRDs of OLM and Knative, and a namespace that replaces the product's namespace."""
    crds = build.download_program_module("olm", OPERATOR_API_MODULE) / "crds"
    knative_cluster.kubectl("apply", "--server-side", "-f", crds / "operators.coreos.com_clusterserviceversions.yaml")
    knative_cluster.wait_for_crds()
    knative_cluster.kubectl("create", "namespace", OLM_NAMESPACE)
    yield knative_cluster
    knative_cluster.kubectl("delete", "namespace", OLM_NAMESPACE, "--wait=false")


@pytest.mark.slow
@proves("NMO-24")
def test_api_server_accepts_every_object(
    olm_cluster: LocalCluster,
    service_version: Manifest,
    bundle_objects: list[Manifest],
    remaining_objects: list[Manifest],
) -> None:
    """NMO-24: the API server knows each field of the ClusterServiceVersion, and accepts the objects of both parts."""
    namespaces = filter_by_kind(remaining_objects, "Namespace")
    (shared_namespace,) = (item for item in namespaces if item["metadata"]["name"] != NAMESPACE)
    olm_cluster.kubectl("apply", "-f", "-", input=json.dumps(shared_namespace))
    objects = [manifest for manifest in (*bundle_objects, *remaining_objects) if manifest not in namespaces]
    body = json.dumps({"apiVersion": "v1", "kind": "List", "items": [service_version, *objects]})
    # Another test may have deleted the product's namespace, which may still exist.
    for namespace in (NAMESPACE, "placeholder"):
        body = body.replace(f'"namespace": "{namespace}"', f'"namespace": "{OLM_NAMESPACE}"')

    output = olm_cluster.kubectl(
        *(
            "apply",
            "--server-side",
            "--force-conflicts",
            "--dry-run=server",
            "--validate=strict",
            "-o",
            "name",
            "-f",
            "-",
        ),
        input=body,
    ).stdout

    assert len(output.splitlines()) == 1 + len(objects)


def run_operator_verify(bundle: Path) -> list[str]:
    """Return the errors and warnings of operator-verify's validators for bundles, OperatorHub and objects."""
    program = build.ensure_programs(build.OLM) / "operator-verify"
    command = [str(program), "manifests", "--operatorhub_validate", "--object_validate", str(bundle)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = (done.stdout + done.stderr).splitlines()
    return [line for line in lines if not any(warning in line for warning in EXPECTED_WARNINGS)]


def run_opm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    program = build.ensure_programs(build.OLM) / "opm"
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.distribution
@proves("NMO-24")
def test_operator_verify_accepts_bundle() -> None:
    """NMO-24: the validators of operator-verify report no errors, and no unexpected warnings."""
    assert run_operator_verify(ROOT / BUNDLE_DIR) == []


@pytest.mark.distribution
@pytest.mark.parametrize(
    ("text", "replacement", "message"),
    [
        ("supported: true", "supported: false", "none of InstallModeTypes are supported"),
        ('"kind": "NodeMaintenance"', '"kind": "Other"', "example must have a provided API"),
        ("kind: NodeMaintenance\n      displayName", "kind: Other\n      displayName", "not found in bundle"),
    ],
)
def test_operator_verify_rejects_broken_bundle(tmp_path: Path, text: str, replacement: str, message: str) -> None:
    """Check that operator-verify detects errors, so that `test_operator_verify_accepts_bundle` can fail."""
    bundle = shutil.copytree(ROOT / BUNDLE_DIR, tmp_path / "bundle")
    file = bundle / "manifests" / Path(CSV_FILE).name
    file.write_text(file.read_text().replace(text, replacement))

    assert message in "\n".join(run_operator_verify(bundle))


@pytest.mark.distribution
@proves("NMO-24")
def test_opm_accepts_catalog(tmp_path: Path) -> None:
    """NMO-24: `opm validate` accepts the catalog, and rejects a channel without the bundle."""
    assert run_opm("validate", ROOT / CATALOG_DIR).returncode == 0

    broken = shutil.copytree(ROOT / CATALOG_DIR, tmp_path / "catalog")
    file = broken / PACKAGE / "catalog.yaml"
    file.write_text(file.read_text().replace(f"- name: {PACKAGE}.v", f"- name: {PACKAGE}.v9"))
    assert run_opm("validate", broken).returncode != 0


@pytest.mark.distribution
def test_catalog_entry_equals_output_of_opm_render() -> None:
    """Check that the catalog's entry for the bundle equals the output of `opm render`."""
    result = run_opm(
        *("render", ROOT / BUNDLE_DIR, "--output=json", "--migrate-level=bundle-object-to-csv-metadata"),
        f"--alpha-image-ref-template={IMAGES.bundle}",
    )
    assert result.returncode == 0, result.stderr
    rendered: dict[str, Any] = json.loads(result.stdout)

    (bundle,) = (entry for entry in load_all(ROOT / CATALOG_DIR / PACKAGE / "catalog.yaml") if "image" in entry)
    assert bundle == rendered


def test_dockerfile_of_bundle_has_labels_and_directories_of_annotations() -> None:
    """Check that the image's labels equal the bundle's annotations, and that the Dockerfile copies each directory."""
    dockerfile = (ROOT / "bundle.Dockerfile").read_text()
    (metadata,) = load_all(ROOT / BUNDLE_DIR / "metadata" / "annotations.yaml")

    labels = dict(re.findall(r"^LABEL (\S+)=(\S+)$", dockerfile, re.MULTILINE))
    copied = dict(re.findall(r"^COPY (\S+) /(\S+)$", dockerfile, re.MULTILINE))
    assert labels == metadata["annotations"]
    directories = {value for value in labels.values() if value.endswith("/")}
    assert set(copied.values()) == directories
    assert all((ROOT / source).is_dir() for source in copied)


def test_scorecard_checks_each_described_field(service_version: Manifest, bundle_objects: list[Manifest]) -> None:
    """Check the requirements of the scorecard: each field of a sample has a descriptor, and each CRD a status."""
    samples = json.loads(service_version["metadata"]["annotations"]["alm-examples"])
    owned = {
        crd["name"].partition(".")[2]: crd for crd in service_version["spec"]["customresourcedefinitions"]["owned"]
    }
    crds = filter_by_kind(bundle_objects, "CustomResourceDefinition")

    assert len(samples) == len(owned) == len(crds)
    for sample in samples:
        description = owned[sample["apiVersion"].partition("/")[0]]
        assert sample["spec"].keys() <= {field["path"] for field in description["specDescriptors"]}
        assert description["statusDescriptors"]
        assert description["resources"]
