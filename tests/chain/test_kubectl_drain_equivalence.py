"""Tests with two nodes with the same pods: the real `kubectl drain` drains one, the product the other."""

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
from tests.chain.environment import Scene
from tests.proofs import proves
from tests.workload import pod_on

pytestmark = pytest.mark.abreast
ROOT = Path(__file__).parents[2]
FLAGS = ("--force", "--delete-emptydir-data", "--ignore-daemonsets")
CONTROLLERS = {
    "Deployment": "apps/v1",
    "StatefulSet": "apps/v1",
    "DaemonSet": "apps/v1",
    "Job": "batch/v1",
    "ReplicationController": "v1",
}
STAYING = {"DaemonSet", "mirror"}


@pytest.mark.slow
@proves("KNM-6", "OSV-1", "NMO-7", "NMO-8", "NMO-9", "NMO-11")
@pytest.mark.parametrize("group", GROUPS)
def test_a_maintenance_leaves_the_pods_that_kubectl_drain_leaves(scene: Scene, group: str) -> None:
    """Maintenances leave the same kinds of pods as `kubectl drain`, none of them recreated, and cordon the node."""
    twin, node = furnished(scene), furnished(scene)
    before, there = kinds_on(scene, node), kinds_on(scene, twin)

    scene.cluster.kubectl("drain", twin, *FLAGS)
    path = scene.maintain(node, group=group)
    status = scene.reaches(path)["status"]

    left, expected = kinds_on(scene, node), kinds_on(scene, twin)
    assert sorted(before.values()) == sorted(there.values())
    assert sorted(left.values()) == sorted(expected.values()) == sorted(STAYING)
    assert left.items() <= before.items()
    assert expected.items() <= there.items()
    assert scene.spec(node)["unschedulable"] is scene.spec(twin)["unschedulable"] is True
    assert (status["totalpods"], status["evictionPods"]) == (len(before), len(before) - len(left))
    scene.delete(path)
    scene.gone(path)


@pytest.mark.slow
@proves("OSV-1", "OSV-10", "DRN-1", "C11")
def test_our_command_leaves_the_pods_that_kubectl_drain_leaves(scene: Scene) -> None:
    """Check that `kubectl maintenance drain` with the documented flags leaves the node as `kubectl drain` does."""
    twin, node = furnished(scene), furnished(scene)

    scene.cluster.kubectl("drain", twin, *FLAGS)
    words = ("drain", node, "--delete-local-data", "--ignore-daemonsets=true", "--force")
    subprocess.run([sys.executable, "-m", "console.cli", *words], env=environment(scene), cwd=ROOT, check=True)

    left, expected = kinds_on(scene, node), kinds_on(scene, twin)
    assert sorted(left.values()) == sorted(expected.values()) == sorted(STAYING)
    scene.work.wait_for(f"/api/v1/nodes/{node}", lambda item: item is not None and "taints" in item["spec"])
    assert scene.spec(node)["unschedulable"] is scene.spec(twin)["unschedulable"] is True
    assert [taint["key"] for taint in scene.spec(node)["taints"]] == ["node.kubernetes.io/unschedulable"]


@pytest.mark.slow
@proves("DRN-1a")
@pytest.mark.parametrize(
    ("flags", "drain"),
    [
        pytest.param(FLAGS, {"force": True, "deleteEmptyDirData": True, "ignoreDaemonSets": True}, id="all"),
        pytest.param((*FLAGS, "--pod-selector=kind in (bare, job)"), {"podSelector": "kind in (bare, job)"}, id="some"),
        pytest.param((*FLAGS, "--pod-selector=kind!=bare"), {"podSelector": "kind!=bare"}, id="but one"),
        pytest.param((*FLAGS, "--grace-period=1"), {"gracePeriodSeconds": 1}, id="grace period"),
    ],
)
def test_a_maintenance_with_flags_leaves_the_pods_that_kubectl_drain_leaves(
    scene: Scene, flags: tuple[str, ...], drain: Object
) -> None:
    """DRN-1a: `spec.drain` leaves the same pods on a node as the equivalent flags of `kubectl drain`."""
    twin, node = furnished(scene), furnished(scene)

    scene.cluster.kubectl("drain", twin, *flags)
    path = scene.maintain(node, drain=drain)
    scene.reaches(path)

    left, expected = kinds_on(scene, node), kinds_on(scene, twin)
    assert sorted(left.values()) == sorted(expected.values())
    scene.delete(path)
    scene.gone(path)


REFUSING = {
    "force": ("--force=false", ["bare", "emptydir"]),
    "deleteEmptyDirData": ("--delete-emptydir-data=false", ["emptydir"]),
    "ignoreDaemonSets": ("--ignore-daemonsets=false", ["DaemonSet"]),
}


