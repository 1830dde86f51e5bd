"""The step `await-version`: when is a released node done?"""

from __future__ import annotations

import pytest

from eventing import events
from kube.mutex.objects import condition
from kube.mutex.versions import VERSION_LABEL
from tests.functions.mutex.conftest import NEW, Upgrade
from tests.proofs import proves


@proves("MUT-45")
def test_only_the_version_that_is_wanted_will_do(upgrade: Upgrade) -> None:
    """An older one is waited for, a newer one too, and the condition says which it is."""
    name = upgrade.release()
    assert upgrade.answer("await-version", events.NODE_RELEASED) == ""
    assert f"not yet {NEW}" in condition(upgrade.again(upgrade.run), "NodeUpgrade")["message"]
    upgrade.label(name, {VERSION_LABEL: "4.17.0"})
    assert upgrade.answer("await-version", events.NODE_RELEASED) == ""
    assert f"above {NEW}" in condition(upgrade.again(upgrade.run), "NodeUpgrade")["message"]
    upgrade.label(name, {VERSION_LABEL: NEW})
    assert upgrade.answer("await-version", events.NODE_RELEASED) == events.NODE_UPGRADED


@proves("MUT-45", "MUT-48")
def test_out_of_patience_the_run_stops_and_a_retry_gives_more_time(
    upgrade: Upgrade, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person resumes it where it was."""
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


@proves("MUT-45")
def test_a_node_is_held_while_no_version_is_wanted(upgrade: Upgrade, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long that is: the tick has it said once, and the next version finds it with all of its time."""
    name = upgrade.release()
    upgrade.judge()
    upgrade.cvo.want("", reached=NEW)
    assert [reply.get_type() for reply in upgrade.told_by_a_tick()] == [events.NODE_RELEASED]
    monkeypatch.setenv("MUTEX_UPGRADE_SECONDS", "0")
    assert upgrade.answer("await-version", events.NODE_RELEASED) == ""
    found = condition(upgrade.again(upgrade.run), "NodeUpgrade")
    assert (found["reason"], "wants no version any more" in found["message"]) == ("NodeUpgradeHeld", True)
    assert upgrade.told_by_a_tick() == []
    long_ago = {"nodes": {name: {"releasedAt": "2026-01-01T00:00:00Z"}}}
    upgrade.admin.patch(f"{RUNS}/example/status", {"status": {"record": long_ago}})
    monkeypatch.delenv("MUTEX_UPGRADE_SECONDS")
    upgrade.cvo.want(NEW)
    assert [reply.get_type() for reply in upgrade.told_by_a_tick()] == [events.NODE_RELEASED]
    assert upgrade.answer("await-version", events.NODE_RELEASED) == ""
    assert condition(upgrade.again(upgrade.run), "NodeUpgrade")["reason"] == "NodeUpgradeWaiting"
    assert upgrade.told_by_a_tick() == []


RUNS = "/apis/openshift-optional.skrzypek.io/v1alpha1/namespaces/node-upgrade-mutex-operator/mutexrunconfigs"


@proves("MUT-45")
def test_a_node_that_is_labelled_again_is_released_again(upgrade: Upgrade) -> None:
    """Else it would wait in a pool that is paused."""
    name = upgrade.release()
    upgrade.label(name, {"mutexrule.openshift-optional.skrzypek.io/only.node-upgrade-mutex-operator": ""})
    assert upgrade.answer("await-version", events.NODE_RELEASED) == events.NODE_CLEARED
    assert upgrade.answer("release-node", events.NODE_CLEARED) == events.NODE_RELEASED


@pytest.mark.parametrize("seconds", ["soon", "-1", "1e9"])
def test_a_wrong_patience_is_refused_at_the_start(seconds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the setting."""
    from functions.app import chosen

    monkeypatch.setenv("MUTEX_UPGRADE_SECONDS", seconds)
    with pytest.raises(SystemExit, match="MUTEX_UPGRADE_SECONDS"):
        chosen()
