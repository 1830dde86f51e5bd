"""Tests for `label-nodes`, which labels the nodes of a run so that they are not upgraded."""

from __future__ import annotations

from math import inf

import pytest

from chaos.api_fault_proxy import NO_RESPONSE, Fault, FaultProxy
from eventing import events
from functions.mutex import label_nodes
from kube.mutex.objects import RULE_LABEL_PREFIX, RUN_LABEL, build_object_path, get_condition
from kube.mutex.pools import CLUSTER_VERSIONS_PATH
from kube.mutex.versions import VERSION_LABEL, WORKER_LABEL
from localcluster.audit_log import AuditLog
from tests.functions.conftest import Functions
from tests.functions.event_builders import build_resource_event
from tests.functions.mutex.conftest import NEW_VERSION, OLD_VERSION, UpgradeScenario
from tests.proofs import proves
from tests.workload import Workload

RULE_NODE_LABEL = f"{RULE_LABEL_PREFIX}only.node-upgrade-mutex-operator"
MAX_DELIVERIES = 20
"""Number of deliveries after which a test fails; each delivery has 1.6 s for its requests."""


@proves("MUT-35")
def test_each_node_gets_label_of_each_rule(upgrade: UpgradeScenario) -> None:
    """Check that each node, even an upgraded node, gets a label for each MutexRule and the label of the run.

    The event source selects nodes by the run's label.
    """
    upgrade.patch_node_labels(upgrade.nodes[1], {VERSION_LABEL: NEW_VERSION})
    upgrade.advance_to_jobs()
    record = upgrade.read_status()["record"]
    for name in upgrade.nodes:
        labels = upgrade.read_node(name)["metadata"]["labels"]
        assert (labels[RULE_NODE_LABEL], labels[RUN_LABEL]) == ("", record["id"])


@proves("MUT-38", "MUT-35")
def test_worker_that_joined_after_claim_is_reported(upgrade: UpgradeScenario, workload: Workload) -> None:
    """Check that a worker that joined after the run claimed its pools is reported before the canary pool is edited.

    Neither such a worker nor a recreated node is part of the run, although both belong to the target.
    """
    upgrade.check_rule_and_target()
    upgrade.run_steps("check-run", "detect-upgrade", "claim-pools", "pause-pools")
    joined_node, recreated_node = workload.take_node(), upgrade.nodes[1]
    upgrade.patch_node_labels(joined_node, {WORKER_LABEL: "", VERSION_LABEL: OLD_VERSION, "role": "blue"})
    upgrade.delete_node(recreated_node, recreate=True)
    assert upgrade.run_step("label-nodes", events.POOLS_PAUSED) == events.NODES_LABELLED
    condition = get_condition(upgrade.read_object(upgrade.run_config), "WorkersOutsideTargets")
    assert (condition["status"], condition["message"].endswith(", ".join(sorted([joined_node, recreated_node])))) == (
        "True",
        True,
    )
    assert joined_node not in upgrade.read_status()["record"]["nodes"]


