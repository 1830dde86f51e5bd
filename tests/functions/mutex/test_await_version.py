"""Tests for `await-version`, which decides when a released node's upgrade is complete."""

from __future__ import annotations

import pytest

from chaos.api_fault_proxy import Fault, FaultProxy
from eventing import events
from kube.mutex import pools
from kube.mutex.nodes import is_released
from kube.mutex.objects import RULE_LABEL_PREFIX, get_condition
from kube.mutex.versions import VERSION_LABEL
from tests.functions.conftest import Functions
from tests.functions.mutex.conftest import NEW_VERSION, UpgradeScenario
from tests.proofs import proves

RULE_NODE_LABEL = f"{RULE_LABEL_PREFIX}only.node-upgrade-mutex-operator"
LONG_AGO = "2026-01-01T00:00:00Z"


@pytest.mark.slow
@proves("MUT-45")
def test_node_upgrade_is_complete_only_at_desired_version(upgrade: UpgradeScenario) -> None:
    """Check that a node's upgrade is complete only at the desired version.

    At another version, `await-version` waits, and the condition states whether the node's version is older or newer.
    """
    name = upgrade.advance_to_release()
    assert upgrade.run_step("await-version", events.NODE_RELEASED) == ""
    assert f"not yet {NEW_VERSION}" in get_condition(upgrade.read_object(upgrade.run_config), "NodeUpgrade")["message"]
    upgrade.patch_node_labels(name, {VERSION_LABEL: "4.17.0"})
    assert upgrade.run_step("await-version", events.NODE_RELEASED) == ""
    assert f"above {NEW_VERSION}" in get_condition(upgrade.read_object(upgrade.run_config), "NodeUpgrade")["message"]
    upgrade.patch_node_labels(name, {VERSION_LABEL: NEW_VERSION})
    assert upgrade.run_step("await-version", events.NODE_RELEASED) == events.NODE_UPGRADED


