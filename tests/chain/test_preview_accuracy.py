"""Tests that a maintenance preview predicts the drain: twenty generated nodes are previewed, and then drained."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from console.operations.maintenance_preview import MaintenancePreview, preview_maintenance
from kube.budgets import build_namespace_budgets_path
from kube.evictions.forecast import BLOCKING_EFFECTS
from kube.maintenance.drain_flags import parse_drain_options
from kube.maintenance.groups import MEDIK8S
from kube.paths import Object
from kube.pods import is_ready
from tests.chain.environment import TIMEOUT_SECONDS, EventChainEnvironment, has_succeeded
from tests.proofs import proves
from tests.workload import build_pod

NODE_COUNT, GROUPS_PER_NODE, SEED = 20, 4, 2026
SETTLE_SECONDS = 60.0
"""Maximum seconds of each wait during a drain."""
COLLECTIONS = {
    "ReplicaSet": "apis/apps/v1/namespaces/{}/replicasets",
    "StatefulSet": "apis/apps/v1/namespaces/{}/statefulsets",
    "DaemonSet": "apis/apps/v1/namespaces/{}/daemonsets",
    "Job": "apis/batch/v1/namespaces/{}/jobs",
}
BARE = "bare pods"
OWNER_WEIGHTS = {"ReplicaSet": 6, "StatefulSet": 2, "Job": 1, "DaemonSet": 2, BARE: 2}
SCALABLE = ("ReplicaSet", "StatefulSet")
"""Kinds of pod owners for which the disruption controller supports percentages in PodDisruptionBudgets."""
DRAIN_FIELDS: tuple[Object, ...] = (
    *({}, {}, {}),
    *({"force": False}, {"deleteEmptyDirData": False}, {"ignoreDaemonSets": False}, {"podSelector": "app!=group-0"}),
)
NEVER_READY = {"pod-ready.stage.kwok.x-k8s.io/delay": "1h", "pod-complete.stage.kwok.x-k8s.io/delay": "1h"}
NEVER_COMPLETED = {"pod-complete.stage.kwok.x-k8s.io/delay": "1h"}


@dataclass(frozen=True)
class PodGroup:
    """The pods of one owner, which share a value of the label `app`.

    Attributes:
        unready: The number of further pods, of another ReplicaSet, that run but never become ready.
        budgets: The specs of the disruption budgets, without their selectors.
    """

    app: str
    owner: str
    replicas: int
    unready: int
    has_local_data: bool
    budgets: tuple[Object, ...]


@dataclass(frozen=True)
class GeneratedNode:
    """A node with its pods, all in one namespace, and the drain options of its maintenance."""

    name: str
    namespace: str
    groups: tuple[PodGroup, ...]
    drain: Object


class DrainOutcome(NamedTuple):
    """The outcome of a drain, predicted by a preview or observed.

    Attributes:
        remaining: The pods that stay on the node, counted by `app`.
        blocked: The blocked pods, counted by `app` and reason.
        budgets: The names of the budgets that block pods.
    """

    remaining: Counter[str]
    blocked: Counter[tuple[str, str]]
    budgets: frozenset[str]


def generate_groups(rng: random.Random) -> tuple[PodGroup, ...]:
    return tuple(generate_group(rng, f"group-{number}") for number in range(GROUPS_PER_NODE))


def generate_group(rng: random.Random, app: str) -> PodGroup:
    owner = rng.choices(list(OWNER_WEIGHTS), list(OWNER_WEIGHTS.values()))[0]
    replicas = 1 if owner == "DaemonSet" else rng.randint(1, 4)
    unready = rng.choice((0, 0, 1, 2)) if owner == "ReplicaSet" else 0
    budgets = generate_budgets(rng, owner, replicas) if owner in (*SCALABLE, BARE) else ()
    return PodGroup(app, owner, replicas, unready, rng.random() < 0.3, budgets)


def generate_budgets(rng: random.Random, owner: str, replicas: int) -> tuple[Object, ...]:
    """Return no PodDisruptionBudget, one of a random kind, or two for the same pods."""
    rules: list[Object] = [{"minAvailable": rng.randint(0, replicas)}]
    if owner in SCALABLE:
        rules += [{"minAvailable": rng.choice(("34%", "50%", "100%"))}, {"maxUnavailable": rng.randint(0, 2)}]
        rules += [{"maxUnavailable": rng.choice(("0%", "50%"))}]
    policy = rng.choice(({}, {"unhealthyPodEvictionPolicy": "AlwaysAllow"}))
    count = rng.choices((0, 1, 2), (2, 6, 1))[0]
    return tuple({**rng.choice(rules), **policy} for _ in range(count))


def fill_node(environment: EventChainEnvironment, name: str, rng: random.Random) -> GeneratedNode:
    """Create a namespace with pods that can be scheduled only to this node."""
    node = GeneratedNode(name, environment.create_namespace(), generate_groups(rng), rng.choice(DRAIN_FIELDS))
    environment.allow_deployment_on_node(node.namespace, node.name)
    for group in node.groups:
        create_group(environment, node, group)
    return node


def create_group(environment: EventChainEnvironment, node: GeneratedNode, group: PodGroup) -> None:
    client = environment.client
    if group.owner == BARE:
        bodies = [
            build_pod(node.name, f"{group.app}-{number}", labels={"app": group.app}, empty_dir=group.has_local_data)
            for number in range(group.replicas)
        ]
        environment.workload.create_pods(node.namespace, bodies, ready=False)
    else:
        create_controller(environment, node, group, group.owner, group.app, group.replicas)
    if group.unready:
        create_controller(environment, node, group, "ReplicaSet", f"{group.app}-unready", group.unready)
    for number, rule in enumerate(group.budgets):
        spec = {"selector": {"matchLabels": {"app": group.app}}, **rule}
        body = {"metadata": {"name": f"{group.app}-{number}"}, "spec": spec}
        client.create(build_namespace_budgets_path(node.namespace), body)


def create_controller(
    environment: EventChainEnvironment, node: GeneratedNode, group: PodGroup, kind: str, name: str, replicas: int
) -> None:
    """Create an owner of pods; the pods of an owner whose name ends with `unready` never become ready by themselves."""
    is_unready = name.endswith("unready")
    template: Object = {
        "metadata": {
            "labels": {"app": group.app, "owner": name},
            "annotations": NEVER_READY if is_unready else NEVER_COMPLETED,
        },
        "spec": {
            "nodeSelector": {"pool": node.namespace},
            "containers": [{"name": "main", "image": "fake"}],
            **({"volumes": [{"name": "scratch", "emptyDir": {}}]} if group.has_local_data else {}),
        },
    }
    spec: Object = {"template": template}
    if kind == "DaemonSet":
        template["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node.name}
    if kind == "Job":
        template["spec"]["restartPolicy"] = "Never"
        spec |= {"parallelism": replicas, "completions": replicas, "backoffLimit": 100}
    else:
        spec |= {
            "selector": {"matchLabels": {"owner": name}},
            **({} if kind == "DaemonSet" else {"replicas": replicas}),
        }
    if kind == "StatefulSet":
        spec |= {"serviceName": "none", "podManagementPolicy": "Parallel"}
    path = f"/{COLLECTIONS[kind].format(node.namespace)}"
    environment.client.create(path, {"metadata": {"name": name}, "spec": spec})


def wait_until_created(environment: EventChainEnvironment, node: GeneratedNode) -> None:
    """Wait until all pods that can become ready are ready, and until the PodDisruptionBudgets have counted them."""
    path = f"/api/v1/namespaces/{node.namespace}/pods"
    pods = environment.workload.wait_for_collection(
        path, lambda found: count_by_readiness(found.values()) == count_expected_pods(node), TIMEOUT_SECONDS
    )
    conditions = [{"type": "Ready", "status": "False", "reason": "ContainersNotReady"}]
    for name, pod in pods.items():
        if not is_ready(pod):  # An unscheduled pod could be evicted regardless of its PodDisruptionBudget.
            status = {"phase": "Running", "podIP": "10.1.1.1", "conditions": conditions}
            environment.client.patch(f"{path}/{name}/status", {"status": status})
    environment.workload.wait_for_collection(
        path,
        lambda found: all((pod.get("status") or {}).get("phase") == "Running" for pod in found.values()),
        TIMEOUT_SECONDS,
    )
    wait_until_budgets_are_current(environment, node)


def count_by_readiness(pods: Iterable[Object]) -> Counter[tuple[str, bool]]:
    return Counter((pod["metadata"]["labels"]["app"], is_ready(pod)) for pod in pods if "nodeName" in pod["spec"])


def count_expected_pods(node: GeneratedNode) -> Counter[tuple[str, bool]]:
    counts = Counter({(group.app, True): group.replicas for group in node.groups})
    return +(counts + Counter({(group.app, False): group.unready for group in node.groups}))


def wait_until_budgets_are_current(environment: EventChainEnvironment, node: GeneratedNode) -> None:
    """Wait until the status of each PodDisruptionBudget describes the current pods."""
    groups = {f"{group.app}-{number}": group for group in node.groups for number in range(len(group.budgets))}

    def are_pods_counted(budgets: Mapping[str, Object]) -> bool:
        return groups.keys() == budgets.keys() and all(is_counted(budgets[name], groups[name]) for name in groups)

    environment.workload.wait_for_collection(
        build_namespace_budgets_path(node.namespace), are_pods_counted, TIMEOUT_SECONDS
    )


def is_counted(budget: Object, group: PodGroup) -> bool:
    """Return whether the PDB has counted all pods of the group; if there are two PDBs, only one counts the pods."""
    status = budget.get("status") or {}
    counts = (status.get("currentHealthy"), status.get("expectedPods"))
    expected_counts = (group.replicas, group.replicas + group.unready)
    return bool(status.get("observedGeneration")) and (counts == expected_counts or len(group.budgets) > 1)


def preview_node(environment: EventChainEnvironment, node: GeneratedNode) -> MaintenancePreview:
    options = parse_drain_options({"spec": {"drain": node.drain}})
    client = environment.client
    return client.run(preview_maintenance(client.api, [node.name], options, MEDIK8S, reads_other_nodes=False))


def predict_outcome(preview: MaintenancePreview, pods: Iterable[Object]) -> DrainOutcome:
    """Return the outcome that the preview predicts for the pods on its node."""
    apps = {pod["metadata"]["name"]: pod["metadata"]["labels"]["app"] for pod in pods}
    staying = [pod["metadata"]["name"] for pod, _ in preview.ignored] + [entry["name"] for entry in preview.blocked]
    return DrainOutcome(
        Counter(apps[name] for name in staying),
        Counter((apps[entry["name"]], entry["reason"]) for entry in preview.blocked),
        frozenset(
            item.budget["metadata"]["name"] for item in preview.forecast.budgets if item.effect in BLOCKING_EFFECTS
        ),
    )


def read_outcome(environment: EventChainEnvironment, node: GeneratedNode, maintenance: Object) -> DrainOutcome:
    """Return the outcome so far, according to the pods on the node and the maintenance's status."""
    return build_outcome(environment.list_pods_on(node.name), maintenance)