@proves("C26", "MUT-32")
def test_run_with_pause_early_waits_for_control_plane(upgrade: UpgradeScenario, audit_after_setup: AuditLog) -> None:
    """Check that a run with `pauseEarly` pauses its pools and labels no node before the control plane is upgraded.

    A tick emits no event for the run until the ClusterVersion changes.
    """
    upgrade.cvo.set_desired_version(NEW_VERSION, "Partial")
    upgrade.administrator_client.patch(build_object_path(upgrade.run_config), {"spec": {"pauseEarly": True}})
    upgrade.check_rule_and_target()
    upgrade.run_steps("check-run", "detect-upgrade", "claim-pools", "pause-pools")
    assert upgrade.run_step("label-nodes", events.POOLS_PAUSED) == ""
    ready = get_condition(upgrade.read_object(upgrade.run_config), "UpgradeReady")
    assert (ready["status"], ready["message"]) == ("False", "the update of the control plane is Partial, not Completed")
    assert upgrade.read_pool("blue")["spec"]["paused"] is True
    assert not [entry for entry in audit_after_setup.list_writes_by() if entry["objectRef"]["resource"] == "nodes"]
    assert upgrade.resync_by_tick() == []

    upgrade.cvo.set_desired_version(NEW_VERSION, "Completed", OLD_VERSION)
    assert [reply.get_type() for reply in upgrade.resync_by_tick()] == [events.POOLS_PAUSED]
    assert upgrade.run_step("label-nodes", events.POOLS_PAUSED) == ""
    assert upgrade.resync_by_tick() == []

    upgrade.cvo.set_desired_version(NEW_VERSION)
    hint = build_resource_event(
        events.REFERENCE_UPDATED, upgrade.administrator_client.get(f"{CLUSTER_VERSIONS_PATH}/version"), "ClusterVersion"
    )
    assert [reply.get_type() for reply in upgrade.resync_by_hint(hint)] == [events.POOLS_PAUSED]
    assert upgrade.run_step("label-nodes", events.POOLS_PAUSED) == events.NODES_LABELLED
    assert get_condition(upgrade.read_object(upgrade.run_config), "UpgradeReady")["status"] == "True"


@proves("MUT-32")
def test_run_checks_control_plane_again_after_waiting_for_other_run(upgrade: UpgradeScenario) -> None:
    """Check that a run that waited for another run checks the control plane again before it labels nodes.

    The control plane was upgraded when the run began, but a later version is desired now.
    """
    upgrade.check_rule_and_target()
    upgrade.run_steps("check-run", "detect-upgrade", "claim-pools", "pause-pools")
    upgrade.cvo.set_desired_version("4.16.5", "Partial")
    assert upgrade.run_step("label-nodes", events.POOLS_PAUSED) == ""
    ready = get_condition(upgrade.read_object(upgrade.run_config), "UpgradeReady")
    assert (ready["status"], ready["message"]) == ("False", "the update of the control plane is Partial, not Completed")
    assert not any(RULE_NODE_LABEL in upgrade.read_node(name)["metadata"]["labels"] for name in upgrade.nodes)
    assert upgrade.resync_by_tick() == []
    upgrade.cvo.set_desired_version("4.16.5")
    assert [reply.get_type() for reply in upgrade.resync_by_tick()] == [events.POOLS_PAUSED]
    assert upgrade.run_step("label-nodes", events.POOLS_PAUSED) == events.NODES_LABELLED


@proves("C26")
def test_run_waits_for_control_plane_after_pause_early_is_unset(upgrade: UpgradeScenario) -> None:
    """Check that no node is labelled before the control plane is upgraded, even if a user unsets `pauseEarly`."""
    upgrade.cvo.set_desired_version(NEW_VERSION, "Partial")
    upgrade.administrator_client.patch(build_object_path(upgrade.run_config), {"spec": {"pauseEarly": True}})
    upgrade.check_rule_and_target()
    upgrade.run_steps("check-run", "detect-upgrade", "claim-pools", "pause-pools")
    upgrade.administrator_client.patch(build_object_path(upgrade.run_config), {"spec": {"pauseEarly": False}})
    upgrade.run_step("check-run", events.RUN_CHECK_PENDING)
    assert upgrade.run_step("label-nodes", events.POOLS_PAUSED) == ""
    assert RULE_NODE_LABEL not in upgrade.read_node(upgrade.nodes[0])["metadata"]["labels"]


@pytest.mark.slow
@proves("MUT-43", "X-2")
def test_late_event_does_not_label_released_node(upgrade: UpgradeScenario) -> None:
    """Check that a late event labels the nodes that have not been released yet, but not a released node."""
    released_node = upgrade.advance_to_release()
    upgrade.patch_node_labels(upgrade.nodes[1], {RULE_NODE_LABEL: None})
    assert upgrade.run_step("label-nodes", events.POOLS_PAUSED) == events.NODES_LABELLED
    assert RULE_NODE_LABEL not in upgrade.read_node(released_node)["metadata"]["labels"]
    assert RULE_NODE_LABEL in upgrade.read_node(upgrade.nodes[1])["metadata"]["labels"]


