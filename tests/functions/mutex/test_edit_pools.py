"""Tests for `edit-pools`, which edits the node selectors of the target pools and of the canary pool."""

from __future__ import annotations

import pytest

from chaos.api_fault_proxy import Fault, FaultProxy
from eventing import events
from functions.serving.handler import API_DEADLINE_SECONDS
from kube.mutex import pools
from kube.mutex.objects import RUN_LABEL, get_condition
from kube.selectors import matches
from tests.functions.conftest import Functions
from tests.functions.event_builders import build_resource_event
from tests.functions.mutex.conftest import BEFORE_JOBS, UpgradeScenario
from tests.proofs import proves


@proves("MUT-36", "MUT-37", "C24", "C25")
def test_labelled_node_belongs_to_target_and_released_node_to_canary(upgrade: UpgradeScenario) -> None:
    """Check that a labelled node belongs to its target pool, and a node without rule labels to the canary pool.

    The pools keep their matchLabels, and the canary pool loses its own matchExpressions.
    """
    upgrade.advance_to_jobs()
    blue, canary = (upgrade.read_pool(name)["spec"]["nodeSelector"] for name in ("blue", "canary"))
    assert canary["matchLabels"] == upgrade.original_pool_specs["canary"]["nodeSelector"]["matchLabels"]
    assert [expression["operator"] for expression in canary["matchExpressions"]] == ["DoesNotExist"]
    labels = upgrade.read_node(upgrade.nodes[0])["metadata"]["labels"]
    assert (matches(blue, labels), matches(canary, labels)) == (True, False)
    labels_after_release = {key: value for key, value in labels.items() if not key.startswith("mutexrule.")}
    assert (matches(blue, labels_after_release), matches(canary, labels_after_release)) == (False, True)


@proves("MUT-36")
def test_node_selector_changed_by_other_client_is_edited_again(upgrade: UpgradeScenario) -> None:
    """Check that a node selector is edited again after another client changed it, and is otherwise not written."""
    upgrade.advance_to_jobs()
    edited = upgrade.read_pool("canary")
    assert upgrade.run_step("edit-pools", events.NODES_LABELLED) == events.POOLS_EDITED
    assert upgrade.read_pool("canary")["metadata"]["resourceVersion"] == edited["metadata"]["resourceVersion"]
    upgrade.administrator_client.patch(
        pools.build_pool_path("canary"), {"spec": {"nodeSelector": {"matchExpressions": None}}}
    )
    assert upgrade.run_step("edit-pools", events.NODES_LABELLED) == events.POOLS_EDITED
    assert upgrade.read_pool("canary")["spec"] == edited["spec"]


@proves("MUT-36", "MUT-44", "MUT-49")
@pytest.mark.parametrize("owner_exists", [False, True])
def test_pool_with_invalid_claim_is_claimed_and_edited_again(upgrade: UpgradeScenario, owner_exists: bool) -> None:
    """Check that a MachineConfigPool is claimed and edited again if its claim names a run config without a run.

    A user may have applied a backup of the pool from an earlier run.
    """
    upgrade.advance_to_jobs()
    edited = upgrade.read_pool("blue")
    original_fields, annotations = (
        {"nodeSelector": {"matchExpressions": None}},
        {RUN_LABEL: upgrade.get_idle_run_config_uid(exists=owner_exists)},
    )
    upgrade.administrator_client.patch(
        pools.build_pool_path("blue"), {"metadata": {"annotations": annotations}, "spec": original_fields}
    )

    assert upgrade.run_step("edit-pools", events.NODES_LABELLED) == events.POOLS_EDITED

    blue = upgrade.read_pool("blue")
    assert (pools.get_claim_uid(blue), blue["spec"]) == (upgrade.run_config["metadata"]["uid"], edited["spec"])


