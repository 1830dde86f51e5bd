"""Tests that the Helm chart contains the objects of the kustomize overlays, rendered by Helm and kustomize."""

from __future__ import annotations

import json
import random
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from kube.maintenance.groups import DRAIN_TAINTS
from kube.nodes import UNSCHEDULABLE_TAINT
from localcluster.access import NAMESPACE
from localcluster.chart import combinations as kustomize
from localcluster.chart.conditions import Combination
from localcluster.chart.templates import CHART_DIR, GENERATED_DIR, KEEP_ANNOTATION, generate_templates
from localcluster.deploy.removal import EFFECTFUL_RESOURCES
from localcluster.knative import pod_install
from release.versions import read_version
from tests.manifests.helm import (
    HOOK_ANNOTATION,
    IMAGE_NAME,
    IMAGE_TAG,
    IMAGE_VALUES,
    Values,
    build_values,
    normalize,
    parse_manifests,
    render_release,
    run_helm,
)
from tests.manifests.helm_release import select_hooks
from tests.manifests.rendering import (
    MANIFESTS,
    SECURITY_CONTEXT,
    Manifest,
    filter_by_kind,
    get_identity,
    list_rights,
    render,
)
from tests.proofs import proves

pytestmark = pytest.mark.distribution
CI_VALUES_FILES = sorted((CHART_DIR / "ci").glob("*-values.yaml"))
OTHER_OVERLAYS = ("func", "hyperconverged", "operator")
"""Overlays with other names or with a Service that another tool deploys, which the chart does not offer."""
BROKERS = ("inMemory", "rabbitmq", "kafka")
REJECTED_VALUES: Sequence[tuple[Values, str]] = (
    ({"scaleToZero": True, "functions": "compact"}, "scaleToZero is not supported with functions=compact"),
    ({"journal": {"storage": "volume"}, "functions": "compact"}, "journal.storage=volume is not supported"),
    ({"brokerAuthentication": "senders", "delivery": "rabbitmq"}, "brokerAuthentication=senders is not supported"),
    ({"certificates": "none"}, "components.admission requires a certificate"),
    ({"image": {"repository": ""}}, "image.repository is required"),
    ({"delivery": "nats"}, "delivery"),
    ({"components": {"mutexes": True}}, "mutexes"),
    ({"journal": {"size": "big"}}, "size"),
)
"""Values that the chart rejects, and a part of the message."""


def list_single_changes() -> list[Combination]:
    """Return the combinations that differ from the defaults in one value and in the way the functions run.

    The templates are generated from other combinations, those with almost all components.
    """
    changes = [
        {**kustomize.DEFAULTS, "functions": functions, axis.path: option}
        for functions in kustomize.OVERLAYS
        for axis in kustomize.AXES
        for option in axis.options
        if axis.path not in ("functions", "crds.enabled") and option != kustomize.DEFAULTS[axis.path]
    ]
    return [{**change, **_list_required(change)} for change in changes if kustomize.is_supported(change)]


def _list_required(combination: Combination) -> Combination:
    """Return the values that the changed value requires."""
    if combination["certificates"] == "none":
        return {"components.admission": "false"}
    return {"console.enabled": "true"} if combination["console.authentication"] != "token" else {}


def list_random_combinations(count: int) -> list[Combination]:
    """Return supported combinations with random values, the same ones in each run."""
    generator = random.Random(1)
    found: list[Combination] = []
    while len(found) < count:
        combination = {axis.path: generator.choice(axis.options) for axis in kustomize.AXES}
        if combination["components.admission"] == "false" or combination["certificates"] != "none":
            found += [combination] if kustomize.is_supported(combination) else []
    return found


def format_id(combination: Combination) -> str:
    changed = [f"{path}={text}" for path, text in combination.items() if text != kustomize.DEFAULTS[path]]
    return ",".join(changed) or "defaults"