@proves("MUT-33", "MUT-35", "MUT-1")
@pytest.mark.parametrize("min_batch_seconds", [0, inf], ids=["time left", "no time left"])
def test_rejected_node_write_does_not_block_later_nodes(
    upgrade: UpgradeScenario,
    proxied_functions: Functions,
    fault_proxy: FaultProxy,
    monkeypatch: pytest.MonkeyPatch,
    min_batch_seconds: float,
) -> None:
    """Check that a rejected node write does not keep later nodes from being labelled, and that a condition reports it.

    If the deadline of `label-nodes` passes, it emits no event to continue immediately, but the next tick continues.
    """
    monkeypatch.setattr(label_nodes, "BATCH_SIZE", 1)
    monkeypatch.setattr(label_nodes, "MIN_BATCH_SECONDS", min_batch_seconds)
    upgrade.check_rule_and_target()
    upgrade.run_steps("check-run", "detect-upgrade", "claim-pools", "pause-pools")
    fault_proxy.inject(lambda request: Fault(403, "a webhook") if request == "patch nodes 1" else None)
    assert proxied_functions.invoke("label-nodes", upgrade.build_event(events.POOLS_PAUSED)) is None
    fault_proxy.stop_faults()

    are_labelled = [RULE_NODE_LABEL in upgrade.read_node(name)["metadata"]["labels"] for name in upgrade.nodes]
    assert are_labelled == [False, min_batch_seconds == 0]
    condition = get_condition(upgrade.read_object(upgrade.run_config), "MutexRulesApplied")
    assert (condition["status"], condition["message"]) == ("False", "a webhook")
    assert "labelledAt" not in upgrade.read_status()["record"]
    monkeypatch.undo()
    assert upgrade.run_step("label-nodes", events.POOLS_PAUSED) == events.NODES_LABELLED


@proves("MUT-33", "MUT-35", "X-6")
def test_hanging_write_does_not_block_later_nodes(
    upgrade: UpgradeScenario, proxied_functions: Functions, fault_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a node whose write hangs does not keep later nodes from being labelled.

    The broker redelivers the event. On a slow machine, later nodes are labelled only by one of the next deliveries.
    """
    monkeypatch.setattr(label_nodes, "BATCH_SIZE", 1)
    upgrade.check_rule_and_target()
    upgrade.run_steps("check-run", "detect-upgrade", "claim-pools", "pause-pools")
    fault_proxy.inject(lambda request: NO_RESPONSE if request == "patch nodes 1" else None)

    def is_later_node_labelled_by_delivery() -> bool:
        assert proxied_functions.post("label-nodes", upgrade.build_event(events.POOLS_PAUSED)).status_code == 503
        labelled = [RULE_NODE_LABEL in upgrade.read_node(name)["metadata"]["labels"] for name in upgrade.nodes]
        assert not labelled[0]
        return labelled[1]

    assert any(is_later_node_labelled_by_delivery() for _ in range(MAX_DELIVERIES))
    fault_proxy.stop_faults()
    assert upgrade.run_step("label-nodes", events.POOLS_PAUSED) == events.NODES_LABELLED


@proves("MUT-35")
def test_pass_labels_only_unlabelled_nodes(upgrade: UpgradeScenario) -> None:
    """Check that a pass labels only nodes without the labels, so that each pass of a large run labels other nodes."""
    upgrade.advance_to_jobs()
    upgrade.patch_node_labels(upgrade.nodes[1], {RULE_NODE_LABEL: None})

    assert label_nodes.list_unlabelled_nodes(
        upgrade.read_status()["record"], upgrade.functions.clusters["label-nodes"]
    ) == [upgrade.nodes[1]]
