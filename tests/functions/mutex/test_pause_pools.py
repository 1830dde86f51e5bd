"""Tests for `pause-pools`, which pauses a run's target pools once no other run upgrades nodes."""

from __future__ import annotations

import pytest

from chaos.api_fault_proxy import NO_RESPONSE, Fault, FaultProxy
from eventing import events
from functions.serving.handler import API_DEADLINE_SECONDS
from kube.mutex import pools
from kube.mutex.objects import RUN_LABEL, build_object_path, get_condition
from localcluster.audit_log import AuditLog
from tests.functions.conftest import Functions
from tests.functions.event_builders import build_resource_event
from tests.functions.mutex.conftest import BEFORE_JOBS, UpgradeScenario
from tests.proofs import proves

STEPS_UNTIL_CLAIM = ("check-run", "detect-upgrade", "claim-pools")


@proves("MUT-34")
def test_target_pool_is_paused_once(upgrade: UpgradeScenario, audit_after_setup: AuditLog) -> None:
    """Check that a repeated event pauses each target pool only once, and that the canary pool is not paused."""
    upgrade.check_rule_and_target()
    upgrade.run_steps(*STEPS_UNTIL_CLAIM, "pause-pools")
    assert upgrade.run_step("pause-pools", events.POOLS_CLAIMED) == events.POOLS_PAUSED
    writes = [
        entry for entry in audit_after_setup.list_writes_by() if "/spec/paused" in str(entry.get("requestObject"))
    ]
    assert [entry["objectRef"]["name"] for entry in writes] == ["blue"]
    assert get_condition(upgrade.read_object(upgrade.run_config), "TargetPoolsPaused")["status"] == "True"


@proves("MUT-34")
def test_already_paused_pool_is_named_and_not_written(upgrade: UpgradeScenario, audit_after_setup: AuditLog) -> None:
    """Check that a MachineConfigPool that was already paused is not written, and that the condition names it.

    The condition does not name a pool that the run itself has paused.
    """
    upgrade.add_pool("green")
    upgrade.administrator_client.patch(pools.build_pool_path("blue"), {"spec": {"paused": True}})
    upgrade.check_rule_and_target()
    upgrade.run_steps(*STEPS_UNTIL_CLAIM, "pause-pools")

    writes = [
        entry for entry in audit_after_setup.list_writes_by() if "/spec/paused" in str(entry.get("requestObject"))
    ]
    condition = get_condition(upgrade.read_object(upgrade.run_config), "TargetPoolsPaused")
    assert [entry["objectRef"]["name"] for entry in writes] == ["green"]
    assert [pools.is_paused(upgrade.read_pool(name)) for name in ("blue", "green")] == [True, True]
    assert (condition["status"], condition["message"]) == ("True", "already paused before the run: blue")


@proves("MUT-52")
def test_skip_tls_verify_disables_verification_only_if_set(upgrade: UpgradeScenario) -> None:
    """Check that `pause-pools` verifies the API server's certificate unless the run sets `skipTLSVerify`.

    The test checks whether the API client has opened connections that skip the verification.
    """
    upgrade.check_rule_and_target()
    upgrade.run_steps(*STEPS_UNTIL_CLAIM)
    unverified_client = upgrade.functions.clusters["pause-pools"].api._rest_client.get_unverified_client()
    assert upgrade.run_step("pause-pools", events.POOLS_CLAIMED) == events.POOLS_PAUSED
    assert not unverified_client.has_open_sockets
    upgrade.administrator_client.patch(build_object_path(upgrade.run_config), {"spec": {"skipTLSVerify": True}})
    upgrade.unpause("blue")
    assert upgrade.run_step("pause-pools", events.POOLS_CLAIMED) == events.POOLS_PAUSED
    assert unverified_client.has_open_sockets
    assert pools.is_paused(upgrade.read_pool("blue"))


@proves("MUT-33", "MUT-1")
def test_pool_claimed_by_other_run_is_not_paused(upgrade: UpgradeScenario) -> None:
    """Check that a MachineConfigPool claimed by another run is not paused, and that the condition reports the claim."""
    upgrade.check_rule_and_target()
    upgrade.run_steps(*STEPS_UNTIL_CLAIM)
    other_uid = upgrade.create_other_active_run()["metadata"]["uid"]
    upgrade.write_record({"turnAt": "2026-01-01T00:00:00Z", "pausedAt": "2026-01-01T00:00:00Z"})
    upgrade.administrator_client.patch(
        pools.build_pool_path("blue"), {"metadata": {"annotations": {RUN_LABEL: other_uid}}}
    )
    assert upgrade.run_step("pause-pools", events.POOLS_CLAIMED) == ""
    condition = get_condition(upgrade.read_object(upgrade.run_config), "TargetPoolsPaused")
    assert (condition["status"], "no longer claimed" in condition["message"]) == ("False", True)
    assert upgrade.read_pool("blue")["spec"]["paused"] is False


