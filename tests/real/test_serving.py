"""Tests for the default overlay on real Knative Serving: its functions are Knative Services from a private registry."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

import pytest

from functions.app import FUNCTIONS
from kube.maintenance import objects as m
from kube.maintenance.groups import KUBEVIRT, MEDIK8S, ApiGroup
from kube.paths import Object
from localcluster.access import NAMESPACE
from localcluster.addons import EVENTING_ADDON, PUSHED_IMAGE_NAME, REGISTRY, SERVING_ADDONS, push_product_image
from localcluster.cluster import FAKE_NODE_TOLERATION
from localcluster.knative import pod_install
from localcluster.nodes import preflight
from localcluster.programs import build
from localcluster.servers import ROOT
from localcluster.waiting import wait_for_collection
from tests.machine_speed import is_below_scaled_limit, measure_slowdown
from tests.proofs import proves
from tests.real import applied_manifests, maintenances, self_drain
from tests.real.ended_pods import watch_exit_codes
from tests.real.environment import APPS_PATH, build_workload
from tests.real.installed_environment import (
    BUDGET_PATCH,
    MAX_DRAIN_SECONDS,
    InstalledEnvironment,
    assert_drain_within_limits,
    install_product,
)
from tests.sources import OPT_IN_STEPS

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]
OVERLAY = ROOT / "manifests" / "overlays" / "knative"
SERVICES_PATH = f"/apis/serving.knative.dev/v1/namespaces/{NAMESPACE}/services"
REVISIONS_PATH = f"/apis/serving.knative.dev/v1/namespaces/{NAMESPACE}/revisions"
PODS_PATH = f"/api/v1/namespaces/{NAMESPACE}/pods"
BUDGETS_PATH = "/apis/policy/v1/namespaces/{}/poddisruptionbudgets/{}"
BUDGETS = (
    ("knative-eventing", "eventing-webhook"),
    ("knative-serving", "activator-pdb"),
    ("knative-serving", "webhook-pdb"),
)
"""Knative's PodDisruptionBudgets that allow no eviction if the Deployment has one pod."""
FUNCTION_LABEL = "serving.knative.dev/service"
FUNCTIONS_WITH_TICK = {"renew-certificates", "resync"}
"""The functions that handle each tick, and therefore never scale to zero."""
SHORT_WINDOW_PATCH = {
    "target": {"kind": "Service", "group": "serving.knative.dev"},
    "patch": "- {op: add, path: /spec/template/metadata/annotations/autoscaling.knative.dev~1window, value: 6s}",
}
"""The shortest time without requests after which Serving terminates a function's pods; the default is 60 s."""
SCALE_DOWN_SECONDS = 240.0
"""Maximum seconds until idle functions have no pods: Serving's grace period, plus the pods' termination."""
MAX_COLD_DRAIN_SECONDS = 16.0
"""Maximum seconds to drain three pods if no function has a pod; without other load, the drain takes 5 to 8 s."""
NEXT_VERSION = "0.0.1"


@pytest.fixture(scope="module")
def serving_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InstalledEnvironment]:
    """Yield two real nodes with Knative Eventing and Serving, and the product from a private registry."""
    preflight.check_host()
    build.build_all([build.NODES, build.KNATIVE, build.SERVING, build.TRAEFIK, build.REGISTRY, build.KN])
    folder = tmp_path_factory.mktemp("serving")
    addons = (EVENTING_ADDON, *SERVING_ADDONS, REGISTRY)
    with pod_install.start_real_cluster(folder / "cluster", addons=addons) as (cluster, nodes):
        image = push_product_image(nodes.nodes)
        with install_product(cluster, nodes, folder, OVERLAY, image, with_pull_secret=True) as environment:
            yield environment


