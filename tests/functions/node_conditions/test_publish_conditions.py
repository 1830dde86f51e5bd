"""Tests for `publish-conditions` on a real API server: node conditions during and after a maintenance, and faults."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chaos.api_fault_proxy import Fault, FaultProxy
from eventing import events
from eventing.http_binding import encode_binary
from functions.installs import INSTALL_LEASE_CACHE
from functions.node_conditions import publish_conditions
from kube.client.api import STRATEGIC_MERGE_PATCH
from kube.maintenance import objects as m
from kube.maintenance.groups import GROUPS, MEDIK8S, ApiGroup
from kube.node_conditions.conditions import (
    CONDITION_TYPES,
    CONDITIONS_LABEL,
    DRAIN_IN_PROGRESS,
    DRAINED,
    MAINTENANCE_IN_PROGRESS,
    MAINTENANCE_PLANNED,
)
from kube.nodes import NODES_PATH, build_node_path
from kube.paths import Object
from localcluster.audit_log import AuditLog
from tests.functions.conftest import Functions
from tests.functions.event_builders import build_product_event, build_tick, build_updated_event
from tests.functions.request_hooks import count_requests, run_before_request
from tests.functions.test_corrupted_events import JSON_VALUES, build_post_function, iterate_value_paths, replace_value
from tests.proofs import proves
from tests.workload import Workload

STEP = "publish-conditions"
USERNAME = f"system:serviceaccount:node-maintenance:{STEP}"
MAX_TICKS = 5
"""Maximum number of ticks until a node has its conditions: a tick omits a node that kwok changes at the same moment."""


def read_true_product_conditions(workload: Workload, node: str) -> set[str] | None:
    """Return the types of the product's node conditions that are True, or None if the node has no such condition."""
    conditions = {item["type"]: item for item in workload.read_node(node)["status"]["conditions"]}
    own_conditions = {name: conditions[name] for name in CONDITION_TYPES if name in conditions}
    assert own_conditions.keys() in (set(CONDITION_TYPES), set())
    return {name for name, item in own_conditions.items() if item["status"] == "True"} if own_conditions else None


def read_conditions_of_other_writers(workload: Workload, node: str) -> list[Object]:
    """Return the node conditions of other writers, without their `lastHeartbeatTime`."""
    conditions = workload.read_node(node)["status"]["conditions"]
    return [
        {name: value for name, value in item.items() if name != "lastHeartbeatTime"}
        for item in conditions
        if item["type"] not in CONDITION_TYPES
    ]


def send_ticks_until_published(
    functions: Functions, workload: Workload, node: str, true_conditions: set[str] | None
) -> None:
    """Send ticks to `publish-conditions` until these product conditions of the node are True.

    None means that the node must have no product condition.
    """
    for _ in range(MAX_TICKS):
        functions.invoke(STEP, build_tick())
        if read_true_product_conditions(workload, node) == true_conditions:
            break
    assert read_true_product_conditions(workload, node) == true_conditions


def publish(functions: Functions, workload: Workload, maintenance: Object) -> None:
    """Post the current NodeMaintenance to `publish-conditions`, as its update event does."""
    assert functions.invoke(STEP, build_updated_event(workload.read_maintenance(maintenance))) is None


def drain(functions: Functions, workload: Workload, node: str, group: ApiGroup = MEDIK8S) -> Object:
    """Create a maintenance of a node without pods, drain the node, and return the succeeded maintenance."""
    maintenance = workload.create_maintenance(node, group)
    drained = functions.run_chain(maintenance, "begin", "cordon", "taint", "evict")
    assert drained.get_type() == events.NODE_DRAINED
    functions.invoke("status", drained)
    succeeded = workload.read_maintenance(maintenance)
    assert m.get_phase(succeeded) == m.SUCCEEDED
    return succeeded


