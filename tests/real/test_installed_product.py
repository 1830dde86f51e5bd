"""Tests for the product as a user installs it: its image and Knative run as pods, with unchanged manifests."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from eventing import events
from kube.maintenance.groups import KUBEVIRT, MEDIK8S, ApiGroup
from localcluster.access import NAMESPACE
from localcluster.demo import real_nodes as demo
from localcluster.demo.common import DemoError
from localcluster.knative import pod_install
from localcluster.knative.product import PLAIN_OVERLAY
from localcluster.nodes import preflight, product_image
from localcluster.programs import build
from tests.localcluster.commands import wait_until
from tests.machine_speed import measure_slowdown
from tests.proofs import proves
from tests.real import applied_manifests, maintenances, self_drain
from tests.real.environment import APPS_PATH, build_pod_spec, build_pods_ready_predicate, build_workload
from tests.real.installed_environment import (
    BUDGET_PATCH,
    MAX_DRAIN_SECONDS,
    InstalledEnvironment,
    assert_drain_within_limits,
    install_product,
)

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]
UPGRADED_IMAGE = f"{product_image.IMAGE_NAME}:v0.0.1"
"""A second tag for the product's image."""
PODSOURCE_DEPLOYMENT, MAX_PODSOURCE_GENERATION = "podsource-deployment", 4
"""PodSource's Deployment, and the maximum generation of this Deployment.

The ContainerSource creates the Deployment, and its SinkBinding adds environment variables. Each of the two controllers
may overwrite the other's write once.
"""


@pytest.fixture(scope="module")
def installed_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InstalledEnvironment]:
    """Yield two real nodes with Knative and the product as pods."""
    preflight.check_host()
    for tools in (build.NODES, build.KNATIVE):
        build.ensure_programs(tools)
    folder = tmp_path_factory.mktemp("shipped")
    with (
        pod_install.start_real_cluster(folder / "cluster") as (cluster, nodes),
        install_product(cluster, nodes, folder, PLAIN_OVERLAY, product_image.IMAGE) as environment,
    ):
        environment.client.patch(
            "/apis/policy/v1/namespaces/knative-eventing/poddisruptionbudgets/eventing-webhook", BUDGET_PATCH
        )
        yield environment


@proves("X-7")
@pytest.mark.parametrize("group", [MEDIK8S, KUBEVIRT], ids=lambda group: group.api_version)
def test_maintenance_drains_and_restores_node(installed_environment: InstalledEnvironment, group: ApiGroup) -> None:
    """Check that a kwok node, on which no pod of the product runs, is drained and restored if Knative runs as pods."""
    name = group.api_version.split(".")[1]
    maintenances.create_maintenance(installed_environment, name, "node-1", group)
    maintenances.wait_until_succeeded(installed_environment, name, group=group)
    maintenances.end_maintenance(installed_environment, name, "node-1", group)

    assert wait_until(
        lambda: events.NODE_RESTORED in self_drain.read_event_types(installed_environment.journal_url, name)
    )


def test_demo_drains_and_restores_node(
    installed_environment: InstalledEnvironment, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that `make demo-real` prints the drained and restored node, and the product's evicted pods."""
    demo.drain_product_node(installed_environment.cluster, installed_environment.nodes)

    output = capsys.readouterr().out
    assert re.search(r"^demo +real-1 +Succeeded +Drained +100 +0 ", output, re.MULTILINE)
    assert re.search(r"^• (1\d|2\d) pods of the product left real-1 in ", output, re.MULTILINE)
    assert re.search(r"^real-1 +Ready ", output, re.MULTILINE)


def test_demo_fails_if_container_still_runs(installed_environment: InstalledEnvironment) -> None:
    """Check that the demo fails if a container still runs on the drained node."""
    pods = installed_environment.client.list(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
    running_pod = next(pod for pod in pods if pod["spec"].get("nodeName") == "real-2")
    with pytest.raises(DemoError, match=running_pod["metadata"]["name"]):
        demo.check_pods_gone(installed_environment.cluster, installed_environment.nodes, [running_pod])


@proves("NMO-24")
def test_second_apply_changes_nothing(installed_environment: InstalledEnvironment) -> None:
    """Check that a second apply changes nothing, and that all pods are Ready with the shipped manifests.

    The manifests set probes, limits, tokens and a read-only root file system.
    """
    pod_install.wait_until_ready(installed_environment.cluster)

    assert len(applied_manifests.list_ready_pods(installed_environment)) > 20
    applied_manifests.assert_second_apply_changes_nothing(installed_environment, installed_environment.overlay)
    source = installed_environment.client.get(
        f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{PODSOURCE_DEPLOYMENT}"
    )
    assert source["metadata"]["generation"] <= MAX_PODSOURCE_GENERATION, (
        "two of Knative's controllers keep overwriting the Deployment"
    )


@pytest.mark.alone  # The drain moves forty pods at once, which together have the CPU weight of one process.
def test_drain_succeeds_if_image_is_upgraded_during_drain(installed_environment: InstalledEnvironment) -> None:
    """Check that a drain of the product's own node succeeds although the image is upgraded during the drain.

    Functions, broker, PodSource, journal, console and a different workload move to the other node, where the drain is
    completed. No pod is evicted twice. Each eviction is in the journal, except evictions of `evict` pods, which evict
    themselves. Other events in the broker's memory are lost (docs/install.md).
    """
    web = build_pod_spec("exec sleep 1000", terminationGracePeriodSeconds=1)
    installed_environment.client.create(f"{APPS_PATH}/deployments", build_workload("web", {"replicas": 6}, web))
    installed_environment.wait_for_pods("web", build_pods_ready_predicate(6))
    for node in installed_environment.nodes.nodes:
        node.tag_image(product_image.IMAGE, UPGRADED_IMAGE)

    name = self_drain.find_node_with_most_pods(installed_environment)
    result = self_drain.drain_and_observe(
        installed_environment,
        "upgraded",
        name,
        MAX_DRAIN_SECONDS * measure_slowdown(),
        lambda: installed_environment.apply_image(UPGRADED_IMAGE),
    )
    pod_install.wait_until_ready(installed_environment.cluster)

    assert_drain_within_limits(installed_environment, result)
    installed_environment.wait_for_pods("web", build_pods_ready_predicate(6))
    assert wait_until(lambda: list_product_images(installed_environment) == {UPGRADED_IMAGE})


def list_product_images(environment: InstalledEnvironment) -> set[str]:
    """Return the names of the product's images that its pods use."""
    pods = environment.client.list(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
    images = {container["image"] for pod in pods for container in pod["spec"]["containers"]}
    return {image for image in images if image.startswith(product_image.IMAGE_NAME)}
