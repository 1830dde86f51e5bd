"""`make deploy` over another install names incompatible objects before it applies anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from localcluster.cluster import LocalCluster
from localcluster.deploy import apply, preflight
from localcluster.errors import LocalClusterError
from tests.manifests.rendering import Manifest, identity, of_kind, overlay
from tests.proofs import proves

SPACE = "switched"
KINDS = "brokers.eventing.knative.dev,services,services.serving.knative.dev,routes.serving.knative.dev,configmaps"
BROKERS = ("plain", "rabbitmq", "kafka")
IMAGES = "images: [{name: nodemaintenance, newName: registry.example/nodemaintenance}]"


def chosen(name: str) -> list[Manifest]:
    """Return an overlay's Broker and the Services of `begin`, moved to a test namespace."""
    found = of_kind(overlay(name), "Broker", "Service")
    kept = [item for item in found if item["kind"] == "Broker" or item["metadata"]["name"] == "begin"]
    for item in kept:
        item["metadata"]["namespace"] = SPACE
    return kept


def made_by_serving(cluster: LocalCluster) -> Manifest:
    """Build the core Service that Serving's Route creates; without its owner it would be garbage-collected."""
    kind = {"apiVersion": "serving.knative.dev/v1", "kind": "Route"}
    route = {**kind, "metadata": {"name": "begin", "namespace": SPACE}, "spec": {}}
    made = json.loads(cluster.kubectl("create", "-o", "json", "-f", "-", input=json.dumps(route)).stdout)
    owner = {**kind, "name": "begin", "uid": made["metadata"]["uid"], "controller": True}
    metadata = {"name": "begin", "namespace": SPACE, "ownerReferences": [owner]}
    spec = {"type": "ExternalName", "externalName": "begin.example"}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def written(folder: Path, items: list[Manifest], images: str = IMAGES) -> str:
    """Write an overlay of these objects with their image, and a ConfigMap that shows whether it was applied."""
    mark = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied", "namespace": SPACE}}
    (folder / "all.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*items, mark]}))
    (folder / "kustomization.yaml").write_text(f"resources: [all.json]\n{images}\n")
    return str(folder)


@pytest.fixture
def switched(knative: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    """Return the cluster as the current one, with an empty namespace."""
    monkeypatch.setenv("KUBECONFIG", str(knative.kubeconfig))
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}}
    knative.kubectl("apply", "-f", "-", input=json.dumps(space))
    knative.kubectl("delete", KINDS, "--all", "-n", SPACE)
    return knative


def applied(cluster: LocalCluster, items: list[Manifest]) -> None:
    cluster.kubectl("create", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))


@pytest.mark.slow
@proves("NMO-26a")
@pytest.mark.parametrize("name", ["rabbitmq", "kafka"])
def test_a_broker_of_another_class_is_named_and_nothing_applied(
    switched: LocalCluster, tmp_path: Path, name: str
) -> None:
    """Check that another Broker class stops the deployment; Eventing's webhook would only reject the Broker itself.

    `kubectl apply` would then apply all other objects.
    """
    applied(switched, of_kind(chosen("plain"), "Broker"))

    with pytest.raises(LocalClusterError, match=r"nothing was applied.*Broker switched/default is of.* MTChann"):
        apply.deploy(written(tmp_path, of_kind(chosen(name), "Broker")))

    assert "applied" not in switched.kubectl("get", "configmaps", "-n", SPACE, "-o", "name").stdout


@pytest.mark.slow
@proves("NMO-26a")
@pytest.mark.parametrize(
    ("there", "wanted", "said"), [("plain", "knative", "is not of Knative"), ("knative", "plain", "is of Knative")]
)
def test_a_service_of_the_other_way_to_serve_is_named(
    switched: LocalCluster, tmp_path: Path, there: str, wanted: str, said: str
) -> None:
    """Check that a Service of the other way to serve functions is named in the error.

    Serving would mark its Route as `ServiceNotOwned` permanently. In the other direction, it would restore its own
    Service.
    """
    [service] = of_kind(chosen(there), "Service")
    applied(switched, [made_by_serving(switched) if there == "knative" else service])

    with pytest.raises(LocalClusterError, match=f"Service switched/begin {said} Serving; see"):
        apply.deploy(written(tmp_path, of_kind(chosen(wanted), "Service")))


