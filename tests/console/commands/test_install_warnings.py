"""Tests for the warnings about an incomplete install, on a real API server with Knative's CRDs.

No function runs on this cluster, and the tests write the status that Knative's controllers would write. Deployments and
pods have the status that Kubernetes' own controllers write.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest

from console.operations import install_problems
from console.operations.install_problems import CONTROLLER_MISSING, NO_NODE_REMEDY
from console.operations.maintenance_preview import NO_USABLE_NODE_WARNING
from kube.client.api import get_or_none
from kube.client.sync_client import SyncClient
from kube.maintenance.groups import MEDIK8S
from kube.maintenance.objects import FINALIZER
from kube.paths import DEFAULT_NAMESPACE, Object
from localcluster.access import UNPRIVILEGED
from localcluster.cluster import LocalCluster
from localcluster.product import install_manifests
from localcluster.waiting import wait_for_collection, wait_for_object
from tests import functest
from tests.console.commands.workload_objects import (
    COLLECTIONS,
    build_budget,
    build_controller,
    create_and_wait,
    delete_objects,
)
from tests.console.conftest import RunCommand
from tests.console.permissions import grant_permissions
from tests.manifests.rendering import Manifest, install_knative_crds, render_overlay

NODE = "node-1"
MAINTENANCE_PATH = f"{MEDIK8S.path}/{NODE}"
IMAGE_MESSAGE = (
    'Unable to fetch image "registry.example/nodemaintenance:v9": failed to resolve image to digest: '
    "HEAD https://registry.example/v2/nodemaintenance/manifests/v9: unexpected status code 404 Not Found"
)
KNATIVE_OBJECTS = [manifest for manifest in render_overlay("knative") if ".knative.dev/" in manifest["apiVersion"]]
"""The Knative objects of the overlay `knative` as a user applies them."""
RECORD_TRIGGER = "record-on-everything"
"""The Trigger of a function in a Deployment, which Knative considers ready as soon as the function's Service exists."""
DEPLOYMENT_NAMESPACE = "plain-install"
"""Namespace of an install without Knative Services, which the tests select with `--namespace`."""
PULL_MESSAGE = 'Back-off pulling image "registry.example/nodemaintenance:v9"'
STARTED_WITH_SHORT_DELAY = """
from console.cli import main
from console.operations import install_problems

install_problems.STALLED_SECONDS = 0.1
main()
"""
ReportFailure = Callable[[str, str, str], None]


def get_collection(manifest: Manifest) -> str:
    """Return the API path of the collection that contains a Knative object."""
    return f"/apis/{manifest['apiVersion']}/namespaces/{DEFAULT_NAMESPACE}/{manifest['kind'].lower()}s"


def write_conditions(cluster: LocalCluster, manifests: Sequence[Manifest], *conditions: Object) -> None:
    """Replace the conditions of Knative objects, as Knative's controllers do."""
    client, status = cluster.get_client(), {"status": {"conditions": list(conditions)}}
    paths = [f"{get_collection(manifest)}/{manifest['metadata']['name']}/status" for manifest in manifests]
    client.gather_all(*(client.api.patch(path, status) for path in paths))


def list_names(kind: str) -> list[str]:
    """Return the names of the overlay's objects of this kind, in the API server's order."""
    return sorted(manifest["metadata"]["name"] for manifest in KNATIVE_OBJECTS if manifest["kind"] == kind)


@pytest.fixture(scope="module")
def served_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Yield a cluster with the product's and Knative's CRDs, and the overlay's Knative objects without a status.

    This fixture overrides the cluster of `run_command`, on which the functions may run.
    """
    with LocalCluster(tmp_path_factory.mktemp("install"), nodes=1, audit=False) as cluster:
        install_manifests(cluster)
        install_knative_crds(cluster)
        client = cluster.get_client()
        client.gather_all(*(client.api.create(get_collection(manifest), manifest) for manifest in KNATIVE_OBJECTS))
        yield cluster


@pytest.fixture
def maintenance_stalls_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every maintenance count as stalled as soon as it exists."""
    monkeypatch.setattr(install_problems, "STALLED_SECONDS", 0.0)


@pytest.fixture
def maintenance(served_cluster: LocalCluster) -> Iterator[Object]:
    """Create a maintenance that no function processes, and delete it after the test."""
    client = served_cluster.get_client()
    body = {"apiVersion": MEDIK8S.api_version, "kind": "NodeMaintenance", "metadata": {"name": NODE}}
    created: Object = client.create(MEDIK8S.path, {**body, "spec": {"nodeName": NODE}})
    yield created
    client.run(get_or_none(client.api.request("DELETE", MAINTENANCE_PATH)))