def create_workload(environment: InstalledEnvironment, name: str, replicas: int, **budget: object) -> None:
    """Create a Deployment on the kwok node, and wait for its pods; with a PodDisruptionBudget if `budget` is given."""
    spec = {
        "nodeSelector": {"kubernetes.io/hostname": "node-1"},
        "tolerations": [FAKE_NODE_TOLERATION],
        "containers": [{"name": "main", "image": "fake"}],
    }
    environment.client.create(f"{APPS_PATH}/deployments", build_workload(name, {"replicas": replicas}, spec))
    if budget:
        budget_spec = {**budget, "selector": {"matchLabels": {"app": name}}}
        path = BUDGETS_PATH.format("default", "").rstrip("/")
        environment.client.create(path, {"metadata": {"name": name}, "spec": budget_spec})
    environment.wait_for_pods(name, lambda items: len(items) == replicas and all(map(_is_running, items)))


def _is_running(pod: Object) -> bool:
    return bool(pod.get("status", {}).get("phase") == "Running")


@proves("NMO-24")
def test_each_service_has_one_revision_and_second_apply_changes_nothing(
    serving_environment: InstalledEnvironment,
) -> None:
    """Check that an install starts each function once, with the pushed image's digest, and is idempotent.

    A revision that Knative creates for a changed environment variable would start each of these functions twice.
    """
    pod_install.wait_until_ready(serving_environment.cluster)
    revisions = serving_environment.client.list(REVISIONS_PATH)["items"]
    services = serving_environment.client.list(SERVICES_PATH)["items"]

    assert len(services) == len(revisions) == len(FUNCTIONS) - len(OPT_IN_STEPS) - 1  # `record` is a Deployment.
    digests = {status["imageDigest"] for item in revisions for status in item["status"]["containerStatuses"]}
    assert len(digests) == 1
    assert digests.pop().startswith(f"{PUSHED_IMAGE_NAME}@sha256:")
    applied_manifests.assert_second_apply_changes_nothing(serving_environment, serving_environment.overlay)
    assert len(serving_environment.client.list(REVISIONS_PATH)["items"]) == len(revisions)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ("service list", ("begin", "cordon", "evict", "status")),
        ("trigger list", ("cordon-on-maintenance-begun", "record-on-everything")),
        ("source list", ("maintenances", "nodes", "podsource", "tick")),
    ],
)
def test_kn_lists_every_object_as_ready(
    serving_environment: InstalledEnvironment, arguments: str, names: tuple[str, ...]
) -> None:
    """Check the commands in docs/install.md that list the product's objects with the client `kn`."""
    rows = [line.split() for line in run_kn(serving_environment, arguments).splitlines()[1:]]

    assert set(names) <= {row[0] for row in rows}
    assert all("True" in row for row in rows), rows


def test_kn_describes_broker_as_ready(serving_environment: InstalledEnvironment) -> None:
    output = run_kn(serving_environment, "broker describe default")

    assert "++ Ready" in output
    assert f"/{NAMESPACE}/default" in output


def run_kn(environment: InstalledEnvironment, arguments: str) -> str:
    """Run `kn` as the administrator in the product's namespace, and return its output."""
    program = build.get_target_dir(build.KN) / "kn"
    options = ("--kubeconfig", str(environment.cluster.kubeconfig), "--namespace", NAMESPACE)
    command = [str(program), *arguments.split(), *options]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@proves("X-7")
@pytest.mark.parametrize("group", [MEDIK8S, KUBEVIRT], ids=lambda group: group.api_version)
def test_maintenance_drains_and_restores_node(serving_environment: InstalledEnvironment, group: ApiGroup) -> None:
    """Check that a kwok node with three pods is drained and restored."""
    name = group.api_version.split(".")[1]
    create_workload(serving_environment, name, 3)
    maintenances.create_maintenance(serving_environment, name, "node-1", group)
    maintenances.wait_until_succeeded(serving_environment, name, group=group)
    maintenances.end_maintenance(serving_environment, name, "node-1", group)
    serving_environment.delete(f"{APPS_PATH}/deployments/{name}")