def render_overlay_with_image(directory: Path, parts: Sequence[str]) -> list[Manifest]:
    """Render an overlay of these parts with the tests' image, without the release's namespace."""
    overlay = kustomize.write_overlay(parts, directory / "parts")
    return remove_namespace_object(
        render(pod_install.write_overlay(directory / "image", base=overlay, image=f"{IMAGE_NAME}:{IMAGE_TAG}"))
    )


def remove_namespace_object(objects: Sequence[Manifest]) -> list[Manifest]:
    return [manifest for manifest in objects if get_identity(manifest)[1:] != ("Namespace", "", NAMESPACE)]


def assert_rendered_as_expected(rendered: Sequence[Manifest], expected: Sequence[Manifest]) -> None:
    """Assert that Helm's objects are those of kustomize; the comparison of names fails with a shorter message."""
    actual, wanted = normalize([*rendered]), {get_identity(manifest): manifest for manifest in expected}
    assert sorted(actual) == sorted(wanted)
    assert {key: actual[key] for key in wanted if actual[key] != wanted[key]} == {}
    assert len(wanted) > 50


@pytest.mark.timeout(900)
def test_templates_are_up_to_date() -> None:
    """Check that the generated templates are those of the kustomize sources; `make chart` updates them."""
    files = {file.stem: file.read_text() for file in GENERATED_DIR.iterdir()}

    assert files == generate_templates()


@proves("NMO-24")
@pytest.mark.parametrize("file", CI_VALUES_FILES, ids=lambda file: file.name.removesuffix("-values.yaml"))
def test_chart_equals_shipped_overlay(file: Path, tmp_path: Path) -> None:
    """NMO-24: with the values in `ci`, the chart contains the objects of the overlay with the same name."""
    values = yaml.safe_load(file.read_text())
    overlay = MANIFESTS / "overlays" / file.name.removesuffix("-values.yaml")
    image = "{repository}:{tag}".format(**values["image"])

    expected = remove_namespace_object(render(pod_install.write_overlay(tmp_path, base=overlay, image=image)))

    assert_rendered_as_expected(render_release(values), expected)


def test_ci_values_exist_for_each_overlay() -> None:
    """Check that `ci` has values for each shipped overlay except those that the chart does not offer."""
    overlays = {file.parent.name for file in MANIFESTS.glob("overlays/*/kustomization.yaml")}

    assert {file.name.removesuffix("-values.yaml") for file in CI_VALUES_FILES} == overlays - {*OTHER_OVERLAYS}


@pytest.mark.parametrize("combination", list_single_changes(), ids=format_id)
def test_chart_equals_overlay_if_one_value_changes(combination: Combination, tmp_path: Path) -> None:
    expected = render_overlay_with_image(tmp_path, kustomize.list_overlay_parts(combination))

    assert_rendered_as_expected(render_release(build_values(combination)), expected)


@pytest.mark.parametrize("functions", kustomize.OVERLAYS)
@pytest.mark.parametrize("delivery", BROKERS)
def test_chart_equals_overlay_with_all_components(functions: str, delivery: str, tmp_path: Path) -> None:
    combination = kustomize.build_full_combination(functions, delivery)

    expected = render_overlay_with_image(tmp_path, kustomize.list_overlay_parts(combination))

    assert_rendered_as_expected(render_release(build_values(combination)), expected)


@pytest.mark.parametrize("combination", list_random_combinations(12), ids=lambda combination: combination["functions"])
def test_chart_equals_overlay_with_random_values(combination: Combination, tmp_path: Path) -> None:
    expected = [
        manifest
        for manifest in render_overlay_with_image(tmp_path, kustomize.list_overlay_parts(combination))
        if kustomize.is_in_chart(combination, manifest["kind"], manifest["metadata"]["name"])
    ]

    assert_rendered_as_expected(render_release(build_values(combination)), expected)


