"""Tests for `claim-pools`, which claims a run's pools and records their original state before they are changed."""

from __future__ import annotations

from chaos.api_fault_proxy import NO_RESPONSE, FaultProxy
from eventing import events
from functions.event_data import require_data
from kube.mutex import pools
from kube.mutex.objects import RULE_LABEL_PREFIX, RUN_KIND, build_object_path, get_condition, has_finalizer
from kube.mutex.versions import VERSION_LABEL, WORKER_LABEL
from kube.nodes import build_node_path
from tests.functions.conftest import Functions
from tests.functions.mutex.conftest import OLD_VERSION, UpgradeScenario
from tests.proofs import proves

RULE_NODE_LABEL = f"{RULE_LABEL_PREFIX}only.node-upgrade-mutex-operator"
STEPS_UNTIL_CLAIM = ("check-run", "detect-upgrade", "claim-pools")


@proves("MUT-34", "MUT-44")
def test_run_record_contains_original_state_of_pools(upgrade: UpgradeScenario) -> None:
    """Check that the run's record contains the pools' original `nodeSelector` and `paused`, and the nodes in order.

    `claim-pools` adds a finalizer to the run config and a claim to each pool, but changes no selector.
    """
    upgrade.administrator_client.patch(pools.build_pool_path("blue"), {"spec": {"paused": True}})
    upgrade.check_rule_and_target()
    upgrade.run_steps(*STEPS_UNTIL_CLAIM)
    record = upgrade.read_status()["record"]
    assert record["order"] == upgrade.nodes
    assert record["pools"]["blue"]["selector"] == upgrade.original_pool_specs["blue"]["nodeSelector"]
    assert record["pools"]["blue"]["paused"] is True
    assert record["canary"]["selector"] == upgrade.original_pool_specs["canary"]["nodeSelector"]
    assert has_finalizer(upgrade.read_object(upgrade.run_config))
    uid = upgrade.run_config["metadata"]["uid"]
    assert {pools.get_claim_uid(upgrade.read_pool(name)) for name in ("blue", "canary")} == {uid}
    assert upgrade.read_pool("canary")["spec"] == upgrade.original_pool_specs["canary"]


@proves("MUT-44")
def test_run_waits_for_pool_claimed_by_other_run(upgrade: UpgradeScenario) -> None:
    """Check that a run waits for a pool that another run has claimed, and records nothing.

    The condition names the other run.
    """
    other_run = upgrade.create_object(RUN_KIND, "other", upgrade.run_config["spec"])
    claim_patch = {"metadata": {"annotations": {"nodemaintenance.dev/mutex-run": other_run["metadata"]["uid"]}}}
    upgrade.administrator_client.patch(pools.build_pool_path("blue"), claim_patch)
    upgrade.check_rule_and_target()
    upgrade.run_steps("check-run", "detect-upgrade")
    assert upgrade.run_step("claim-pools", events.UPGRADE_DETECTED) == ""
    assert (
        "node-upgrade-mutex-operator/other"
        in get_condition(upgrade.read_object(upgrade.run_config), "TargetPoolsPaused")["message"]
    )
    assert "record" not in upgrade.read_status()
    assert pools.get_claim_uid(upgrade.read_pool("canary")) == ""


@proves("MUT-44", "MUT-49", "MUT-35")
def test_waiting_run_records_pools_after_other_run_has_finished(upgrade: UpgradeScenario) -> None:
    """Check that a run that waits for another run records its pools only after the other run has finished.

    The record of the original state therefore includes changes that are made while the run waits. In this test, an
    administrator changes a selector.
    """
    other_run = upgrade.create_other_active_run(startedAt="2026-01-01T00:00:00Z", turnAt="2026-01-01T00:00:00Z")
    upgrade.check_rule_and_target()
    upgrade.run_steps("check-run", "detect-upgrade")
    assert upgrade.run_step("claim-pools", events.UPGRADE_DETECTED) == ""
    waiting_run = upgrade.read_object(upgrade.run_config)
    assert "/other: only one run upgrades nodes at a time" in get_condition(waiting_run, "TargetPoolsPaused")["message"]
    assert (
        "record" in waiting_run["status"],
        has_finalizer(waiting_run),
        pools.get_claim_uid(upgrade.read_pool("blue")),
    ) == (
        False,
        False,
        "",
    )
    assert list_tick_events_of_run(upgrade) == []

    new_selector = {"matchExpressions": [{"key": WORKER_LABEL, "operator": "Exists"}]}
    upgrade.administrator_client.patch(pools.build_pool_path("blue"), {"spec": {"nodeSelector": new_selector}})
    upgrade.administrator_client.patch(
        f"{build_object_path(other_run)}/status", {"status": {"record": {"finishedAt": "2026-01-01T01:00:00Z"}}}
    )
    assert list_tick_events_of_run(upgrade) == [events.UPGRADE_DETECTED]
    assert upgrade.run_step("claim-pools", events.UPGRADE_DETECTED) == events.POOLS_CLAIMED
    assert (
        upgrade.read_status()["record"]["pools"]["blue"]["selector"]
        == upgrade.read_pool("blue")["spec"]["nodeSelector"]
    )


def list_tick_events_of_run(upgrade: UpgradeScenario) -> list[str]:
    """Return the event types that a tick emits for the run config."""
    name = upgrade.run_config["metadata"]["name"]
    return [reply.get_type() for reply in upgrade.resync_by_tick() if require_data(reply)["run"]["name"] == name]


