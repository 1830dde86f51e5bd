"""Tests of maintenances that users, other controllers or missing permissions disturb: the next ticks repair them."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from eventing import events
from kube.maintenance import objects as m
from kube.maintenance.groups import DRAIN_TAINTS, KUBEVIRT, MEDIK8S
from kube.nodes import MAINTENANCE_LABEL, NODES_PATH, build_node_path, is_in_maintenance
from kube.paths import Object
from tests.chain.admission_policies import apply_policy
from tests.chain.environment import ChainEnvironment
from tests.chain.journal_reading import await_recorded_events
from tests.proofs import proves

PAIRED_API_VERSIONS = (MEDIK8S.api_version, KUBEVIRT.api_version)
IN_PROGRESS_SECONDS = 7.0
"""Seconds after a status write during which a tick leaves a maintenance alone, since it is in progress."""


def is_restored(node: Object | None) -> bool:
    """Return whether the node is schedulable and has neither the product's label nor a drain taint."""
    assert node is not None
    spec, labels = node["spec"], node["metadata"]["labels"]
    keys = {taint["key"] for taint in spec.get("taints") or []}
    return not (spec.get("unschedulable") or MAINTENANCE_LABEL in labels or keys & DRAIN_TAINTS)


def has_blocked_pods(item: Object) -> bool:
    """Return whether a pod of the maintenance is blocked."""
    return bool((item.get("status") or {}).get("blockedPods"))


def has_phase(item: Object) -> bool:
    return bool(m.get_phase(item))


def count_own_events(environment: ChainEnvironment, item: Object) -> Counter[str]:
    """Return event type → number of the product's events about a maintenance."""
    types = (entry.event.get_type() for entry in await_recorded_events(environment, item["metadata"]["uid"]))
    return Counter(kind for kind in types if kind in events.TYPE_DESCRIPTIONS)