def restore(functions: Functions, workload: Workload, maintenance: Object) -> Object:
    """Delete the maintenance, let `restore` restore its node, and return the last state of the deleted object."""
    workload.delete(m.build_path(maintenance))
    deleted = workload.read_maintenance(maintenance)
    functions.invoke("restore", build_updated_event(deleted))
    return deleted


@pytest.mark.parametrize("group", GROUPS.values(), ids=lambda group: group.api_version.split("/")[0])
def test_node_conditions_follow_maintenance_until_node_is_restored(
    functions: Functions, workload: Workload, group: ApiGroup
) -> None:
    """Check the node's conditions after each step of a maintenance, for each API group.

    The conditions of other writers stay unchanged. The product's conditions have the fields that KEP-5683 defines.
    """
    node = workload.take_node()
    before = read_conditions_of_other_writers(workload, node)
    workload.create_bare_pods(node, "a", finalizers=("example.dev/keep",))
    maintenance = workload.create_maintenance(node, group, reason="new kernel")
    begun = functions.run_chain(maintenance, "begin")
    publish(functions, workload, maintenance)
    assert read_true_product_conditions(workload, node) == {MAINTENANCE_PLANNED}

    tainted = functions.invoke("taint", functions.invoke("cordon", begun) or begun)
    assert tainted is not None
    assert functions.invoke(STEP, tainted) is None
    assert read_true_product_conditions(workload, node) == {MAINTENANCE_PLANNED, DRAIN_IN_PROGRESS}
    (drain_condition,) = (
        item for item in workload.read_node(node)["status"]["conditions"] if item["type"] == DRAIN_IN_PROGRESS
    )
    name = maintenance["metadata"]["name"]
    assert drain_condition["reason"] == "AdminRequested"
    assert drain_condition["message"] == f'NodeMaintenance "{name}": new kernel'

    pod_path = f"/api/v1/namespaces/{workload.namespace}/pods/a"
    workload.client.patch(pod_path, {"metadata": {"finalizers": []}})
    workload.delete(pod_path)
    workload.wait_for_object(pod_path, lambda pod: pod is None)
    drained = functions.invoke("evict", tainted)
    assert drained is not None
    functions.invoke("status", drained)
    publish(functions, workload, maintenance)
    assert read_true_product_conditions(workload, node) == {DRAINED, MAINTENANCE_IN_PROGRESS}

    deleted = restore(functions, workload, maintenance)
    assert functions.invoke(STEP, build_updated_event(deleted)) is None
    assert read_true_product_conditions(workload, node) is None
    assert CONDITIONS_LABEL not in workload.read_node(node)["metadata"]["labels"]
    assert read_conditions_of_other_writers(workload, node) == before


def test_repeated_and_late_events_write_nothing(functions: Functions, workload: Workload, audit: AuditLog) -> None:
    """Check that repeated and outdated events cause no write if the node's conditions are correct."""
    node = workload.take_node()
    maintenance = workload.create_maintenance(node)
    tainted = functions.run_until_tainted(maintenance)
    functions.invoke("status", functions.invoke("evict", tainted) or tainted)
    publish(functions, workload, maintenance)
    writes = len(audit.list_writes_by(USERNAME))

    assert functions.invoke(STEP, tainted) is None
    assert functions.invoke(STEP, build_updated_event(maintenance)) is None
    assert functions.invoke(STEP, build_tick()) is None

    assert writes == 1
    assert len(audit.list_writes_by(USERNAME)) == writes
    assert read_true_product_conditions(workload, node) == {DRAINED, MAINTENANCE_IN_PROGRESS}


