"""The commands of the operators' documents, unchanged, on a cluster that runs the product.

One path differs. Two documents use `config/samples/nodemaintenance_v1beta1_nodemaintenance.yaml`, each for its own API
group. The sample of KubeVirt's operator is therefore in a separate file in the same directory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from kube.maintenance.groups import KUBEVIRT, KUBEVIRT_ALPHA, MEDIK8S
from kube.paths import Object
from localcluster.cluster import LocalCluster
from localcluster.product import Product
from tests.chain.environment import Scene
from tests.proofs import proves

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "config" / "samples"
OLDEST = "nodemaintenances.kubevirt.io"
Kubectl = Callable[..., str]


@pytest.fixture(scope="module")
def documented(installed: LocalCluster, product: Product) -> Iterator[Scene]:
    """Yield a cluster with the documents' nodes, which does not serve the oldest API."""
    scene = Scene(installed, product)
    with closing(scene.admin):
        for name in ("node02", "node-1.example.com"):
            scene.node(name)
        yield scene
        installed.kubectl("delete", "node", "node02", "node-1.example.com")


@pytest.fixture
def kubectl(documented: Scene, tmp_path: Path) -> Kubectl:
    """Return a function that runs a kubectl command line with an empty discovery cache and returns the output."""

    def runs(line: str) -> str:
        words = [str(ROOT / word) if word.endswith(".yaml") else word for word in line.split()]
        return documented.cluster.kubectl(*words, "--cache-dir", tmp_path).stdout

    return runs


def status_of(kubectl: Kubectl, line: str) -> Object:
    """Return the status from the output of a `get -o yaml` command."""
    status: Object = yaml.safe_load(kubectl(line))["status"]
    return status


@proves("NMO-1", "NMO-10", "NMO-15")
def test_the_document_of_medik8s(documented: Scene, kubectl: Kubectl) -> None:
    """Check that the commands of medik8s' document work: apply the sample, read its status, delete it as `nm`."""
    file = "config/samples/nodemaintenance_v1beta1_nodemaintenance.yaml"
    name = "nodemaintenance.nodemaintenance.medik8s.io"

    assert kubectl(f"apply -f {file}") == f"{name}/nodemaintenance-sample created\n"
    documented.reaches(f"{MEDIK8S.path}/nodemaintenance-sample")
    status = status_of(kubectl, "get nm nodemaintenance-sample -o yaml")
    deleted = kubectl("delete nm nodemaintenance-sample")

    fields = {"drainProgress", "evictionPods", "lastUpdate", "pendingPods", "phase", "totalpods"}
    assert fields <= status.keys()
    assert (status["phase"], status["drainProgress"]) == ("Succeeded", 100)
    assert deleted == f'{name} "nodemaintenance-sample" deleted\n'


@proves("KNM-1", "KNM-1a", "KNM-2", "C7")
def test_the_document_of_kubevirt(documented: Scene, kubectl: Kubectl) -> None:
    """Check that the commands of KubeVirt's document work, with the documented sample name; the node is uncordoned."""
    file = "config/samples/nodemaintenance_v1beta1_kubevirt.yaml"

    assert kubectl(f"apply -f {file}").endswith("/nodemaintenance-sample created\n")
    documented.reaches(f"{KUBEVIRT.path}/nodemaintenance-sample")
    status = status_of(kubectl, "get nodemaintenance nodemaintenance-sample -o yaml")
    assert documented.spec("node02")["unschedulable"] is True
    kubectl("delete nodemaintenance nodemaintenance-sample")

    assert {"phase", "pendingPods", "totalPods", "evictionPods"} <= status.keys()
    assert not documented.spec("node02").get("unschedulable")


@proves("OSV-11", "OSV-13", "C7")
def test_the_document_of_openshift_virtualization(documented: Scene, kubectl: Kubectl) -> None:
    """Check that the commands of OpenShift Virtualization's document work and print the documented lines."""
    name = "nodemaintenance.nodemaintenance.kubevirt.io"

    assert kubectl("apply -f config/samples/nodemaintenance-cr.yaml") == f"{name}/maintenance-example created\n"
    documented.reaches(f"{KUBEVIRT.path}/maintenance-example")
    listed = yaml.safe_load(kubectl("get NodeMaintenance -o yaml"))
    deleted = kubectl("delete -f config/samples/nodemaintenance-cr.yaml")

    (item,) = (each for each in listed["items"] if each["metadata"]["name"] == "maintenance-example")
    assert listed["apiVersion"] == "v1"
    assert item["spec"] == {"nodeName": "node-1.example.com", "reason": "Node maintenance"}
    assert {"evictionPods", "pendingPods", "phase", "totalpods"} <= item["status"].keys()
    assert deleted == f'{name} "maintenance-example" deleted\n'


@pytest.fixture
def without_the_oldest(documented: Scene) -> Iterator[None]:
    """Remove the oldest API after the test; while it is served, the bare resource name refers to it."""
    yield
    documented.cluster.kubectl("delete", "crd", OLDEST, "--ignore-not-found")


@pytest.mark.slow
@pytest.mark.usefixtures("without_the_oldest")
@proves("DRN-12", "DRN-13", "NMO-17a", "C3", "C9")
def test_the_document_of_the_node_drain(documented: Scene, kubectl: Kubectl) -> None:
    """Check that the two files of the oldest operator's document create the API and the NodeMaintenance.

    The node is Ready,SchedulingDisabled and has both taints in the documented order, as does the log line. The deletion
    uncordons the node.
    """
    made = kubectl("create -f deploy/crds/nodemaintenance_crd.yaml")
    documented.cluster.await_kinds(OLDEST)

    applied = kubectl("apply -f deploy/crds/nodemaintenance_cr.yaml")
    documented.reaches(f"{KUBEVIRT_ALPHA.path}/nodemaintenance-xyz")

    taints = documented.spec("node02")["taints"]
    assert made == f"customresourcedefinition.apiextensions.k8s.io/{OLDEST} created\n"
    assert applied == "nodemaintenance.kubevirt.io/nodemaintenance-xyz created\n"
    assert kubectl("get node node02 --no-headers").split()[1] == "Ready,SchedulingDisabled"
    assert [(taint["key"], taint["effect"], taint.get("value")) for taint in taints] == [
        ("node.kubernetes.io/unschedulable", "NoSchedule", None),
        ("kubevirt.io/drain", "NoSchedule", None),
    ]
    said = [json.loads(line) for line in documented.product.functions_log.read_text().splitlines()]
    assert [(line["Request.Name"], line["msg"]) for line in said if line["msg"].startswith("Taints: ")][-1] == (
        "nodemaintenance-xyz",
        'Taints: [{"key":"node.kubernetes.io/unschedulable","effect":"NoSchedule"},'
        '{"key":"kubevirt.io/drain","effect":"NoSchedule"}] will be added to node node02',
    )

    kubectl("delete -f deploy/crds/nodemaintenance_cr.yaml")

    assert not documented.spec("node02").get("unschedulable")
