"""Tests that `make deploy` over an existing install reports incompatible objects before it applies anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from localcluster.cluster import LocalCluster
from localcluster.deploy import apply, preflight
from localcluster.errors import LocalClusterError
from tests.manifests.rendering import Manifest, filter_by_kind, get_identity, render_overlay
from tests.proofs import proves

NAMESPACE = "switched"
CLEANED_KINDS = (
    "brokers.eventing.knative.dev,services,services.serving.knative.dev,routes.serving.knative.dev,configmaps"
)
BROKER_OVERLAYS = ("plain", "rabbitmq", "kafka")
IMAGE_OVERRIDE = "images: [{name: nodemaintenance, newName: registry.example/nodemaintenance}]"


def render_broker_and_service(name: str) -> list[Manifest]:
    """Render an overlay, and return its Broker and the Service of `begin`, moved to the test namespace."""
    objects = filter_by_kind(render_overlay(name), "Broker", "Service")
    selected = [
        manifest for manifest in objects if manifest["kind"] == "Broker" or manifest["metadata"]["name"] == "begin"
    ]
    for manifest in selected:
        manifest["metadata"]["namespace"] = NAMESPACE
    return selected


def build_serving_service(cluster: LocalCluster) -> Manifest:
    """Create a Route, and build the core Service that Serving creates for it and that the Route owns."""
    route_type = {"apiVersion": "serving.knative.dev/v1", "kind": "Route"}
    route = {**route_type, "metadata": {"name": "begin", "namespace": NAMESPACE}, "spec": {}}
    created = json.loads(cluster.kubectl("create", "-o", "json", "-f", "-", input=json.dumps(route)).stdout)
    owner = {**route_type, "name": "begin", "uid": created["metadata"]["uid"], "controller": True}
    metadata = {"name": "begin", "namespace": NAMESPACE, "ownerReferences": [owner]}
    spec = {"type": "ExternalName", "externalName": "begin.example"}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def write_overlay(directory: Path, manifests: list[Manifest], images: str = IMAGE_OVERRIDE) -> str:
    """Write an overlay with these objects, an image, and a ConfigMap that shows whether the overlay was applied."""
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied", "namespace": NAMESPACE}}
    (directory / "all.json").write_text(
        json.dumps({"apiVersion": "v1", "kind": "List", "items": [*manifests, config_map]})
    )
    (directory / "kustomization.yaml").write_text(f"resources: [all.json]\n{images}\n")
    return str(directory)


@pytest.fixture
def current_cluster(knative_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    """Make the cluster kubectl's current one, empty the test namespace, and return the cluster."""
    monkeypatch.setenv("KUBECONFIG", str(knative_cluster.kubeconfig))
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    knative_cluster.kubectl("apply", "-f", "-", input=json.dumps(namespace))
    knative_cluster.kubectl("delete", CLEANED_KINDS, "--all", "-n", NAMESPACE)
    return knative_cluster


def create_objects(cluster: LocalCluster, manifests: list[Manifest]) -> None:
    cluster.kubectl("create", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}))


@pytest.mark.slow
@proves("NMO-26a")
@pytest.mark.parametrize("name", ["rabbitmq", "kafka"])
def test_deploy_stops_if_broker_class_differs(current_cluster: LocalCluster, tmp_path: Path, name: str) -> None:
    """Check that a different Broker class stops `make deploy`.

    Otherwise, `kubectl apply` would apply all objects except the Broker, which Eventing's webhook would reject.
    """
    create_objects(current_cluster, filter_by_kind(render_broker_and_service("plain"), "Broker"))

    with pytest.raises(LocalClusterError, match=r"nothing was applied.*Broker switched/default has the class MTChann"):
        apply.deploy(write_overlay(tmp_path, filter_by_kind(render_broker_and_service(name), "Broker")))

    assert "applied" not in current_cluster.kubectl("get", "configmaps", "-n", NAMESPACE, "-o", "name").stdout


@pytest.mark.slow
@proves("NMO-26a")
@pytest.mark.parametrize(
    ("live_overlay", "desired_overlay", "message"),
    [("plain", "knative", "does not belong to"), ("knative", "plain", "belongs to")],
)
def test_deploy_stops_if_only_one_install_uses_knative_serving(
    current_cluster: LocalCluster, tmp_path: Path, live_overlay: str, desired_overlay: str, message: str
) -> None:
    """Check that the error names a Service that serves a function with Knative Serving in only one of the installs.

    If only the new install uses Serving, its Route would stay `ServiceNotOwned`. If only the existing install does,
    Serving would overwrite the Service of the new install.
    """
    [service] = filter_by_kind(render_broker_and_service(live_overlay), "Service")
    create_objects(current_cluster, [build_serving_service(current_cluster) if live_overlay == "knative" else service])

    with pytest.raises(LocalClusterError, match=f"Service switched/begin {message} Knative Serving; see"):
        apply.deploy(write_overlay(tmp_path, filter_by_kind(render_broker_and_service(desired_overlay), "Service")))


