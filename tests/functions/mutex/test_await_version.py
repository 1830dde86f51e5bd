"""Tests of `await-version`, which decides when a released node's upgrade is complete."""

from __future__ import annotations

import pytest

from eventing import events
from kube.mutex import pools
from kube.mutex.node_labels import is_released
from kube.mutex.objects import RULE_LABEL, condition
from kube.mutex.versions import VERSION_LABEL
from tests.fault_proxy import Fault, Faults
from tests.functions.conftest import Functions
from tests.functions.mutex.conftest import NEW, Upgrade
from tests.proofs import proves

LABEL = f"{RULE_LABEL}only.node-upgrade-mutex-operator"
LONG_AGO = "2026-01-01T00:00:00Z"


@pytest.mark.slow
@proves("MUT-45")
def test_only_the_version_that_is_wanted_will_do(upgrade: Upgrade) -> None:
    """Check that only the desired version completes the upgrade.

    With an older or a newer version the step waits, and the condition states which it is.
    """
    name = upgrade.release()
    assert upgrade.answer("await-version", events.NODE_RELEASED) == ""
    assert f"not yet {NEW}" in condition(upgrade.again(upgrade.run), "NodeUpgrade")["message"]
    upgrade.label(name, {VERSION_LABEL: "4.17.0"})
    assert upgrade.answer("await-version", events.NODE_RELEASED) == ""
    assert f"above {NEW}" in condition(upgrade.again(upgrade.run), "NodeUpgrade")["message"]
    upgrade.label(name, {VERSION_LABEL: NEW})
    assert upgrade.answer("await-version", events.NODE_RELEASED) == events.NODE_UPGRADED