def build_outcome(pods: Iterable[Object], maintenance: Object) -> DrainOutcome:
    apps = {pod["metadata"]["name"]: pod["metadata"]["labels"]["app"] for pod in pods}
    blocked = (maintenance.get("status") or {}).get("blockedPods") or []
    return DrainOutcome(
        Counter(apps.values()),
        Counter((apps.get(entry["name"], "gone"), entry["reason"]) for entry in blocked),
        frozenset(entry["budget"] for entry in blocked if entry["reason"] == "DisruptionBudget"),
    )


@pytest.mark.slow
@proves("NMO-6", "DRN-1a")
def test_preview_predicts_drains_of_generated_nodes(environment: EventChainEnvironment) -> None:
    """NMO-6, DRN-1a: previews of twenty generated nodes predict which pods stay, and which pods and PDBs block.

    All nodes are drained concurrently. After the last eviction, a tick shows that no other pod leaves.
    """
    names = [f"previewed-{number}" for number in range(NODE_COUNT)]
    spare_names = [f"spare-of-{name}" for name in names]
    environment.cluster.create_nodes(*names, *spare_names)
    nodes = [fill_node(environment, name, random.Random(f"{SEED}-{name}")) for name in names]
    for node in nodes:
        wait_until_created(environment, node)
    expected = {
        node.name: predict_outcome(preview_node(environment, node), environment.list_pods_on(node.name))
        for node in nodes
    }
    for node, spare in zip(nodes, spare_names, strict=True):  # From here on, the replacement pods can be scheduled.
        environment.allow_deployment_on_node(node.namespace, spare)

    paths = {node.name: environment.create_maintenance(node.name, drain=node.drain) for node in nodes}
    for node in nodes:
        wait_until_settled(environment, node, paths[node.name], expected[node.name])
    environment.send_tick()

    differences = {
        f"{node.groups} with {node.drain}": (expected[node.name], outcome)
        for node in nodes
        if (outcome := read_outcome(environment, node, environment.client.get(paths[node.name]))) != expected[node.name]
    }
    assert differences == {}
    assert sum(bool(outcome.blocked) for outcome in expected.values()) >= NODE_COUNT / 4
    environment.delete_maintenances_of([node.name for node in nodes])