@proves("MUT-33", "MUT-49")
def test_replaced_pool_is_claimed_and_paused_again(upgrade: UpgradeScenario) -> None:
    """Check that a MachineConfigPool that a user replaced with its manifest is claimed and paused again.

    The manifest contains neither the claim nor the pause. A replaced canary is only claimed.
    """
    upgrade.check_rule_and_target()
    upgrade.run_steps(*STEPS_UNTIL_CLAIM, "pause-pools")
    for name in ("blue", "canary"):
        original_fields = {"metadata": {"annotations": None}, "spec": {"paused": False}}
        upgrade.administrator_client.patch(pools.build_pool_path(name), original_fields)

    assert upgrade.run_step("pause-pools", events.POOLS_CLAIMED) == events.POOLS_PAUSED

    uid = upgrade.run_config["metadata"]["uid"]
    pools_by_name = {name: upgrade.read_pool(name) for name in ("blue", "canary")}
    assert {name: pools.get_claim_uid(pool) for name, pool in pools_by_name.items()} == {"blue": uid, "canary": uid}
    assert {name: pools.is_paused(pool) for name, pool in pools_by_name.items()} == {"blue": True, "canary": False}


@proves("MUT-33", "MUT-44", "MUT-49")
@pytest.mark.parametrize("owner_exists", [False, True])
def test_pool_with_invalid_claim_is_claimed_and_paused_again(upgrade: UpgradeScenario, owner_exists: bool) -> None:
    """Check that a MachineConfigPool is claimed and paused again if its claim names a run config without a run.

    A user may have applied a backup of the pool from an earlier run, whose run config is deleted or has no run.
    """
    upgrade.advance_to_jobs()
    annotations = {RUN_LABEL: upgrade.get_idle_run_config_uid(exists=owner_exists)}
    upgrade.administrator_client.patch(
        pools.build_pool_path("blue"), {"metadata": {"annotations": annotations}, "spec": {"paused": False}}
    )

    assert upgrade.run_step("pause-pools", events.POOLS_CLAIMED) == events.POOLS_PAUSED

    blue = upgrade.read_pool("blue")
    assert (pools.get_claim_uid(blue), pools.is_paused(blue)) == (upgrade.run_config["metadata"]["uid"], True)


@pytest.mark.slow
@proves("MUT-33", "MUT-1")
@pytest.mark.parametrize(("rejected_pool", "other_pool"), [("blue", "green"), ("green", "blue")])
@pytest.mark.parametrize("steps", [STEPS_UNTIL_CLAIM, BEFORE_JOBS], ids=["before the run", "during the run"])
def test_rejected_pool_write_does_not_block_other_pools(
    upgrade: UpgradeScenario,
    proxied_functions: Functions,
    fault_proxy: FaultProxy,
    steps: tuple[str, ...],
    rejected_pool: str,
    other_pool: str,
) -> None:
    """Check that a rejected write of a MachineConfigPool does not keep another pool from being paused.

    The condition contains the error. During a run, the repairs of both pools are recorded. If another client changes a
    pool again, the next tick makes the repair instead of the pool's update event. At the beginning of a run, no node is
    labelled before all pools are paused.
    """
    upgrade.add_pool("green")
    upgrade.check_rule_and_target()
    upgrade.run_steps(*steps)
    upgrade.unpause(rejected_pool, other_pool)
    rejected_request = f"patch machineconfigpools {sorted((rejected_pool, other_pool)).index(rejected_pool) + 1}"
    fault_proxy.inject(lambda request: Fault(403, "a webhook") if request == rejected_request else None)
    assert proxied_functions.invoke("pause-pools", upgrade.build_event(events.POOLS_CLAIMED)) is None
    fault_proxy.stop_faults()

    assert [pools.is_paused(upgrade.read_pool(name)) for name in (rejected_pool, other_pool)] == [False, True]
    record, condition = (
        upgrade.read_status()["record"],
        get_condition(upgrade.read_object(upgrade.run_config), "TargetPoolsPaused"),
    )
    assert sorted(record.get("pausedAgain") or []) == (
        sorted([rejected_pool, other_pool]) if steps is BEFORE_JOBS else []
    )
    assert "claimedAgain" not in record
    assert (condition["status"], condition["message"], "pausedAt" in record) == (
        "False",
        "a webhook",
        steps is BEFORE_JOBS,
    )
    if steps is BEFORE_JOBS:
        unpaused_pool = upgrade.administrator_client.patch(
            pools.build_pool_path(other_pool), {"spec": {"paused": False}}
        )
        assert (
            upgrade.resync_by_hint(build_resource_event(events.REFERENCE_UPDATED, unpaused_pool, "MachineConfigPool"))
            == []
        )
    assert upgrade.run_step("pause-pools", events.POOLS_CLAIMED) == events.POOLS_PAUSED


@proves("MUT-33", "X-6")
def test_conflicting_pool_write_is_retried_immediately(
    upgrade: UpgradeScenario, proxied_functions: Functions, fault_proxy: FaultProxy
) -> None:
    """Check that a conflict on one pool makes the broker redeliver the event, even if another pool's write is rejected.

    Without the conflict, the rejected write would be retried only at the next tick.
    """
    upgrade.add_pool("green")
    upgrade.advance_to_jobs()
    upgrade.unpause("blue", "green")
    faults_by_request = {
        "patch machineconfigpools 1": Fault(403, "a webhook"),
        "patch machineconfigpools 2": Fault(409, "again"),
    }
    fault_proxy.inject(faults_by_request.get)
    assert proxied_functions.post("pause-pools", upgrade.build_event(events.POOLS_CLAIMED)).status_code == 503
    fault_proxy.stop_faults()