@pytest.mark.slow
@proves("MUT-45", "MUT-48")
def test_out_of_patience_the_run_stops_and_a_retry_gives_more_time(
    upgrade: Upgrade, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the run halts when the time limit is over, and an administrator's retry resumes it with more time."""
    upgrade.release()
    monkeypatch.setenv("MUTEX_UPGRADE_SECONDS", "0")
    assert upgrade.answer("await-version", events.NODE_RELEASED) == events.RUN_STOPPED
    assert condition(upgrade.again(upgrade.run), "NodeUpgrade")["reason"] == "NodeUpgradeFailed"
    assert upgrade.answer("await-version", events.NODE_RELEASED) == ""
    monkeypatch.delenv("MUTEX_UPGRADE_SECONDS")
    retry = {"metadata": {"annotations": {"nodemaintenance.dev/retry": "1"}}}
    where = upgrade.admin.patch(f"{RUNS}/example", retry)
    assert where["metadata"]["annotations"]
    assert upgrade.answer("check-run", events.RUN_FOUND) == events.NODE_RELEASED


@pytest.mark.slow
@proves("MUT-45")
@pytest.mark.parametrize(
    ("wanted", "state", "said"),
    [
        ("", "Completed", "wants no version any more"),
        ("4.16.5", "Partial", "not yet 4.16.5: the update of the control plane is Partial"),
        ("4.16.5", "Completed", "not yet 4.16.5: the control plane has reached 4.16.4"),
    ],
)
def test_a_node_is_held_while_nobody_can_upgrade_it(
    upgrade: Upgrade, monkeypatch: pytest.MonkeyPatch, wanted: str, state: str, said: str
) -> None:
    """Check that a node is on hold while no version is desired, or the control plane has not reached it.

    The hold has no time limit. A tick triggers its report once, and after the hold the node has its full time again.
    """
    name = upgrade.release()
    upgrade.judge()
    upgrade.cvo.want(wanted, state, reached=NEW)
    assert [reply.get_type() for reply in upgrade.told_by_a_tick()] == [events.NODE_RELEASED]
    monkeypatch.setenv("MUTEX_UPGRADE_SECONDS", "0")
    assert upgrade.answer("await-version", events.NODE_RELEASED) == ""
    found = condition(upgrade.again(upgrade.run), "NodeUpgrade")
    assert (found["reason"], said in found["message"]) == ("NodeUpgradeHeld", True)
    assert upgrade.told_by_a_tick() == []
    upgrade.write_record({"nodes": {name: {"releasedAt": LONG_AGO}}})
    monkeypatch.delenv("MUTEX_UPGRADE_SECONDS")
    upgrade.cvo.want(wanted or NEW)
    assert [reply.get_type() for reply in upgrade.told_by_a_tick()] == [events.NODE_RELEASED]
    assert upgrade.answer("await-version", events.NODE_RELEASED) == ""
    assert condition(upgrade.again(upgrade.run), "NodeUpgrade")["reason"] == "NodeUpgradeWaiting"
    assert upgrade.told_by_a_tick() == []


@pytest.mark.slow
@proves("MUT-45")
def test_a_node_of_a_run_that_was_halted_has_all_of_its_time(upgrade: Upgrade) -> None:
    """Check that a released node has its full time again after its run config was not valid.

    Here the canary was paused, so the node could not be upgraded. A check of a run that stayed valid extends no time.
    """
    name = upgrade.release()
    canary = pools.pool_path("canary")
    upgrade.admin.patch(canary, {"spec": {"paused": True}})
    assert upgrade.answer("check-run", events.RUN_FOUND) == ""
    upgrade.write_record({"nodes": {name: {"releasedAt": LONG_AGO}}})
    upgrade.admin.patch(canary, {"spec": {"paused": False}})
    assert upgrade.answer("check-run", events.RUN_FOUND) == events.NODE_RELEASED
    assert upgrade.answer("await-version", events.NODE_RELEASED) == ""
    assert condition(upgrade.again(upgrade.run), "NodeUpgrade")["reason"] == "NodeUpgradeWaiting"
    upgrade.write_record({"nodes": {name: {"releasedAt": LONG_AGO}}})
    assert upgrade.answer("check-run", events.RUN_FOUND) == events.NODE_RELEASED
    assert upgrade.answer("await-version", events.NODE_RELEASED) == events.RUN_STOPPED


@pytest.mark.slow
@proves("MUT-45")
def test_a_node_that_has_the_version_is_done_though_the_control_plane_is_not(upgrade: Upgrade) -> None:
    """Check that a node with the desired version is done although the control plane's update is not complete.

    The machine-config-operator may upgrade nodes before the last operator of an update. A tick finds this, on hold or
    not.
    """
    name = upgrade.release()
    upgrade.judge()
    upgrade.cvo.want("4.16.5", "Partial", reached=NEW)
    assert upgrade.answer("await-version", events.NODE_RELEASED) == ""
    assert upgrade.told_by_a_tick() == []
    upgrade.label(name, {VERSION_LABEL: "4.16.5"})
    assert [reply.get_type() for reply in upgrade.told_by_a_tick()] == [events.NODE_RELEASED]
    assert upgrade.answer("await-version", events.NODE_RELEASED) == events.NODE_UPGRADED


RUNS = "/apis/openshift-optional.skrzypek.io/v1alpha1/namespaces/node-upgrade-mutex-operator/mutexrunconfigs"


@pytest.mark.slow
@proves("MUT-45")
def test_a_node_that_is_labelled_again_is_released_again(upgrade: Upgrade) -> None:
    """Check that a node that another client labelled again is released again.

    Otherwise it would wait in a paused pool.
    """
    name = upgrade.release()
    upgrade.write_record({"nodes": {name: {"releasedAt": LONG_AGO}}})
    upgrade.label(name, {LABEL: ""})
    assert upgrade.answer("await-version", events.NODE_RELEASED) == events.NODE_CLEARED
    assert upgrade.answer("release-node", events.NODE_CLEARED) == events.NODE_RELEASED


@pytest.mark.slow
@proves("MUT-45", "X-3")
def test_a_node_that_is_labelled_again_within_seconds_of_its_release_is_left_to_the_tick(upgrade: Upgrade) -> None:
    """Check that a node labelled again within seconds of its release is left to the tick.

    Otherwise `await-version` and `release-node` would keep triggering each other. The condition reports the other
    client.
    """
    name = upgrade.release()
    upgrade.judge()
    upgrade.label(name, {LABEL: ""})
    assert upgrade.answer("await-version", events.NODE_RELEASED) == ""
    found = condition(upgrade.again(upgrade.run), "NodeUpgrade")
    assert (found["status"], "somebody labels the node again" in found["message"]) == ("False", True)
    upgrade.judge()
    assert [reply.get_type() for reply in upgrade.told_by_a_tick()] == [events.NODE_CLEARED]
    assert upgrade.answer("release-node", events.NODE_CLEARED) == events.NODE_RELEASED
    assert is_released(upgrade.node(name))


@pytest.mark.slow
@proves("MUT-45", "X-3")
@pytest.mark.parametrize("is_held", [True, False])
def test_a_node_that_is_labelled_again_has_all_of_its_time_once_it_is_released(upgrade: Upgrade, is_held: bool) -> None:
    """Check that a node that was labelled again has its full time after its next release.

    This holds if it was on hold before, and however long it waits for the release. Meanwhile a tick emits one event.
    """
    name = upgrade.release()
    upgrade.judge()
    upgrade.write_record({"nodes": {name: {"releasedAt": LONG_AGO}}})
    if is_held:
        upgrade.cvo.want("4.16.5", "Partial", reached=NEW)
        assert upgrade.answer("await-version", events.NODE_RELEASED) == ""
    upgrade.label(name, {LABEL: ""})
    upgrade.judge()
    assert upgrade.answer("await-version", events.NODE_RELEASED) == events.NODE_CLEARED
    upgrade.cvo.want("4.16.5", "Partial", reached=NEW)
    assert upgrade.answer("release-node", events.NODE_CLEARED) == ""
    assert [reply.get_type() for reply in upgrade.told_by_a_tick()] == [events.NODE_CLEARED]
    upgrade.cvo.want("4.16.5")
    assert upgrade.answer("release-node", events.NODE_CLEARED) == events.NODE_RELEASED
    assert upgrade.answer("await-version", events.NODE_RELEASED) == ""
    assert condition(upgrade.again(upgrade.run), "NodeUpgrade")["reason"] == "NodeUpgradeWaiting"


@pytest.mark.slow
@proves("MUT-45", "MUT-1")
def test_a_look_at_a_held_node_that_is_refused_takes_none_of_its_time(
    upgrade: Upgrade, spoiled: Functions, faults: Faults
) -> None:
    """Check that a rejected read of the node does not use up the time of a node on hold.

    The condition contains the error, and a tick triggers the step again during the hold.
    """
    name = upgrade.release()
    upgrade.judge()
    upgrade.write_record({"nodes": {name: {"releasedAt": LONG_AGO}}})
    upgrade.cvo.want("4.16.5", "Partial", reached=NEW)
    assert upgrade.answer("await-version", events.NODE_RELEASED) == ""
    faults.spoil(lambda request: Fault(403, "cannot get nodes") if request.startswith("get nodes") else None)
    assert spoiled.answer("await-version", upgrade.said(events.NODE_RELEASED)) is None
    faults.speak_again()
    assert condition(upgrade.again(upgrade.run), "NodeUpgrade")["message"] == "cannot get nodes"
    assert [reply.get_type() for reply in upgrade.told_by_a_tick()] == [events.NODE_RELEASED]
    upgrade.cvo.want("4.16.5")
    assert upgrade.answer("await-version", events.NODE_RELEASED) == ""
    assert condition(upgrade.again(upgrade.run), "NodeUpgrade")["reason"] == "NodeUpgradeWaiting"
    assert upgrade.told_by_a_tick() == []


@proves("MUT-45", "MUT-50")
@pytest.mark.parametrize(
    ("first", "second", "desired"),
    [("4.16.3", "4.16.3", "4.16.3"), ("4.16.5", "4.16.5", "4.16.5"), ("4.16.5", "4.16.3", "4.16.3")],
)
def test_a_run_is_finished_to_the_version_that_all_its_nodes_have(
    upgrade: Upgrade, first: str, second: str, desired: str
) -> None:
    """Check that a run counts as finished for the oldest version that its nodes have reached.

    If its first version, or a later one, is desired afterwards, that is another run.
    """
    name, other = upgrade.release(), upgrade.nodes[1]
    reach(upgrade, name, first)
    upgrade.write_record({"released": None, "nodes": {name: {"cleanedAt": LONG_AGO}}})
    jobs = upgrade.status()["record"]["nodes"][name]["jobs"]
    upgrade.write_record({"released": other, "nodes": {other: {"releasedAt": LONG_AGO, "jobs": jobs}}})
    upgrade.label(other, {LABEL: None})
    reach(upgrade, other, second)
    assert upgrade.status()["record"]["desired"] == desired
    upgrade.write_record({"released": None, "nodes": {other: {"cleanedAt": LONG_AGO}}})
    assert upgrade.answer("restore-pools", events.RUN_COMPLETED) == events.RUN_FINISHED
    assert upgrade.answer("detect-upgrade", events.RUN_VALIDATED) == ""
    upgrade.cvo.want("4.16.6" if desired > NEW else NEW)
    assert upgrade.answer("detect-upgrade", events.RUN_VALIDATED) == events.UPGRADE_FOUND


def reach(upgrade: Upgrade, name: str, version: str) -> None:
    """Set the desired version, and let the released node reach it."""
    upgrade.cvo.want(version)
    upgrade.label(name, {VERSION_LABEL: version})
    assert upgrade.answer("await-version", events.NODE_RELEASED) == events.NODE_UPGRADED


@pytest.mark.slow
@pytest.mark.parametrize("seconds", ["soon", "-1", "1e9"])
def test_a_wrong_patience_is_refused_at_the_start(seconds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that an invalid `MUTEX_UPGRADE_SECONDS` ends the process at its start; the error names the setting."""
    from functions.app import chosen

    monkeypatch.setenv("MUTEX_UPGRADE_SECONDS", seconds)
    with pytest.raises(SystemExit, match="MUTEX_UPGRADE_SECONDS"):
        chosen()