@pytest.mark.slow
@proves("MUT-45", "MUT-48")
def test_run_halts_after_upgrade_timeout_and_resumes_on_retry(
    upgrade: UpgradeScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a run halts when an upgrade exceeds its time limit, and resumes when an administrator retries it."""
    upgrade.advance_to_release()
    monkeypatch.setenv("MUTEX_UPGRADE_SECONDS", "0")
    assert upgrade.run_step("await-version", events.NODE_RELEASED) == events.RUN_HALTED
    assert get_condition(upgrade.read_object(upgrade.run_config), "NodeUpgrade")["reason"] == "NodeUpgradeFailed"
    assert upgrade.run_step("await-version", events.NODE_RELEASED) == ""
    monkeypatch.delenv("MUTEX_UPGRADE_SECONDS")
    retry = {"metadata": {"annotations": {"nodemaintenance.dev/retry": "1"}}}
    retried_run = upgrade.administrator_client.patch(f"{RUN_CONFIGS_PATH}/example", retry)
    assert retried_run["metadata"]["annotations"]
    assert upgrade.run_step("check-run", events.RUN_CHECK_PENDING) == events.NODE_RELEASED


@pytest.mark.slow
@proves("MUT-45")
@pytest.mark.parametrize(
    ("desired_version", "state", "message"),
    [
        ("", "Completed", "no longer requests a version"),
        ("4.16.5", "Partial", "not yet 4.16.5: the update of the control plane is Partial"),
        ("4.16.5", "Completed", "not yet 4.16.5: the control plane has completed 4.16.4"),
    ],
)
def test_node_upgrade_is_on_hold_while_control_plane_is_not_at_desired_version(
    upgrade: UpgradeScenario, monkeypatch: pytest.MonkeyPatch, desired_version: str, state: str, message: str
) -> None:
    """Check that a node's upgrade is on hold until a version is desired and the control plane has reached it.

    The hold has no time limit. At the first tick during the hold, `await-version` reports the hold. Later ticks emit no
    event. After the hold, the upgrade's time limit starts again.
    """
    name = upgrade.advance_to_release()
    upgrade.check_rule_and_target()
    upgrade.cvo.set_desired_version(desired_version, state, completed_version=NEW_VERSION)
    assert [reply.get_type() for reply in upgrade.resync_by_tick()] == [events.NODE_RELEASED]
    monkeypatch.setenv("MUTEX_UPGRADE_SECONDS", "0")
    assert upgrade.run_step("await-version", events.NODE_RELEASED) == ""
    condition = get_condition(upgrade.read_object(upgrade.run_config), "NodeUpgrade")
    assert (condition["reason"], message in condition["message"]) == ("NodeUpgradeHeld", True)
    assert upgrade.resync_by_tick() == []
    upgrade.write_record({"nodes": {name: {"releasedAt": LONG_AGO}}})
    monkeypatch.delenv("MUTEX_UPGRADE_SECONDS")
    upgrade.cvo.set_desired_version(desired_version or NEW_VERSION)
    assert [reply.get_type() for reply in upgrade.resync_by_tick()] == [events.NODE_RELEASED]
    assert upgrade.run_step("await-version", events.NODE_RELEASED) == ""
    assert get_condition(upgrade.read_object(upgrade.run_config), "NodeUpgrade")["reason"] == "NodeUpgradeWaiting"
    assert upgrade.resync_by_tick() == []


@pytest.mark.slow
@proves("MUT-45")
def test_upgrade_time_limit_restarts_after_invalid_run_config(upgrade: UpgradeScenario) -> None:
    """Check that the time limit of a released node's upgrade starts again after its run config was invalid.

    In this test, the canary pool was paused, so the node could not be upgraded. A check of a run config that was valid
    all the time does not extend the time limit.
    """
    name = upgrade.advance_to_release()
    canary = pools.build_pool_path("canary")
    upgrade.administrator_client.patch(canary, {"spec": {"paused": True}})
    assert upgrade.run_step("check-run", events.RUN_CHECK_PENDING) == ""
    upgrade.write_record({"nodes": {name: {"releasedAt": LONG_AGO}}})
    upgrade.administrator_client.patch(canary, {"spec": {"paused": False}})
    assert upgrade.run_step("check-run", events.RUN_CHECK_PENDING) == events.NODE_RELEASED
    assert upgrade.run_step("await-version", events.NODE_RELEASED) == ""
    assert get_condition(upgrade.read_object(upgrade.run_config), "NodeUpgrade")["reason"] == "NodeUpgradeWaiting"
    upgrade.write_record({"nodes": {name: {"releasedAt": LONG_AGO}}})
    assert upgrade.run_step("check-run", events.RUN_CHECK_PENDING) == events.NODE_RELEASED
    assert upgrade.run_step("await-version", events.NODE_RELEASED) == events.RUN_HALTED


@pytest.mark.slow
@proves("MUT-45")
def test_node_upgrade_completes_before_control_plane_upgrade(upgrade: UpgradeScenario) -> None:
    """Check that a node's upgrade is complete at the desired version even if the control plane's update is not.

    The machine-config-operator may upgrade nodes before an update reaches the last cluster operator. A tick detects
    such a node even while it is on hold.
    """
    name = upgrade.advance_to_release()
    upgrade.check_rule_and_target()
    upgrade.cvo.set_desired_version("4.16.5", "Partial", completed_version=NEW_VERSION)
    assert upgrade.run_step("await-version", events.NODE_RELEASED) == ""
    assert upgrade.resync_by_tick() == []
    upgrade.patch_node_labels(name, {VERSION_LABEL: "4.16.5"})
    assert [reply.get_type() for reply in upgrade.resync_by_tick()] == [events.NODE_RELEASED]
    assert upgrade.run_step("await-version", events.NODE_RELEASED) == events.NODE_UPGRADED


RUN_CONFIGS_PATH = (
    "/apis/openshift-optional.skrzypek.io/v1alpha1/namespaces/node-upgrade-mutex-operator/mutexrunconfigs"
)


@pytest.mark.slow
@proves("MUT-45")
def test_node_labelled_by_other_client_is_released_again(upgrade: UpgradeScenario) -> None:
    """Check that a node that another client labelled again is released again.

    Otherwise the node would stay in a paused MachineConfigPool.
    """
    name = upgrade.advance_to_release()
    upgrade.write_record({"nodes": {name: {"releasedAt": LONG_AGO}}})
    upgrade.patch_node_labels(name, {RULE_NODE_LABEL: ""})
    assert upgrade.run_step("await-version", events.NODE_RELEASED) == events.NODE_PREJOBS_DONE
    assert upgrade.run_step("release-node", events.NODE_PREJOBS_DONE) == events.NODE_RELEASED


@pytest.mark.slow
@proves("MUT-45", "X-3")
def test_node_relabelled_within_seconds_is_released_at_next_tick(upgrade: UpgradeScenario) -> None:
    """Check that a node labelled again within seconds of its release is not released again before the next tick.

    Otherwise `await-version` and `release-node` would keep triggering each other. The condition reports that another
    client labels the node.
    """
    name = upgrade.advance_to_release()
    upgrade.check_rule_and_target()
    upgrade.patch_node_labels(name, {RULE_NODE_LABEL: ""})
    assert upgrade.run_step("await-version", events.NODE_RELEASED) == ""
    condition = get_condition(upgrade.read_object(upgrade.run_config), "NodeUpgrade")
    assert (condition["status"], "another client labels the node again" in condition["message"]) == ("False", True)
    upgrade.check_rule_and_target()
    assert [reply.get_type() for reply in upgrade.resync_by_tick()] == [events.NODE_PREJOBS_DONE]
    assert upgrade.run_step("release-node", events.NODE_PREJOBS_DONE) == events.NODE_RELEASED
    assert is_released(upgrade.read_node(name))


@pytest.mark.slow
@proves("MUT-45", "X-3")
@pytest.mark.parametrize("is_on_hold", [True, False])
def test_upgrade_time_limit_of_relabelled_node_restarts_at_next_release(
    upgrade: UpgradeScenario, is_on_hold: bool
) -> None:
    """Check that the upgrade's time limit of a relabelled node starts again at the node's next release.

    This holds even if the node's upgrade was on hold before, or if its next release is delayed. A tick during that
    delay emits one event.
    """
    name = upgrade.advance_to_release()
    upgrade.check_rule_and_target()
    upgrade.write_record({"nodes": {name: {"releasedAt": LONG_AGO}}})
    if is_on_hold:
        upgrade.cvo.set_desired_version("4.16.5", "Partial", completed_version=NEW_VERSION)
        assert upgrade.run_step("await-version", events.NODE_RELEASED) == ""
    upgrade.patch_node_labels(name, {RULE_NODE_LABEL: ""})
    upgrade.check_rule_and_target()
    assert upgrade.run_step("await-version", events.NODE_RELEASED) == events.NODE_PREJOBS_DONE
    upgrade.cvo.set_desired_version("4.16.5", "Partial", completed_version=NEW_VERSION)
    assert upgrade.run_step("release-node", events.NODE_PREJOBS_DONE) == ""
    assert [reply.get_type() for reply in upgrade.resync_by_tick()] == [events.NODE_PREJOBS_DONE]
    upgrade.cvo.set_desired_version("4.16.5")
    assert upgrade.run_step("release-node", events.NODE_PREJOBS_DONE) == events.NODE_RELEASED
    assert upgrade.run_step("await-version", events.NODE_RELEASED) == ""
    assert get_condition(upgrade.read_object(upgrade.run_config), "NodeUpgrade")["reason"] == "NodeUpgradeWaiting"


@pytest.mark.slow
@proves("MUT-45", "MUT-1")
def test_upgrade_time_limit_excludes_time_of_rejected_read_during_hold(
    upgrade: UpgradeScenario, proxied_functions: Functions, fault_proxy: FaultProxy
) -> None:
    """Check that time during which a node on hold cannot be read does not count toward the upgrade's time limit.

    The condition contains the error, and a tick triggers `await-version` again during the hold.
    """
    name = upgrade.advance_to_release()
    upgrade.check_rule_and_target()
    upgrade.write_record({"nodes": {name: {"releasedAt": LONG_AGO}}})
    upgrade.cvo.set_desired_version("4.16.5", "Partial", completed_version=NEW_VERSION)
    assert upgrade.run_step("await-version", events.NODE_RELEASED) == ""
    fault_proxy.inject(lambda request: Fault(403, "cannot get nodes") if request.startswith("get nodes") else None)
    assert proxied_functions.invoke("await-version", upgrade.build_event(events.NODE_RELEASED)) is None
    fault_proxy.stop_faults()
    assert get_condition(upgrade.read_object(upgrade.run_config), "NodeUpgrade")["message"] == "cannot get nodes"
    assert [reply.get_type() for reply in upgrade.resync_by_tick()] == [events.NODE_RELEASED]
    upgrade.cvo.set_desired_version("4.16.5")
    assert upgrade.run_step("await-version", events.NODE_RELEASED) == ""
    assert get_condition(upgrade.read_object(upgrade.run_config), "NodeUpgrade")["reason"] == "NodeUpgradeWaiting"
    assert upgrade.resync_by_tick() == []


@proves("MUT-45", "MUT-50")
@pytest.mark.parametrize(
    ("first_version", "second_version", "desired"),
    [("4.16.3", "4.16.3", "4.16.3"), ("4.16.5", "4.16.5", "4.16.5"), ("4.16.5", "4.16.3", "4.16.3")],
)
def test_finished_run_records_oldest_version_of_its_nodes(
    upgrade: UpgradeScenario, first_version: str, second_version: str, desired: str
) -> None:
    """Check that the record of a finished run contains the oldest version of the run's nodes.

    If a later version is desired after that, another run begins.
    """
    name, second_name = upgrade.advance_to_release(), upgrade.nodes[1]
    simulate_node_upgrade(upgrade, name, first_version)
    upgrade.write_record({"released": None, "nodes": {name: {"cleanedAt": LONG_AGO}}})
    jobs = upgrade.read_status()["record"]["nodes"][name]["jobs"]
    upgrade.write_record({"released": second_name, "nodes": {second_name: {"releasedAt": LONG_AGO, "jobs": jobs}}})
    upgrade.patch_node_labels(second_name, {RULE_NODE_LABEL: None})
    simulate_node_upgrade(upgrade, second_name, second_version)
    assert upgrade.read_status()["record"]["desired"] == desired
    upgrade.write_record({"released": None, "nodes": {second_name: {"cleanedAt": LONG_AGO}}})
    assert upgrade.run_step("restore-pools", events.RUN_NODES_DONE) == events.RUN_RESTORED
    assert upgrade.run_step("detect-upgrade", events.RUN_VALIDATED) == ""
    upgrade.cvo.set_desired_version("4.16.6" if desired > NEW_VERSION else NEW_VERSION)
    assert upgrade.run_step("detect-upgrade", events.RUN_VALIDATED) == events.UPGRADE_DETECTED


def simulate_node_upgrade(upgrade: UpgradeScenario, name: str, version: str) -> None:
    """Set the desired version, and simulate the upgrade of the released node to that version."""
    upgrade.cvo.set_desired_version(version)
    upgrade.patch_node_labels(name, {VERSION_LABEL: version})
    assert upgrade.run_step("await-version", events.NODE_RELEASED) == events.NODE_UPGRADED


@pytest.mark.slow
@pytest.mark.parametrize("seconds", ["soon", "-1", "1e9"])
def test_invalid_upgrade_timeout_is_rejected_at_start(seconds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the process exits at startup if `MUTEX_UPGRADE_SECONDS` is invalid; the error names the variable."""
    from functions.app import select_functions

    monkeypatch.setenv("MUTEX_UPGRADE_SECONDS", seconds)
    with pytest.raises(SystemExit, match="MUTEX_UPGRADE_SECONDS"):
        select_functions()
