"""The lifecycle of pods on fake nodes: readiness, completion and deletion."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from localcluster.cluster import LocalCluster
from tests.machine_speed import is_below

pytestmark = pytest.mark.slow

PODS = "/api/v1/namespaces/pods-test/pods"
AT_ONCE = 0.5  # seconds; measured: a few hundredths, the rest allows for a busy machine
ROUNDS = 10


@pytest.fixture(scope="module")
def pods(cluster: LocalCluster) -> Iterator[LocalCluster]:
    """Yield the cluster with a namespace for the pods of this file."""
    cluster.kubectl("create", "namespace", "pods-test")
    cluster.kubectl(
        *("wait", "--for=create", "serviceaccount/default", "--namespace=pods-test", "--timeout=30s"),
    )
    yield cluster
    cluster.kubectl("delete", "namespace", "pods-test", "--wait=false")


def pod(name: str, annotations: dict[str, str] | None = None, **metadata: Any) -> dict[str, Any]:
    """Build a pod that is already bound to node-1."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations or {}, **metadata},
        "spec": {"nodeName": "node-1", "containers": [{"name": "main", "image": "fake"}]},
    }


def delete(pods: LocalCluster, name: str) -> None:
    """Request the deletion of a pod with its default grace period."""
    door = pods.door()
    door.run(door.api.request("DELETE", f"{PODS}/{name}"))


def seconds_to_ready(pods: LocalCluster, name: str) -> float:
    """Wait until the pod is Ready; return the seconds since the call."""
    started = time.monotonic()
    for event in pods.watch(PODS, fields=f"metadata.name={name}"):
        conditions = event.object.get("status", {}).get("conditions", [])
        if any(item["type"] == "Ready" and item["status"] == "True" for item in conditions):
            break
    return time.monotonic() - started


def gone_after(pods: LocalCluster, name: str) -> float:
    """Delete a pod with its default grace period; return the seconds until it is gone."""
    events = pods.watch(PODS, fields=f"metadata.name={name}")
    next(events)
    started = time.monotonic()
    delete(pods, name)
    for event in events:
        if event.kind == "DELETED":
            break
    return time.monotonic() - started


def test_a_pod_is_ready_at_once(pods: LocalCluster) -> None:
    """Check that a pod without annotations is Running and Ready at once after it is bound."""
    pods.door().create(PODS, pod("at-once"))

    assert is_below(seconds_to_ready(pods, "at-once"), AT_ONCE)


def test_the_ready_delay_is_honoured(pods: LocalCluster) -> None:
    """Check that a pod with the ready annotation is Ready after that delay and not before."""
    pods.door().create(PODS, pod("late", {"pod-ready.stage.kwok.x-k8s.io/delay": "1s"}))

    seconds = seconds_to_ready(pods, "late")
    assert seconds > 0.9
    assert is_below(seconds, 1 + AT_ONCE)


def test_a_deleted_pod_goes_at_once(pods: LocalCluster) -> None:
    """Check that deleted pods without annotations are gone at once, whatever their grace period is."""
    for number in range(ROUNDS):
        pods.door().create(PODS, pod(f"short-{number}"))
        seconds_to_ready(pods, f"short-{number}")

    times = sorted(gone_after(pods, f"short-{number}") for number in range(ROUNDS))

    assert times[ROUNDS // 2] < AT_ONCE / 2


def test_the_delete_delay_is_honoured_without_jitter(pods: LocalCluster) -> None:
    """Check that a deleted pod with the delete annotation is gone after that delay, without jitter."""
    pods.door().create(PODS, pod("slow", {"pod-delete.stage.kwok.x-k8s.io/delay": "1s"}))
    seconds_to_ready(pods, "slow")

    seconds = gone_after(pods, "slow")
    assert seconds > 0.9
    assert is_below(seconds, 1 + AT_ONCE)


def test_a_finalizer_holds_a_pod(pods: LocalCluster, cluster: LocalCluster) -> None:
    """Check that a deleted pod with a foreign finalizer keeps it, and is gone when the finalizer is removed."""
    pods.door().create(PODS, pod("held", finalizers=["example.com/hold"]))
    pods.door().create(PODS, pod("witness"))
    seconds_to_ready(pods, "held")
    delete(pods, "held")

    # When a pod that was deleted later is gone, kwok has also processed the deletion of this one.
    gone_after(pods, "witness")
    held = pods.door().get(f"{PODS}/held")["metadata"]
    assert held["finalizers"] == ["example.com/hold"]
    assert datetime.fromisoformat(held["deletionTimestamp"].replace("Z", "+00:00"))

    cluster.kubectl("patch", "pod", "held", "--namespace=pods-test", "--patch", '{"metadata":{"finalizers":null}}')
    cluster.kubectl("wait", "--for=delete", "pod/held", "--namespace=pods-test", "--timeout=10s")


def test_a_job_pod_completes_after_its_time(cluster: LocalCluster, pods: LocalCluster) -> None:
    """Check that a Job's pod runs as long as its annotation specifies, and that the Job then completes."""
    template = {
        "metadata": {"annotations": {"pod-complete.stage.kwok.x-k8s.io/delay": "1s"}},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "fake"}]},
    }
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "work"}, "spec": {"template": template}}
    pods.door().create("/apis/batch/v1/namespaces/pods-test/jobs", job)

    cluster.kubectl("wait", "--for=condition=Complete", "job/work", "--namespace=pods-test", "--timeout=20s")


def test_new_nodes_take_pods(cluster: LocalCluster, pods: LocalCluster) -> None:
    """Check that a node that was added later is Ready and runs the pods that are bound to it."""
    (name,) = cluster.add_nodes(1)
    late = pod("elsewhere")
    late["spec"]["nodeName"] = name
    pods.door().create(PODS, late)

    assert is_below(seconds_to_ready(pods, "elsewhere"), AT_ONCE)
    cluster.kubectl("delete", "node", name)


def test_a_node_without_the_annotation_is_left_alone(cluster: LocalCluster, pods: LocalCluster) -> None:
    """Check that kwok manages only nodes with its annotation."""
    pods.door().create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "foreign"}})
    cluster.add_nodes(1)  # created after it, and Ready now

    conditions = pods.door().get("/api/v1/nodes/foreign")["status"].get("conditions", [])
    cluster.kubectl("delete", "node", "foreign", f"node-{cluster.nodes}")

    assert [item for item in conditions if item["type"] == "Ready" and item["status"] == "True"] == []
