"""Tests for `version`, which prints the command's version and the images of the functions."""

from __future__ import annotations

import json

import pytest

from console.operations.versions import (
    explain_version_skew,
    find_function_versions,
    group_by_image,
    is_rolled_out,
    read_client_version,
)
from kube.paths import Object
from localcluster.access import NAMESPACE, UNPRIVILEGED
from localcluster.cluster import LocalCluster
from tests.console.conftest import RunCommand

IMAGE = "registry.example/nodemaintenance:v1.2"


def build_workload(name: str, image: str = IMAGE) -> Object:
    """Build a Deployment of a function with only the fields that `version` reads or the API server requires."""
    labels = {"app.kubernetes.io/component": "function", "app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "function", "image": image}]}}
    spec = {"replicas": 0, "selector": {"matchLabels": {"app": name}}, "template": template}
    metadata = {"name": name, "namespace": NAMESPACE, "labels": labels}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


def test_workloads_are_grouped_by_image() -> None:
    """Check that both images are listed with their functions while an upgrade is in progress."""
    workloads = [build_workload("evict"), build_workload("begin"), build_workload("taint", "nodemaintenance:v1.3")]

    assert group_by_image(workloads) == {IMAGE: ["begin", "evict"], "nodemaintenance:v1.3": ["taint"]}
    assert group_by_image([{"metadata": {"name": "empty"}, "spec": {}}]) == {}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({}, False),
        ({"observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2}, True),
        ({"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2}, False),
        ({"observedGeneration": 2, "replicas": 3, "updatedReplicas": 2, "availableReplicas": 3}, False),
        ({"observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 1}, False),
        ({"observedGeneration": 2, "latestCreatedRevisionName": "a-2", "latestReadyRevisionName": "a-2"}, True),
        ({"observedGeneration": 2, "latestCreatedRevisionName": "a-2", "latestReadyRevisionName": "a-1"}, False),
        ({"observedGeneration": 2, "latestCreatedRevisionName": "a-1"}, False),
    ],
    ids=["new", "deployed", "unobserved", "old-pods", "unavailable", "ready", "upgrading", "first-revision"],
)
def test_workload_is_rolled_out_if_only_its_current_pods_run(status: Object, expected: bool) -> None:
    """Check Deployments of two replicas, and Knative Services."""
    replicas = {} if "latestCreatedRevisionName" in status else {"replicas": 2}
    workload = {"metadata": {"name": "a", "generation": 2}, "spec": replicas, "status": status}

    assert is_rolled_out(workload) is expected


@pytest.mark.parametrize(
    ("image", "labels", "versions"),
    [
        ("registry.example:5000/nodemaintenance:v1.2.3", {}, ["1.2.3"]),
        ("registry.example/nodemaintenance:1.2.3@sha256:00ff", {}, ["1.2.3"]),
        ("registry.example/nodemaintenance:1.2.3-rc.1", {}, ["1.2.3-rc.1"]),
        ("registry.example:5000/nodemaintenance", {}, []),
        ("nodemaintenance:latest", {}, []),
        ("nodemaintenance@sha256:00ff", {"app.kubernetes.io/version": "2.0.1"}, ["2.0.1"]),
        ("nodemaintenance:v1.2.3", {"app.kubernetes.io/version": "v1.2.4"}, ["1.2.4"]),
    ],
)
def test_version_of_image_is_label_or_tag(image: str, labels: dict[str, str], versions: list[str]) -> None:
    workload = build_workload("evict", image)
    workload["metadata"]["labels"] |= labels

    assert find_function_versions([workload, workload]) == versions


@pytest.mark.parametrize(
    ("client_version", "cluster_versions", "shown"),
    [
        ("1.2.3", ["1.2.0", "1.2.9"], ""),
        ("1.2.3", ["1.2.3", "1.3.0"], "1.3.0"),
        ("1.2.3", ["2.2.3"], "2.2.3"),
        ("1.2.3", [], ""),
        ("unknown, because it runs from a source tree", ["1.2.3"], ""),
    ],
)
def test_different_minor_version_is_reported(client_version: str, cluster_versions: list[str], shown: str) -> None:
    warning = explain_version_skew(client_version, cluster_versions)

    assert bool(warning) is bool(shown)
    assert f"functions have version {shown}:" in warning or not shown


def test_client_option_needs_no_cluster(run_command: RunCommand) -> None:
    """Check that `--client` sends no request to a cluster: the test uses a kubeconfig context that does not exist."""
    result = run_command("version", "--client", "-o", "json", "--context", "none")

    assert json.loads(result.stdout) == {"command": read_client_version()}


def test_version_shows_images_of_functions(served_cluster: LocalCluster, run_command: RunCommand) -> None:
    """Check that functions whose new pods are not available are shown as not ready, apart from the other functions."""
    names = ["version-a", "version-b", "version-c", "version-d", "version-e"]
    workloads = [build_workload(name) for name in names]
    workloads[-1]["spec"]["replicas"] = 1
    for workload in workloads:
        workload["spec"]["template"]["spec"]["nodeSelector"] = {"no": "such-node"}
        served_cluster.kubectl("create", "-f", "-", input=json.dumps(workload))
    try:
        for name in names:
            observed = "--for=jsonpath={.status.observedGeneration}=1"
            served_cluster.kubectl("wait", observed, f"deployment/{name}", "-n", NAMESPACE, "--timeout=30s")
        result, report = run_command("version"), json.loads(run_command("version", "-o", "json").stdout)
    finally:
        served_cluster.kubectl("delete", "deployments", "-n", NAMESPACE, *names)

    assert result.exit_code == 0
    assert f"Command: {read_client_version()}\n" in result.stdout
    assert f"Functions: {IMAGE} (version-a, version-b, version-c and 1 more)\n" in result.stdout
    assert f"Functions: {IMAGE}, not ready yet (version-e)\n" in result.stdout
    assert (report["functions"][IMAGE], report["notReady"]) == (names, ["version-e"])
    assert report["clusterVersions"] == ["1.2"]
    assert "functions have version 1.2: install a command with the minor version" in result.stderr


@pytest.mark.parametrize(
    ("args", "user", "reason"),
    [
        (["-n", "default"], "admin", 'namespace "default" has no functions: name another one with --namespace'),
        ([], UNPRIVILEGED, "you may not list "),
    ],
)
def test_version_reports_why_functions_are_unknown(
    run_command: RunCommand, args: list[str], user: str, reason: str
) -> None:
    result = run_command("version", *args, user=user)

    assert result.exit_code == 0, result.output
    assert f"Functions: unknown, because {reason}" in result.stdout
