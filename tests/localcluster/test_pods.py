"""Tests for the lifecycle of pods on kwok's nodes: readiness, completion and deletion."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from localcluster.cluster import LocalCluster
from tests.machine_speed import is_below_scaled_limit

pytestmark = pytest.mark.slow

PODS_PATH = "/api/v1/namespaces/pods-test/pods"
READY_SECONDS = 0.5  # The limit is ten times the usual duration, because other load may slow down the machine.
POD_COUNT = 10


@pytest.fixture(scope="module")
def pods_cluster(cluster: LocalCluster) -> Iterator[LocalCluster]:
    """Create a namespace for the pods of these tests, and yield the cluster."""
    cluster.kubectl("create", "namespace", "pods-test")
    cluster.kubectl(
        *("wait", "--for=create", "serviceaccount/default", "--namespace=pods-test", "--timeout=30s"),
    )
    yield cluster
    cluster.kubectl("delete", "namespace", "pods-test", "--wait=false")


def build_pod(name: str, annotations: dict[str, str] | None = None, **metadata: Any) -> dict[str, Any]:
    """Build a pod that is already bound to node-1."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations or {}, **metadata},
        "spec": {"nodeName": "node-1", "containers": [{"name": "main", "image": "fake"}]},
    }


def delete_pod(local_cluster: LocalCluster, name: str) -> None:
    """Request the deletion of a pod with its default grace period."""
    client = local_cluster.get_client()
    client.run(client.api.request("DELETE", f"{PODS_PATH}/{name}"))


def measure_ready_seconds(local_cluster: LocalCluster, name: str) -> float:
    """Wait until the pod is Ready, and return the seconds that this took."""
    started = time.monotonic()
    for event in local_cluster.watch(PODS_PATH, fields=f"metadata.name={name}"):
        conditions = event.object.get("status", {}).get("conditions", [])
        if any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions):
            break
    return time.monotonic() - started


def measure_deletion_seconds(local_cluster: LocalCluster, name: str) -> float:
    """Delete a pod with its default grace period, and return the seconds until the pod no longer exists."""
    events = local_cluster.watch(PODS_PATH, fields=f"metadata.name={name}")
    next(events)
    started = time.monotonic()
    delete_pod(local_cluster, name)
    for event in events:
        if event.change_type == "DELETED":
            break
    return time.monotonic() - started


def test_pod_is_ready_immediately(pods_cluster: LocalCluster) -> None:
    """Check that a pod without annotations is Running and Ready immediately after its binding."""
    pods_cluster.get_client().create(PODS_PATH, build_pod("at-once"))

    assert is_below_scaled_limit(measure_ready_seconds(pods_cluster, "at-once"), READY_SECONDS)


def test_ready_delay_annotation_is_respected(pods_cluster: LocalCluster) -> None:
    """Check that a pod with the annotation becomes Ready after the specified delay, and not before."""
    pods_cluster.get_client().create(PODS_PATH, build_pod("late", {"pod-ready.stage.kwok.x-k8s.io/delay": "1s"}))

    seconds = measure_ready_seconds(pods_cluster, "late")
    assert seconds > 0.9
    assert is_below_scaled_limit(seconds, 1 + READY_SECONDS)


def test_deleted_pod_is_gone_immediately(pods_cluster: LocalCluster) -> None:
    """Check that deleted pods without annotations are gone immediately, whatever their grace period is."""
    for number in range(POD_COUNT):
        pods_cluster.get_client().create(PODS_PATH, build_pod(f"short-{number}"))
        measure_ready_seconds(pods_cluster, f"short-{number}")

    sorted_seconds = sorted(measure_deletion_seconds(pods_cluster, f"short-{number}") for number in range(POD_COUNT))

    assert sorted_seconds[POD_COUNT // 2] < READY_SECONDS / 2


def test_delete_delay_annotation_is_respected_without_jitter(pods_cluster: LocalCluster) -> None:
    """Check that a deleted pod with the annotation is gone after the specified delay, without jitter."""
    pods_cluster.get_client().create(PODS_PATH, build_pod("slow", {"pod-delete.stage.kwok.x-k8s.io/delay": "1s"}))
    measure_ready_seconds(pods_cluster, "slow")

    seconds = measure_deletion_seconds(pods_cluster, "slow")
    assert seconds > 0.9
    assert is_below_scaled_limit(seconds, 1 + READY_SECONDS)


def test_finalizer_delays_pod_deletion(pods_cluster: LocalCluster, cluster: LocalCluster) -> None:
    """Check that a deleted pod with another project's finalizer exists until the finalizer is removed."""
    pods_cluster.get_client().create(PODS_PATH, build_pod("held", finalizers=["example.com/hold"]))
    pods_cluster.get_client().create(PODS_PATH, build_pod("witness"))
    measure_ready_seconds(pods_cluster, "held")
    delete_pod(pods_cluster, "held")

    # Once a pod that was deleted later is gone, kwok has also processed the deletion of the pod `held`.
    measure_deletion_seconds(pods_cluster, "witness")
    metadata = pods_cluster.get_client().get(f"{PODS_PATH}/held")["metadata"]
    assert metadata["finalizers"] == ["example.com/hold"]
    assert datetime.fromisoformat(metadata["deletionTimestamp"].replace("Z", "+00:00"))

    cluster.kubectl("patch", "pod", "held", "--namespace=pods-test", "--patch", '{"metadata":{"finalizers":null}}')
    cluster.kubectl("wait", "--for=delete", "pod/held", "--namespace=pods-test", "--timeout=10s")


def test_pod_of_job_completes_after_specified_time(cluster: LocalCluster, pods_cluster: LocalCluster) -> None:
    """Check that a Job's pod runs for the duration in its annotation, and that the Job then completes."""
    template = {
        "metadata": {"annotations": {"pod-complete.stage.kwok.x-k8s.io/delay": "1s"}},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "fake"}]},
    }
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "work"}, "spec": {"template": template}}
    pods_cluster.get_client().create("/apis/batch/v1/namespaces/pods-test/jobs", job)

    cluster.kubectl("wait", "--for=condition=Complete", "job/work", "--namespace=pods-test", "--timeout=20s")


def test_later_added_node_runs_pods(cluster: LocalCluster, pods_cluster: LocalCluster) -> None:
    """Check that a node that was added after the cluster's start runs the pods that are bound to it."""
    (name,) = cluster.add_nodes(1)
    pod = build_pod("elsewhere")
    pod["spec"]["nodeName"] = name
    pods_cluster.get_client().create(PODS_PATH, pod)

    assert is_below_scaled_limit(measure_ready_seconds(pods_cluster, "elsewhere"), READY_SECONDS)
    cluster.kubectl("delete", "node", name)


def test_node_without_annotation_is_not_managed_by_kwok(cluster: LocalCluster, pods_cluster: LocalCluster) -> None:
    """Check that kwok manages only nodes that have kwok's annotation."""
    pods_cluster.get_client().create(
        "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "foreign"}}
    )
    cluster.add_nodes(1)  # The call returns once the new node is Ready; kwok has then also seen the older node.

    conditions = pods_cluster.get_client().get("/api/v1/nodes/foreign")["status"].get("conditions", [])
    cluster.kubectl("delete", "node", "foreign", f"node-{cluster.node_count}")

    assert [
        condition for condition in conditions if condition["type"] == "Ready" and condition["status"] == "True"
    ] == []
