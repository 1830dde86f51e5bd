"""Tests that resync ticks repair maintenances that users, other controllers or missing permissions have disturbed."""

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
from tests.chain.environment import EventChainEnvironment
from tests.chain.journal_reading import wait_for_recorded_events
from tests.proofs import proves

PAIRED_API_VERSIONS = (MEDIK8S.api_version, KUBEVIRT.api_version)
IN_PROGRESS_SECONDS = 7.0
"""Seconds since its last status write during which a maintenance counts as in progress, so that resync skips it."""


def is_restored(node: Object | None) -> bool:
    """Return whether the node is schedulable and has neither the product's label nor a drain taint."""
    assert node is not None
    spec, labels = node["spec"], node["metadata"]["labels"]
    keys = {taint["key"] for taint in spec.get("taints") or []}
    return not (spec.get("unschedulable") or MAINTENANCE_LABEL in labels or keys & DRAIN_TAINTS)


def has_blocked_pods(maintenance: Object) -> bool:
    """Return whether the maintenance's status lists blocked pods."""
    return bool((maintenance.get("status") or {}).get("blockedPods"))


def has_phase(maintenance: Object) -> bool:
    return bool(m.get_phase(maintenance))


def count_product_events(environment: EventChainEnvironment, maintenance: Object) -> Counter[str]:
    """Return a map from event type to number of events that the product emitted about the maintenance."""
    types = (entry.event.get_type() for entry in wait_for_recorded_events(environment, maintenance["metadata"]["uid"]))
    return Counter(event_type for event_type in types if event_type in events.TYPE_DESCRIPTIONS)


def replace_with_original_manifest(environment: EventChainEnvironment, path: str) -> None:
    """Replace the maintenance with its original manifest through `kubectl replace -f`, as a user would."""
    maintenance = environment.client.get(path)
    body = {key: maintenance[key] for key in ("apiVersion", "kind", "spec")}
    body |= {"metadata": {"name": maintenance["metadata"]["name"]}}
    environment.cluster.kubectl("replace", "-f", "-", input=json.dumps(body))


@pytest.mark.slow
@proves("X-7", "NMO-14")
def test_deleting_two_maintenances_per_node_restores_every_node(environment: EventChainEnvironment) -> None:
    """X-7: deleting two maintenances for each node with one command restores every node, in any deletion order."""
    nodes = [environment.create_node() for _ in range(4)]
    first_paths = [environment.create_maintenance(node) for node in nodes]
    for path in first_paths:
        environment.wait_for_state(path)
    second_paths = [
        environment.create_maintenance(node, api_version=group)
        for node, group in zip(nodes, 2 * PAIRED_API_VERSIONS, strict=True)
    ]
    for path in second_paths:
        environment.wait_for_state(path, has_phase)
    write_count_before = len(environment.list_product_writes())

    resources = [
        f"nodemaintenances.{path.split('/')[2]}/{path.rsplit('/', 1)[1]}" for path in (*first_paths, *second_paths)
    ]
    environment.cluster.kubectl("delete", *resources, "--timeout=10s")

    for node in nodes:
        environment.wait_for_object_state("/api/v1/nodes", node, is_restored, timeout=2)
    # The limit includes the writes of second maintenances that begin before their deletion.
    assert len(environment.list_product_writes()) - write_count_before <= 25 * len(nodes)


@pytest.mark.slow
@pytest.mark.abreast
@proves("X-6", "X-3")
def test_maintenance_begins_once_updates_are_permitted(environment: EventChainEnvironment) -> None:
    """X-6, X-3: a maintenance that may not be updated reports the reason, and begins once updates are allowed."""
    node = environment.create_node()
    environment.create_pods(node, 2)
    with apply_policy_against_updates(environment, name := f"refused-{node}"):
        path = environment.create_maintenance(node, name=name)
        status = environment.wait_for_state(path, has_phase)["status"]
        assert (status["phase"], "not yet" in status["lastError"]) == ("Failed", True)

    maintenance = environment.wait_for_state(path, timeout=2 * IN_PROGRESS_SECONDS + 15)

    assert "lastError" not in maintenance["status"]
    assert count_product_events(environment, maintenance)[events.MAINTENANCE_PENDING] <= 4
    environment.request_deletion(path)
    environment.wait_for_deletion(path)


@contextmanager
def apply_policy_against_updates(environment: EventChainEnvironment, name: str) -> Iterator[None]:
    """Reject updates to this maintenance, except to its status, while the `with` block runs."""
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

    def update_maintenance() -> object:
        return environment.client.patch(path, {"spec": {"reason": "tried"}})

    with apply_policy(environment, name, rule, expression, "not yet", update_maintenance):
        environment.request_deletion(path)
        environment.wait_for_deletion(path)
        yield


