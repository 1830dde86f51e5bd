"""Tests that Knative's admission webhooks (Eventing and Serving) accept all shipped manifests.

Knative's controllers also run, so that their changes to the objects are taken into account. The webhooks of the
RabbitMQ and Kafka Brokers do not run; only their CRDs are installed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from localcluster.cluster import LocalCluster
from localcluster.knative import install
from localcluster.knative.planes import ControlPlane
from tests.manifests.rendering import (
    INSTALL_OVERLAYS,
    MANIFESTS,
    ROOT,
    SKIP_SCHEMA_OPTION,
    Manifest,
    fetch_rabbitmq_crd,
    filter_by_kind,
    get_identity,
    list_changed_objects,
    render,
    render_overlay,
)
from tests.proofs import proves

pytestmark = pytest.mark.e2e
STEPWISE_FILES = ("crds/nodemaintenance_crd", "namespace", "service_account", "role", "role_binding", "operator")
BROKER_CLASS_ANNOTATION = "eventing.knative.dev/broker.class"
UNUSED_COMPONENTS = (
    "journal",
    "postgresql",
    "console",
    "proxied",
    "impersonating",
    "deleting",
    "virtualization",
    "cpu-labels",
    "node-conditions",
    "notifications",
)
"""The components that are in no overlay; the tests combine them with `plain`."""
SKIPPED_COMPONENTS = ("monitoring", "senders", "cert-manager", "scale-to-zero")
"""The components that these tests skip.

- monitoring: contains kinds of the Prometheus operator, whose CRDs tests/manifests/test_monitoring.py installs
- senders: contains an EventPolicy, which the webhook rejects without authentication-oidc; see tests/e2e/test_senders.py
- cert-manager: contains kinds of cert-manager, whose webhook does not run in these tests
- scale-to-zero: changes only Knative Services; tests/real/test_serving.py installs it
"""


@pytest.fixture(scope="module")
def knative_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Yield a cluster that runs Knative's controllers and admission webhooks, but no data plane."""
    folder = tmp_path_factory.mktemp("admission")
    with LocalCluster(folder / "servers", nodes=1, flags=install.APISERVER_FLAGS) as cluster:
        control_plane = ControlPlane(cluster, folder / "control", (install.EVENTING, install.SERVING_WEBHOOK))
        control_plane.install()
        cluster.kubectl("apply", "--server-side", "-f", fetch_rabbitmq_crd())
        with control_plane:
            yield cluster


@pytest.fixture
def clean_cluster(knative_cluster: LocalCluster) -> Iterator[LocalCluster]:
    """Yield the cluster, and afterwards delete the objects whose immutable fields differ in the next install."""
    yield knative_cluster
    knative_cluster.kubectl("delete", "broker,sinkbinding", "--all", "--all-namespaces", "--cascade=foreground")


@pytest.fixture
def extra_overlay(tmp_path: Path) -> Path:
    """Return an overlay as a user would write it: `plain`, `inmemory`, and the components that are in no overlay."""
    manifests_path = Path(*[".."] * (len(tmp_path.parts) - 1)) / MANIFESTS.relative_to("/")
    components = ("plain", "inmemory", *UNUSED_COMPONENTS)
    content = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [str(manifests_path / "base")],
        "components": [str(manifests_path / "components" / component) for component in components],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(content))
    return tmp_path


@proves("DRN-14")
def test_files_of_stepwise_install_are_accepted(clean_cluster: LocalCluster) -> None:
    """DRN-14: the files of the stepwise install can be created.

    This test runs first, because objects from an earlier install would make `kubectl create` fail.
    """
    for file_name in STEPWISE_FILES:
        clean_cluster.kubectl("create", "-f", ROOT / "deploy" / f"{file_name}.yaml")


@proves("NMO-24")
@pytest.mark.parametrize("name", ["base", *INSTALL_OVERLAYS])
def test_second_apply_of_install_changes_nothing(clean_cluster: LocalCluster, name: str) -> None:
    """NMO-24: Knative accepts each install, and a second `kubectl apply` changes nothing.

    Objects that a SinkBinding modifies are reapplied, but do not change.
    """
    _apply_twice(clean_cluster, MANIFESTS / "base" if name == "base" else MANIFESTS / "overlays" / name)


def test_components_without_overlay_are_accepted(clean_cluster: LocalCluster, extra_overlay: Path) -> None:
    """Check that the webhooks accept the components that are in no overlay, and objects of the oldest API group."""
    _apply_twice(clean_cluster, extra_overlay)
    _apply_twice(clean_cluster, MANIFESTS / "v1alpha1")
    clean_cluster.kubectl("delete", "-k", MANIFESTS / "v1alpha1")