@pytest.mark.slow
@proves("DRN-1a")
@pytest.mark.parametrize("flag", REFUSING)
def test_a_maintenance_blocks_the_pods_for_which_kubectl_drain_refuses(scene: Scene, flag: str) -> None:
    """DRN-1a: a maintenance blocks the pods for which `kubectl drain` refuses to run, and evicts the others.

    Rules 2 and 8: while these pods are blocked, ticks write nothing. After a change of the spec, the drain continues.
    """
    spelled, kinds = REFUSING[flag]
    twin, node = furnished(scene), furnished(scene)

    refusal = scene.cluster.kubectl("drain", twin, *FLAGS, spelled, check=False)
    path = scene.maintain(node, drain={flag: False})
    scene.reaches(path, lambda item: (item.get("status") or {}).get("pendingCount") == len(kinds))

    left = kinds_on(scene, node)
    assert refusal.returncode != 0
    assert sorted(left.values()) == sorted({*STAYING, *kinds})
    refused = [pod for pod in scene.pods_on(node) if pod["metadata"]["labels"]["kind"] in kinds]
    named = {pod["metadata"]["name"] for pod in refused}
    settled = scene.reaches(path, lambda item: len(item["status"]["blockedPods"]) == len(kinds))
    assert {pod["name"] for pod in settled["status"]["blockedPods"]} == named
    assert all(f"spec.drain.{flag}" in pod["message"] for pod in settled["status"]["blockedPods"])
    assert all(f"/{kind.lower()}" in refusal.stderr for kind in kinds)
    for _ in range(3):
        scene.tick()
    assert scene.admin.get(path)["metadata"]["resourceVersion"] == settled["metadata"]["resourceVersion"]
    spaces = {pod["metadata"]["namespace"] for pod in refused}
    assert [entry for entry in scene.evictions(refused) if entry["objectRef"]["namespace"] in spaces] == []
    scene.admin.patch(path, {"spec": {"drain": {flag: True}}})
    scene.reaches(path)
    scene.delete(path)
    scene.gone(path)


def environment(scene: Scene) -> dict[str, str]:
    path = os.pathsep.join([str(build.servers()), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "KUBECONFIG": str(scene.cluster.kubeconfig)}


def furnished(scene: Scene) -> str:
    """Create a node with a pod of each kind that a drain distinguishes; return its name once the pods are ready."""
    node, namespace = scene.node(), scene.namespace()
    pods = f"/api/v1/namespaces/{namespace}/pods"
    for body in bare_pods(node):
        scene.admin.create(pods, body)
    for kind, version in CONTROLLERS.items():
        root = "/api/v1" if version == "v1" else f"/apis/{version}"
        body = {"apiVersion": version, "kind": kind, "metadata": {"name": kind.lower()}, "spec": spec_of(kind, node)}
        scene.admin.create(f"{root}/namespaces/{namespace}/{kind.lower()}s", body)
    scene.work.until(pods, lambda found: sum(is_ready(pod) for pod in found.values()) == len(CONTROLLERS) + 5)
    for name, phase in (("succeeded", "Succeeded"), ("failed", "Failed")):
        scene.admin.patch(f"{pods}/{name}/status", {"status": {"phase": phase}})
    return node


def bare_pods(node: str) -> list[Object]:
    """Build pods without a controller; the label `kind` has the pod's kind."""
    options: dict[str, Object] = {
        "bare": {},
        "succeeded": {},
        "failed": {},
        "emptydir": {"empty_dir": True},
        "mirror": {"annotations": {"kubernetes.io/config.mirror": "here"}},
    }
    return [pod_on(node, name, labels={"kind": name}, **more) for name, more in options.items()]


def spec_of(kind: str, node: str) -> Object:
    """Build the spec of a controller with one pod that fits only this node and does not complete by itself."""
    labels = {"kind": kind}
    pod: Object = {"nodeSelector": {"kubernetes.io/hostname": node}, "containers": [{"name": "main", "image": "fake"}]}
    metadata: Object = {"labels": labels, "annotations": {"pod-complete.stage.kwok.x-k8s.io/delay": "1h"}}
    spec: Object = {"template": {"metadata": metadata, "spec": pod}}
    if kind == "Job":
        pod["restartPolicy"] = "Never"
        return spec
    selector = labels if kind == "ReplicationController" else {"matchLabels": labels}
    more = {"serviceName": "none"} if kind == "StatefulSet" else {}
    return {**spec, **more, "selector": selector}


def kinds_on(scene: Scene, node: str) -> dict[str, str]:
    """Return uid → kind of the pods on the node."""
    return {pod["metadata"]["uid"]: pod["metadata"]["labels"]["kind"] for pod in scene.pods_on(node)}
