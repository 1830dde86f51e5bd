"""Tests for `restore-pools`, which restores MachineConfigPools and nodes to their state before the run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cloudevents.core.base import BaseCloudEvent

from chaos.api_fault_proxy import NO_RESPONSE, Fault, FaultProxy
from eventing import events
from eventing.events import ObjectReference
from functions.mutex import resync_runs
from functions.serving.handler import API_DEADLINE_SECONDS
from kube.mutex import run_record
from kube.mutex.nodes import get_run_id, is_released
from kube.mutex.objects import RUN_KIND, RUN_LABEL, build_object_path, get_condition, has_finalizer
from kube.mutex.pools import POOLS_PATH, build_pool_path, get_claim_uid
from kube.mutex.run_record import Stage
from kube.mutex.versions import WORKER_LABEL
from kube.paths import Object
from localcluster.simulators.openshift import build_pool
from tests.functions.conftest import MAX_DELIVERIES, Functions
from tests.functions.mutex.conftest import BEFORE_JOBS, UpgradeScenario
from tests.proofs import proves


def read_pool_specs(upgrade: UpgradeScenario) -> dict[str, Object]:
    return {name: upgrade.read_pool(name)["spec"] for name in ("blue", "canary")}


@proves("MUT-51", "MUT-49")
@pytest.mark.parametrize("step_count", range(3, len(BEFORE_JOBS) + 1))
def test_run_deleted_before_first_job_restores_pools_and_nodes(upgrade: UpgradeScenario, step_count: int) -> None:
    """Check that all pools and nodes are restored if a run is deleted before its first Job, whichever step ran last."""
    upgrade.check_rule_and_target()
    upgrade.run_steps(*BEFORE_JOBS[:step_count])
    upgrade.administrator_client.run(
        upgrade.administrator_client.api.request("DELETE", build_object_path(upgrade.run_config))
    )
    assert upgrade.run_step("check-run", events.RUN_CHECK_PENDING) == events.RUN_RESTORE_PENDING
    assert upgrade.run_step("restore-pools", events.RUN_RESTORE_PENDING) == events.RUN_RESTORED
    assert read_pool_specs(upgrade) == upgrade.original_pool_specs
    assert all(
        is_released(upgrade.read_node(name)) and not get_run_id(upgrade.read_node(name)) for name in upgrade.nodes
    )
    assert {get_claim_uid(upgrade.read_pool(name)) for name in upgrade.original_pool_specs} == {""}
    assert upgrade.run_step("restore-pools", events.RUN_RESTORE_PENDING) == ""


def get_restore_events_by_orphaned_node(upgrade: UpgradeScenario) -> dict[str, BaseCloudEvent]:
    """Return, by node name, the `run.restore_pending` event that a tick emits for each orphaned node."""
    restore_events = [reply for reply in upgrade.resync_by_tick() if reply.get_type() == events.RUN_RESTORE_PENDING]
    return {str(reply.get_extension("node")): reply for reply in restore_events}


def advance_to_prejobs_done(upgrade: UpgradeScenario) -> None:
    """Advance the run until the first node's Jobs are complete, but do not release the node."""
    upgrade.advance_to_jobs()
    upgrade.run_step("run-job", events.POOLS_EDITED)
    upgrade.end_job(upgrade.list_jobs()[-1])
    assert upgrade.run_step("run-job", events.JOB_DUE) == events.NODE_PREJOBS_DONE


def advance_to_all_nodes_done(upgrade: UpgradeScenario) -> None:
    """Advance the run until all nodes are upgraded, but do not restore the pools."""
    upgrade.advance_to_jobs()
    node_records = {name: {"cleanedAt": "2026-01-01T00:00:00Z"} for name in upgrade.nodes}
    upgrade.administrator_client.patch(
        f"{build_object_path(upgrade.run_config)}/status", {"status": {"record": {"nodes": node_records}}}
    )