def test_schedulable_node_is_not_reported_as_draining(functions: Functions, workload: Workload) -> None:
    """Check that the conditions report no drain while the node is schedulable, for example because its cordon failed.

    After the node is cordoned again, the conditions report the drain.
    """
    node = workload.take_node()
    maintenance = workload.create_maintenance(node)
    functions.run_until_tainted(maintenance)
    publish(functions, workload, maintenance)
    workload.local_cluster.kubectl("uncordon", node)

    failed = build_product_event(
        events.MAINTENANCE_STEP_FAILED, maintenance, data={"step": "cordon", "error": "nodes is forbidden"}
    )
    functions.invoke("status", failed)
    publish(functions, workload, maintenance)
    assert read_true_product_conditions(workload, node) == {MAINTENANCE_PLANNED}

    tainted = functions.run_chain(maintenance, "begin", "cordon", "taint")
    functions.invoke(STEP, tainted)
    assert read_true_product_conditions(workload, node) == {MAINTENANCE_PLANNED, DRAIN_IN_PROGRESS}


def test_maintenance_that_has_not_begun_is_reported_as_planned(
    functions: Functions, workload: Workload, clean_cluster: None
) -> None:
    """Check that a maintenance that has not begun is reported as planned until a tick after its deletion.

    No `restore` runs for a maintenance that never began.
    """
    node = workload.take_node()
    maintenance = workload.create_maintenance(node)
    publish(functions, workload, maintenance)
    assert read_true_product_conditions(workload, node) == {MAINTENANCE_PLANNED}

    workload.delete(m.build_path(maintenance))
    send_ticks_until_published(functions, workload, node, None)


def test_node_conditions_describe_first_maintenance_and_then_successor(
    functions: Functions, workload: Workload
) -> None:
    """Check that the node's conditions describe the maintenance that has begun, and then its successor."""
    node = workload.take_node()
    first = drain(functions, workload, node)
    second = workload.create_maintenance(node)
    functions.invoke(STEP, build_updated_event(second))
    assert read_true_product_conditions(workload, node) == {DRAINED, MAINTENANCE_IN_PROGRESS}

    deleted = restore(functions, workload, first)
    functions.invoke(STEP, build_updated_event(deleted))

    assert read_true_product_conditions(workload, node) == {MAINTENANCE_PLANNED}
    assert workload.read_node(node)["metadata"]["labels"][CONDITIONS_LABEL] == second["metadata"]["uid"]


def test_deleted_node_is_ignored(functions: Functions, workload: Workload) -> None:
    """Check that `publish-conditions` patches neither a deleted node nor a new node with the same name."""
    node = workload.take_node()
    maintenance = drain(functions, workload, node)
    body = workload.read_node(node)
    workload.delete(build_node_path(node))
    workload.wait_for_object(build_node_path(node), lambda current: current is None)
    assert functions.invoke(STEP, build_updated_event(maintenance)) is None

    metadata = {"name": node, "labels": {"kubernetes.io/hostname": node}}
    workload.client.create("/api/v1/nodes", {"metadata": metadata, "spec": body["spec"]})
    assert functions.invoke(STEP, build_updated_event(maintenance)) is None

    assert CONDITIONS_LABEL not in workload.read_node(node)["metadata"]["labels"]


def test_node_deleted_before_patch_is_ignored(functions: Functions, workload: Workload) -> None:
    """Check that `publish-conditions` returns no error if the node is deleted between the read and the patch."""
    node = workload.take_node()
    maintenance = drain(functions, workload, node)
    path = f"{build_node_path(node)}/status"

    with run_before_request(functions.clusters[STEP], "PATCH", path, lambda: workload.delete(build_node_path(node))):
        assert functions.invoke(STEP, build_updated_event(maintenance)) is None


def test_node_restored_after_read_gets_no_conditions(functions: Functions, workload: Workload) -> None:
    """Design rule 12: a node that was restored after `publish-conditions` read it gets no conditions.

    The patch contains the resourceVersion of the node that was read, so the API server rejects it.
    """
    node = workload.take_node()
    maintenance = drain(functions, workload, node)
    path = f"{build_node_path(node)}/status"

    with run_before_request(functions.clusters[STEP], "PATCH", path, lambda: restore(functions, workload, maintenance)):
        assert functions.invoke(STEP, build_updated_event(maintenance)) is None

    assert read_true_product_conditions(workload, node) is None


