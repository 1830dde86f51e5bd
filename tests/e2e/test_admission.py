"""Tests that Knative's admission webhooks (Eventing and Serving) accept all shipped manifests.

Knative's controllers run as well, so that their changes to the objects are included. The webhooks of the RabbitMQ and
Kafka Brokers do not run; for their kinds the API server has only the CRDs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from localcluster.cluster import LocalCluster
from localcluster.knative import install
from localcluster.knative.control_plane import ControlPlane
from tests.manifests.rendering import (
    INSTALLS,
    MANIFESTS,
    ROOT,
    SPARING,
    Manifest,
    identity,
    of_kind,
    overlay,
    rabbitmq_crd,
    rendered,
    sent,
)
from tests.proofs import proves

pytestmark = pytest.mark.e2e
STEPS = ("crds/nodemaintenance_crd", "namespace", "service_account", "role", "role_binding", "operator")
CLASS = "eventing.knative.dev/broker.class"
LOOSE = ("journal", "postgresql", "console", "proxied", "impersonating", "deleting", "virtualization", "cpu-labels")
"""The components that are in no overlay; the tests combine them with `plain`."""
ELSEWHERE = ("monitoring", "senders", "cert-manager")
"""The components that these tests skip.

- monitoring: the Prometheus operator's kinds, whose CRDs tests/manifests/test_monitoring.py installs
- senders: an EventPolicy, which the webhook rejects without authentication-oidc; tests/e2e/test_senders.py has it
- cert-manager: kinds without a webhook here
"""


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Yield a cluster that runs Knative's controllers and admission webhooks, without events."""
    folder = tmp_path_factory.mktemp("admission")
    with LocalCluster(folder / "servers", nodes=1, flags=install.APISERVER_FLAGS) as cluster:
        control = ControlPlane(cluster, folder / "control", (install.EVENTING, install.SERVING))
        control.install()
        cluster.kubectl("apply", "--server-side", "-f", rabbitmq_crd())
        with control:
            yield cluster


@pytest.fixture
def cleared(judged: LocalCluster) -> Iterator[LocalCluster]:
    """Yield the cluster; afterwards delete the objects that the next install contains with other immutable fields."""
    yield judged
    judged.kubectl("delete", "broker,sinkbinding", "--all", "--all-namespaces", "--cascade=foreground")


@pytest.fixture
def loose(tmp_path: Path) -> Path:
    """Return an overlay like a user's: Deployments, in memory, and the components that are in no overlay."""
    shipped = Path(*[".."] * (len(tmp_path.parts) - 1)) / MANIFESTS.relative_to("/")
    parts = ("plain", "inmemory", *LOOSE)
    content = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [str(shipped / "base")],
        "components": [str(shipped / "components" / part) for part in parts],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(content))
    return tmp_path


@proves("DRN-14")
def test_the_stepwise_files_are_accepted(cleared: LocalCluster) -> None:
    """DRN-14: the files of the stepwise install can be created.

    This test runs first: objects of an earlier install would make `kubectl create` fail.
    """
    for step in STEPS:
        cleared.kubectl("create", "-f", ROOT / "deploy" / f"{step}.yaml")


@proves("NMO-24")
@pytest.mark.parametrize("name", ["base", *INSTALLS])
def test_an_install_is_accepted_and_a_second_apply_changes_nothing(cleared: LocalCluster, name: str) -> None:
    """NMO-24: Knative accepts each install, and a second `kubectl apply` changes nothing.

    Deployments that a SinkBinding completes are sent again, without a change.
    """
    _apply_twice(cleared, MANIFESTS / "base" if name == "base" else MANIFESTS / "overlays" / name)


def test_what_no_overlay_has_is_accepted(cleared: LocalCluster, loose: Path) -> None:
    """Webhooks accept the components that are in no overlay, and the oldest API group."""
    _apply_twice(cleared, loose)
    _apply_twice(cleared, MANIFESTS / "v1alpha1")
    cleared.kubectl("delete", "-k", MANIFESTS / "v1alpha1")


