"""Tests that the commands in other operators' documentation work unchanged on a cluster that runs the product.

Only one path differs from the documentation. Two operators document the path
`config/samples/nodemaintenance_v1beta1_nodemaintenance.yaml`, each for a different API group. The sample of KubeVirt's
operator is therefore in a separate file in the same directory.
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
from tests.chain.environment import EventChainEnvironment
from tests.proofs import proves

ROOT = Path(__file__).parents[2]
SAMPLES_DIR = ROOT / "config" / "samples"
OLDEST_CRD_NAME = "nodemaintenances.kubevirt.io"
Kubectl = Callable[..., str]


@pytest.fixture(scope="module")
def documented_environment(installed_cluster: LocalCluster, product: Product) -> Iterator[EventChainEnvironment]:
    """Yield a cluster with the nodes that the documentation names; it does not serve the oldest API group."""
    environment = EventChainEnvironment(installed_cluster, product)
    with closing(environment.client):
        for name in ("node02", "node-1.example.com"):
            environment.create_node(name)
        yield environment
        installed_cluster.kubectl("delete", "node", "node02", "node-1.example.com")


@pytest.fixture
def run_kubectl_line(documented_environment: EventChainEnvironment, tmp_path: Path) -> Kubectl:
    """Return a function that runs a kubectl command line with an empty discovery cache, and returns the output."""

    def run_line(line: str) -> str:
        arguments = [str(ROOT / argument) if argument.endswith(".yaml") else argument for argument in line.split()]
        return documented_environment.cluster.kubectl(*arguments, "--cache-dir", tmp_path).stdout

    return run_line


def read_status(run_kubectl_line: Kubectl, line: str) -> Object:
    """Run a `get -o yaml` command line, and return the status in its output."""
    status: Object = yaml.safe_load(run_kubectl_line(line))["status"]
    return status


@proves("NMO-1", "NMO-10", "NMO-15")
def test_commands_in_medik8s_documentation_work(
    documented_environment: EventChainEnvironment, run_kubectl_line: Kubectl
) -> None:
    """Check that medik8s's documented commands apply the sample, read its status, and delete it by short name."""
    file = "config/samples/nodemaintenance_v1beta1_nodemaintenance.yaml"
    name = "nodemaintenance.nodemaintenance.medik8s.io"

    assert run_kubectl_line(f"apply -f {file}") == f"{name}/nodemaintenance-sample created\n"
    documented_environment.wait_for_state(f"{MEDIK8S.path}/nodemaintenance-sample")
    status = read_status(run_kubectl_line, "get nm nodemaintenance-sample -o yaml")
    delete_output = run_kubectl_line("delete nm nodemaintenance-sample")

    fields = {"drainProgress", "evictionPods", "lastUpdate", "pendingPods", "phase", "totalpods"}
    assert fields <= status.keys()
    assert (status["phase"], status["drainProgress"]) == ("Succeeded", 100)
    assert delete_output == f'{name} "nodemaintenance-sample" deleted\n'


@proves("KNM-1", "KNM-1a", "KNM-2", "C7")
def test_commands_in_kubevirt_documentation_work(
    documented_environment: EventChainEnvironment, run_kubectl_line: Kubectl
) -> None:
    """Check that KubeVirt's documented commands work with the sample's documented name, and uncordon the node."""
    file = "config/samples/nodemaintenance_v1beta1_kubevirt.yaml"

    assert run_kubectl_line(f"apply -f {file}").endswith("/nodemaintenance-sample created\n")
    documented_environment.wait_for_state(f"{KUBEVIRT.path}/nodemaintenance-sample")
    status = read_status(run_kubectl_line, "get nodemaintenance nodemaintenance-sample -o yaml")
    assert documented_environment.get_node_spec("node02")["unschedulable"] is True
    run_kubectl_line("delete nodemaintenance nodemaintenance-sample")

    assert {"phase", "pendingPods", "totalPods", "evictionPods"} <= status.keys()
    assert not documented_environment.get_node_spec("node02").get("unschedulable")


@proves("OSV-11", "OSV-13", "C7")
def test_commands_in_openshift_virtualization_documentation_work(
    documented_environment: EventChainEnvironment, run_kubectl_line: Kubectl
) -> None:
    """Check that OpenShift Virtualization's documented commands work, and print the documented lines."""
    name = "nodemaintenance.nodemaintenance.kubevirt.io"

    assert (
        run_kubectl_line("apply -f config/samples/nodemaintenance-cr.yaml") == f"{name}/maintenance-example created\n"
    )
    documented_environment.wait_for_state(f"{KUBEVIRT.path}/maintenance-example")
    maintenance_list = yaml.safe_load(run_kubectl_line("get NodeMaintenance -o yaml"))
    delete_output = run_kubectl_line("delete -f config/samples/nodemaintenance-cr.yaml")

    (maintenance,) = (
        candidate for candidate in maintenance_list["items"] if candidate["metadata"]["name"] == "maintenance-example"
    )
    assert maintenance_list["apiVersion"] == "v1"
    assert maintenance["spec"] == {"nodeName": "node-1.example.com", "reason": "Node maintenance"}
    assert {"evictionPods", "pendingPods", "phase", "totalpods"} <= maintenance["status"].keys()
    assert delete_output == f'{name} "maintenance-example" deleted\n'


@pytest.fixture
def remove_oldest_api(documented_environment: EventChainEnvironment) -> Iterator[None]:
    """Remove the oldest API's CRD after the test, because the bare resource name refers to it while it is served."""
    yield
    documented_environment.cluster.kubectl("delete", "crd", OLDEST_CRD_NAME, "--ignore-not-found")


@pytest.mark.slow
@pytest.mark.usefixtures("remove_oldest_api")
@proves("DRN-12", "DRN-13", "NMO-17a", "C3", "C9")
def test_commands_in_node_drain_documentation_work(
    documented_environment: EventChainEnvironment, run_kubectl_line: Kubectl
) -> None:
    """Check that the two files in the oldest operator's documentation create the API and the NodeMaintenance.

    The node is then `Ready,SchedulingDisabled`. The node and the log line have both taints in the documented order. The
    deletion of the NodeMaintenance uncordons the node.
    """
    create_output = run_kubectl_line("create -f deploy/crds/nodemaintenance_crd.yaml")
    documented_environment.cluster.wait_for_crds(OLDEST_CRD_NAME)

    apply_output = run_kubectl_line("apply -f deploy/crds/nodemaintenance_cr.yaml")
    documented_environment.wait_for_state(f"{KUBEVIRT_ALPHA.path}/nodemaintenance-xyz")

    taints = documented_environment.get_node_spec("node02")["taints"]
    assert create_output == f"customresourcedefinition.apiextensions.k8s.io/{OLDEST_CRD_NAME} created\n"
    assert apply_output == "nodemaintenance.kubevirt.io/nodemaintenance-xyz created\n"
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