@pytest.mark.slow
@proves("MUT-51", "MUT-49")
@pytest.mark.parametrize(
    ("advance", "stage"), [(advance_to_prejobs_done, Stage.PREJOBS_DONE), (advance_to_all_nodes_done, Stage.NODES_DONE)]
)
def test_run_deleted_between_nodes_restores_pools_and_nodes(
    upgrade: UpgradeScenario, advance: Callable[[UpgradeScenario], None], stage: Stage
) -> None:
    """Check that all pools and nodes are restored if a run is deleted between two nodes' upgrades, despite late events.

    The two tested stages of a run are so short that in other tests a deletion rarely occurs in one of them.
    """
    advance(upgrade)
    assert run_record.compute_stage(upgrade.read_object(upgrade.run_config)) is stage
    upgrade.administrator_client.run(
        upgrade.administrator_client.api.request("DELETE", build_object_path(upgrade.run_config))
    )
    assert upgrade.run_step("release-node", events.NODE_PREJOBS_DONE) == ""
    assert upgrade.run_step("check-run", events.RUN_CHECK_PENDING) == events.RUN_RESTORE_PENDING
    assert upgrade.run_step("restore-pools", events.RUN_RESTORE_PENDING) == events.RUN_RESTORED
    assert read_pool_specs(upgrade) == upgrade.original_pool_specs
    assert all(
        is_released(upgrade.read_node(name)) and not get_run_id(upgrade.read_node(name)) for name in upgrade.nodes
    )
    assert upgrade.run_step("release-node", events.NODE_PREJOBS_DONE) == ""


@pytest.mark.slow
@proves("MUT-51", "MUT-34")
def test_pool_paused_before_deleted_run_stays_paused(upgrade: UpgradeScenario) -> None:
    """Check that a MachineConfigPool that was paused before the run stays paused after the run is deleted."""
    upgrade.administrator_client.patch(build_pool_path("blue"), {"spec": {"paused": True}})
    upgrade.advance_to_jobs()
    upgrade.administrator_client.run(
        upgrade.administrator_client.api.request("DELETE", build_object_path(upgrade.run_config))
    )
    assert upgrade.run_step("restore-pools", events.RUN_RESTORE_PENDING) == events.RUN_RESTORED
    assert upgrade.read_pool("blue")["spec"]["paused"] is True
    assert upgrade.read_pool("blue")["spec"]["nodeSelector"] == upgrade.original_pool_specs["blue"]["nodeSelector"]


@proves("X-2", "MUT-44")
def test_pools_of_active_run_are_not_restored(upgrade: UpgradeScenario) -> None:
    """Check that neither `run.restore_pending` nor `run.nodes_done` restores the pools of an active run."""
    upgrade.advance_to_jobs()
    edited_specs = read_pool_specs(upgrade)
    assert upgrade.run_step("restore-pools", events.RUN_RESTORE_PENDING) == ""
    assert upgrade.run_step("restore-pools", events.RUN_NODES_DONE) == ""
    assert read_pool_specs(upgrade) == edited_specs
    assert has_finalizer(upgrade.read_object(upgrade.run_config))


@proves("MUT-49")
def test_run_without_record_restores_documented_selectors(upgrade: UpgradeScenario) -> None:
    """Check that a run without a record restores the selectors that document 004 describes.

    The canary pool gets `isCanary Exists` again, and the target pool loses the run's matchExpressions.
    """
    upgrade.advance_to_jobs()
    upgrade.administrator_client.patch(f"{build_object_path(upgrade.run_config)}/status", {"status": {"record": None}})
    assert upgrade.run_step("restore-pools", events.RUN_RESTORE_PENDING) == events.RUN_RESTORED
    selectors = {name: upgrade.read_pool(name)["spec"]["nodeSelector"] for name in upgrade.original_pool_specs}
    assert selectors == {name: spec["nodeSelector"] for name, spec in upgrade.original_pool_specs.items()}


@proves("MUT-49", "MUT-51")
def test_pool_without_claim_is_restored(upgrade: UpgradeScenario) -> None:
    """Check that a MachineConfigPool is restored even if another client removed its claim during the run."""
    upgrade.advance_to_jobs()
    upgrade.administrator_client.patch(build_pool_path("blue"), {"metadata": {"annotations": None}})
    upgrade.administrator_client.delete(
        build_object_path(upgrade.run_config), uid=upgrade.run_config["metadata"]["uid"]
    )

    assert upgrade.run_step("restore-pools", events.RUN_RESTORE_PENDING) == events.RUN_RESTORED

    assert read_pool_specs(upgrade) == upgrade.original_pool_specs