@proves("NMO-26a")
def test_the_same_choice_comes_over_itself(switched: LocalCluster, tmp_path: Path) -> None:
    """Check that the same overlay can be applied again, as in an upgrade."""
    applied(switched, [*chosen("knative"), made_by_serving(switched)])

    apply.deploy(written(tmp_path, chosen("knative")))

    assert "applied" in switched.kubectl("get", "configmaps", "-n", SPACE, "-o", "name").stdout


ROBBED = {
    "one Service to one each": ("compact", "knative", {("node-maintenance", "functions")}),
    "one each to one Service": ("knative", "compact", set()),
    "Deployments": ("knative", "plain", set()),
    "another broker": ("plain", "rabbitmq", set()),
    "names of its own": ("knative", "hyperconverged", set()),
}


@pytest.mark.parametrize(("there", "wanted", "lost"), ROBBED.values(), ids=ROBBED)
def test_accounts_that_would_lose_their_rights_are_known(there: str, wanted: str, lost: set[tuple[str, str]]) -> None:
    """NMO-26a: `make deploy` detects the accounts that lose their role bindings to bindings with the same name."""
    assert preflight.robbed(overlay(wanted), of_kind(overlay(there), "ClusterRoleBinding")) == lost


@pytest.mark.slow
@proves("NMO-26a")
@pytest.mark.parametrize("is_there", [True, False])
def test_the_rights_of_another_install_are_not_taken(switched: LocalCluster, tmp_path: Path, is_there: bool) -> None:
    """Check that an existing account of another install keeps its rights; a binding without its account is replaced."""
    (binding, *_) = of_kind(overlay("knative"), "ClusterRoleBinding")
    name, account = f"robbed-{is_there}", {"apiVersion": "v1", "kind": "ServiceAccount"}
    binding = {**binding, "metadata": {"name": name.lower()}}
    other = {"kind": "ServiceAccount", "namespace": SPACE, "name": name.lower()}
    accounts = [{**account, "metadata": {"namespace": SPACE, "name": name.lower()}}] if is_there else []
    applied(switched, [{**binding, "subjects": [other]}, *accounts])

    try:
        apply.deploy(written(tmp_path, [binding]))
        said = ""
    except LocalClusterError as error:
        said = str(error)

    assert ("nothing was applied" in said) is is_there
    assert ("ServiceAccount switched/robbed-true would lose its cluster roles; see" in said) is is_there
    assert ("applied" in switched.kubectl("get", "configmaps", "-n", SPACE, "-o", "name").stdout) is not is_there


@pytest.mark.slow
@proves("NMO-26a")
def test_a_name_that_stands_for_the_image_is_not_applied(switched: LocalCluster, tmp_path: Path) -> None:
    """Check that an image placeholder is rejected: no node could pull it, and `kubectl apply` reports no error."""
    overlay_as_it_is = written(tmp_path, of_kind(chosen("knative"), "Service"), images="")

    with pytest.raises(LocalClusterError, match=r"nothing was applied, since Service begin would .* `images`"):
        apply.deploy(overlay_as_it_is)

    assert "applied" not in switched.kubectl("get", "configmaps", "-n", SPACE, "-o", "name").stdout


def test_no_two_brokers_share_a_policy() -> None:
    """Check that the overlays of two Brokers share no network policy, so that a failed switch keeps those in use."""
    policies = [
        identity(policy)
        for name in BROKERS
        for policy in of_kind(overlay(name), "NetworkPolicy")
        if policy["metadata"]["name"] not in ("closed", "from-functions", "from-serving", "to-admission")
    ]

    assert len(policies) == len(set(policies)) > len(BROKERS)