def wait_until_settled(
    environment: EventChainEnvironment, node: GeneratedNode, path: str, expected: DrainOutcome
) -> None:
    """Wait until the drain has the outcome that the preview predicts, and until all replacement pods are ready.

    The wait also ends after a timeout, because the comparison after it shows the differences.
    """
    recreated = {group.app for group in node.groups if group.owner not in (BARE, "DaemonSet")}
    expected_counts = Counter({key: count for key, count in count_expected_pods(node).items() if key[0] in recreated})

    def have_pods_left(pods: Mapping[str, Object]) -> bool:
        return Counter(pod["metadata"]["labels"]["app"] for pod in pods.values()) == expected.remaining

    def are_pods_recreated(pods: Mapping[str, Object]) -> bool:
        counts = count_by_readiness(pod for pod in pods.values() if pod["metadata"]["labels"]["app"] in recreated)
        return counts == expected_counts

    with suppress(TimeoutError):
        fields = f"spec.nodeName={node.name}"
        pods = environment.workload.wait_for_collection("/api/v1/pods", have_pods_left, SETTLE_SECONDS, fields=fields)
        environment.wait_for_state(
            path,
            lambda maintenance: has_succeeded(maintenance) or build_outcome(pods.values(), maintenance) == expected,
            SETTLE_SECONDS,
        )
        pods_path = f"/api/v1/namespaces/{node.namespace}/pods"
        environment.workload.wait_for_collection(pods_path, are_pods_recreated, SETTLE_SECONDS)