@proves("MUT-49", "MUT-51")
@pytest.mark.parametrize("owner_exists", [False, True])
def test_pool_with_invalid_claim_is_restored(upgrade: UpgradeScenario, owner_exists: bool) -> None:
    """Check that a MachineConfigPool is restored even if its claim names a run config without a run.

    A user may have applied a manifest of the pool from an earlier run.
    """
    upgrade.advance_to_jobs()
    annotations = {RUN_LABEL: upgrade.get_idle_run_config_uid(exists=owner_exists)}
    upgrade.administrator_client.patch(build_pool_path("blue"), {"metadata": {"annotations": annotations}})
    upgrade.administrator_client.delete(
        build_object_path(upgrade.run_config), uid=upgrade.run_config["metadata"]["uid"]
    )

    assert upgrade.run_step("restore-pools", events.RUN_RESTORE_PENDING) == events.RUN_RESTORED

    assert read_pool_specs(upgrade) == upgrade.original_pool_specs
    assert get_claim_uid(upgrade.read_pool("blue")) == ""


@proves("MUT-1", "MUT-51")
def test_stuck_deletion_of_run_config_is_reported_once(
    upgrade: UpgradeScenario, proxied_functions: Functions, fault_proxy: FaultProxy
) -> None:
    """Check that the condition of a run config whose deletion is stuck names the rejected verb and is written once.

    Each status write causes an event that triggers `restore-pools`, so a write per attempt would cause an endless loop.
    """
    upgrade.advance_to_jobs()
    upgrade.administrator_client.delete(
        build_object_path(upgrade.run_config), uid=upgrade.run_config["metadata"]["uid"]
    )
    fault_proxy.inject(lambda request: Fault(403, f"cannot {request}") if request.startswith("patch nodes") else None)
    for _ in range(2):
        assert proxied_functions.invoke("restore-pools", upgrade.build_event(events.RUN_RESTORE_PENDING)) is None
        condition = get_condition(upgrade.read_object(upgrade.run_config), "MCPUpdated")
        assert (condition["status"], condition["reason"]) == ("False", "UpdateFailed")
        assert condition["message"].startswith("cannot patch nodes")
        reported_version = upgrade.read_object(upgrade.run_config)["metadata"]["resourceVersion"]
    fault_proxy.inject(lambda request: Fault(403, "cannot list nodes") if request.startswith("list nodes") else None)
    assert proxied_functions.invoke("restore-pools", upgrade.build_event(events.RUN_RESTORE_PENDING)) is None
    assert upgrade.read_object(upgrade.run_config)["metadata"]["resourceVersion"] == reported_version
    fault_proxy.stop_faults()
    assert upgrade.run_step("restore-pools", events.RUN_RESTORE_PENDING) == events.RUN_RESTORED
    assert read_pool_specs(upgrade) == upgrade.original_pool_specs


def delete_run(upgrade: UpgradeScenario) -> str:
    """Delete the run while its first Job is due, and return the type of the event that triggers the restoration."""
    upgrade.advance_to_jobs()
    upgrade.administrator_client.delete(
        build_object_path(upgrade.run_config), uid=upgrade.run_config["metadata"]["uid"]
    )
    return events.RUN_RESTORE_PENDING


def complete_run(upgrade: UpgradeScenario) -> str:
    """Complete the run's last node, and return the type of the event that triggers the restoration of the pools."""
    advance_to_all_nodes_done(upgrade)
    upgrade.run_step("run-job", events.NODE_DONE)
    return events.RUN_NODES_DONE


