"""`make deploy` over another install names incompatible objects before it applies anything."""

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


def select_objects(name: str) -> list[Manifest]:
    """Return an overlay's Broker and the Services of `begin`, moved to a test namespace."""
    objects = filter_by_kind(render_overlay(name), "Broker", "Service")
    selected = [item for item in objects if item["kind"] == "Broker" or item["metadata"]["name"] == "begin"]
    for item in selected:
        item["metadata"]["namespace"] = NAMESPACE
    return selected


def build_serving_service(cluster: LocalCluster) -> Manifest:
    """Build the core Service that Serving's Route creates; without its owner it would be garbage-collected."""
    kind = {"apiVersion": "serving.knative.dev/v1", "kind": "Route"}
    route = {**kind, "metadata": {"name": "begin", "namespace": NAMESPACE}, "spec": {}}
    created = json.loads(cluster.kubectl("create", "-o", "json", "-f", "-", input=json.dumps(route)).stdout)
    owner = {**kind, "name": "begin", "uid": created["metadata"]["uid"], "controller": True}
    metadata = {"name": "begin", "namespace": NAMESPACE, "ownerReferences": [owner]}
    spec = {"type": "ExternalName", "externalName": "begin.example"}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def write_overlay(directory: Path, items: list[Manifest], images: str = IMAGE_OVERRIDE) -> str:
    """Write an overlay of these objects with their image, and a ConfigMap that shows whether it was applied."""
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied", "namespace": NAMESPACE}}
    (directory / "all.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*items, config_map]}))
    (directory / "kustomization.yaml").write_text(f"resources: [all.json]\n{images}\n")
    return str(directory)


@pytest.fixture
def current_cluster(knative_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    """Return the cluster as the current one, with an empty namespace."""
    monkeypatch.setenv("KUBECONFIG", str(knative_cluster.kubeconfig))
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    knative_cluster.kubectl("apply", "-f", "-", input=json.dumps(space))
    knative_cluster.kubectl("delete", CLEANED_KINDS, "--all", "-n", NAMESPACE)
    return knative_cluster


def create_objects(cluster: LocalCluster, items: list[Manifest]) -> None:
    cluster.kubectl("create", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))


@pytest.mark.slow
@proves("NMO-26a")
@pytest.mark.parametrize("name", ["rabbitmq", "kafka"])
def test_broker_of_another_class_stops_deployment(current_cluster: LocalCluster, tmp_path: Path, name: str) -> None:
    """Check that another Broker class stops the deployment; Eventing's webhook would only reject the Broker itself.

    `kubectl apply` would then apply all other objects.
    """
    create_objects(current_cluster, filter_by_kind(select_objects("plain"), "Broker"))

    with pytest.raises(LocalClusterError, match=r"nothing was applied.*Broker switched/default has the class MTChann"):
        apply.deploy(write_overlay(tmp_path, filter_by_kind(select_objects(name), "Broker")))

    assert "applied" not in current_cluster.kubectl("get", "configmaps", "-n", NAMESPACE, "-o", "name").stdout


@pytest.mark.slow
@proves("NMO-26a")
@pytest.mark.parametrize(
    ("live", "desired", "message"), [("plain", "knative", "does not belong to"), ("knative", "plain", "belongs to")]
)
def test_service_of_other_kind_stops_deployment(
    current_cluster: LocalCluster, tmp_path: Path, live: str, desired: str, message: str
) -> None:
    """Check that a Service of the other way to serve functions is named in the error.

    Serving would mark its Route as `ServiceNotOwned` permanently. In the other direction, it would restore its own
    Service.
    """
    [service] = filter_by_kind(select_objects(live), "Service")
    create_objects(current_cluster, [build_serving_service(current_cluster) if live == "knative" else service])

    with pytest.raises(LocalClusterError, match=f"Service switched/begin {message} Knative Serving; see"):
        apply.deploy(write_overlay(tmp_path, filter_by_kind(select_objects(desired), "Service")))


@proves("NMO-26a")
def test_same_overlay_can_be_applied_again(current_cluster: LocalCluster, tmp_path: Path) -> None:
    """Check that the same overlay can be applied again, as in an upgrade."""
    create_objects(current_cluster, [*select_objects("knative"), build_serving_service(current_cluster)])

    apply.deploy(write_overlay(tmp_path, select_objects("knative")))

    assert "applied" in current_cluster.kubectl("get", "configmaps", "-n", NAMESPACE, "-o", "name").stdout


LOST_RIGHTS_CASES = {
    "one shared Service to one Service per function": ("compact", "knative", {("node-maintenance", "functions")}),
    "one Service per function to one shared Service": ("knative", "compact", set()),
    "Deployments": ("knative", "plain", set()),
    "another broker": ("plain", "rabbitmq", set()),
    "different names": ("knative", "hyperconverged", set()),
}


@pytest.mark.parametrize(("live", "desired", "expected"), LOST_RIGHTS_CASES.values(), ids=LOST_RIGHTS_CASES)
def test_accounts_that_lose_rights_are_detected(live: str, desired: str, expected: set[tuple[str, str]]) -> None:
    """NMO-26a: `make deploy` detects the accounts that lose their role bindings to bindings with the same name."""
    assert (
        preflight.find_stripped_accounts(
            render_overlay(desired), filter_by_kind(render_overlay(live), "ClusterRoleBinding")
        )
        == expected
    )


@pytest.mark.slow
@proves("NMO-26a")
@pytest.mark.parametrize("exists", [True, False])
def test_deploy_keeps_rights_of_another_install(current_cluster: LocalCluster, tmp_path: Path, exists: bool) -> None:
    """Check that an existing account of another install keeps its rights; a binding without its account is replaced."""
    (binding, *_) = filter_by_kind(render_overlay("knative"), "ClusterRoleBinding")
    name, account = f"account-{exists}", {"apiVersion": "v1", "kind": "ServiceAccount"}
    binding = {**binding, "metadata": {"name": name.lower()}}
    other = {"kind": "ServiceAccount", "namespace": NAMESPACE, "name": name.lower()}
    accounts = [{**account, "metadata": {"namespace": NAMESPACE, "name": name.lower()}}] if exists else []
    create_objects(current_cluster, [{**binding, "subjects": [other]}, *accounts])

    try:
        apply.deploy(write_overlay(tmp_path, [binding]))
        message = ""
    except LocalClusterError as error:
        message = str(error)

    assert ("nothing was applied" in message) is exists
    assert ("ServiceAccount switched/account-true would lose its cluster roles; see" in message) is exists
    assert (
        "applied" in current_cluster.kubectl("get", "configmaps", "-n", NAMESPACE, "-o", "name").stdout
    ) is not exists


@pytest.mark.slow
@proves("NMO-26a")
def test_image_placeholder_is_rejected(current_cluster: LocalCluster, tmp_path: Path) -> None:
    """Check that an image placeholder is rejected: no node could pull it, and `kubectl apply` reports no error."""
    overlay = write_overlay(tmp_path, filter_by_kind(select_objects("knative"), "Service"), images="")

    with pytest.raises(LocalClusterError, match=r"nothing was applied: Service begin would .* `images`"):
        apply.deploy(overlay)

    assert "applied" not in current_cluster.kubectl("get", "configmaps", "-n", NAMESPACE, "-o", "name").stdout


def test_broker_overlays_share_no_network_policy() -> None:
    """Check that the overlays of two Brokers share no network policy, so that a failed switch keeps those in use."""
    policies = [
        get_identity(policy)
        for name in BROKER_OVERLAYS
        for policy in filter_by_kind(render_overlay(name), "NetworkPolicy")
        if policy["metadata"]["name"] not in ("closed", "from-functions", "from-serving", "to-admission")
    ]

    assert len(policies) == len(set(policies)) > len(BROKER_OVERLAYS)
