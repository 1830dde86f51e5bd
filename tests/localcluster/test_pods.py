"""Pods on fake nodes: when they become Ready, and when they go."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from localcluster.cluster import LocalCluster
from tests.machine import is_below

pytestmark = pytest.mark.slow

PODS = "/api/v1/namespaces/pods-test/pods"
AT_ONCE = 0.5  # seconds; measured: some hundredths, the rest is for a busy machine
ROUNDS = 10


@pytest.fixture(scope="module")
def pods(cluster: LocalCluster) -> Iterator[LocalCluster]:
    """Give the cluster with a namespace that the pods of this file live in."""
    cluster.kubectl("create", "namespace", "pods-test")
    cluster.kubectl(
        *("wait", "--for=create", "serviceaccount/default", "--namespace=pods-test", "--timeout=30s"),
    )
    yield cluster
    cluster.kubectl("delete", "namespace", "pods-test", "--wait=false")


def pod(name: str, annotations: dict[str, str] | None = None, **metadata: Any) -> dict[str, Any]:
    """Give a pod that is already bound to node-1."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations or {}, **metadata},
        "spec": {"nodeName": "node-1", "containers": [{"name": "main", "image": "fake"}]},
    }


def delete(pods: LocalCluster, name: str) -> None:
    """Ask for a pod's deletion with the usual grace."""
    door = pods.door()
    door.run(door.api.request("DELETE", f"{PODS}/{name}"))


def seconds_to_ready(pods: LocalCluster, name: str) -> float:
    """Wait until the pod is Ready and give the seconds since its creation request."""
    started = time.monotonic()
    for event in pods.watch(PODS, fields=f"metadata.name={name}"):
        conditions = event.object.get("status", {}).get("conditions", [])
        if any(item["type"] == "Ready" and item["status"] == "True" for item in conditions):
            break
    return time.monotonic() - started


def gone_after(pods: LocalCluster, name: str) -> float:
    """Delete a pod, with the usual grace, and give the seconds from the request to its end."""
    events = pods.watch(PODS, fields=f"metadata.name={name}")
    next(events)
    started = time.monotonic()
    delete(pods, name)
    for event in events:
        if event.kind == "DELETED":
            break
    return time.monotonic() - started


def test_a_pod_is_ready_at_once(pods: LocalCluster) -> None:
    """A pod without annotations is Running and Ready a moment after it is bound."""
    pods.door().create(PODS, pod("at-once"))

    assert is_below(seconds_to_ready(pods, "at-once"), AT_ONCE)


def test_the_ready_delay_is_honoured(pods: LocalCluster) -> None:
    """A pod with the ready annotation is Ready after that time and not before."""
    pods.door().create(PODS, pod("late", {"pod-ready.stage.kwok.x-k8s.io/delay": "1s"}))

    seconds = seconds_to_ready(pods, "late")
    assert seconds > 0.9
    assert is_below(seconds, 1 + AT_ONCE)


def test_a_deleted_pod_goes_at_once(pods: LocalCluster) -> None:
    """Deleted pods without annotations go within a moment each, whatever their grace period."""
    for number in range(ROUNDS):
        pods.door().create(PODS, pod(f"short-{number}"))
        seconds_to_ready(pods, f"short-{number}")

    times = sorted(gone_after(pods, f"short-{number}") for number in range(ROUNDS))

    assert times[ROUNDS // 2] < AT_ONCE / 2


def test_the_delete_delay_is_honoured_without_jitter(pods: LocalCluster) -> None:
    """A deleted pod with the delete annotation goes after that time, not spread over its grace period."""
    pods.door().create(PODS, pod("slow", {"pod-delete.stage.kwok.x-k8s.io/delay": "1s"}))
    seconds_to_ready(pods, "slow")

    seconds = gone_after(pods, "slow")
    assert seconds > 0.9
    assert is_below(seconds, 1 + AT_ONCE)


def test_a_finalizer_holds_a_pod(pods: LocalCluster, cluster: LocalCluster) -> None:
    """A deleted pod with somebody's finalizer stays, finalizer and all, and goes when that is taken off."""
    pods.door().create(PODS, pod("held", finalizers=["example.com/hold"]))
    pods.door().create(PODS, pod("witness"))
    seconds_to_ready(pods, "held")
    delete(pods, "held")

    # By the time that a pod deleted later is gone, kwok has long seen this one.
    gone_after(pods, "witness")
    held = pods.door().get(f"{PODS}/held")["metadata"]
    assert held["finalizers"] == ["example.com/hold"]
    assert datetime.fromisoformat(held["deletionTimestamp"].replace("Z", "+00:00"))

    cluster.kubectl("patch", "pod", "held", "--namespace=pods-test", "--patch", '{"metadata":{"finalizers":null}}')
    cluster.kubectl("wait", "--for=delete", "pod/held", "--namespace=pods-test", "--timeout=10s")


def test_a_job_pod_completes_after_its_time(cluster: LocalCluster, pods: LocalCluster) -> None:
    """A Job's pod runs for as long as its annotation says, and then the Job is complete."""
    template = {
        "metadata": {"annotations": {"pod-complete.stage.kwok.x-k8s.io/delay": "1s"}},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "fake"}]},
    }
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "work"}, "spec": {"template": template}}
    pods.door().create("/apis/batch/v1/namespaces/pods-test/jobs", job)

    cluster.kubectl("wait", "--for=condition=Complete", "job/work", "--namespace=pods-test", "--timeout=20s")


def test_new_nodes_take_pods(cluster: LocalCluster, pods: LocalCluster) -> None:
    """A node that is added later is Ready and runs the pods that are bound to it."""
    (name,) = cluster.add_nodes(1)
    late = pod("elsewhere")
    late["spec"]["nodeName"] = name
    pods.door().create(PODS, late)

    assert is_below(seconds_to_ready(pods, "elsewhere"), AT_ONCE)
    cluster.kubectl("delete", "node", name)


def test_a_node_without_the_annotation_is_left_alone(cluster: LocalCluster, pods: LocalCluster) -> None:
    """kwok plays the kubelet only for nodes with its annotation."""
    pods.door().create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "foreign"}})
    cluster.add_nodes(1)  # created after it, and Ready by now

    conditions = pods.door().get("/api/v1/nodes/foreign")["status"].get("conditions", [])
    cluster.kubectl("delete", "node", "foreign", f"node-{cluster.nodes}")

    assert [item for item in conditions if item["type"] == "Ready" and item["status"] == "True"] == []
