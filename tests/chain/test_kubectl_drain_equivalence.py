"""Tests that compare the product's drain with `kubectl drain`, on two nodes with the same pods."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kube.maintenance.groups import GROUPS
from kube.paths import Object
from kube.pods import is_ready
from localcluster.programs import build
from tests.chain.environment import EventChainEnvironment
from tests.proofs import proves
from tests.workload import build_pod

pytestmark = pytest.mark.abreast
ROOT = Path(__file__).parents[2]
DRAIN_FLAGS = ("--force", "--delete-emptydir-data", "--ignore-daemonsets")
API_VERSION_BY_CONTROLLER = {
    "Deployment": "apps/v1",
    "StatefulSet": "apps/v1",
    "DaemonSet": "apps/v1",
    "Job": "batch/v1",
    "ReplicationController": "v1",
}
NEVER_EVICTED_KINDS = {"DaemonSet", "mirror"}


@pytest.mark.slow
@proves("KNM-6", "OSV-1", "NMO-7", "NMO-8", "NMO-9", "NMO-11")
@pytest.mark.parametrize("api_version", GROUPS)
def test_maintenance_leaves_same_pods_as_kubectl_drain(environment: EventChainEnvironment, api_version: str) -> None:
    """Check that a maintenance cordons the node and leaves the same pods on it as `kubectl drain`."""
    kubectl_node, node = create_node_with_all_pod_kinds(environment), create_node_with_all_pod_kinds(environment)
    kinds_before, kubectl_kinds_before = (
        get_pod_kind_by_uid(environment, node),
        get_pod_kind_by_uid(environment, kubectl_node),
    )

    environment.cluster.kubectl("drain", kubectl_node, *DRAIN_FLAGS)
    path = environment.create_maintenance(node, api_version=api_version)
    status = environment.wait_for_state(path)["status"]

    remaining, expected = get_pod_kind_by_uid(environment, node), get_pod_kind_by_uid(environment, kubectl_node)
    assert sorted(kinds_before.values()) == sorted(kubectl_kinds_before.values())
    assert sorted(remaining.values()) == sorted(expected.values()) == sorted(NEVER_EVICTED_KINDS)
    assert remaining.items() <= kinds_before.items()
    assert expected.items() <= kubectl_kinds_before.items()
    assert (
        environment.get_node_spec(node)["unschedulable"]
        is environment.get_node_spec(kubectl_node)["unschedulable"]
        is True
    )
    assert (status["totalpods"], status["evictionPods"]) == (len(kinds_before), len(kinds_before) - len(remaining))
    environment.request_deletion(path)
    environment.wait_for_deletion(path)


@pytest.mark.slow
@proves("OSV-1", "OSV-10", "DRN-1", "C11")
def test_drain_command_leaves_same_pods_as_kubectl_drain(environment: EventChainEnvironment) -> None:
    """Check that `kubectl maintenance drain` leaves a node in the same state as `kubectl drain` with the same flags."""
    kubectl_node, node = create_node_with_all_pod_kinds(environment), create_node_with_all_pod_kinds(environment)

    environment.cluster.kubectl("drain", kubectl_node, *DRAIN_FLAGS)
    arguments = ("drain", node, "--delete-local-data", "--ignore-daemonsets=true", "--force")
    subprocess.run(
        [sys.executable, "-m", "console.cli", *arguments],
        env=build_process_environment(environment),
        cwd=ROOT,
        check=True,
    )

    remaining, expected = get_pod_kind_by_uid(environment, node), get_pod_kind_by_uid(environment, kubectl_node)
    assert sorted(remaining.values()) == sorted(expected.values()) == sorted(NEVER_EVICTED_KINDS)
    environment.workload.wait_for_object(
        f"/api/v1/nodes/{node}", lambda node: node is not None and "taints" in node["spec"]
    )
    assert (
        environment.get_node_spec(node)["unschedulable"]
        is environment.get_node_spec(kubectl_node)["unschedulable"]
        is True
    )
    assert [taint["key"] for taint in environment.get_node_spec(node)["taints"]] == ["node.kubernetes.io/unschedulable"]


@pytest.mark.slow
@proves("DRN-1a")
@pytest.mark.parametrize(
    ("flags", "drain"),
    [
        pytest.param(DRAIN_FLAGS, {"force": True, "deleteEmptyDirData": True, "ignoreDaemonSets": True}, id="all"),
        pytest.param(
            (*DRAIN_FLAGS, "--pod-selector=kind in (bare, job)"),
            {"podSelector": "kind in (bare, job)"},
            id="some kinds",
        ),
        pytest.param((*DRAIN_FLAGS, "--pod-selector=kind!=bare"), {"podSelector": "kind!=bare"}, id="all but one kind"),
        pytest.param((*DRAIN_FLAGS, "--grace-period=1"), {"gracePeriodSeconds": 1}, id="grace period"),
    ],
)
def test_drain_options_leave_same_pods_as_kubectl_flags(
    environment: EventChainEnvironment, flags: tuple[str, ...], drain: Object
) -> None:
    """DRN-1a: `spec.drain` leaves the same pods on a node as the equivalent flags of `kubectl drain`."""
    kubectl_node, node = create_node_with_all_pod_kinds(environment), create_node_with_all_pod_kinds(environment)

    environment.cluster.kubectl("drain", kubectl_node, *flags)
    path = environment.create_maintenance(node, drain=drain)
    environment.wait_for_state(path)

    remaining, expected = get_pod_kind_by_uid(environment, node), get_pod_kind_by_uid(environment, kubectl_node)
    assert sorted(remaining.values()) == sorted(expected.values())
    environment.request_deletion(path)
    environment.wait_for_deletion(path)


BLOCKED_KINDS_BY_FLAG = {
    "force": ("--force=false", ["bare", "emptydir"]),
    "deleteEmptyDirData": ("--delete-emptydir-data=false", ["emptydir"]),
    "ignoreDaemonSets": ("--ignore-daemonsets=false", ["DaemonSet"]),
}


@pytest.mark.slow
@proves("DRN-1a")
@pytest.mark.parametrize("flag", BLOCKED_KINDS_BY_FLAG)
def test_drain_options_block_pods_that_kubectl_drain_refuses(environment: EventChainEnvironment, flag: str) -> None:
    """DRN-1a: a maintenance blocks the pods that make `kubectl drain` refuse to run, and evicts all other pods.

    Design rules 2 and 8: while these pods are blocked, ticks write nothing. After a change to the spec, the drain
    continues.
    """
    kubectl_flag, kinds = BLOCKED_KINDS_BY_FLAG[flag]
    kubectl_node, node = create_node_with_all_pod_kinds(environment), create_node_with_all_pod_kinds(environment)

    kubectl_result = environment.cluster.kubectl("drain", kubectl_node, *DRAIN_FLAGS, kubectl_flag, check=False)
    path = environment.create_maintenance(node, drain={flag: False})
    environment.wait_for_state(
        path, lambda maintenance: (maintenance.get("status") or {}).get("pendingCount") == len(kinds)
    )

    remaining = get_pod_kind_by_uid(environment, node)
    assert kubectl_result.returncode != 0
    assert sorted(remaining.values()) == sorted({*NEVER_EVICTED_KINDS, *kinds})
    blocked_pods = [pod for pod in environment.list_pods_on(node) if pod["metadata"]["labels"]["kind"] in kinds]
    blocked_names = {pod["metadata"]["name"] for pod in blocked_pods}
    settled_maintenance = environment.wait_for_state(
        path, lambda maintenance: len(maintenance["status"]["blockedPods"]) == len(kinds)
    )
    assert {pod["name"] for pod in settled_maintenance["status"]["blockedPods"]} == blocked_names
    assert all(f"spec.drain.{flag}" in pod["message"] for pod in settled_maintenance["status"]["blockedPods"])
    assert all(f"/{kind.lower()}" in kubectl_result.stderr for kind in kinds)
    for _ in range(3):
        environment.send_tick()
    assert (
        environment.client.get(path)["metadata"]["resourceVersion"]
        == settled_maintenance["metadata"]["resourceVersion"]
    )
    namespaces = {pod["metadata"]["namespace"] for pod in blocked_pods}
    assert [
        entry for entry in environment.list_evictions(blocked_pods) if entry["objectRef"]["namespace"] in namespaces
    ] == []
    environment.client.patch(path, {"spec": {"drain": {flag: True}}})
    environment.wait_for_state(path)
    environment.request_deletion(path)
    environment.wait_for_deletion(path)


def build_process_environment(environment: EventChainEnvironment) -> dict[str, str]:
    path = os.pathsep.join([str(build.ensure_programs()), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "KUBECONFIG": str(environment.cluster.kubeconfig)}


def create_node_with_all_pod_kinds(environment: EventChainEnvironment) -> str:
    """Create a node with one pod of each kind that a drain treats differently, and return the node's name."""
    node, namespace = environment.create_node(), environment.create_namespace()
    pods = f"/api/v1/namespaces/{namespace}/pods"
    for body in build_bare_pods(node):
        environment.client.create(pods, body)
    for kind, version in API_VERSION_BY_CONTROLLER.items():
        base_path = "/api/v1" if version == "v1" else f"/apis/{version}"
        body = {
            "apiVersion": version,
            "kind": kind,
            "metadata": {"name": kind.lower()},
            "spec": build_controller_spec(kind, node),
        }
        environment.client.create(f"{base_path}/namespaces/{namespace}/{kind.lower()}s", body)
    environment.workload.wait_for_collection(
        pods,
        lambda pods_by_name: sum(is_ready(pod) for pod in pods_by_name.values()) == len(API_VERSION_BY_CONTROLLER) + 5,
    )
    for name, phase in (("succeeded", "Succeeded"), ("failed", "Failed")):
        environment.client.patch(f"{pods}/{name}/status", {"status": {"phase": phase}})
    return node


