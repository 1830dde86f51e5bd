"""Tests for `release-node`, which releases one node for its upgrade after all the node's Jobs are complete."""

from __future__ import annotations

import pytest

from eventing import events
from kube.client.api_errors import Rejected
from kube.maintenance.objects import REQUESTER_ANNOTATION
from kube.mutex import pools
from kube.mutex.nodes import get_run_id, is_released
from kube.mutex.objects import (
    DEFAULT_NAMESPACE,
    RUN_KIND,
    RUN_LABEL,
    Reference,
    build_object_path,
    build_rule_label,
    get_condition,
)
from kube.nodes import MAINTENANCE_LABEL
from kube.paths import Object
from localcluster.audit_log import AuditLog
from tests.functions.event_builders import build_resource_event
from tests.functions.mutex.conftest import UpgradeScenario
from tests.proofs import proves
from tests.workload import Workload

REPAIR_BY_CHANGE = {"paused": ("pause-pools", events.POOLS_CLAIMED), "edited": ("edit-pools", events.NODES_LABELLED)}
"""Map from pool change that another client undid to the step that repeats it, and the event that triggers the step."""


@pytest.mark.slow
@proves("MUT-43", "MUT-44")
def test_labels_of_released_node_are_removed_in_one_write_after_record(
    upgrade: UpgradeScenario, audit_after_setup: AuditLog
) -> None:
    """Check that the released node is recorded first, and that all its labels are then removed in one write.

    The run's other node keeps its labels. A repeated event causes no write.
    """
    name = upgrade.advance_to_release()
    writes = [
        entry for entry in audit_after_setup.list_writes_by() if entry["user"]["username"].endswith(":release-node")
    ]
    assert [entry["objectRef"]["resource"] for entry in writes] == ["mutexrunconfigs", "nodes", "mutexrunconfigs"]
    assert is_released(upgrade.read_node(name))
    assert not is_released(upgrade.read_node(upgrade.nodes[1]))
    assert upgrade.read_status()["record"]["released"] == name
    assert upgrade.run_step("release-node", events.NODE_PREJOBS_DONE) == events.NODE_RELEASED
    writes_after_repeated_event = [
        entry for entry in audit_after_setup.list_writes_by() if entry["user"]["username"].endswith(":release-node")
    ]
    assert len(writes_after_repeated_event) == len(writes)


@pytest.mark.slow
@proves("MUT-44")
def test_crd_rejects_second_released_node(upgrade: UpgradeScenario) -> None:
    """Check that the CRD rejects a record with a second released node, or with another run id.

    A node must be removed from the record before the next one is recorded.
    """
    name, second_name = upgrade.advance_to_release(), upgrade.nodes[1]
    for record_patch, expected_message in (
        ({"released": second_name}, f"status.record.released cannot change from {name}"),
        ({"id": "another"}, "status.record.id cannot change during a run"),
        ({"number": 0, "id": "another"}, "status.record"),
    ):
        with pytest.raises(Rejected, match=expected_message):
            upgrade.administrator_client.patch(
                f"{build_object_path(upgrade.run_config)}/status", {"status": {"record": record_patch}}
            )


@proves("MUT-43", "MUT-44")
def test_node_is_not_released_before_its_jobs_are_complete(upgrade: UpgradeScenario) -> None:
    """Check that a forged or early event releases no node before its Jobs are complete."""
    upgrade.advance_to_jobs()
    assert upgrade.run_step("release-node", events.NODE_PREJOBS_DONE) == ""
    upgrade.run_step("run-job", events.POOLS_EDITED)
    assert upgrade.run_step("release-node", events.NODE_PREJOBS_DONE) == ""
    assert not any(is_released(upgrade.read_node(name)) for name in upgrade.nodes)