def replace_with_user_file(environment: ChainEnvironment, path: str) -> None:
    """Replace the maintenance as `kubectl replace -f` does with the user's file."""
    item = environment.client.get(path)
    body = {key: item[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": {"name": item["metadata"]["name"]}}
    environment.cluster.kubectl("replace", "-f", "-", input=json.dumps(body))


@pytest.mark.slow
@proves("X-7", "NMO-14")
def test_deleting_pairs_restores_every_node(environment: ChainEnvironment) -> None:
    """X-7: deleting two maintenances per node with one command restores every node, in any order of the deletions."""
    nodes = [environment.create_node() for _ in range(4)]
    first = [environment.create_maintenance(node) for node in nodes]
    for path in first:
        environment.await_state(path)
    second = [
        environment.create_maintenance(node, api_version=group)
        for node, group in zip(nodes, 2 * PAIRED_API_VERSIONS, strict=True)
    ]
    for path in second:
        environment.await_state(path, has_phase)
    before = len(environment.list_own_writes())

    resources = [f"nodemaintenances.{path.split('/')[2]}/{path.rsplit('/', 1)[1]}" for path in (*first, *second)]
    environment.cluster.kubectl("delete", *resources, "--timeout=10s")

    for node in nodes:
        environment.await_state_of("/api/v1/nodes", node, is_restored, timeout=2)
    assert len(environment.list_own_writes()) - before <= 25 * len(
        nodes
    )  # some successors have begun before their deletion


@pytest.mark.slow
@pytest.mark.abreast
@proves("X-6", "X-3")
def test_maintenance_begins_once_permitted(environment: ChainEnvironment) -> None:
    """X-6, X-3: a maintenance whose begin was forbidden reports the reason; a tick begins it once it is permitted."""
    node = environment.create_node()
    environment.create_pods(node, 2)
    with apply_policy_against_updates(environment, name := f"refused-{node}"):
        path = environment.create_maintenance(node, name=name)
        status = environment.await_state(path, has_phase)["status"]
        assert (status["phase"], "not yet" in status["lastError"]) == ("Failed", True)

    maintenance = environment.await_state(path, timeout=2 * IN_PROGRESS_SECONDS + 15)

    assert "lastError" not in maintenance["status"]
    assert count_own_events(environment, maintenance)[events.MAINTENANCE_PENDING] <= 4
    environment.request_deletion(path)
    environment.await_deletion(path)


@contextmanager
def apply_policy_against_updates(environment: ChainEnvironment, name: str) -> Iterator[None]:
    """Reject updates of the maintenance with this name while the block runs, except those of its status."""
    rule = {
        "apiGroups": [MEDIK8S.api_version.split("/")[0]],
        "apiVersions": ["*"],
        "operations": ["UPDATE"],
        "resources": ["nodemaintenances"],
    }
    expression = f"object.metadata.name != '{name}'"
    path = f"{MEDIK8S.path}/{name}"
    body = {"apiVersion": MEDIK8S.api_version, "kind": "NodeMaintenance", "spec": {"nodeName": "nowhere"}}
    environment.client.create(MEDIK8S.path, {**body, "metadata": {"name": name}})

    def attempt() -> object:
        return environment.client.patch(path, {"spec": {"reason": "tried"}})

    with apply_policy(environment, name, rule, expression, "not yet", attempt):
        environment.request_deletion(path)
        environment.await_deletion(path)
        yield


@pytest.mark.slow
@pytest.mark.abreast
@proves("NMO-11", "X-3")
def test_maintenance_replaced_during_drain_continues(environment: ChainEnvironment) -> None:
    """X-3, NMO-11: a tick restores finalizer, owner and counts after `kubectl replace`, and the drain continues."""
    node, namespace = environment.create_node(), environment.create_namespace()
    environment.create_pods(node, 3, namespace=namespace, labels={"app": "x"})
    environment.create_budget(namespace, {"app": "x"}, disruptions_allowed=1, minAvailable=2)
    path = environment.create_maintenance(node)
    environment.await_state(path, has_blocked_pods)

    replace_with_user_file(environment, path)
    replaced = environment.client.get(path)
    repaired = environment.await_state(path, m.has_begun, timeout=IN_PROGRESS_SECONDS + 15)
    environment.client.run(
        environment.client.api.request("DELETE", f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/budget")
    )
    status = environment.await_state(path, timeout=IN_PROGRESS_SECONDS + 15)["status"]

    assert not m.has_begun(replaced)
    assert m.has_node_owner(repaired)
    assert (status["evictionPods"], status["totalpods"], status["drainProgress"]) == (3, 3, 100)
    assert count_own_events(environment, repaired)[events.MAINTENANCE_PENDING] <= 2
    environment.request_deletion(path)
    environment.await_deletion(path)
    assert is_restored(environment.client.get(build_node_path(node)))


@pytest.mark.slow
@proves("X-5", "X-3")
def test_maintenance_deleted_without_finalizer_restores_node(environment: ChainEnvironment) -> None:
    """X-5, X-3: one tick restores the node and the lease of a maintenance that was deleted without its finalizer."""
    node = environment.create_node()
    path = environment.create_maintenance(node)
    environment.await_state(path)

    replace_with_user_file(environment, path)
    environment.cluster.kubectl("delete", "nm", path.rsplit("/", 1)[1])
    environment.send_tick()

    assert is_restored(environment.client.get(build_node_path(node)))
    before = len(environment.list_own_writes())
    environment.send_tick()
    assert len(environment.list_own_writes()) == before


def test_manually_uncordoned_node_is_cordoned_again(environment: ChainEnvironment) -> None:
    """Design, guard: a node that was uncordoned by hand is cordoned again, and an Event on the node records it."""
    node = environment.create_node()
    path = environment.create_maintenance(node)
    environment.await_state(path)

    environment.cluster.kubectl("uncordon", node)
    environment.await_state_of("/api/v1/nodes", node, lambda item: bool(item["spec"].get("unschedulable")), timeout=10)

    assert "NodeCordonedAgain" in environment.cluster.kubectl("describe", "node", node).stdout
    environment.request_deletion(path)
    environment.await_deletion(path)


@pytest.mark.slow
@pytest.mark.abreast
def test_flapping_label_limits_writes(environment: ChainEnvironment) -> None:
    """Rule 9: if another controller keeps removing the product's label, the product stops after a few writes."""
    node = environment.create_node()
    path = environment.create_maintenance(node)
    item = environment.await_state(path)
    removed_labels: list[str] = []
    stop = threading.Event()

    with environment.run_in_thread(lambda: remove_label_repeatedly(environment, node, removed_labels, stop)):
        before = len(environment.list_own_writes())
        for _ in range(2):
            environment.send_tick()  # `send_tick` returns once no event is left, which flapping alone would prevent
        writes = [entry for entry in environment.list_own_writes()[before:] if entry["objectRef"].get("name") == node]
        stop.set()
        environment.await_state_of(
            "/api/v1/nodes", node, lambda live_node: is_in_maintenance(live_node, MEDIK8S.drain_taint), timeout=20
        )

    assert len(removed_labels) >= 2
    assert len(writes) <= 6
    assert count_own_events(environment, item)[events.NODE_DRIFTED] <= 6
    environment.request_deletion(path)
    environment.await_deletion(path)


def remove_label_repeatedly(
    environment: ChainEnvironment, node: str, removed_labels: list[str], stop: threading.Event
) -> None:
    """Remove the product's label from the node whenever it is set, until `stop` is set."""
    for change in environment.cluster.watch(NODES_PATH, fields=f"metadata.name={node}", timeout=30):
        if stop.is_set():
            return
        label = change.object["metadata"]["labels"].get(MAINTENANCE_LABEL)
        if label:
            environment.client.patch(build_node_path(node), {"metadata": {"labels": {MAINTENANCE_LABEL: None}}})
            removed_labels.append(label)