@pytest.mark.slow
@proves("MUT-49", "MUT-51", "MUT-1")
@pytest.mark.parametrize(("rejected_pool", "other_pool"), [("blue", "green"), ("green", "blue")])
@pytest.mark.parametrize("end_run", [delete_run, complete_run])
@pytest.mark.parametrize("rejected_write", ["selector patch", "release patch"])
def test_rejected_pool_write_does_not_block_restoring_other_pools(
    upgrade: UpgradeScenario,
    proxied_functions: Functions,
    fault_proxy: FaultProxy,
    rejected_write: str,
    end_run: Callable[[UpgradeScenario], str],
    rejected_pool: str,
    other_pool: str,
) -> None:
    """Check that a rejected write of a pool delays the end of the run, but not the restoration of other pools.

    An administrator's later change to a restored pool is kept.
    """
    upgrade.add_pool("green")
    original_specs = {**upgrade.original_pool_specs, "green": upgrade.read_pool("green")["spec"]}
    trigger = upgrade.build_event(end_run(upgrade))
    first_request_number = {"selector patch": 2, "release patch": 5}[rejected_write]
    request_number = first_request_number + sorted((rejected_pool, other_pool)).index(rejected_pool)
    rejected_request = f"patch machineconfigpools {request_number}"
    fault_proxy.inject(lambda request: Fault(403, "a webhook") if request == rejected_request else None)
    assert proxied_functions.invoke("restore-pools", trigger) is None
    fault_proxy.stop_faults()

    pools_by_name, claim_uid = (
        {name: upgrade.read_pool(name) for name in original_specs},
        upgrade.run_config["metadata"]["uid"],
    )
    assert {name: get_claim_uid(pool) for name, pool in pools_by_name.items()} == {
        "canary": "",
        other_pool: "",
        rejected_pool: claim_uid,
    }
    assert {name: pools_by_name[name]["spec"] for name in ("canary", other_pool)} == {
        name: original_specs[name] for name in ("canary", other_pool)
    }
    assert pools_by_name[rejected_pool]["spec"]["paused"] is True
    assert all(is_released(upgrade.read_node(name)) is (rejected_write == "release patch") for name in upgrade.nodes)
    run_config, updated_condition = (
        upgrade.read_object(upgrade.run_config),
        get_condition(upgrade.read_object(upgrade.run_config), "MCPUpdated"),
    )
    assert (updated_condition["status"], updated_condition["message"], has_finalizer(run_config)) == (
        "False",
        "a webhook",
        True,
    )
    assert sorted(upgrade.read_status()["record"]["restored"]) == sorted(["canary", other_pool])

    upgrade.administrator_client.patch(build_pool_path(other_pool), {"spec": {"paused": True}})
    assert upgrade.run_step("restore-pools", str(trigger.get_type())) == events.RUN_RESTORED
    assert {name: upgrade.read_pool(name)["spec"] for name in original_specs} == {
        **original_specs,
        other_pool: {**original_specs[other_pool], "paused": True},
    }
    assert all(
        is_released(upgrade.read_node(name)) and not get_run_id(upgrade.read_node(name)) for name in upgrade.nodes
    )


@proves("MUT-49", "MUT-51", "X-3")
def test_canary_pool_edited_after_restoration_is_restored_again(
    upgrade: UpgradeScenario, proxied_functions: Functions, fault_proxy: FaultProxy
) -> None:
    """Check that a restored canary pool is restored again if a user applies a manifest with the run's selector.

    A canary pool with that selector would select each node whose labels are removed.
    """
    upgrade.advance_to_jobs()
    edited_spec = upgrade.read_pool("canary")["spec"]
    upgrade.administrator_client.delete(
        build_object_path(upgrade.run_config), uid=upgrade.run_config["metadata"]["uid"]
    )
    fault_proxy.inject(lambda request: Fault(403, "a webhook") if request == "patch machineconfigpools 2" else None)
    assert proxied_functions.invoke("restore-pools", upgrade.build_event(events.RUN_RESTORE_PENDING)) is None
    fault_proxy.stop_faults()
    assert list(upgrade.read_status()["record"]["restored"]) == ["canary"]
    upgrade.administrator_client.patch(build_pool_path("canary"), {"spec": edited_spec})

    assert upgrade.run_step("restore-pools", events.RUN_RESTORE_PENDING) == events.RUN_RESTORED

    assert read_pool_specs(upgrade) == upgrade.original_pool_specs


@proves("MUT-44", "MUT-49", "MUT-51")
@pytest.mark.parametrize("end_run", [delete_run, complete_run])
def test_no_pool_or_node_is_restored_while_canary_pool_write_is_rejected(
    upgrade: UpgradeScenario,
    proxied_functions: Functions,
    fault_proxy: FaultProxy,
    end_run: Callable[[UpgradeScenario], str],
) -> None:
    """Check that no other pool or node is restored while the write of the canary pool is rejected.

    The canary pool would select each node whose labels are removed. A released node would belong to two pools if its
    own pool were restored.
    """
    event_type = end_run(upgrade)
    edited_specs = read_pool_specs(upgrade)
    fault_proxy.inject(lambda request: Fault(403, "a webhook") if request == "patch machineconfigpools 1" else None)
    assert proxied_functions.invoke("restore-pools", upgrade.build_event(event_type)) is None
    fault_proxy.stop_faults()

    assert read_pool_specs(upgrade) == edited_specs
    assert not any(is_released(upgrade.read_node(name)) for name in upgrade.nodes)
    assert upgrade.run_step("restore-pools", event_type) == events.RUN_RESTORED
    assert read_pool_specs(upgrade) == upgrade.original_pool_specs