def test_every_component_is_tested_or_skipped() -> None:
    """Check that every component is in an overlay, or is listed in this module as tested or skipped."""
    files = [
        file
        for directory in ("overlays", "components")
        for file in (MANIFESTS / directory).glob("*/kustomization.yaml")
    ]
    used_paths = [
        file.parent / reference
        for file in files
        for reference in yaml.safe_load(file.read_text()).get("components", [])
    ]
    used_names = {path.resolve().relative_to(MANIFESTS / "components").parts[0] for path in used_paths}

    existing_names = {file.parent.name for file in (MANIFESTS / "components").glob("*/kustomization.yaml")}
    assert existing_names == used_names | {*UNUSED_COMPONENTS, *SKIPPED_COMPONENTS}


def test_serving_rejects_invalid_service(knative_cluster: LocalCluster) -> None:
    """Check that Serving's webhook rejects a `timeoutSeconds` above the cluster's limit, although the CRD allows it."""
    service = filter_by_kind(render_overlay("knative"), "Service")[0]
    # The webhook also reads the ServiceAccount, which does not exist in this namespace.
    del service["spec"]["template"]["spec"]["serviceAccountName"]
    assert _get_rejection(knative_cluster, service) == ""

    service["spec"]["template"]["spec"]["timeoutSeconds"] = 9999

    message = _get_rejection(knative_cluster, service)
    assert 'admission webhook "validation.webhook.serving.knative.dev" denied the request' in message
    assert "timeoutSeconds" in message


def test_eventing_rejects_invalid_trigger(knative_cluster: LocalCluster) -> None:
    """Check that Eventing's webhook rejects a filter attribute whose name CloudEvents does not allow."""
    trigger = filter_by_kind(render_overlay("knative"), "Trigger")[0]
    assert _get_rejection(knative_cluster, trigger) == ""

    trigger["spec"]["filter"]["attributes"]["Not-An-Attribute"] = "x"

    assert "admission webhook" in _get_rejection(knative_cluster, trigger)


def _get_rejection(cluster: LocalCluster, manifest: Manifest) -> str:
    """Create the object in a dry run; return the API server's error, or "" if the API server accepts the object."""
    body = json.dumps({**manifest, "metadata": {**manifest["metadata"], "namespace": "default"}})
    result = cluster.kubectl("create", "--dry-run=server", "-f", "-", input=body, check=False)
    assert result.returncode == 0 or result.stderr
    return result.stderr


def _apply_twice(cluster: LocalCluster, directory: Path) -> None:
    """Apply a directory twice, and assert that the second apply does not change the desired state of any object."""
    cluster.kubectl("apply", SKIP_SCHEMA_OPTION, "-k", directory)
    bound_names = _wait_for_bound_names(cluster, directory)
    before = _get_live_objects(cluster, directory)
    second_output = cluster.kubectl("apply", SKIP_SCHEMA_OPTION, "-k", directory).stdout
    after = _get_live_objects(cluster, directory)

    reapplied_names = {line.split()[0].rpartition("/")[2] for line in list_changed_objects(second_output)}
    object_count = len(second_output.splitlines())
    print(f"{directory.name}: {object_count} objects; reapplied: {', '.join(sorted(reapplied_names)) or 'none'}")
    assert reapplied_names <= bound_names
    assert len(before) == object_count
    assert {key: _strip_controller_fields(live_object) for key, live_object in after.items()} == {
        key: _strip_controller_fields(live_object) for key, live_object in before.items()
    }


def _wait_for_bound_names(cluster: LocalCluster, directory: Path) -> set[str]:
    """Wait until the SinkBinding is ready, and return the names of the objects that it modifies.

    The function does not wait for Kafka and RabbitMQ Brokers, which have no address without their controllers.
    """
    objects = render(directory)
    classes = [
        broker["metadata"].get("annotations", {}).get(BROKER_CLASS_ANNOTATION)
        for broker in filter_by_kind(objects, "Broker")
    ]
    for binding in filter_by_kind(objects, "SinkBinding") if "MTChannelBasedBroker" in classes else []:
        arguments = ("-n", binding["metadata"]["namespace"], f"sinkbinding/{binding['metadata']['name']}")
        cluster.kubectl("wait", *arguments, "--for=condition=Ready", "--timeout=60s")
    label = ("nodemaintenance.dev/token", "broker")
    return {
        manifest["metadata"]["name"] for manifest in objects if label in manifest["metadata"].get("labels", {}).items()
    }


def _get_live_objects(cluster: LocalCluster, directory: Path) -> dict[tuple[str, str, str, str], Manifest]:
    """Return a map from key to current object for each object in the directory."""
    live_objects = json.loads(cluster.kubectl("get", "-k", directory, "-o", "json").stdout)["items"]
    return {get_identity(live_object): live_object for live_object in live_objects}


def _strip_controller_fields(live_object: Manifest) -> Manifest:
    """Return the object without the fields that controllers write."""
    metadata = {key: live_object["metadata"].get(key) for key in ("generation", "labels")}
    return {**{key: value for key, value in live_object.items() if key != "status"}, "metadata": metadata}