@pytest.mark.slow
@proves("MUT-37", "MUT-36", "MUT-1")
@pytest.mark.parametrize(("rejected_pool", "other_pool"), [("blue", "green"), ("green", "blue")])
def test_rejected_target_pool_write_delays_only_canary_pool_write(
    upgrade: UpgradeScenario, proxied_functions: Functions, fault_proxy: FaultProxy, rejected_pool: str, other_pool: str
) -> None:
    """Check that a rejected write of a target pool delays the canary pool's write, but not that of another target pool.

    The repairs of all three pools are recorded. If another client changes a pool again, the next tick makes the repair
    instead of the pool's update event. The condition contains the error.
    """
    upgrade.add_pool("green")
    upgrade.advance_to_jobs()
    names = (rejected_pool, other_pool, "canary")
    edited = {name: upgrade.read_pool(name)["spec"] for name in names}
    original_fields = {"spec": {"nodeSelector": {"matchExpressions": None}}}
    unedited = {
        name: upgrade.administrator_client.patch(pools.build_pool_path(name), original_fields)["spec"] for name in names
    }
    rejected_request = f"patch machineconfigpools {sorted((rejected_pool, other_pool)).index(rejected_pool) + 1}"
    fault_proxy.inject(lambda request: Fault(403, "a webhook") if request == rejected_request else None)
    assert proxied_functions.invoke("edit-pools", upgrade.build_event(events.NODES_LABELLED)) is None
    fault_proxy.stop_faults()

    assert {name: upgrade.read_pool(name)["spec"] for name in names} == {**unedited, other_pool: edited[other_pool]}
    assert sorted(upgrade.read_status()["record"]["editedAgain"]) == sorted(names)
    condition = get_condition(upgrade.read_object(upgrade.run_config), "MCPUpdated")
    assert (condition["status"], condition["message"]) == ("False", "a webhook")
    hint = build_resource_event(
        events.REFERENCE_UPDATED,
        upgrade.administrator_client.patch(pools.build_pool_path(other_pool), original_fields),
        "MachineConfigPool",
    )
    assert upgrade.resync_by_hint(hint) == []
    assert upgrade.run_step("edit-pools", events.NODES_LABELLED) == events.POOLS_EDITED
    assert {name: upgrade.read_pool(name)["spec"] for name in names} == edited


@pytest.mark.slow
@proves("MUT-36", "X-6")
def test_slow_write_of_only_target_pool_may_use_most_of_step_time(
    upgrade: UpgradeScenario, proxied_functions: Functions, fault_proxy: FaultProxy
) -> None:
    """Check that the write of the only target pool may use nearly all of the time that `edit-pools` has for writes.

    An admission webhook may take more than half of that time.
    """
    upgrade.advance_to_jobs()
    original_fields = {"spec": {"nodeSelector": {"matchExpressions": None}}}
    for name in ("blue", "canary"):
        upgrade.administrator_client.patch(pools.build_pool_path(name), original_fields)
    with fault_proxy.delay_request("patch machineconfigpools 1", API_DEADLINE_SECONDS / 2 + 0.05):
        proxied_functions.post("edit-pools", upgrade.build_event(events.NODES_LABELLED))

    assert "blue" in upgrade.read_status()["record"]["editedAgain"]


@proves("MUT-36", "MUT-44")
@pytest.mark.parametrize("is_label_step_done", [True, False])
def test_canary_pool_is_not_edited_without_nodes_to_label(upgrade: UpgradeScenario, is_label_step_done: bool) -> None:
    """Check that the canary pool is not edited if no nodes are left to label, and that all pools are restored.

    Otherwise the canary pool would select all workers without a label, which would be upgraded without a Job.
    """
    upgrade.check_rule_and_target()
    upgrade.run_steps(*BEFORE_JOBS[: BEFORE_JOBS.index("label-nodes") + is_label_step_done])
    upgrade.write_record({"nodes": {name: {"droppedAt": "2026-01-01T00:00:00Z"} for name in upgrade.nodes}})
    assert upgrade.run_step("edit-pools", events.NODES_LABELLED) == ""
    assert upgrade.read_pool("canary")["spec"] == upgrade.original_pool_specs["canary"]
    assert [reply.get_type() for reply in upgrade.resync_by_tick()] == [events.RUN_NODES_DONE]
    assert upgrade.run_step("restore-pools", events.RUN_NODES_DONE) == events.RUN_RESTORED
    assert {
        name: upgrade.read_pool(name)["spec"] for name in upgrade.original_pool_specs
    } == upgrade.original_pool_specs