@pytest.fixture
def report_failure(served_cluster: LocalCluster) -> ReportFailure:
    """Mark all Knative objects as ready, and return a function that marks the objects of one kind as failed.

    In the failure message, `{name}` stands for the object's name.
    """

    def write_failure(kind: str, message: str, reason: str) -> None:
        for manifest in KNATIVE_OBJECTS:
            if manifest["kind"] == kind and manifest["metadata"]["name"] != RECORD_TRIGGER:
                text = message.format(name=manifest["metadata"]["name"])
                condition = {"type": "Ready", "status": "False", "reason": reason, "message": text}
                write_conditions(served_cluster, [manifest], condition)

    write_conditions(served_cluster, KNATIVE_OBJECTS, {"type": "Ready", "status": "True"})
    return write_failure


@pytest.mark.usefixtures("maintenance", "maintenance_stalls_immediately")
def test_objects_without_conditions_are_reported(served_cluster: LocalCluster, run_command: RunCommand) -> None:
    """Check that functions and Broker are reported if they have no conditions, as Knative's controllers do not run."""
    write_conditions(served_cluster, KNATIVE_OBJECTS)
    services = list_names("Service")

    result = run_command("status")

    names = f"{services[0]}, {services[1]} and {len(services) - 2} others"
    assert result.stderr.splitlines() == [
        f"Warning: Knative Services {names} are not ready: {CONTROLLER_MISSING}",
        f"Warning: Broker default is not ready: {CONTROLLER_MISSING}",
    ]


@pytest.mark.usefixtures("maintenance", "maintenance_stalls_immediately")
def test_status_names_missing_image_of_all_functions_in_one_warning(
    run_command: RunCommand, report_failure: ReportFailure
) -> None:
    """Check that each view of `status` names the missing image once, and omits the functions' Triggers."""
    report_failure("Service", f'Revision "{{name}}-00005" failed with message: {IMAGE_MESSAGE}.', "RevisionFailed")
    report_failure("Trigger", "failed to resolve {name}", "Unable to get the Subscriber's URI")
    services = list_names("Service")

    table_result, node_result, json_result = (
        run_command("status", *args) for args in ((), (NODE,), ("--output", "json"))
    )

    names = f"{services[0]}, {services[1]} and {len(services) - 2} others"
    warning = f"Warning: Knative Services {names} are not ready: {IMAGE_MESSAGE}\n"
    assert [result.stderr for result in (table_result, node_result, json_result)] == [warning] * 3
    assert [result.exit_code for result in (table_result, node_result, json_result)] == [0, 0, 0]
    assert "Waiting" in table_result.stdout
    assert json.loads(json_result.stdout)["maintenances"][0]["metadata"]["name"] == NODE


@pytest.mark.usefixtures("maintenance", "report_failure", "maintenance_stalls_immediately")
def test_status_prints_no_warning_if_install_is_ready(run_command: RunCommand) -> None:
    result = run_command("status", NODE)

    assert (result.exit_code, result.stderr) == (0, "")