@proves("MUT-49", "MUT-51", "MUT-1")
def test_rejected_node_write_does_not_block_restoring_pools(
    upgrade: UpgradeScenario, proxied_functions: Functions, fault_proxy: FaultProxy
) -> None:
    """Check that a rejected write of a node delays the end of the run, but not the restoration of the pools.

    The pools' selectors are restored first, so the node's labels no longer have an effect.
    """
    event_type = delete_run(upgrade)
    fault_proxy.inject(lambda request: Fault(403, "a webhook") if request == "patch nodes 1" else None)
    assert proxied_functions.invoke("restore-pools", upgrade.build_event(event_type)) is None
    fault_proxy.stop_faults()

    assert read_pool_specs(upgrade) == upgrade.original_pool_specs
    assert {get_claim_uid(upgrade.read_pool(name)) for name in upgrade.original_pool_specs} == {""}
    assert sorted(is_released(upgrade.read_node(name)) for name in upgrade.nodes) == [False, True]
    assert has_finalizer(upgrade.read_object(upgrade.run_config))
    assert upgrade.run_step("restore-pools", event_type) == events.RUN_RESTORED
    assert all(is_released(upgrade.read_node(name)) for name in upgrade.nodes)


@pytest.mark.slow
@proves("MUT-49", "MUT-51", "X-6")
@pytest.mark.parametrize(
    ("hanging_request", "restored_pools"),
    [("patch machineconfigpools 2", ["canary", "green"]), ("patch nodes 1", ["blue", "canary", "green"])],
)
def test_hanging_write_does_not_block_restoring_other_pools(
    upgrade: UpgradeScenario,
    proxied_functions: Functions,
    fault_proxy: FaultProxy,
    hanging_request: str,
    restored_pools: list[str],
) -> None:
    """Check that a hanging write of a pool or a node does not delay the restoration of other pools.

    The broker redelivers the event.
    """
    upgrade.add_pool("green")
    original_specs = {**upgrade.original_pool_specs, "green": upgrade.read_pool("green")["spec"]}
    event_type = delete_run(upgrade)
    fault_proxy.inject(lambda request: NO_RESPONSE if request == hanging_request else None)
    for _ in range(MAX_DELIVERIES):
        assert proxied_functions.post("restore-pools", upgrade.build_event(event_type)).status_code == 503
        if not any(get_claim_uid(upgrade.read_pool(name)) for name in restored_pools):
            break
    fault_proxy.stop_faults()

    assert [name for name in sorted(original_specs) if not get_claim_uid(upgrade.read_pool(name))] == restored_pools
    assert {name: upgrade.read_pool(name)["spec"] for name in restored_pools} == {
        name: original_specs[name] for name in restored_pools
    }
    assert sorted(upgrade.read_status()["record"]["restored"]) == restored_pools
    assert upgrade.run_step("restore-pools", event_type) == events.RUN_RESTORED


@pytest.mark.slow
@proves("MUT-49", "MUT-51", "X-6")
def test_slow_write_of_canary_pool_may_use_most_of_step_time(
    upgrade: UpgradeScenario, proxied_functions: Functions, fault_proxy: FaultProxy
) -> None:
    """Check that the canary pool's write may use nearly all of the step's time, because the target pools wait for it.

    An admission webhook may take more than half of that time.
    """
    event_type = delete_run(upgrade)
    with fault_proxy.delay_request("patch machineconfigpools 1", API_DEADLINE_SECONDS / 2 + 0.05):
        proxied_functions.post("restore-pools", upgrade.build_event(event_type))

    assert upgrade.read_pool("blue")["spec"]["nodeSelector"] == upgrade.original_pool_specs["blue"]["nodeSelector"]


@proves("MUT-44", "X-2")
def test_late_event_does_not_remove_claim_of_next_run(
    upgrade: UpgradeScenario, proxied_functions: Functions, fault_proxy: FaultProxy
) -> None:
    """Check that a late event does not restore pools that the run config has already claimed for its next run."""
    upgrade.check_rule_and_target()
    detected_event = upgrade.run_steps("check-run", "detect-upgrade")
    requests: list[str] = []

    def claim_before_second_request(request: str) -> None:
        requests.append(request)
        if len(requests) == 2:
            assert upgrade.functions.invoke("claim-pools", detected_event) is not None

    fault_proxy.inject(claim_before_second_request)
    assert proxied_functions.post("restore-pools", upgrade.build_event(events.RUN_RESTORE_PENDING)).status_code == 204
    fault_proxy.stop_faults()

    assert len(requests) >= 2
    assert {get_claim_uid(upgrade.read_pool(name)) for name in upgrade.original_pool_specs} == {
        upgrade.run_config["metadata"]["uid"]
    }
    assert "finishedAt" not in upgrade.read_status()["record"]