def test_kubelet_write_between_read_and_patch_does_not_prevent_conditions(
    functions: Functions, workload: Workload
) -> None:
    """Check that a change of the node's status by the kubelet makes the step patch again, and is not overwritten."""
    node = workload.take_node()
    maintenance = drain(functions, workload, node)
    path = f"{build_node_path(node)}/status"
    condition = {"type": "DiskPressure", "status": "True", "reason": "KubeletHasDiskPressure"}
    body = {"status": {"conditions": [condition]}}

    with run_before_request(
        functions.clusters[STEP], "PATCH", path, lambda: workload.client.patch(path, body, STRATEGIC_MERGE_PATCH)
    ):
        assert functions.invoke(STEP, build_updated_event(maintenance)) is None

    assert read_true_product_conditions(workload, node) == {DRAINED, MAINTENANCE_IN_PROGRESS}
    assert ("DiskPressure", "True") in {
        (item["type"], item["status"]) for item in read_conditions_of_other_writers(workload, node)
    }


def test_ticks_write_node_conditions_if_events_are_lost(
    functions: Functions, workload: Workload, clean_cluster: None
) -> None:
    """X-3: if all other events are lost, ticks write, correct and remove the node's conditions."""
    node, other_node = workload.take_node(), workload.take_node()
    maintenance = drain(functions, workload, node)
    functions.run_until_tainted(workload.create_maintenance(other_node))
    send_ticks_until_published(functions, workload, node, {DRAINED, MAINTENANCE_IN_PROGRESS})
    assert read_true_product_conditions(workload, other_node) == {MAINTENANCE_PLANNED, DRAIN_IN_PROGRESS}

    wrong = {"type": DRAINED, "status": "False", "reason": "KubectlDrainStarted"}
    path = f"{build_node_path(node)}/status"
    workload.client.patch(path, {"status": {"conditions": [wrong]}}, STRATEGIC_MERGE_PATCH)
    send_ticks_until_published(functions, workload, node, {DRAINED, MAINTENANCE_IN_PROGRESS})

    restore(functions, workload, maintenance)
    send_ticks_until_published(functions, workload, node, None)
    assert read_true_product_conditions(workload, other_node) == {MAINTENANCE_PLANNED, DRAIN_IN_PROGRESS}


def test_forced_removal_of_finalizer_leaves_no_conditions(
    functions: Functions, workload: Workload, clean_cluster: None
) -> None:
    """Check that a tick removes the node's conditions if another client removed the maintenance's finalizer."""
    node = workload.take_node()
    maintenance = drain(functions, workload, node)
    publish(functions, workload, maintenance)

    workload.remove_maintenance(maintenance)
    send_ticks_until_published(functions, workload, node, None)


def test_tick_patches_limited_number_of_nodes(
    functions: Functions, workload: Workload, monkeypatch: pytest.MonkeyPatch, clean_cluster: None
) -> None:
    """Design rule 10: a tick reads and patches a limited number of nodes, and later ticks patch the other nodes."""
    nodes = [workload.take_node() for _ in range(3)]
    for node in nodes:
        functions.run_until_tainted(workload.create_maintenance(node))
    monkeypatch.setattr(publish_conditions, "MAX_READS_PER_TICK", 1)

    counts = [0]
    for _ in range(len(nodes) + MAX_TICKS):
        functions.invoke(STEP, build_tick())
        counts.append(sum(read_true_product_conditions(workload, node) is not None for node in nodes))

    assert all(later - earlier <= 1 for earlier, later in pairwise(counts))
    assert counts[-1] == len(nodes)


