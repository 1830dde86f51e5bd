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
from tests.chain.environment import ChainEnvironment
from tests.proofs import proves

ROOT = Path(__file__).parents[2]
SAMPLES_DIR = ROOT / "config" / "samples"
OLDEST_CRD_NAME = "nodemaintenances.kubevirt.io"
Kubectl = Callable[..., str]


@pytest.fixture(scope="module")
def documented_environment(installed_cluster: LocalCluster, product: Product) -> Iterator[ChainEnvironment]:
    """Yield a cluster with the documents' nodes, which does not serve the oldest API."""
    environment = ChainEnvironment(installed_cluster, product)
    with closing(environment.client):
        for name in ("node02", "node-1.example.com"):
            environment.create_node(name)
        yield environment
        installed_cluster.kubectl("delete", "node", "node02", "node-1.example.com")


@pytest.fixture
def run_kubectl_line(documented_environment: ChainEnvironment, tmp_path: Path) -> Kubectl:
    """Return a function that runs a kubectl command line with an empty discovery cache and returns the output."""

    def run_line(line: str) -> str:
        arguments = [str(ROOT / argument) if argument.endswith(".yaml") else argument for argument in line.split()]
        return documented_environment.cluster.kubectl(*arguments, "--cache-dir", tmp_path).stdout

    return run_line


def read_status(kubectl: Kubectl, line: str) -> Object:
    """Return the status from the output of a `get -o yaml` command."""
    status: Object = yaml.safe_load(kubectl(line))["status"]
    return status


@proves("NMO-1", "NMO-10", "NMO-15")
def test_commands_of_the_medik8s_document(documented_environment: ChainEnvironment, run_kubectl_line: Kubectl) -> None:
    """Check that the commands of medik8s' document work: apply the sample, read its status, delete it as `nm`."""
    file = "config/samples/nodemaintenance_v1beta1_nodemaintenance.yaml"
    name = "nodemaintenance.nodemaintenance.medik8s.io"

    assert run_kubectl_line(f"apply -f {file}") == f"{name}/nodemaintenance-sample created\n"
    documented_environment.await_state(f"{MEDIK8S.path}/nodemaintenance-sample")
    status = read_status(run_kubectl_line, "get nm nodemaintenance-sample -o yaml")
    deleted = run_kubectl_line("delete nm nodemaintenance-sample")

    fields = {"drainProgress", "evictionPods", "lastUpdate", "pendingPods", "phase", "totalpods"}
    assert fields <= status.keys()
    assert (status["phase"], status["drainProgress"]) == ("Succeeded", 100)
    assert deleted == f'{name} "nodemaintenance-sample" deleted\n'


@proves("KNM-1", "KNM-1a", "KNM-2", "C7")
def test_commands_of_the_kubevirt_document(documented_environment: ChainEnvironment, run_kubectl_line: Kubectl) -> None:
    """Check that the commands of KubeVirt's document work, with the documented sample name; the node is uncordoned."""
    file = "config/samples/nodemaintenance_v1beta1_kubevirt.yaml"

    assert run_kubectl_line(f"apply -f {file}").endswith("/nodemaintenance-sample created\n")
    documented_environment.await_state(f"{KUBEVIRT.path}/nodemaintenance-sample")
    status = read_status(run_kubectl_line, "get nodemaintenance nodemaintenance-sample -o yaml")
    assert documented_environment.get_node_spec("node02")["unschedulable"] is True
    run_kubectl_line("delete nodemaintenance nodemaintenance-sample")

    assert {"phase", "pendingPods", "totalPods", "evictionPods"} <= status.keys()
    assert not documented_environment.get_node_spec("node02").get("unschedulable")


@proves("OSV-11", "OSV-13", "C7")
def test_commands_of_the_openshift_virtualization_document(
    documented_environment: ChainEnvironment, run_kubectl_line: Kubectl
) -> None:
    """Check that the commands of OpenShift Virtualization's document work and print the documented lines."""
    name = "nodemaintenance.nodemaintenance.kubevirt.io"

    assert (
        run_kubectl_line("apply -f config/samples/nodemaintenance-cr.yaml") == f"{name}/maintenance-example created\n"
    )
    documented_environment.await_state(f"{KUBEVIRT.path}/maintenance-example")
    listed = yaml.safe_load(run_kubectl_line("get NodeMaintenance -o yaml"))
    deleted = run_kubectl_line("delete -f config/samples/nodemaintenance-cr.yaml")

    (item,) = (candidate for candidate in listed["items"] if candidate["metadata"]["name"] == "maintenance-example")
    assert listed["apiVersion"] == "v1"
    assert item["spec"] == {"nodeName": "node-1.example.com", "reason": "Node maintenance"}
    assert {"evictionPods", "pendingPods", "phase", "totalpods"} <= item["status"].keys()
    assert deleted == f'{name} "maintenance-example" deleted\n'


@pytest.fixture
def remove_oldest_api(documented_environment: ChainEnvironment) -> Iterator[None]:
    """Remove the oldest API after the test; while it is served, the bare resource name refers to it."""
    yield
    documented_environment.cluster.kubectl("delete", "crd", OLDEST_CRD_NAME, "--ignore-not-found")


@pytest.mark.slow
@pytest.mark.usefixtures("remove_oldest_api")
@proves("DRN-12", "DRN-13", "NMO-17a", "C3", "C9")
def test_commands_of_the_node_drain_document(
    documented_environment: ChainEnvironment, run_kubectl_line: Kubectl
) -> None:
    """Check that the two files of the oldest operator's document create the API and the NodeMaintenance.

    The node is Ready,SchedulingDisabled and has both taints in the documented order, as does the log line. The deletion
    uncordons the node.
    """
    created = run_kubectl_line("create -f deploy/crds/nodemaintenance_crd.yaml")
    documented_environment.cluster.await_crds(OLDEST_CRD_NAME)

    applied = run_kubectl_line("apply -f deploy/crds/nodemaintenance_cr.yaml")
    documented_environment.await_state(f"{KUBEVIRT_ALPHA.path}/nodemaintenance-xyz")

    taints = documented_environment.get_node_spec("node02")["taints"]
    assert created == f"customresourcedefinition.apiextensions.k8s.io/{OLDEST_CRD_NAME} created\n"
    assert applied == "nodemaintenance.kubevirt.io/nodemaintenance-xyz created\n"
    assert run_kubectl_line("get node node02 --no-headers").split()[1] == "Ready,SchedulingDisabled"
    assert [(taint["key"], taint["effect"], taint.get("value")) for taint in taints] == [
        ("node.kubernetes.io/unschedulable", "NoSchedule", None),
        ("kubevirt.io/drain", "NoSchedule", None),
    ]
    log_records = [json.loads(line) for line in documented_environment.product.functions_log.read_text().splitlines()]
    assert [(line["Request.Name"], line["msg"]) for line in log_records if line["msg"].startswith("Taints: ")][-1] == (
        "nodemaintenance-xyz",
        'Taints: [{"key":"node.kubernetes.io/unschedulable","effect":"NoSchedule"},'
        '{"key":"kubevirt.io/drain","effect":"NoSchedule"}] will be added to node node02',
    )

    run_kubectl_line("delete -f deploy/crds/nodemaintenance_cr.yaml")

    assert not documented_environment.get_node_spec("node02").get("unschedulable")