def build_bare_pods(node: str) -> list[Object]:
    """Build pods without a controller; the label `kind` contains the pod's kind."""
    options: dict[str, Object] = {
        "bare": {},
        "succeeded": {},
        "failed": {},
        "emptydir": {"empty_dir": True},
        "mirror": {"annotations": {"kubernetes.io/config.mirror": "here"}},
    }
    return [build_pod(node, name, labels={"kind": name}, **pod_fields) for name, pod_fields in options.items()]


def build_controller_spec(kind: str, node: str) -> Object:
    """Build a controller spec for one pod that can run only on this node, and does not complete during the test."""
    labels = {"kind": kind}
    pod: Object = {"nodeSelector": {"kubernetes.io/hostname": node}, "containers": [{"name": "main", "image": "fake"}]}
    metadata: Object = {"labels": labels, "annotations": {"pod-complete.stage.kwok.x-k8s.io/delay": "1h"}}
    spec: Object = {"template": {"metadata": metadata, "spec": pod}}
    if kind == "Job":
        pod["restartPolicy"] = "Never"
        return spec
    selector = labels if kind == "ReplicationController" else {"matchLabels": labels}
    extra_fields = {"serviceName": "none"} if kind == "StatefulSet" else {}
    return {**spec, **extra_fields, "selector": selector}


def get_pod_kind_by_uid(environment: EventChainEnvironment, node: str) -> dict[str, str]:
    """Return a map from pod uid to value of the label `kind` for the pods on the node."""
    return {pod["metadata"]["uid"]: pod["metadata"]["labels"]["kind"] for pod in environment.list_pods_on(node)}