@pytest.mark.slow
@proves("MUT-36")
def test_changes_undone_by_other_client_are_repaired_before_release(upgrade: UpgradeScenario) -> None:
    """Check that other nodes' labels, the canary pool's selector and a pool's pause are repaired before the release.

    The labels are repaired before that selector, because the canary pool selects nodes without labels.
    """
    advance_to_prejobs_done(upgrade)
    other_node = upgrade.nodes[1]
    upgrade.patch_node_labels(other_node, {build_rule_label(Reference(DEFAULT_NAMESPACE, "only")): None})
    upgrade.administrator_client.patch(
        pools.build_pool_path("canary"), {"spec": {"nodeSelector": {"matchExpressions": None}}}
    )
    assert upgrade.run_step("release-node", events.NODE_PREJOBS_DONE) == events.POOLS_PAUSED
    assert upgrade.run_step("label-nodes", events.POOLS_PAUSED) == events.NODES_LABELLED
    assert not is_released(upgrade.read_node(other_node))
    upgrade.run_step("edit-pools", events.NODES_LABELLED)
    upgrade.unpause("blue")
    assert upgrade.run_step("release-node", events.NODE_PREJOBS_DONE) == events.POOLS_CLAIMED
    assert not is_released(upgrade.read_node(upgrade.nodes[0]))


@pytest.mark.slow
@proves("MUT-43", "X-3")
@pytest.mark.parametrize(
    ("state", "original_fields", "event_type"),
    [
        ("paused", {"paused": False}, events.POOLS_CLAIMED),
        ("edited", {"nodeSelector": {"matchExpressions": None}}, events.POOLS_PAUSED),
    ],
)
def test_release_waits_for_tick_if_pool_repair_is_undone_within_seconds(
    upgrade: UpgradeScenario, state: str, original_fields: Object, event_type: str
) -> None:
    """Check that no node is released if another client undoes the repair of a pool within seconds.

    The next repair waits for a tick. Otherwise `release-node` and the repairing step would keep triggering each other.
    The condition reports the conflict only once.
    """
    advance_to_prejobs_done(upgrade)
    path, repair_step = pools.build_pool_path("blue"), REPAIR_BY_CHANGE[state]
    upgrade.administrator_client.patch(path, {"spec": original_fields})
    assert upgrade.run_step("release-node", events.NODE_PREJOBS_DONE) == event_type
    assert upgrade.run_step(*repair_step) != ""
    upgrade.administrator_client.patch(path, {"spec": original_fields})
    assert upgrade.run_step("release-node", events.NODE_PREJOBS_DONE) == ""
    assert not is_released(upgrade.read_node(upgrade.nodes[0]))

    waiting_run = upgrade.read_object(upgrade.run_config)
    condition = get_condition(waiting_run, "NodeUpgrade")
    assert (condition["status"], condition["reason"]) == ("False", "NodeUpgradeWaiting")
    assert f"another client reverts MachineConfigPool blue each time it is {state}: stop" in condition["message"]
    assert upgrade.run_step("release-node", events.NODE_PREJOBS_DONE) == ""
    assert (
        upgrade.read_object(upgrade.run_config)["metadata"]["resourceVersion"]
        == waiting_run["metadata"]["resourceVersion"]
    )
    assert (
        upgrade.functions.invoke("check-run", build_resource_event(events.RESOURCE_UPDATED, waiting_run, RUN_KIND))
        is None
    )
    upgrade.run_step(*repair_step)
    assert upgrade.run_step("release-node", events.NODE_PREJOBS_DONE) == events.NODE_RELEASED


@pytest.mark.slow
@proves("MUT-36")
def test_no_node_is_released_without_unpaused_canary_pool(upgrade: UpgradeScenario) -> None:
    """Check that no node is released while the canary pool is paused or missing, even before `check-run` reports it."""
    advance_to_prejobs_done(upgrade)
    upgrade.administrator_client.patch(pools.build_pool_path("canary"), {"spec": {"paused": True}})
    assert upgrade.run_step("release-node", events.NODE_PREJOBS_DONE) == ""
    assert (
        'canary MachineConfigPool "canary" is paused'
        in get_condition(upgrade.read_object(upgrade.run_config), "NodeUpgrade")["message"]
    )
    upgrade.administrator_client.delete(
        pools.build_pool_path("canary"), uid=upgrade.read_pool("canary")["metadata"]["uid"]
    )
    assert upgrade.run_step("release-node", events.NODE_PREJOBS_DONE) == ""
    assert (
        'canary MachineConfigPool "canary" not found'
        in get_condition(upgrade.read_object(upgrade.run_config), "NodeUpgrade")["message"]
    )
    assert not is_released(upgrade.read_node(upgrade.nodes[0]))