@proves("MUT-49", "X-2")
def test_late_events_do_not_change_restored_pools(
    upgrade: UpgradeScenario, proxied_functions: Functions, fault_proxy: FaultProxy
) -> None:
    """Check that late events do not pause or edit pools that are being restored.

    Otherwise a pool of a finished run could stay paused.
    """
    advance_to_all_nodes_done(upgrade)
    upgrade.run_step("run-job", events.NODE_DONE)
    # `run-job` or `await-version` writes these fields when the last node is done.
    status_patch = {"status": {"step": Stage.NODES_DONE.value, "progress": None, "job": None}}
    upgrade.administrator_client.patch(f"{build_object_path(upgrade.run_config)}/status", status_patch)

    def repeat_events_before_last_write(request: str) -> None:
        if request == "patch mutexrunconfigs/status 1":
            assert upgrade.run_step("pause-pools", events.POOLS_CLAIMED) == ""
            assert upgrade.run_step("edit-pools", events.NODES_LABELLED) == ""

    fault_proxy.inject(repeat_events_before_last_write)
    reply = proxied_functions.invoke("restore-pools", upgrade.build_event(events.RUN_NODES_DONE))
    fault_proxy.stop_faults()

    assert reply is not None
    assert upgrade.read_status()["step"] == "Finished"
    assert read_pool_specs(upgrade) == upgrade.original_pool_specs
    assert {get_claim_uid(upgrade.read_pool(name)) for name in upgrade.original_pool_specs} == {""}


@proves("MUT-34", "MUT-49")
def test_completed_run_unpauses_pool_paused_before_run(upgrade: UpgradeScenario) -> None:
    """Check that a completed run also unpauses a MachineConfigPool that was paused before the run.

    Step 7 of document 004 unpauses all target pools. After a deleted run, such a pool stays paused.
    """
    upgrade.administrator_client.patch(build_pool_path("blue"), {"spec": {"paused": True}})
    advance_to_all_nodes_done(upgrade)
    assert upgrade.read_pool("blue")["spec"]["paused"] is True
    assert upgrade.run_step("restore-pools", events.RUN_NODES_DONE) == events.RUN_RESTORED
    assert upgrade.read_pool("blue")["spec"] == upgrade.original_pool_specs["blue"]


@proves("MUT-34", "MUT-51")
def test_run_that_never_began_does_not_unpause_pool(upgrade: UpgradeScenario) -> None:
    """Check that a run that has only claimed its pools does not unpause a pool that an administrator paused."""
    upgrade.advance_to_jobs()
    node_records = {name: {"cleanedAt": "2026-01-01T00:00:00Z"} for name in upgrade.nodes}
    upgrade.administrator_client.patch(
        f"{build_object_path(upgrade.run_config)}/status", {"status": {"record": {"nodes": node_records}}}
    )
    assert upgrade.run_step("restore-pools", events.RUN_NODES_DONE) == events.RUN_RESTORED
    metadata = {"annotations": {RUN_LABEL: upgrade.run_config["metadata"]["uid"]}}
    upgrade.administrator_client.patch(build_pool_path("blue"), {"metadata": metadata, "spec": {"paused": True}})

    assert upgrade.run_step("restore-pools", events.RUN_RESTORE_PENDING) == events.RUN_RESTORED

    assert upgrade.read_pool("blue")["spec"]["paused"] is True
    assert get_claim_uid(upgrade.read_pool("blue")) == ""


