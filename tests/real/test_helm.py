"""Tests for the Helm chart on real nodes: the documented install, a drain during an upgrade, and the uninstall."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest

from localcluster.access import NAMESPACE
from localcluster.knative import pod_install
from localcluster.nodes import preflight, product_image
from localcluster.programs import build
from tests.localcluster.commands import wait_until
from tests.machine_speed import measure_slowdown
from tests.manifests.helm import read_documented_arguments, run_helm
from tests.proofs import proves
from tests.real import applied_manifests, maintenances
from tests.real.environment import (
    APPS_PATH,
    RealNodesEnvironment,
    build_pod_spec,
    build_pods_ready_predicate,
    build_workload,
)
from tests.real.installed_environment import BUDGET_PATCH, MAX_DRAIN_SECONDS
from tests.real.self_drain import find_node_with_most_pods, is_in_progress

pytestmark = [pytest.mark.installs, pytest.mark.timeout(1200)]
DOCUMENTED_IMAGE = "registry.example/nodemaintenance"
DEPLOYMENTS_OPTIONS = ("--set", f"functions=deployments,image.tag=v{product_image.VERSION}")
"""The nodes have no Knative Serving, and the tests' image has another version than the chart."""
UPGRADED_TAG = "v0.0.1"
OWN_NAME_PATTERN = re.compile("node-?maintenance")
KEPT_NAMES = {
    "customresourcedefinition.apiextensions.k8s.io/nodemaintenances.nodemaintenance.kubevirt.io",
    "customresourcedefinition.apiextensions.k8s.io/nodemaintenances.nodemaintenance.medik8s.io",
    f"namespace/{NAMESPACE}",
}


@pytest.fixture(scope="module")
def bare_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNodesEnvironment]:
    """Yield two real nodes with Knative Eventing as pods, and with two tags of the product's image."""
    preflight.check_host()
    build.build_all([build.NODES, build.KNATIVE, build.HELM])
    with pod_install.start_real_cluster(tmp_path_factory.mktemp("helm") / "cluster") as (cluster, nodes):
        for node in nodes.nodes:
            node.tag_image(product_image.IMAGE, f"{product_image.IMAGE_NAME}:{UPGRADED_TAG}")
        environment = RealNodesEnvironment(cluster, nodes)
        environment.client.patch(
            "/apis/policy/v1/namespaces/knative-eventing/poddisruptionbudgets/eventing-webhook", BUDGET_PATCH
        )
        yield environment


def run_documented_command(
    environment: RealNodesEnvironment, heading: str, subcommand: str, *options: str, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a command of docs/helm.md with the tests' image and further options."""
    arguments = read_documented_arguments(heading, subcommand)
    arguments = [argument.replace(DOCUMENTED_IMAGE, product_image.IMAGE_NAME) for argument in arguments]
    return run_helm(*arguments, *options, kubeconfig=environment.cluster.kubeconfig, check=check)


@proves("NMO-24")
def test_documented_commands_install_drain_upgrade_and_uninstall(bare_environment: RealNodesEnvironment) -> None:
    """NMO-24: the commands of docs/helm.md install the release, test it, upgrade it during a drain and remove it.

    The drained node is the one with most of the product's pods. The uninstall is refused until the maintenance has
    ended. After the uninstall, only the CRDs, the namespaces and the Secret `signing` remain.
    """
    cluster = bare_environment.cluster
    web = build_pod_spec("exec sleep 1000", terminationGracePeriodSeconds=1)
    bare_environment.client.create(f"{APPS_PATH}/deployments", build_workload("web", {"replicas": 6}, web))
    bare_environment.wait_for_pods("web", build_pods_ready_predicate(6))

    run_documented_command(bare_environment, "Install", "install", *DEPLOYMENTS_OPTIONS)
    pod_install.wait_until_ready(cluster)
    assert len(applied_manifests.list_ready_pods(bare_environment)) > 20
    run_documented_command(bare_environment, "Install", "test")
    assert "nodemaintenance-helm-test" not in cluster.kubectl("get", "clusterrole", "-o", "name").stdout
    assert cluster.kubectl("get", "nodemaintenances.nodemaintenance.medik8s.io", "-o", "name").stdout == ""

    node, limit = find_node_with_most_pods(bare_environment), MAX_DRAIN_SECONDS * measure_slowdown()
    maintenances.create_maintenance(bare_environment, "upgraded", node)
    maintenances.wait_for_maintenance(bare_environment, "upgraded", is_in_progress, limit)
    run_documented_command(bare_environment, "Upgrade", "upgrade", "--set", f"image.tag={UPGRADED_TAG}")
    maintenances.wait_until_succeeded(bare_environment, "upgraded", limit)

    refused = run_documented_command(bare_environment, "Uninstall", "uninstall", check=False)
    assert refused.returncode != 0
    assert "nodemaintenance.nodemaintenance.medik8s.io/upgraded" in refused.stdout + refused.stderr
    maintenances.end_maintenance(bare_environment, "upgraded", node)
    pod_install.wait_until_ready(cluster)
    assert wait_until(lambda: list_tags(bare_environment) == {UPGRADED_TAG})
    bare_environment.wait_for_pods("web", build_pods_ready_predicate(6))

    run_documented_command(bare_environment, "Uninstall", "uninstall", "--wait")
    kinds = "crd,clusterrole,clusterrolebinding,validatingwebhookconfiguration,priorityclass,namespace"
    remaining = cluster.kubectl("get", kinds, "-o", "name").stdout.split()
    assert {name for name in remaining if OWN_NAME_PATTERN.search(name)} == KEPT_NAMES
    assert "sh.helm.release" not in cluster.kubectl("get", "secrets", "-n", NAMESPACE, "-o", "name").stdout


def list_tags(environment: RealNodesEnvironment) -> set[str]:
    """Return the tags of the product's image that the pods use."""
    pods = environment.client.list(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
    images = {container["image"] for pod in pods for container in pod["spec"]["containers"]}
    return {image.rpartition(":")[2] for image in images if image.startswith(product_image.IMAGE_NAME)}