@pytest.mark.parametrize(("namespace", "name"), [("knative-serving", "activator"), ("traefik", "traefik")])
def test_drain_succeeds_although_data_plane_is_killed(
    serving_environment: InstalledEnvironment, namespace: str, name: str
) -> None:
    """Check that a drain with a PDB succeeds if a part of Knative Serving's data plane is killed during the drain."""
    create_workload(serving_environment, name, 6, maxUnavailable=1)
    maintenances.create_maintenance(serving_environment, name, "node-1")
    maintenances.wait_for_maintenance(serving_environment, name, self_drain.is_in_progress)
    kill = ("delete", "pod", "-n", namespace, "-l", f"app={name}", "--grace-period=0", "--force")
    serving_environment.cluster.kubectl(*kill)
    serving_environment.client.patch(BUDGETS_PATH.format("default", name), {"spec": {"maxUnavailable": "100%"}})

    maintenances.wait_until_succeeded(serving_environment, name, MAX_DRAIN_SECONDS * measure_slowdown())
    maintenances.end_maintenance(serving_environment, name, "node-1")
    serving_environment.delete(f"{APPS_PATH}/deployments/{name}")
    serving_environment.delete(BUDGETS_PATH.format("default", name))


def test_more_drains_than_concurrent_requests_per_pod_succeed(serving_environment: InstalledEnvironment) -> None:
    """Check that 24 nodes are drained concurrently, although a function's pod accepts only 16 concurrent requests."""
    names = serving_environment.cluster.add_nodes(24)
    for name in names:
        for number in (1, 2):
            serving_environment.create_pod(f"{name}-{number}", name, "exec sleep 1000")
    for name in names:
        maintenances.create_maintenance(serving_environment, name, name)

    wait_for_collection(
        serving_environment.client,
        MEDIK8S.path,
        lambda items: {name for name in names if m.get_phase(items.get(name, {})) == "Succeeded"} == set(names),
        MAX_DRAIN_SECONDS * measure_slowdown(),
    )
    for name in names:
        maintenances.end_maintenance(serving_environment, name, name)


@pytest.mark.parametrize(
    ("name", "image", "reason"),
    [
        ("missing", f"{PUSHED_IMAGE_NAME}:missing", "404 Not Found"),
        ("unreachable", "unreachable.registry.svc.cluster.local:5000/nodemaintenance:v1", "dial tcp"),
    ],
)
def test_unavailable_image_keeps_previous_revision(
    serving_environment: InstalledEnvironment, name: str, image: str, reason: str
) -> None:
    """Check that each Knative Service reports an image that cannot be pulled; its previous revision drains a node."""
    previous_image = read_applied_image(serving_environment)
    serving_environment.apply_image(image)
    wait_for_collection(
        serving_environment.client,
        SERVICES_PATH,
        lambda services: all(
            image in message and reason in message for message in map(_read_ready_message, services.values())
        ),
    )
    create_workload(serving_environment, name, 3)
    maintenances.create_maintenance(serving_environment, name, "node-1")
    maintenances.wait_until_succeeded(serving_environment, name)
    maintenances.end_maintenance(serving_environment, name, "node-1")
    serving_environment.delete(f"{APPS_PATH}/deployments/{name}")

    serving_environment.apply_image(previous_image)
    pod_install.wait_until_ready(serving_environment.cluster)


def read_applied_image(environment: InstalledEnvironment) -> str:
    """Return the image that the function `begin` currently uses."""
    service = environment.client.get(f"{SERVICES_PATH}/begin")
    return str(service["spec"]["template"]["spec"]["containers"][0]["image"])


def _read_ready_message(service: Object) -> str:
    return " ".join(
        condition.get("message", "")
        for condition in service.get("status", {}).get("conditions", [])
        if condition["type"] == "Ready"
    )


