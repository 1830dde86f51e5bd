"""Tests for the capacity check of the remaining nodes, compared with brute-force placement in generated clusters."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any, NamedTuple

import pytest

from kube.capacity import FITS, NOWHERE, UNKNOWN, Placement, place_pods
from kube.paths import Object
from tests.kube.samples import READY_CONDITIONS, make_pod

CLUSTERS = range(20)
"""Seeds of the generated clusters."""
ZONES = ("a", "b")
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


class SampleNode(NamedTuple):
    """A node as the brute-force placement represents it."""

    cpu: int
    memory: int
    used_cpu: int
    zone: str
    tainted: bool
    cordoned: bool
    ready: bool

    def accepts(self, pod: SamplePod) -> bool:
        """Return whether the node accepts the pod if its resources suffice."""
        is_available = self.ready and not self.cordoned and (pod.tolerates or not self.tainted)
        return is_available and pod.zone in ("", self.zone)


class SamplePod(NamedTuple):
    """A displaced pod as the brute-force placement represents it; the zone "" means any zone."""

    cpu: int
    memory: int
    zone: str
    by_affinity: bool
    tolerates: bool


def generate_node(rng: random.Random) -> SampleNode:
    cpu = rng.randint(2, 8)
    return SampleNode(
        cpu=cpu,
        memory=rng.randint(2, 8),
        used_cpu=rng.randint(0, cpu // 2),
        zone=rng.choice(ZONES),
        tainted=rng.random() < 0.2,
        cordoned=rng.random() < 0.1,
        ready=rng.random() > 0.1,
    )


def generate_pod(rng: random.Random) -> SamplePod:
    return SamplePod(
        cpu=rng.randint(0, 3),
        memory=rng.randint(1, 3),
        zone=rng.choice(("", "", "", *ZONES)),
        by_affinity=rng.random() < 0.5,
        tolerates=rng.random() < 0.4,
    )


def build_node(name: str, node: SampleNode) -> Object:
    taints = [{"key": "reserved", "effect": "NoSchedule"}] if node.tainted else []
    return {
        "metadata": {"name": name, "labels": {"zone": node.zone}},
        "spec": {"taints": taints, "unschedulable": node.cordoned},
        "status": {
            "allocatable": {"cpu": str(node.cpu), "memory": f"{node.memory}Gi", "pods": "10"},
            "conditions": READY_CONDITIONS if node.ready else [],
        },
    }


def build_spec(cpu: int, memory: int, **spec: Any) -> Object:
    requests = {"cpu": f"{cpu * 1000}m", "memory": f"{memory}Gi"}
    return {"containers": [{"name": "main", "resources": {"requests": requests}}], **spec}


def build_displaced_pod(name: str, pod: SamplePod) -> Object:
    spec = build_spec(pod.cpu, pod.memory)
    if pod.tolerates:
        spec["tolerations"] = [{"key": "reserved", "operator": "Exists"}]
    if pod.zone and pod.by_affinity:
        term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": [pod.zone]}]}
        spec["affinity"] = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [term]}}}
    elif pod.zone:
        spec["nodeSelector"] = {"zone": pod.zone}
    return {**make_pod(name, owner="ReplicaSet"), "spec": spec}


def build_staying_pod(name: str, node: SampleNode, node_name: str) -> Object:
    return {**make_pod(name), "spec": build_spec(node.used_cpu, 0, nodeName=node_name)}


def is_possible(nodes: Sequence[SampleNode], pods: Sequence[SamplePod], assignment: Iterable[int | None]) -> bool:
    """Return whether each node accepts its assigned pods and has enough resources; None means an unplaced pod."""
    placed = [(index, pod) for index, pod in zip(assignment, pods, strict=True) if index is not None]
    for index, node in enumerate(nodes):
        on_node = [pod for position, pod in placed if position == index]
        if not all(node.accepts(pod) for pod in on_node):
            return False
        if sum(pod.cpu for pod in on_node) > node.cpu - node.used_cpu or sum(p.memory for p in on_node) > node.memory:
            return False
    return True


def count_placeable(nodes: Sequence[SampleNode], pods: Sequence[SamplePod]) -> int:
    """Return the largest number of pods that any assignment can place on the nodes."""
    assignments = product((None, *range(len(nodes))), repeat=len(pods))
    return max(
        sum(index is not None for index in assignment)
        for assignment in assignments
        if is_possible(nodes, pods, assignment)
    )


def generate_cluster(seed: int) -> tuple[list[SampleNode], list[SamplePod]]:
    rng = random.Random(seed)
    return [generate_node(rng) for _ in range(rng.randint(2, 4))], [generate_pod(rng) for _ in range(rng.randint(3, 5))]


def compute_placements(nodes: Sequence[SampleNode], pods: Sequence[SamplePod]) -> list[Placement]:
    """Return the placements of the pods, in their order; the drained node has enough resources but is not used."""
    drained = build_node("drained", SampleNode(99, 99, 0, "a", tainted=False, cordoned=False, ready=True))
    named = {f"node-{index}": node for index, node in enumerate(nodes)}
    return place_pods(
        [build_displaced_pod(f"pod-{index}", pod) for index, pod in enumerate(pods)],
        [drained, *(build_node(name, node) for name, node in named.items())],
        ["drained"],
        [build_staying_pod(f"staying-{name}", node, name) for name, node in named.items()],
    )


@pytest.mark.parametrize("seed", CLUSTERS)
def test_placement_in_generated_cluster_agrees_with_brute_force(seed: int) -> None:
    """Check that the result is a possible placement, and that it places as many pods as brute force."""
    nodes, pods = generate_cluster(seed)

    placements = compute_placements(nodes, pods)

    assignment = [int(item.node.removeprefix("node-")) if item.node else None for item in placements]
    assert {item.verdict for item in placements} <= {FITS, NOWHERE}
    assert is_possible(nodes, pods, assignment)
    assert sum(item.verdict == FITS for item in placements) == count_placeable(nodes, pods)


@pytest.mark.parametrize("seed", CLUSTERS)
def test_placement_of_one_pod_agrees_with_brute_force(seed: int) -> None:
    nodes, pods = generate_cluster(seed)

    for pod in pods:
        (placement,) = compute_placements(nodes, [pod])
        assert (placement.verdict == FITS) is (count_placeable(nodes, [pod]) == 1)


def test_generated_clusters_contain_fitting_and_unfitting_pods() -> None:
    """Check that pods fit in some generated clusters, and do not fit in others."""
    counts = [(count_placeable(*generate_cluster(seed)), len(generate_cluster(seed)[1])) for seed in CLUSTERS]

    assert sum(placed == total for placed, total in counts) >= 3
    assert sum(placed < total for placed, total in counts) >= 3


def make_sample_node(cpu: int = 4, **fields: Any) -> SampleNode:
    return SampleNode(cpu, 8, 0, "a", **{"tainted": False, "cordoned": False, "ready": True, **fields})


def make_sample_pod(cpu: int = 1, zone: str = "") -> SamplePod:
    return SamplePod(cpu, 1, zone, by_affinity=False, tolerates=False)


def test_pod_that_fits_nowhere_gets_most_common_reason_first() -> None:
    nodes = [*[make_sample_node(1)] * 3, make_sample_node(tainted=True), make_sample_node(cordoned=True)]

    (placement,) = compute_placements(nodes, [make_sample_pod(2)])

    assert placement.verdict == NOWHERE
    assert placement.reason == "insufficient cpu on 3 nodes, cordoned on 1 node, taint reserved on 1 node"


def test_displaced_pods_share_capacity() -> None:
    """Check that two pods that each fit on a node do not both fit on it."""
    verdicts = [placement.verdict for placement in compute_placements([make_sample_node(3)], [make_sample_pod(2)] * 2)]

    assert sorted(verdicts) == [FITS, NOWHERE]


def test_without_other_nodes_no_pod_fits() -> None:
    (placement,) = compute_placements([], [make_sample_pod()])

    assert (placement.verdict, placement.reason) == (NOWHERE, "no other node")


def test_node_accepts_no_more_pods_than_its_pod_limit() -> None:
    verdicts = [placement.verdict for placement in compute_placements([make_sample_node(40)], [make_sample_pod(0)] * 3)]
    assert verdicts == [FITS] * 3
    limited = build_node("other", make_sample_node(40))
    limited["status"]["allocatable"]["pods"] = "2"

    placements = place_pods([build_displaced_pod(str(n), make_sample_pod()) for n in range(3)], [limited], [], [])

    assert [item.reason for item in placements if item.verdict == NOWHERE] == ["insufficient pods on 1 node"]


def test_pod_with_unmodelled_constraint_never_fits() -> None:
    """Check that the placement of such a pod is unknown if a node has enough resources, which the pod then uses."""
    node, claim = build_node("other", make_sample_node(3)), {"persistentVolumeClaim": {"claimName": "data"}}
    pod, other = build_displaced_pod("a", make_sample_pod(2)), build_displaced_pod("b", make_sample_pod(2))
    pod["spec"]["volumes"] = [{"name": "data", **claim}]

    assert [(item.verdict, item.reason) for item in place_pods([pod], [node], [], [])] == [(UNKNOWN, "volume data")]
    assert [item.verdict for item in place_pods([pod, other], [node], [], [])] == [UNKNOWN, NOWHERE]
    full = [{**make_pod("full"), "spec": build_spec(2, 0, nodeName="other")}]
    assert [item.verdict for item in place_pods([pod], [node], [], full)] == [NOWHERE]


def test_anti_affinity_of_another_pod_makes_capacity_unknown() -> None:
    """Check that the anti-affinity of a pod on the other node counts even if the displaced pod has no anti-affinity."""
    term = {"labelSelector": {"matchLabels": {"app": "db"}}, "topologyKey": "kubernetes.io/hostname"}
    owner = {**make_pod("owner"), "spec": build_spec(1, 0, nodeName="other")}
    owner["spec"]["affinity"] = {"podAntiAffinity": {REQUIRED: [term]}}
    pod = {**build_displaced_pod("a", make_sample_pod()), "metadata": make_pod("a", labels={"app": "db"})["metadata"]}

    (placement,) = place_pods([pod], [build_node("other", make_sample_node())], [], [owner])

    assert (placement.verdict, placement.reason) == (UNKNOWN, "anti-affinity of another pod")


def test_resource_that_only_drained_node_has_is_insufficient_elsewhere() -> None:
    """Check that a resource is insufficient if only the drained node has it, and unknown if no node reports it."""
    pod, node = build_displaced_pod("a", make_sample_pod()), build_node("other", make_sample_node())
    pod["spec"]["containers"][0]["resources"]["requests"]["example.com/gpu"] = "1"
    drained = build_node("drained", make_sample_node())
    drained["status"]["allocatable"]["example.com/gpu"] = "1"

    (with_gpu,) = place_pods([pod], [node, drained], ["drained"], [])
    (without_gpu,) = place_pods([pod], [node], [], [])

    assert (with_gpu.verdict, with_gpu.reason) == (NOWHERE, "insufficient example.com/gpu on 1 node")
    assert (without_gpu.verdict, without_gpu.reason) == (UNKNOWN, "resource example.com/gpu")


def test_finished_pods_use_no_capacity() -> None:
    node = build_node("other", make_sample_node(2))
    finished = {**make_pod("done", phase="Succeeded"), "spec": build_spec(2, 0, nodeName="other")}

    (placement,) = place_pods([build_displaced_pod("a", make_sample_pod(2))], [node], [], [finished])

    assert placement.verdict == FITS