def test_every_component_is_judged() -> None:
    """Check that every component is either in an overlay or listed in this module."""
    files = [file for room in ("overlays", "components") for file in (MANIFESTS / room).glob("*/kustomization.yaml")]
    folders = [file.parent / each for file in files for each in yaml.safe_load(file.read_text()).get("components", [])]
    used = {folder.resolve().relative_to(MANIFESTS / "components").parts[0] for folder in folders}

    there = {file.parent.name for file in (MANIFESTS / "components").glob("*/kustomization.yaml")}
    assert there == used | {*LOOSE, *ELSEWHERE}


def test_a_wrong_knative_service_is_refused_by_serving(judged: LocalCluster) -> None:
    """Serving's webhook rejects a `timeoutSeconds` above the cluster's limit, which the CRD accepts."""
    service = of_kind(overlay("knative"), "Service")[0]
    del service["spec"]["template"]["spec"]["serviceAccountName"]  # otherwise the webhook also looks up the account
    assert _refusal(judged, service) == ""

    service["spec"]["template"]["spec"]["timeoutSeconds"] = 9999

    said = _refusal(judged, service)
    assert 'admission webhook "validation.webhook.serving.knative.dev" denied the request' in said
    assert "timeoutSeconds" in said


def test_a_wrong_trigger_is_refused_by_eventing(judged: LocalCluster) -> None:
    """Eventing's webhook rejects a filter attribute whose name CloudEvents does not allow."""
    trigger = of_kind(overlay("knative"), "Trigger")[0]
    assert _refusal(judged, trigger) == ""

    trigger["spec"]["filter"]["attributes"]["Not-An-Attribute"] = "x"

    assert "admission webhook" in _refusal(judged, trigger)


def _refusal(cluster: LocalCluster, item: Manifest) -> str:
    """Return the API server's error for the object in a dry run, "" if it accepts the object."""
    body = json.dumps({**item, "metadata": {**item["metadata"], "namespace": "default"}})
    done = cluster.kubectl("create", "--dry-run=server", "-f", "-", input=body, check=False)
    assert done.returncode == 0 or done.stderr
    return done.stderr


def _apply_twice(cluster: LocalCluster, folder: Path) -> None:
    """Apply a directory twice, and assert that the second time changes no desired state."""
    cluster.kubectl("apply", SPARING, "-k", folder)
    bound = _bound(cluster, folder)
    before = _live(cluster, folder)
    again = cluster.kubectl("apply", SPARING, "-k", folder).stdout
    after = _live(cluster, folder)

    resent = {line.split()[0].rpartition("/")[2] for line in sent(again)}
    objects = len(again.splitlines())
    print(f"{folder.name}: {objects} objects; sent again: {', '.join(sorted(resent)) or 'none'}")
    assert resent <= bound
    assert len(before) == objects
    assert {key: _wanted(item) for key, item in after.items()} == {key: _wanted(item) for key, item in before.items()}


def _bound(cluster: LocalCluster, folder: Path) -> set[str]:
    """Return the names of the objects that the product's SinkBinding completes, once it has the broker's address.

    Kafka and RabbitMQ Brokers have no address without their controllers.
    """
    objects = rendered(folder)
    classes = [item["metadata"].get("annotations", {}).get(CLASS) for item in of_kind(objects, "Broker")]
    for item in of_kind(objects, "SinkBinding") if "MTChannelBasedBroker" in classes else []:
        where = ("-n", item["metadata"]["namespace"], f"sinkbinding/{item['metadata']['name']}")
        cluster.kubectl("wait", *where, "--for=condition=Ready", "--timeout=60s")
    label = ("nodemaintenance.dev/binds", "broker")
    return {item["metadata"]["name"] for item in objects if label in item["metadata"].get("labels", {}).items()}


def _live(cluster: LocalCluster, folder: Path) -> dict[tuple[str, str, str, str], Manifest]:
    """Return identity → object for the directory's objects in the cluster."""
    found = json.loads(cluster.kubectl("get", "-k", folder, "-o", "json").stdout)["items"]
    return {identity(item): item for item in found}


def _wanted(item: Manifest) -> Manifest:
    """Return the object without the fields that controllers write."""
    metadata = {key: item["metadata"].get(key) for key in ("generation", "labels")}
    return {**{key: value for key, value in item.items() if key != "status"}, "metadata": metadata}