@pytest.mark.alone  # The drain moves forty pods at once, which together have the CPU weight of one process.
def test_drain_of_functions_node_replaces_them_gradually(serving_environment: InstalledEnvironment) -> None:
    """Check that a drain of the functions' node reports Knative's PDBs, and succeeds after the documented patch.

    Every function exits by itself, and not because its grace period has ended. No pod is evicted twice, and the journal
    contains each eviction, although a new image is rolled out during the drain.
    """
    node = find_node_of_activator(serving_environment)
    functions_on_node = list_function_pods(serving_environment, node)
    push_product_image(serving_environment.nodes.nodes, NEXT_VERSION)
    with watch_exit_codes(serving_environment, PODS_PATH, FUNCTION_LABEL) as ended_pods:
        result = self_drain.drain_and_observe(
            serving_environment,
            "gradual",
            node,
            MAX_DRAIN_SECONDS * measure_slowdown(),
            lambda: patch_budgets_and_roll_out_image(serving_environment),
        )
        pod_install.wait_until_ready(serving_environment.cluster, pod_install.LATE_DEPLOYMENT)

    assert_drain_within_limits(serving_environment, result)
    assert functions_on_node
    assert functions_on_node <= ended_pods.keys()
    assert {codes["user-container"] for codes in ended_pods.values() if "user-container" in codes} == {0}


def find_node_of_activator(environment: InstalledEnvironment) -> str:
    """Return the node of Serving's activator, whose PodDisruptionBudget blocks a drain."""
    (pod,) = environment.client.list("/api/v1/namespaces/knative-serving/pods", label_selector="app=activator")["items"]
    return str(pod["spec"]["nodeName"])


def list_function_pods(environment: InstalledEnvironment, node: str) -> set[str]:
    """Return the names of the functions' pods on the node, without terminating pods."""
    listed = environment.client.list(PODS_PATH, field_selector=f"spec.nodeName={node}", label_selector=FUNCTION_LABEL)
    return {pod["metadata"]["name"] for pod in listed["items"] if not pod["metadata"].get("deletionTimestamp")}


def patch_budgets_and_roll_out_image(environment: InstalledEnvironment) -> None:
    """Wait until the status lists the activator's PDB, apply another image, and patch Knative's PDBs."""
    maintenances.wait_for_maintenance(
        environment,
        "gradual",
        lambda maintenance: "activator-pdb" in _list_blocking_budgets(maintenance),
        MAX_DRAIN_SECONDS * measure_slowdown(),
    )
    # Knative's webhooks, which validate the overlay, leave the node as soon as their PDBs allow it.
    environment.apply_image(f"{PUSHED_IMAGE_NAME}:v{NEXT_VERSION}")
    for namespace, name in BUDGETS:
        environment.client.patch(BUDGETS_PATH.format(namespace, name), BUDGET_PATCH)


def _list_blocking_budgets(maintenance: Object) -> set[str]:
    return {pod["budget"] for pod in maintenance.get("status", {}).get("blockedPods", [])}


def test_functions_start_from_zero(serving_environment: InstalledEnvironment) -> None:
    """Check that with `scale-to-zero`, idle functions have no pods, and that a drain starts them within seconds.

    The functions that handle ticks keep their pods.
    """
    image = read_applied_image(serving_environment)
    serving_environment.apply_image(image, "scale-to-zero", patches=[SHORT_WINDOW_PATCH])
    wait_for_collection(
        serving_environment.client,
        PODS_PATH,
        lambda items: {pod["metadata"]["labels"][FUNCTION_LABEL] for pod in items.values()} == FUNCTIONS_WITH_TICK,
        SCALE_DOWN_SECONDS,
        labels=FUNCTION_LABEL,
    )
    create_workload(serving_environment, "cold", 3)
    started = time.monotonic()
    maintenances.create_maintenance(serving_environment, "cold", "node-1")
    maintenances.wait_until_succeeded(serving_environment, "cold")

    seconds = time.monotonic() - started
    print(f"drain from zero: {seconds:.1f} s")
    assert is_below_scaled_limit(seconds, MAX_COLD_DRAIN_SECONDS)
    maintenances.end_maintenance(serving_environment, "cold", "node-1")
    serving_environment.delete(f"{APPS_PATH}/deployments/cold")
    serving_environment.apply_image(image)