@proves("MUT-44")
def test_claim_of_deleted_run_config_is_ignored(upgrade: UpgradeScenario) -> None:
    """Check that the claim of a run config that no longer exists does not block the pool.

    Such a claim remains if a user removes the run config's finalizer.
    """
    claim_patch = {"metadata": {"annotations": {"nodemaintenance.dev/mutex-run": "gone"}}}
    upgrade.administrator_client.patch(pools.build_pool_path("blue"), claim_patch)
    upgrade.check_rule_and_target()
    upgrade.run_steps(*STEPS_UNTIL_CLAIM)
    assert pools.get_claim_uid(upgrade.read_pool("blue")) == upgrade.run_config["metadata"]["uid"]


@proves("MUT-38")
def test_worker_that_no_target_contains_is_reported(upgrade: UpgradeScenario) -> None:
    """Check that a condition and an Event name a worker node that no target contains.

    The worker has no label of a rule, so the canary pool would select and upgrade it.
    """
    upgrade.patch_node_labels(upgrade.nodes[1], {"role": "green", WORKER_LABEL: "", VERSION_LABEL: OLD_VERSION})
    upgrade.check_rule_and_target()
    upgrade.run_steps(*STEPS_UNTIL_CLAIM)
    condition = get_condition(upgrade.read_object(upgrade.run_config), "WorkersOutsideTargets")
    assert (condition["status"], upgrade.nodes[1] in condition["message"]) == ("True", True)
    recorded_events = upgrade.administrator_client.list("/api/v1/namespaces/node-upgrade-mutex-operator/events")[
        "items"
    ]
    assert any(
        event["reason"] == "WorkersNotGated" and upgrade.nodes[1] in event["message"] for event in recorded_events
    )
    assert upgrade.administrator_client.get(build_node_path(upgrade.nodes[1]))["metadata"]["labels"]["role"] == "green"


@proves("X-2")
def test_repeated_event_gets_same_reply_and_does_not_change_record(upgrade: UpgradeScenario) -> None:
    """Check that a repeated event gets the same reply and does not change the run's record."""
    upgrade.check_rule_and_target()
    upgrade.run_steps(*STEPS_UNTIL_CLAIM)
    resource_version = upgrade.read_object(upgrade.run_config)["metadata"]["resourceVersion"]
    assert upgrade.run_step("claim-pools", events.UPGRADE_DETECTED) == events.POOLS_CLAIMED
    assert upgrade.read_object(upgrade.run_config)["metadata"]["resourceVersion"] == resource_version


@proves("MUT-49", "MUT-35")
def test_selectors_edited_by_deleted_run_are_not_recorded_as_original(upgrade: UpgradeScenario) -> None:
    """Check that a new run records the pools' original selectors, not the selectors that a deleted run has edited.

    The run config was deleted without its finalizer and created again. The new run claims the pools before a tick has
    restored them, and one of their nodes has lost its labels.
    """
    upgrade.advance_to_jobs()
    upgrade.administrator_client.patch(build_object_path(upgrade.run_config), {"metadata": {"finalizers": None}})
    upgrade.administrator_client.delete(
        build_object_path(upgrade.run_config), uid=upgrade.run_config["metadata"]["uid"]
    )
    upgrade.patch_node_labels(upgrade.nodes[0], {RULE_NODE_LABEL: None})
    upgrade.run_config = upgrade.create_object(RUN_KIND, "example", upgrade.run_config["spec"])

    upgrade.run_steps(*STEPS_UNTIL_CLAIM)

    record = upgrade.read_status()["record"]
    selectors = {"blue": record["pools"]["blue"]["selector"], "canary": record["canary"]["selector"]}
    assert selectors == {name: spec["nodeSelector"] for name, spec in upgrade.original_pool_specs.items()}
    assert record["order"] == upgrade.nodes


@proves("MUT-51")
def test_removed_finalizer_of_active_run_is_added_again(upgrade: UpgradeScenario) -> None:
    """Check that an active run's finalizer is added again after a user replaced the run config with its manifest.

    Without the finalizer, a deletion would remove the run config before its pools are restored.
    """
    upgrade.advance_to_jobs()
    upgrade.administrator_client.patch(build_object_path(upgrade.run_config), {"metadata": {"finalizers": None}})

    event, _ = upgrade.resync_by_tick()  # The tick's second event is `job.due`.
    assert event.get_type() == events.UPGRADE_DETECTED
    assert upgrade.functions.invoke("claim-pools", event) is None

    assert has_finalizer(upgrade.read_object(upgrade.run_config))
    assert [reply.get_type() for reply in upgrade.resync_by_tick()] == [events.JOB_DUE]


@proves("MUT-44")
def test_claim_pools_lists_pools_before_runs(
    upgrade: UpgradeScenario, proxied_functions: Functions, fault_proxy: FaultProxy
) -> None:
    """Check that `claim-pools` lists the pools before the runs.

    Otherwise, a run that claims a pool between the two requests would be mistaken for one that no longer exists.
    """
    upgrade.check_rule_and_target()
    event = upgrade.run_steps("check-run", "detect-upgrade")
    fault_proxy.inject(lambda request: NO_RESPONSE if request == "list machineconfigpools 1" else None)
    assert proxied_functions.post("claim-pools", event).status_code == 503
    assert (
        fault_proxy.request_counts["list machineconfigpools"],
        fault_proxy.request_counts["list mutexrunconfigs"],
    ) == (1, 0)
    fault_proxy.stop_faults()