@pytest.mark.slow
@proves("MUT-33", "X-6")
def test_hanging_write_does_not_block_pausing_other_pools(
    upgrade: UpgradeScenario, proxied_functions: Functions, fault_proxy: FaultProxy
) -> None:
    """Check that a hanging write of a MachineConfigPool does not keep other pools from being paused and recorded.

    The broker redelivers the event.
    """
    upgrade.add_pool("green")
    upgrade.advance_to_jobs()
    upgrade.unpause("blue", "green")
    fault_proxy.inject(lambda request: NO_RESPONSE if request == "patch machineconfigpools 1" else None)
    assert proxied_functions.post("pause-pools", upgrade.build_event(events.POOLS_CLAIMED)).status_code == 503
    fault_proxy.stop_faults()

    assert [pools.is_paused(upgrade.read_pool(name)) for name in ("blue", "green")] == [False, True]
    assert list(upgrade.read_status()["record"]["pausedAgain"]) == ["green"]
    assert upgrade.run_step("pause-pools", events.POOLS_CLAIMED) == events.POOLS_PAUSED


@pytest.mark.slow
@proves("MUT-33", "X-6")
def test_slow_write_of_only_unpaused_pool_may_use_most_of_step_time(
    upgrade: UpgradeScenario, proxied_functions: Functions, fault_proxy: FaultProxy
) -> None:
    """Check that the write of the only unpaused pool may use nearly all the time that `pause-pools` has for writes.

    An admission webhook may take more than half of that time.
    """
    upgrade.add_pool("green")
    upgrade.advance_to_jobs()
    upgrade.unpause("blue")
    with fault_proxy.delay_request("patch machineconfigpools 1", API_DEADLINE_SECONDS / 2 + 0.05):
        assert proxied_functions.post("pause-pools", upgrade.build_event(events.POOLS_CLAIMED)).status_code == 200

    assert list(upgrade.read_status()["record"]["pausedAgain"]) == ["blue"]


@proves("MUT-44")
@pytest.mark.parametrize(
    "record_fields",
    [{"startedAt": "2026-01-01T00:00:00Z"}, {"startedAt": "2099-01-01T00:00:00Z", "turnAt": "2026-01-01T00:00:00Z"}],
    ids=["earlier start", "has turn"],
)
def test_run_waits_for_active_run_on_other_pools(upgrade: UpgradeScenario, record_fields: dict[str, str]) -> None:
    """Check that a run waits for an active run on other pools, and continues when that run is finished.

    During the wait, no pool is paused, and the condition names the other run.
    """
    upgrade.check_rule_and_target()
    upgrade.run_steps(*STEPS_UNTIL_CLAIM)
    other_run = upgrade.create_other_active_run(**record_fields)

    event_type = upgrade.run_step("pause-pools", events.POOLS_CLAIMED)
    condition, paused = (
        get_condition(upgrade.read_object(upgrade.run_config), "TargetPoolsPaused"),
        upgrade.read_pool("blue")["spec"]["paused"],
    )
    status_patch = {"status": {"record": {"finishedAt": "2026-01-01T01:00:00Z"}}}
    upgrade.administrator_client.patch(f"{build_object_path(other_run)}/status", status_patch)

    assert (event_type, paused, condition["status"]) == ("", False, "False")
    assert "/other: only one run upgrades nodes at a time" in condition["message"]
    assert upgrade.run_step("pause-pools", events.POOLS_CLAIMED) == events.POOLS_PAUSED
    assert upgrade.read_status()["record"]["turnAt"]


@proves("MUT-44")
def test_two_runs_that_record_turn_at_concurrently_withdraw(upgrade: UpgradeScenario) -> None:
    """Check that two runs withdraw if both record `turnAt`, and thus the right to upgrade nodes, at the same time.

    Each run finds the other one when it checks all runs again. At the next tick, the run that began first continues.
    """
    upgrade.check_rule_and_target()
    upgrade.run_steps(*STEPS_UNTIL_CLAIM)
    # The process that wrote this record was killed before it checked the other runs again.
    upgrade.administrator_client.patch(
        f"{build_object_path(upgrade.run_config)}/status", {"status": {"record": {"turnAt": "2026-01-01T00:00:00Z"}}}
    )
    other_run = upgrade.create_other_active_run(startedAt="2099-01-01T00:00:00Z", turnAt="2026-01-01T00:00:00Z")

    assert upgrade.run_step("pause-pools", events.POOLS_CLAIMED) == ""
    assert "turnAt" not in upgrade.read_status()["record"]
    upgrade.administrator_client.patch(
        f"{build_object_path(other_run)}/status", {"status": {"record": {"turnAt": None}}}
    )
    assert upgrade.run_step("pause-pools", events.POOLS_CLAIMED) == events.POOLS_PAUSED