@pytest.mark.parametrize("uses_tick", [False, True])
def test_rejected_patch_of_conditions_does_not_stop_maintenance_and_is_repeated(
    proxied_functions: Functions,
    functions: Functions,
    fault_proxy: FaultProxy,
    workload: Workload,
    uses_tick: bool,
    clean_cluster: None,
) -> None:
    """Check that a rejected patch causes a 503 for an event, but at a tick only a log line; the next tick retries it.

    The maintenance succeeds regardless of its node's conditions.
    """
    node = workload.take_node()
    maintenance = drain(functions, workload, node)
    event = build_tick() if uses_tick else build_updated_event(maintenance)
    refusal = Fault(403, "nodes/status is forbidden")
    fault_proxy.inject(lambda request: refusal if request.startswith("patch nodes/status") else None)
    try:
        response = proxied_functions.post(STEP, event)
    finally:
        fault_proxy.stop_faults()
    assert response.status_code == (204 if uses_tick else 503)
    assert read_true_product_conditions(workload, node) is None

    send_ticks_until_published(functions, workload, node, {DRAINED, MAINTENANCE_IN_PROGRESS})
    assert m.get_last_error(workload.read_maintenance(maintenance)) == ""


def test_failed_list_of_maintenances_removes_no_conditions(
    proxied_functions: Functions,
    functions: Functions,
    fault_proxy: FaultProxy,
    workload: Workload,
    clean_cluster: None,
) -> None:
    """Check that a tick changes no conditions if the maintenances of an API group cannot be listed."""
    node = workload.take_node()
    maintenance = drain(functions, workload, node)
    publish(functions, workload, maintenance)
    refusal = Fault(403, "nodemaintenances is forbidden")
    fault_proxy.inject(lambda request: refusal if request.startswith("list nodemaintenances") else None)
    try:
        response = proxied_functions.post(STEP, build_tick())
    finally:
        fault_proxy.stop_faults()

    assert response.status_code == 503
    assert read_true_product_conditions(workload, node) == {DRAINED, MAINTENANCE_IN_PROGRESS}


def test_tick_without_maintenances_sends_only_list_requests(
    functions: Functions, workload: Workload, clean_cluster: None
) -> None:
    """Design rule 10: on a cluster without maintenances, a tick sends one list request for each kind of object.

    The test first lets the step cache that this install is active; otherwise it reads the install Lease once a minute.
    """
    INSTALL_LEASE_CACHE.confirm(functions.clusters[STEP])

    with count_requests(functions.clusters[STEP].api) as requests:
        functions.invoke(STEP, build_tick())

    assert requests == {f"GET {path}": 1 for path in (NODES_PATH, *(group.path for group in GROUPS.values()))}


def test_publish_conditions_ignores_events_in_passive_install(
    functions: Functions, workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DRN-15: in a passive install, `publish-conditions` ignores its events."""
    node = workload.take_node()
    maintenance = drain(functions, workload, node)
    monkeypatch.setattr(publish_conditions, "is_active_install", lambda _client: False)

    assert functions.invoke(STEP, build_updated_event(maintenance)) is None
    assert functions.invoke(STEP, build_tick()) is None

    assert read_true_product_conditions(workload, node) is None


@proves("X-1")
@pytest.mark.slow
@pytest.mark.parametrize("event_type", [events.RESOURCE_UPDATED, events.NODE_TAINTED])
def test_corrupt_event_data_does_not_crash_publish_conditions(
    functions: Functions, workload: Workload, event_type: str
) -> None:
    """X-1: `publish-conditions` never crashes if a field of the event data has an arbitrary JSON value."""
    maintenance = drain(functions, workload, workload.take_node())
    valid_event = (
        build_updated_event(maintenance)
        if event_type == events.RESOURCE_UPDATED
        else build_product_event(event_type, maintenance)
    )
    post = build_post_function(functions, STEP, valid_event, event_type)
    data = json.loads(encode_binary(valid_event).body)

    @settings(max_examples=10, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(list(iterate_value_paths(data))), JSON_VALUES)
    def post_corrupt_field(path: tuple[object, ...], value: object) -> None:
        status, text = post(replace_value(data, path, value))
        assert status in (200, 204, 400, 503), (path, value, text)
        assert "Traceback" not in text

    post_corrupt_field()