def test_status_reads_install_only_if_maintenance_is_stalled(
    served_cluster: LocalCluster,
    run_command: RunCommand,
    report_failure: ReportFailure,
    maintenance: Object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Check that `status` reads the install's objects for a stalled maintenance, but not for a new one."""
    monkeypatch.setattr(install_problems, "STALLED_SECONDS", 3600.0)
    report_failure("Broker", "no channel", "ChannelMissing")
    created = maintenance["metadata"]["creationTimestamp"]
    client = served_cluster.get_client()

    def read_warnings(last_update: str) -> str:
        status = {"status": {"phase": "Running", "lastUpdate": last_update}}
        client.run(client.api.patch(f"{MAINTENANCE_PATH}/status", status))
        return run_command("status").stderr

    assert run_command("status").stderr == ""
    assert read_warnings(created) == ""
    assert read_warnings("2026-01-01T00:00:00Z") == "Warning: Broker default is not ready: no channel\n"


def test_status_names_maintenance_whose_restore_is_pending(
    served_cluster: LocalCluster,
    run_command: RunCommand,
    report_failure: ReportFailure,
    maintenance: Object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Check that a deleted maintenance counts as stalled if its node is not restored, even after a successful drain."""
    report_failure("Service", "no such image", "RevisionFailed")
    client = served_cluster.get_client()
    drained = {"phase": "Succeeded", "lastUpdate": "2026-01-01T00:00:00Z"}
    client.run(client.api.patch(f"{MAINTENANCE_PATH}/status", {"status": drained}))
    client.run(client.api.patch(MAINTENANCE_PATH, {"metadata": {"finalizers": [FINALIZER]}}))
    monkeypatch.setattr(install_problems, "STALLED_SECONDS", 0.0)

    drained_result = run_command("status", NODE)
    client.delete(MAINTENANCE_PATH, uid=maintenance["metadata"]["uid"])
    deleted_result = run_command("status", NODE)
    client.run(client.api.patch(MAINTENANCE_PATH, {"metadata": {"finalizers": None}}))

    assert drained_result.stderr == ""
    assert deleted_result.stderr.endswith(" are not ready: no such image\n")


@pytest.mark.usefixtures("report_failure")
def test_missing_permission_is_reported_unless_status_explains_wait(
    served_cluster: LocalCluster, run_command: RunCommand, maintenance: Object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that one line names the missing permissions, and that the line is omitted if `status` explains the wait."""
    client = served_cluster.get_client()
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": UNPRIVILEGED}
    monkeypatch.setattr(install_problems, "STALLED_SECONDS", 3600.0)
    grant_permissions(client, "maintenance-lister", ["list nodemaintenances"], subject, UNPRIVILEGED)

    new_result = run_command("status", user=UNPRIVILEGED)
    monkeypatch.setattr(install_problems, "STALLED_SECONDS", 0.0)
    stalled_result = run_command("status", user=UNPRIVILEGED)
    status = {"phase": "Running", "lastUpdate": maintenance["metadata"]["creationTimestamp"]}
    client.run(client.api.patch(f"{MAINTENANCE_PATH}/status", {"status": status}))
    running_result = run_command("status", user=UNPRIVILEGED)

    assert [result.exit_code for result in (new_result, stalled_result, running_result)] == [0, 0, 0]
    assert (new_result.stderr, running_result.stderr) == ("", "")
    assert stalled_result.stderr == (
        "Warning: cannot check whether the functions run: you may not list services.serving.knative.dev, "
        "deployments.apps, brokers.eventing.knative.dev, triggers.eventing.knative.dev, "
        "apiserversources.sources.knative.dev, pingsources.sources.knative.dev, "
        "containersources.sources.knative.dev, sinkbindings.sources.knative.dev "
        f'in namespace "{DEFAULT_NAMESPACE}": ask an administrator for this right\n'
    )


@pytest.mark.usefixtures("maintenance")
def test_status_shows_that_budget_allows_eviction_that_no_function_requests(
    served_cluster: LocalCluster, run_command: RunCommand
) -> None:
    """Check that `status` compares a recorded cause with the live budget, because no function updates the cause.

    A user who may not read budgets sees only the cause.
    """
    client, budget = served_cluster.get_client(), build_budget("open", NODE, minAvailable=1)
    create_and_wait(served_cluster, build_controller("ReplicaSet", NODE, replicas=2))
    create_and_wait(served_cluster, budget)
    path = f"{COLLECTIONS['PodDisruptionBudget']}/open"
    wait_for_object(client, path, lambda live: live is not None and live["status"]["disruptionsAllowed"] == 1, 20)
    pod = {"namespace": "default", "name": "web", "reason": "DisruptionBudget", "message": "open needs 2 and has 2"}
    blocked = {"phase": "Running", "blockedPods": [{**pod, "budget": name} for name in ("open", "deleted")]}
    client.run(client.api.patch(f"{MAINTENANCE_PATH}/status", {"status": blocked}))
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": UNPRIVILEGED}
    grant_permissions(client, "node-viewer", ["list nodemaintenances", "get nodes"], subject, UNPRIVILEGED)

    lines = [line.strip() for line in run_command("status", NODE, "-n", "ours").stdout.splitlines()]
    viewer_result = run_command("status", NODE, user=UNPRIVILEGED)
    delete_objects(served_cluster, NODE)

    cause = lines.index("1 pod, DisruptionBudget: open needs 2 and has 2")
    assert lines[cause + 1 : cause + 3] == [
        "budget open allows 1 disruption now: the functions have not evicted the pod yet; see whether they run:",
        "kubectl get pods -n ours",
    ]
    assert sum("now: the functions" in line for line in lines) == 1
    assert "open needs 2 and has 2" in viewer_result.stdout
    assert "now: the functions" not in viewer_result.stdout


def has_condition(obj: Object | None, condition_type: str) -> bool:
    """Return whether an object has this condition."""
    conditions = ((obj or {}).get("status") or {}).get("conditions") or []
    return any(condition["type"] == condition_type for condition in conditions)


def create_deployment(client: SyncClient, namespace: str, *service_accounts: str) -> str:
    """Create a namespace, ServiceAccounts, and a Deployment whose pods fit on no node; return the Deployment's path."""
    (deployment,) = [
        manifest
        for manifest in render_overlay("plain")
        if manifest["kind"] == "Deployment" and manifest["metadata"]["name"] == "begin"
    ]
    deployment["metadata"]["namespace"] = namespace
    pod_spec = deployment["spec"]["template"]["spec"]
    pod_spec["nodeSelector"] = {"no": "such-node"}
    del pod_spec["priorityClassName"]  # This cluster does not have the PriorityClass of the manifest.
    client.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    for account in service_accounts:
        client.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": account}})
    collection = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    client.create(collection, deployment)
    return f"{collection}/begin"


@pytest.mark.usefixtures("maintenance", "maintenance_stalls_immediately")
def test_status_explains_deployment_whose_pods_cannot_be_created(
    served_cluster: LocalCluster, run_command: RunCommand
) -> None:
    """Check that the warning quotes the ReplicaSet's error, in this test about a missing ServiceAccount."""
    client = served_cluster.get_client()
    path = create_deployment(client, "install-without-account")
    for condition_type in ("ReplicaFailure", "Available"):
        wait_for_object(client, path, partial(has_condition, condition_type=condition_type))

    result = run_command("status", "--namespace=install-without-account")

    assert result.stderr.startswith("Warning: Deployment begin is not available: pods ")
    assert result.stderr.endswith(': serviceaccount "begin" not found\n')


@pytest.mark.usefixtures("maintenance", "maintenance_stalls_immediately")
def test_status_explains_deployment_whose_pods_do_not_start(
    served_cluster: LocalCluster, run_command: RunCommand
) -> None:
    """Check that the warning quotes the scheduler's message, and later the kubelet's message about the image."""
    client = served_cluster.get_client()
    path = create_deployment(client, DEPLOYMENT_NAMESPACE, "begin")
    pods_path = f"/api/v1/namespaces/{DEPLOYMENT_NAMESPACE}/pods"
    pods = wait_for_collection(
        client,
        pods_path,
        lambda found: len(found) == 2 and all(has_condition(pod, "PodScheduled") for pod in found.values()),
    )
    wait_for_object(client, path, lambda current: has_condition(current, "Available"))

    unscheduled_result = run_command("status", f"--namespace={DEPLOYMENT_NAMESPACE}")
    waiting = {"reason": "ImagePullBackOff", "message": PULL_MESSAGE}
    container = {"name": "function", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
    status = {"containerStatuses": [{**container, "state": {"waiting": waiting}}]}
    for name in pods:
        client.run(client.api.patch(f"{pods_path}/{name}/status", {"status": status}))
    image_result = run_command("status", f"--namespace={DEPLOYMENT_NAMESPACE}")

    assert unscheduled_result.stderr.startswith("Warning: Deployment begin is not available: 0/1 nodes are available: ")
    assert image_result.stderr.splitlines()[0] == f"Warning: Deployment begin is not available: {PULL_MESSAGE}"


@pytest.mark.usefixtures("maintenance", "report_failure", "maintenance_stalls_immediately")
def test_status_names_unscheduled_pods_of_knative_although_its_objects_are_ready(
    served_cluster: LocalCluster, run_command: RunCommand
) -> None:
    """Check that `status` names pods of the product and of Knative that no node accepts, but no other pods."""
    client = served_cluster.get_client()
    client.create("/api/v1/namespaces", {"metadata": {"name": "knative-eventing"}})
    spec = {"containers": [{"name": "main", "image": "x"}], "nodeSelector": {"no": "such-node"}}
    pods = [f"/api/v1/namespaces/{name}/pods" for name in ("knative-eventing", DEFAULT_NAMESPACE, "default")]
    for path in pods:
        client.create(path, {"metadata": {"name": "pending"}, "spec": {**spec, "automountServiceAccountToken": False}})
        wait_for_object(client, f"{path}/pending", partial(has_condition, condition_type="PodScheduled"))

    result = run_command("status", NODE)
    for path in pods:
        client.run(client.api.request("DELETE", f"{path}/pending", query={"gracePeriodSeconds": "0"}))

    names = f"knative-eventing/pending and {DEFAULT_NAMESPACE}/pending"
    warning, remedy = result.stderr.splitlines()
    assert warning.startswith(f"Warning: Pods {names} are not scheduled: 0/1 nodes are available: ")
    assert remedy == f"Warning: if no node accepts these pods, {NO_NODE_REMEDY}"


@pytest.mark.usefixtures("maintenance", "maintenance_stalls_immediately")
def test_status_suggests_option_for_namespace_without_functions(run_command: RunCommand) -> None:
    result = run_command("status", "--namespace=default")

    hint = "if they run in another namespace, name it with --namespace"
    assert result.stderr == f'Warning: no functions found in namespace "default": {hint}\n'


def test_waiting_commands_print_warning_once(
    served_cluster: LocalCluster, plugin_environment: dict[str, str], report_failure: ReportFailure
) -> None:
    """Check that `start --wait` and `status --watch` print the warning only once while they wait.

    Before that, `start` warns that this cluster has no other node.
    """
    report_failure("PingSource", "no such sink", "NotFound")
    warning = "Warning: PingSource tick is not ready: no such sink\n"

    for args in (("start", NODE, "--wait"), ("status", "--watch")):
        command = [sys.executable, "-c", STARTED_WITH_SHORT_DELAY, *args]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=plugin_environment
        ) as process:
            assert process.stderr
            if args[0] == "start":
                assert process.stderr.readline() == f"Warning: {NO_USABLE_NODE_WARNING}\n"
            assert process.stderr.readline() == warning
            process.send_signal(2)
            _, remaining_errors = process.communicate(timeout=10)
        assert "Warning" not in remaining_errors
        assert process.returncode == 130

    client = served_cluster.get_client()
    client.delete(MAINTENANCE_PATH, uid=client.get(MAINTENANCE_PATH)["metadata"]["uid"])


def run_functest_without_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run `make cluster-functest`, which fails at once, because no function begins the maintenance."""
    monkeypatch.setattr(functest, "BEGIN_TIMEOUT_SECONDS", 0.0)
    monkeypatch.setattr(functest, "DRAIN_TIMEOUT_SECONDS", 0.0)
    with pytest.raises(functest.FunctestError, match="new after 0 s: "):
        functest.run_functest(NODE)


def test_cluster_functest_prints_problems_of_install(
    served_cluster: LocalCluster,
    report_failure: ReportFailure,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Check that `make cluster-functest` prints what to check, and why no maintenance has begun."""
    report_failure("Broker", "no channel", "ChannelMissing")
    monkeypatch.setenv("KUBECONFIG", str(served_cluster.kubeconfig))
    monkeypatch.setattr(functest, "_wait_until_install_is_ready", lambda cluster: None)

    run_functest_without_functions(monkeypatch)

    lines = capsys.readouterr().out.splitlines()
    assert f"  still new after 0 s: {functest.NOT_BEGUN_HINT}" in lines
    assert "  Broker default is not ready: no channel" in lines
    assert lines[-1] == f"node {NODE} was never cordoned"


def test_cluster_functest_waits_until_install_is_ready(
    served_cluster: LocalCluster,
    report_failure: ReportFailure,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Check that `make cluster-functest` creates no maintenance before the functions are ready."""
    report_failure("Service", "Deploying", "Deploying")
    ready = {"type": "Ready", "status": "True"}
    monkeypatch.setenv("KUBECONFIG", str(served_cluster.kubeconfig))
    monkeypatch.setattr(time, "sleep", lambda _: write_conditions(served_cluster, KNATIVE_OBJECTS, ready))

    run_functest_without_functions(monkeypatch)

    services = list_names("Service")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        f"waiting until the install is ready: {len(services)} objects not ready, such as Knative Service {services[0]}"
    )
    assert lines[1].endswith(f": draining node {NODE}")


def test_cluster_functest_without_ready_install_drains_no_node(
    served_cluster: LocalCluster,
    report_failure: ReportFailure,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Check that `make cluster-functest` fails with the install's problems if the install does not become ready."""
    report_failure("Broker", "no channel", "ChannelMissing")
    monkeypatch.setenv("KUBECONFIG", str(served_cluster.kubeconfig))
    monkeypatch.setattr(functest, "INSTALL_TIMEOUT_SECONDS", 0.0)

    message = "the install is not ready after 0 s: Broker default is not ready: no channel"
    with pytest.raises(functest.FunctestError, match=message):
        functest.run_functest(NODE)

    assert "draining" not in capsys.readouterr().out
    assert served_cluster.get_client().list(MEDIK8S.path)["items"] == []