@pytest.mark.slow
@pytest.mark.abreast
@proves("NMO-11", "X-3")
def test_maintenance_replaced_during_drain_continues(environment: EventChainEnvironment) -> None:
    """X-3, NMO-11: after `kubectl replace`, a tick restores finalizer, owner and counts, and the drain continues."""
    node, namespace = environment.create_node(), environment.create_namespace()
    environment.create_pods(node, 3, namespace=namespace, labels={"app": "x"})
    environment.create_budget(namespace, {"app": "x"}, disruptions_allowed=1, minAvailable=2)
    path = environment.create_maintenance(node)
    environment.wait_for_state(path, has_blocked_pods)

    replace_with_original_manifest(environment, path)
    replaced_maintenance = environment.client.get(path)
    repaired_maintenance = environment.wait_for_state(path, m.has_begun, timeout=IN_PROGRESS_SECONDS + 15)
    environment.client.run(
        environment.client.api.request("DELETE", f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/budget")
    )
    status = environment.wait_for_state(path, timeout=IN_PROGRESS_SECONDS + 15)["status"]

    assert not m.has_begun(replaced_maintenance)
    assert m.has_node_owner(repaired_maintenance)
    assert (status["evictionPods"], status["totalpods"], status["drainProgress"]) == (3, 3, 100)
    assert count_product_events(environment, repaired_maintenance)[events.MAINTENANCE_PENDING] <= 2
    environment.request_deletion(path)
    environment.wait_for_deletion(path)
    assert is_restored(environment.client.get(build_node_path(node)))


@pytest.mark.slow
@proves("X-5", "X-3")
def test_maintenance_deleted_without_finalizer_restores_node(environment: EventChainEnvironment) -> None:
    """X-5, X-3: one tick restores the node and lease of a maintenance that was deleted without its finalizer."""
    node = environment.create_node()
    path = environment.create_maintenance(node)
    environment.wait_for_state(path)

    replace_with_original_manifest(environment, path)
    environment.cluster.kubectl("delete", "nm", path.rsplit("/", 1)[1])
    environment.send_tick()

    assert is_restored(environment.client.get(build_node_path(node)))
    write_count_before = len(environment.list_product_writes())
    environment.send_tick()
    assert len(environment.list_product_writes()) == write_count_before


def test_manually_uncordoned_node_is_cordoned_again(environment: EventChainEnvironment) -> None:
    """Check that a manually uncordoned node is cordoned again, and that an Event on the node reports the repair."""
    node = environment.create_node()
    path = environment.create_maintenance(node)
    environment.wait_for_state(path)

    environment.cluster.kubectl("uncordon", node)
    environment.wait_for_object_state(
        "/api/v1/nodes", node, lambda node: bool(node["spec"].get("unschedulable")), timeout=10
    )

    assert "NodeCordonedAgain" in environment.cluster.kubectl("describe", "node", node).stdout
    environment.request_deletion(path)
    environment.wait_for_deletion(path)


@pytest.mark.slow
@pytest.mark.abreast
def test_product_stops_writing_label_that_keeps_being_removed(environment: EventChainEnvironment) -> None:
    """Design rule 9: the product stops adding its label after a few writes if another controller keeps removing it."""
    node = environment.create_node()
    path = environment.create_maintenance(node)
    maintenance = environment.wait_for_state(path)
    removed_labels: list[str] = []
    stop = threading.Event()

    with environment.run_in_thread(lambda: remove_label_repeatedly(environment, node, removed_labels, stop)):
        write_count_before = len(environment.list_product_writes())
        for _ in range(2):
            environment.send_tick()  # `send_tick` would not return if the product added the label endlessly.
        writes = [
            entry
            for entry in environment.list_product_writes()[write_count_before:]
            if entry["objectRef"].get("name") == node
        ]
        stop.set()
        environment.wait_for_object_state(
            "/api/v1/nodes", node, lambda current_node: is_in_maintenance(current_node, MEDIK8S.drain_taint), timeout=20
        )

    assert len(removed_labels) >= 2
    assert len(writes) <= 6
    assert count_product_events(environment, maintenance)[events.NODE_DRIFTED] <= 6
    environment.request_deletion(path)
    environment.wait_for_deletion(path)


def remove_label_repeatedly(
    environment: EventChainEnvironment, node: str, removed_labels: list[str], stop: threading.Event
) -> None:
    """Remove the product's label from the node whenever the product sets it, until `stop` is set."""
    for change in environment.cluster.watch(NODES_PATH, fields=f"metadata.name={node}", timeout=30):
        if stop.is_set():
            return
        label = change.object["metadata"]["labels"].get(MAINTENANCE_LABEL)
        if label:
            environment.client.patch(build_node_path(node), {"metadata": {"labels": {MAINTENANCE_LABEL: None}}})
            removed_labels.append(label)