@proves("NMO-26a")
def test_deploy_can_apply_same_overlay_again(current_cluster: LocalCluster, tmp_path: Path) -> None:
    """Check that the same overlay can be applied again, as in an upgrade."""
    create_objects(current_cluster, [*render_broker_and_service("knative"), build_serving_service(current_cluster)])

    apply.deploy(write_overlay(tmp_path, render_broker_and_service("knative")))

    assert "applied" in current_cluster.kubectl("get", "configmaps", "-n", NAMESPACE, "-o", "name").stdout


LOST_RIGHTS_CASES = {
    "one shared Service to one Service per function": ("compact", "knative", {("node-maintenance", "functions")}),
    "one Service per function to one shared Service": ("knative", "compact", set()),
    "Deployments": ("knative", "plain", set()),
    "different broker": ("plain", "rabbitmq", set()),
    "different names": ("knative", "hyperconverged", set()),
}


@pytest.mark.parametrize(
    ("live_overlay", "desired_overlay", "expected"), LOST_RIGHTS_CASES.values(), ids=LOST_RIGHTS_CASES
)
def test_deploy_detects_accounts_that_would_lose_permissions(
    live_overlay: str, desired_overlay: str, expected: set[tuple[str, str]]
) -> None:
    """NMO-26a: `make deploy` detects accounts that would lose permissions because it replaces their binding."""
    assert (
        preflight.find_accounts_losing_roles(
            render_overlay(desired_overlay), filter_by_kind(render_overlay(live_overlay), "ClusterRoleBinding")
        )
        == expected
    )


@pytest.mark.slow
@proves("NMO-26a")
@pytest.mark.parametrize("account_exists", [True, False])
def test_deploy_keeps_permissions_of_existing_account(
    current_cluster: LocalCluster, tmp_path: Path, account_exists: bool
) -> None:
    """Check that `make deploy` replaces a ClusterRoleBinding only if its ServiceAccount no longer exists."""
    (binding, *_) = filter_by_kind(render_overlay("knative"), "ClusterRoleBinding")
    name, account_type = f"account-{account_exists}", {"apiVersion": "v1", "kind": "ServiceAccount"}
    binding = {**binding, "metadata": {"name": name.lower()}}
    other_subject = {"kind": "ServiceAccount", "namespace": NAMESPACE, "name": name.lower()}
    accounts = [{**account_type, "metadata": {"namespace": NAMESPACE, "name": name.lower()}}] if account_exists else []
    create_objects(current_cluster, [{**binding, "subjects": [other_subject]}, *accounts])

    try:
        apply.deploy(write_overlay(tmp_path, [binding]))
        message = ""
    except LocalClusterError as error:
        message = str(error)

    assert ("nothing was applied" in message) is account_exists
    assert ("ServiceAccount switched/account-true would lose its cluster roles; see" in message) is account_exists
    assert (
        "applied" in current_cluster.kubectl("get", "configmaps", "-n", NAMESPACE, "-o", "name").stdout
    ) is not account_exists


@pytest.mark.slow
@proves("NMO-26a")
def test_placeholder_image_is_rejected(current_cluster: LocalCluster, tmp_path: Path) -> None:
    """Check that a placeholder image is rejected: no node could pull it, and `kubectl apply` would not report this."""
    overlay = write_overlay(tmp_path, filter_by_kind(render_broker_and_service("knative"), "Service"), images="")

    with pytest.raises(LocalClusterError, match=r"nothing was applied: Service begin would .* `images`"):
        apply.deploy(overlay)

    assert "applied" not in current_cluster.kubectl("get", "configmaps", "-n", NAMESPACE, "-o", "name").stdout


@pytest.mark.slow
@proves("NMO-26a")
def test_selected_image_must_replace_placeholder(current_cluster: LocalCluster, tmp_path: Path) -> None:
    """Check that an image replaces the placeholder, and is rejected if the overlay already names another image."""
    services = filter_by_kind(render_broker_and_service("plain"), "Deployment", "Service")
    deployment = next(item for item in filter_by_kind(render_overlay("plain"), "Deployment"))
    deployment["metadata"] = {"name": "begin", "namespace": NAMESPACE}
    overlay = write_overlay(tmp_path, [*services, deployment], images="")

    apply.deploy(overlay, pushed_image="localhost:5000/nodemaintenance:v1.2.3")
    applied = current_cluster.kubectl("get", "deployment", "begin", "-n", NAMESPACE, "-o", "yaml").stdout
    write_overlay(tmp_path, services)
    with pytest.raises(LocalClusterError, match=r"nothing was applied: .* which localhost:5000/a:v1 would replace"):
        apply.deploy(overlay, image="localhost:5000/a:v1")

    assert "image: localhost:5000/nodemaintenance:v1.2.3" in applied


def test_broker_overlays_share_no_network_policy() -> None:
    """Check that overlays for different brokers share no NetworkPolicy, so that a failed switch keeps all of them."""
    policies = [
        get_identity(policy)
        for name in BROKER_OVERLAYS
        for policy in filter_by_kind(render_overlay(name), "NetworkPolicy")
        if policy["metadata"]["name"] not in ("closed", "from-functions", "from-serving", "to-admission")
    ]

    assert len(policies) == len(set(policies)) > len(BROKER_OVERLAYS)