@proves("MUT-32", "MUT-45")
def test_no_node_is_released_during_control_plane_upgrade(upgrade: UpgradeScenario) -> None:
    """Check that no node is released while the control plane is being upgraded to a later version.

    The conditions report the control plane's upgrade. The node is released after it.
    """
    advance_to_prejobs_done(upgrade)
    upgrade.cvo.set_desired_version("4.16.5", "Partial")
    assert upgrade.run_step("release-node", events.NODE_PREJOBS_DONE) == ""
    assert not is_released(upgrade.read_node(upgrade.nodes[0]))
    for condition_type in ("NodeUpgrade", "UpgradeReady"):
        condition = get_condition(upgrade.read_object(upgrade.run_config), condition_type)
        assert (condition["status"], "is Partial, not Completed" in condition["message"]) == ("False", True)
    upgrade.cvo.set_desired_version("4.16.5")
    assert events.NODE_PREJOBS_DONE in [reply.get_type() for reply in upgrade.resync_by_tick()]
    assert upgrade.run_step("release-node", events.NODE_PREJOBS_DONE) == events.NODE_RELEASED
    condition = get_condition(upgrade.read_object(upgrade.run_config), "UpgradeReady")
    assert (condition["status"], condition["message"]) == ("True", "the control plane is at 4.16.5")


@pytest.mark.slow
@proves("MUT-32", "X-2")
def test_released_node_stays_released(upgrade: UpgradeScenario) -> None:
    """Check that a released node stays released if another version is desired afterwards.

    The node also stays released if the process was killed between the two writes of the release.
    """
    name = upgrade.advance_to_release()
    upgrade.cvo.set_desired_version("4.16.5", "Partial")
    assert upgrade.run_step("release-node", events.NODE_PREJOBS_DONE) == events.NODE_RELEASED
    upgrade.write_record({"nodes": {name: {"releasedAt": None}}})
    assert upgrade.run_step("release-node", events.NODE_PREJOBS_DONE) == events.NODE_RELEASED
    assert "releasedAt" in upgrade.read_status()["record"]["nodes"][name]


@pytest.mark.slow
@proves("MUT-35")
def test_node_recreated_before_release_is_dropped_from_run(upgrade: UpgradeScenario) -> None:
    """Check that a node that was recreated before its release is dropped from the run, even if the release is delayed.

    The recreated node is not part of the run, so no node is recorded as released.
    """
    advance_to_prejobs_done(upgrade)
    name = upgrade.nodes[0]
    upgrade.delete_node(name, recreate=True)
    upgrade.cvo.set_desired_version("4.16.5", "Partial")
    assert upgrade.run_step("release-node", events.NODE_PREJOBS_DONE) == events.NODE_RELEASED
    assert "released" not in upgrade.read_status()["record"]
    assert upgrade.run_step("await-version", events.NODE_RELEASED) == events.NODE_DONE
    assert "droppedAt" in upgrade.read_status()["record"]["nodes"][name]


@pytest.mark.slow
@proves("MUT-44")
def test_node_under_maintenance_is_not_released(upgrade: UpgradeScenario, workload: Workload) -> None:
    """Check that a node under maintenance is released only after the maintenance has ended.

    The condition names the maintenance and its requester. Another run's maintenance also delays the release.
    """
    advance_to_prejobs_done(upgrade)
    labels = {RUN_LABEL: f"{upgrade.read_status()['record']['id']}0"}
    maintenance = workload.create_maintenance(
        upgrade.nodes[0], annotations={REQUESTER_ANNOTATION: "alice"}, labels=labels
    )
    upgrade.functions.run_chain(maintenance, "begin", "cordon")
    assert upgrade.run_step("release-node", events.NODE_PREJOBS_DONE) == ""
    message = get_condition(upgrade.read_object(upgrade.run_config), "NodeUpgrade")["message"]
    assert f"NodeMaintenance {maintenance['metadata']['name']}, requested by alice, holds the node" in message
    upgrade.patch_node_labels(upgrade.nodes[0], {MAINTENANCE_LABEL: None})
    assert upgrade.run_step("release-node", events.NODE_PREJOBS_DONE) == events.NODE_RELEASED