@proves("MUT-49", "MUT-51", "X-3")
def test_tick_removes_labels_written_after_deletion(
    upgrade: UpgradeScenario, proxied_functions: Functions, fault_proxy: FaultProxy
) -> None:
    """Check that a tick removes labels that were written after the run was deleted and its pools were restored.

    The label patches were in flight when the run was deleted.
    """
    upgrade.check_rule_and_target()
    paused_event = upgrade.run_steps(*BEFORE_JOBS[:4])

    def delete_run_before_first_label(request: str) -> None:
        if request == "patch nodes 1":
            upgrade.administrator_client.delete(
                build_object_path(upgrade.run_config), uid=upgrade.run_config["metadata"]["uid"]
            )
            assert upgrade.run_step("restore-pools", events.RUN_RESTORE_PENDING) == events.RUN_RESTORED

    fault_proxy.inject(delete_run_before_first_label)
    proxied_functions.post("label-nodes", paused_event)
    fault_proxy.stop_faults()
    assert {run_record.parse_run_config_uid(get_run_id(upgrade.read_node(name))) for name in upgrade.nodes} == {
        upgrade.run_config["metadata"]["uid"]
    }

    orphan_events = get_restore_events_by_orphaned_node(upgrade)
    assert sorted(orphan_events) == upgrade.nodes
    for reply in orphan_events.values():
        assert upgrade.functions.invoke("restore-pools", reply) is None
    assert all(
        is_released(upgrade.read_node(name)) and not get_run_id(upgrade.read_node(name)) for name in upgrade.nodes
    )
    assert get_restore_events_by_orphaned_node(upgrade) == {}


@proves("MUT-44", "X-2")
def test_node_of_active_run_keeps_its_labels(upgrade: UpgradeScenario) -> None:
    """Check that a `run.restore_pending` event for a node removes no labels if the node's run is active.

    The tick that emitted the event may have read the runs before that run began.
    """
    upgrade.advance_to_jobs()
    restore_event = events.build_event(
        events.RUN_RESTORE_PENDING, "test", events.ObjectReference.from_object(upgrade.run_config), upgrade.nodes[0]
    )
    assert upgrade.functions.invoke("restore-pools", restore_event) is None
    assert not is_released(upgrade.read_node(upgrade.nodes[0]))


def delete_run_config_without_finalizer(upgrade: UpgradeScenario) -> None:
    """Remove the run config's finalizer, as `kubectl replace` does, and delete the run config immediately."""
    upgrade.administrator_client.patch(build_object_path(upgrade.run_config), {"metadata": {"finalizers": None}})
    upgrade.administrator_client.delete(
        build_object_path(upgrade.run_config), uid=upgrade.run_config["metadata"]["uid"]
    )


@proves("MUT-44", "MUT-51", "X-3")
def test_pools_of_deleted_run_are_restored_before_its_nodes(upgrade: UpgradeScenario) -> None:
    """Check that the pools of a run that no longer exists are restored before a node loses its labels.

    Otherwise the run's canary pool would select all nodes at the same time. Paused pools stay paused, because no user
    has approved an upgrade.
    """
    upgrade.advance_to_jobs()
    delete_run_config_without_finalizer(upgrade)

    orphan_events = get_restore_events_by_orphaned_node(upgrade)
    assert sorted(orphan_events) == upgrade.nodes
    upgrade.functions.invoke("restore-pools", orphan_events[upgrade.nodes[0]])

    first_node, second_node = (upgrade.read_node(name) for name in upgrade.nodes)
    assert (is_released(first_node), is_released(second_node)) == (True, False)
    assert read_pool_specs(upgrade) == {
        **upgrade.original_pool_specs,
        "blue": {**upgrade.original_pool_specs["blue"], "paused": True},
    }
    assert {get_claim_uid(upgrade.read_pool(name)) for name in upgrade.original_pool_specs} == {""}


@proves("MUT-44", "MUT-51")
def test_rejected_pool_write_of_deleted_run_does_not_block_other_pools(
    upgrade: UpgradeScenario, proxied_functions: Functions, fault_proxy: FaultProxy
) -> None:
    """Check that a rejected write of a deleted run's pool does not delay the restoration of the other pools.

    The node keeps its labels until all pools are restored, because without them it would belong to no pool.
    """
    upgrade.add_pool("green")
    original_spec = upgrade.read_pool("green")["spec"]
    upgrade.advance_to_jobs()
    delete_run_config_without_finalizer(upgrade)
    orphan_event = get_restore_events_by_orphaned_node(upgrade)[upgrade.nodes[0]]
    fault_proxy.inject(lambda request: Fault(403, "a webhook") if request == "patch machineconfigpools 2" else None)
    assert proxied_functions.invoke("restore-pools", orphan_event) is None
    fault_proxy.stop_faults()

    assert (upgrade.read_pool("green")["spec"], get_claim_uid(upgrade.read_pool("green"))) == (
        {**original_spec, "paused": True},
        "",
    )
    assert get_claim_uid(upgrade.read_pool("blue")) == upgrade.run_config["metadata"]["uid"]
    assert not is_released(upgrade.read_node(upgrade.nodes[0]))
    upgrade.functions.invoke("restore-pools", orphan_event)
    assert is_released(upgrade.read_node(upgrade.nodes[0]))