def test_values_set_volume_kafka_database_and_pull_secrets() -> None:
    """Check that the values that change no object's existence reach the objects."""
    volume = render_release(
        {
            **IMAGE_VALUES,
            "image": {"repository": "registry.example/other", "pullSecrets": ["first", "second"]},
            "journal": {"storage": "volume", "size": "5Gi", "storageClassName": "fast"},
            "delivery": "kafka",
            "kafka": {"bootstrapServers": "kafka.example:9092"},
        }
    )
    database = render_release({**IMAGE_VALUES, "journal": {"storage": "postgresql", "databaseSecret": "url"}})

    (claim,) = filter_by_kind(volume, "PersistentVolumeClaim")
    assert claim["spec"]["resources"]["requests"]["storage"] == "5Gi"
    assert claim["spec"]["storageClassName"] == "fast"
    secrets = [{"name": "first"}, {"name": "second"}]
    assert all(account["imagePullSecrets"] == secrets for account in filter_by_kind(volume, "ServiceAccount"))
    servers = [config["data"].get("bootstrap.servers") for config in filter_by_kind(volume, "ConfigMap")]
    assert servers == ["kafka.example:9092"]
    assert f'"registry.example/other:v{read_version()}"' in json.dumps(volume)
    (record,) = (item for item in filter_by_kind(database, "Deployment") if item["metadata"]["name"] == "record")
    variables = {item["name"]: item for item in record["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert variables["DATABASE_URL"]["valueFrom"]["secretKeyRef"] == {"name": "url", "key": "url"}


def test_crds_can_be_left_out() -> None:
    """Check that `crds.enabled: false` leaves out all CRDs, for clusters on which another tool installs them."""
    assert filter_by_kind(render_release({**IMAGE_VALUES, "components": {"mutex": True}}), "CustomResourceDefinition")

    values = {**IMAGE_VALUES, "components": {"mutex": True}, "crds": {"enabled": False}}
    assert filter_by_kind(render_release(values), "CustomResourceDefinition") == []


def test_uninstall_keeps_objects_with_data_of_users() -> None:
    """Check that an uninstall keeps CRDs, namespaces, the journal's volume and the signing key."""
    objects = render_release(
        {**IMAGE_VALUES, "components": {"mutex": True, "v1alpha1": True}, "journal": {"storage": "volume"}}
    )

    kept = [
        (manifest["kind"], manifest["metadata"]["name"])
        for manifest in objects
        if manifest["metadata"].get("annotations", {}).get(KEEP_ANNOTATION) == "keep"
    ]
    assert sorted(kept) == [
        ("CustomResourceDefinition", "mutexrules.openshift-optional.skrzypek.io"),
        ("CustomResourceDefinition", "mutexrunconfigs.openshift-optional.skrzypek.io"),
        ("CustomResourceDefinition", "mutextargets.openshift-optional.skrzypek.io"),
        ("CustomResourceDefinition", "nodemaintenances.kubevirt.io"),
        ("CustomResourceDefinition", "nodemaintenances.nodemaintenance.kubevirt.io"),
        ("CustomResourceDefinition", "nodemaintenances.nodemaintenance.medik8s.io"),
        ("Namespace", "medik8s-leases"),
        ("Namespace", "node-upgrade-mutex-operator"),
        ("PersistentVolumeClaim", "journal"),
        ("Secret", "signing"),
    ]


def test_hooks_are_those_of_test_and_uninstall() -> None:
    """Check the order of the hooks, and that Helm deletes the permissions after the Pod or the Job has ended.

    Helm keeps the permissions if the API server rejects the Job; docs/helm.md has the command that deletes them.
    """
    hooks = [
        item for item in render_release(IMAGE_VALUES) if HOOK_ANNOTATION in item["metadata"].get("annotations", {})
    ]

    described = {
        (annotations[HOOK_ANNOTATION], item["kind"], annotations.get("helm.sh/hook-weight", "0"))
        for item in hooks
        for annotations in [item["metadata"]["annotations"]]
    }
    accounts = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding")
    assert described == {
        *((event, kind, "-1") for event in ("test", "pre-delete") for kind in accounts),
        ("test", "Pod", "0"),
        ("pre-delete", "Job", "0"),
    }
    policies = {
        item["metadata"]["annotations"]["helm.sh/hook-delete-policy"] for item in filter_by_kind(hooks, *accounts)
    }
    assert policies == {"before-hook-creation,hook-succeeded,hook-failed"}


def test_check_before_uninstall_can_run_during_maintenance_of_all_nodes() -> None:
    """Check that the Job has the taints' tolerations and the priority, tries once, and ends before Helm's 300 s."""
    objects = render_release(IMAGE_VALUES)
    (job,) = filter_by_kind(objects, "Job")
    (priority_class,) = filter_by_kind(objects, "PriorityClass")
    spec = job["spec"]["template"]["spec"]

    tolerated = {(toleration["key"], toleration["effect"]) for toleration in spec["tolerations"]}
    assert tolerated == {(taint, "NoSchedule") for taint in (UNSCHEDULABLE_TAINT, *DRAIN_TAINTS)}
    assert spec["priorityClassName"] == priority_class["metadata"]["name"]
    assert (job["spec"]["backoffLimit"], spec["restartPolicy"]) == (0, "Never")
    assert job["spec"]["activeDeadlineSeconds"] < 300
    assert spec["containers"][0]["securityContext"] == SECURITY_CONTEXT


@pytest.mark.parametrize("has_mutex", [False, True])
def test_check_before_uninstall_may_only_list_objects_with_finalizers(has_mutex: bool) -> None:
    """Check that the Job may list the kinds that also prevent `make undeploy`, and nothing else."""
    hooks = select_hooks(render_release({**IMAGE_VALUES, "components": {"mutex": has_mutex}}), "pre-delete")

    permitted = {(f"{resource}.{group}", verb) for _, group, resource, verb in list_rights(hooks)}
    assert permitted == {
        (resource, "list") for resource in EFFECTFUL_RESOURCES if has_mutex or not resource.startswith("mutex")
    }


def test_check_before_uninstall_can_be_left_out() -> None:
    values = {**IMAGE_VALUES, "uninstall": {"check": False}}

    assert select_hooks(render_release(IMAGE_VALUES), "pre-delete")
    assert select_hooks(render_release(values), "pre-delete") == []


@pytest.mark.parametrize(("values", "message"), REJECTED_VALUES, ids=lambda part: part if isinstance(part, str) else "")
def test_unsupported_values_are_rejected(values: Values, message: str) -> None:
    """Check that values that the manifests do not support together, and unknown values, are rejected with a reason."""
    done = run_helm(
        *("template", "release", CHART_DIR, "--namespace", NAMESPACE), values={**IMAGE_VALUES, **values}, check=False
    )

    assert done.returncode != 0
    assert message in done.stderr


def test_other_namespace_is_rejected() -> None:
    done = run_helm("template", "release", CHART_DIR, "--namespace", "other", values=IMAGE_VALUES, check=False)

    assert done.returncode != 0
    assert 'namespace "other" is not supported' in done.stderr


@pytest.mark.parametrize("file", [None, *CI_VALUES_FILES], ids=lambda file: file.name if file else "defaults")
def test_strict_lint_finds_no_problem(file: Path | None) -> None:
    """Check that `helm lint --strict` accepts the chart with its defaults, and with the values in `ci`."""
    options = ("--values", file) if file else ()

    output = run_helm("lint", "--strict", CHART_DIR, "--namespace", NAMESPACE, *options).stdout

    assert "1 chart(s) linted, 0 chart(s) failed" in output
    assert "[WARNING]" not in output
    assert "[ERROR]" not in output


def test_package_contains_no_ci_values(tmp_path: Path) -> None:
    """Check that the packaged chart can be rendered, and that it has the documented name and no values of `ci`."""
    run_helm("package", CHART_DIR, "--destination", tmp_path)
    package = tmp_path / f"node-maintenance-{read_version()}.tgz"

    rendered = run_helm("template", "release", package, "--namespace", NAMESPACE, values=IMAGE_VALUES).stdout

    assert len(parse_manifests(rendered)) > 50
    with tarfile.open(package) as archive:
        assert [name for name in archive.getnames() if "/ci/" in name] == []