@pytest.mark.slow
@proves("MUT-44")
def test_node_of_deleted_maintenance_is_not_released(upgrade: UpgradeScenario) -> None:
    """Check that a node with the label of a deleted maintenance is not released, and that the condition reports it."""
    advance_to_prejobs_done(upgrade)
    upgrade.patch_node_labels(upgrade.nodes[0], {MAINTENANCE_LABEL: "somebody"})
    assert upgrade.run_step("release-node", events.NODE_PREJOBS_DONE) == ""
    assert (
        "the node's label names a deleted NodeMaintenance"
        in get_condition(upgrade.read_object(upgrade.run_config), "NodeUpgrade")["message"]
    )


@pytest.mark.slow
@proves("MUT-44")
def test_maintenance_requested_by_job_of_run_does_not_delay_release(
    upgrade: UpgradeScenario, workload: Workload
) -> None:
    """Check that a maintenance that the run's own Job requested does not delay the release.

    The Job drains the node before the upgrade, so the release would otherwise wait forever.
    """
    advance_to_prejobs_done(upgrade)
    maintenance = workload.create_maintenance(
        upgrade.nodes[0], labels={RUN_LABEL: upgrade.read_status()["record"]["id"]}
    )
    upgrade.functions.run_chain(maintenance, "begin", "cordon")
    assert upgrade.run_step("release-node", events.NODE_PREJOBS_DONE) == events.NODE_RELEASED
    assert is_released(upgrade.read_node(upgrade.nodes[0]))


@pytest.mark.slow
@proves("MUT-43", "X-3")
def test_node_without_run_label_is_released(upgrade: UpgradeScenario) -> None:
    """Check that a node from which another client removed the run's label gets the label again and is released.

    Otherwise `release-node` and `await-version` would keep triggering each other.
    """
    advance_to_prejobs_done(upgrade)
    upgrade.patch_node_labels(upgrade.nodes[0], {RUN_LABEL: None})
    assert upgrade.run_step("release-node", events.NODE_PREJOBS_DONE) == events.NODE_RELEASED
    assert is_released(upgrade.read_node(upgrade.nodes[0]))
    assert get_run_id(upgrade.read_node(upgrade.nodes[0])) == upgrade.read_status()["record"]["id"]
    assert upgrade.run_step("await-version", events.NODE_RELEASED) == ""


@pytest.mark.slow
@proves("MUT-43", "MUT-44")
def test_node_with_other_runs_label_is_not_recorded_as_released(upgrade: UpgradeScenario) -> None:
    """Check that a node with another run's label is not recorded as released, because it would keep its rule labels.

    The condition reports the other run, and no event is emitted.
    """
    advance_to_prejobs_done(upgrade)
    upgrade.patch_node_labels(upgrade.nodes[0], {RUN_LABEL: "another"})
    assert upgrade.run_step("release-node", events.NODE_PREJOBS_DONE) == ""
    assert (
        "names another run, another" in get_condition(upgrade.read_object(upgrade.run_config), "NodeUpgrade")["message"]
    )
    assert "releasedAt" not in upgrade.read_status()["record"]["nodes"][upgrade.nodes[0]]


def advance_to_prejobs_done(upgrade: UpgradeScenario) -> None:
    """Advance the run until its first node may be released."""
    upgrade.advance_to_jobs()
    upgrade.run_step("run-job", events.POOLS_EDITED)
    upgrade.end_job(upgrade.list_jobs()[-1])
    assert upgrade.run_step("run-job", events.JOB_DUE) == events.NODE_PREJOBS_DONE