@proves("MUT-44", "MUT-51")
def test_target_pools_of_deleted_run_wait_for_rejected_canary_pool(
    upgrade: UpgradeScenario, proxied_functions: Functions, fault_proxy: FaultProxy
) -> None:
    """Check that the target pools of a deleted run are not restored while the canary pool's write is rejected.

    Otherwise the released nodes, which still belong to the canary pool, would belong to two pools.
    """
    upgrade.advance_to_jobs()
    delete_run_config_without_finalizer(upgrade)
    orphan_event, edited_specs = (
        get_restore_events_by_orphaned_node(upgrade)[upgrade.nodes[0]],
        read_pool_specs(upgrade),
    )
    fault_proxy.inject(lambda request: Fault(403, "a webhook") if request == "patch machineconfigpools 1" else None)
    assert proxied_functions.invoke("restore-pools", orphan_event) is None
    fault_proxy.stop_faults()

    assert read_pool_specs(upgrade) == edited_specs
    assert not is_released(upgrade.read_node(upgrade.nodes[0]))
    upgrade.functions.invoke("restore-pools", orphan_event)
    assert read_pool_specs(upgrade) == {
        **upgrade.original_pool_specs,
        "blue": {**upgrade.original_pool_specs["blue"], "paused": True},
    }
    assert is_released(upgrade.read_node(upgrade.nodes[0]))


@proves("MUT-44", "MUT-51")
def test_orphaned_node_keeps_labels_while_canary_pool_would_select_it(upgrade: UpgradeScenario) -> None:
    """Check that an orphaned node keeps its labels while another run's canary pool would select it.

    The run config was created again before a tick, and its new run has claimed the pools with the edited selectors.
    """
    upgrade.advance_to_jobs()
    delete_run_config_without_finalizer(upgrade)
    orphan_event = events.build_event(
        events.RUN_RESTORE_PENDING, "test", ObjectReference.from_object(upgrade.run_config), upgrade.nodes[0]
    )
    upgrade.run_config = upgrade.create_object(RUN_KIND, "example", upgrade.run_config["spec"])
    upgrade.run_steps(*BEFORE_JOBS[:3])

    assert upgrade.functions.invoke("restore-pools", orphan_event) is None
    assert get_restore_events_by_orphaned_node(upgrade) == {}

    assert not is_released(upgrade.read_node(upgrade.nodes[0]))
    assert {get_claim_uid(upgrade.read_pool(name)) for name in upgrade.original_pool_specs} == {
        upgrade.run_config["metadata"]["uid"]
    }


@proves("MUT-51", "X-3")
def test_events_for_orphaned_nodes_are_limited_per_tick(
    upgrade: UpgradeScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that each tick emits a limited number of events for orphaned nodes, in rotation.

    A node whose labels cannot be removed therefore does not block other nodes.
    """
    monkeypatch.setattr(resync_runs, "MAX_ORPHANS_PER_TICK", 1)
    upgrade.advance_to_jobs()
    delete_run_config_without_finalizer(upgrade)

    names_by_tick = [list(get_restore_events_by_orphaned_node(upgrade)) for _ in upgrade.nodes]

    assert sorted(names_by_tick) == [[name] for name in upgrade.nodes]


@proves("MUT-34")
def test_pool_not_in_run_stays_paused(upgrade: UpgradeScenario) -> None:
    """Check that the end of a run does not unpause a MachineConfigPool that is claimed but not part of the run.

    The pool was claimed for a run that never began, and an administrator paused it later.
    """
    advance_to_all_nodes_done(upgrade)
    upgrade.administrator_client.create(POOLS_PATH, build_pool("green", {WORKER_LABEL: "", "role": "green"}))
    metadata = {"annotations": {RUN_LABEL: upgrade.run_config["metadata"]["uid"]}}
    upgrade.administrator_client.patch(build_pool_path("green"), {"metadata": metadata, "spec": {"paused": True}})

    assert upgrade.run_step("restore-pools", events.RUN_NODES_DONE) == events.RUN_RESTORED

    assert (upgrade.read_pool("green")["spec"]["paused"], upgrade.read_pool("blue")["spec"]["paused"]) == (True, False)
    assert get_claim_uid(upgrade.read_pool("green")) == ""
