"""The step `detect-upgrade`: what the versions say."""

from __future__ import annotations

import pytest

from eventing import events
from kube.mutex.objects import condition
from kube.mutex.versions import VERSION_LABEL
from tests.functions.mutex.conftest import NEW, OLD, Upgrade
from tests.proofs import proves
from tests.workload import Audit


def detected(upgrade: Upgrade) -> tuple[str, dict[str, str]]:
    upgrade.judge()
    upgrade.through("check-run")
    reply = upgrade.answer("detect-upgrade", events.RUN_VALIDATED)
    run = upgrade.again(upgrade.run)
    kinds = ("UpgradeChecked", "UpgradeReady", "UpgradeAvailable")
    return reply, {kind: condition(run, kind).get("status", "") for kind in kinds}


ALL, NOT_READY = ("True", "True", "True"), ("True", "False", "False")


@proves("MUT-31", "MUT-32")
@pytest.mark.parametrize(
    ("wanted", "state", "reached", "verdicts"),
    [
        (NEW, "Completed", "", ALL),
        (NEW, "Partial", "", NOT_READY),
        (NEW, "Completed", OLD, NOT_READY),
        (OLD, "Completed", "", ("True", "True", "False")),
        ("4.9.0", "Completed", "", ("True", "True", "False")),
        ("", "Completed", OLD, ("False", "False", "False")),
        ("soon", "Completed", "", ("False", "False", "False")),
    ],
)
def test_an_upgrade_is_one_that_the_control_plane_has_and_a_worker_has_not(
    upgrade: Upgrade, written: Audit, wanted: str, state: str, reached: str, verdicts: tuple[str, str, str]
) -> None:
    """Nothing but conditions is written."""
    upgrade.cvo.want(wanted, state, reached)
    reply, found = detected(upgrade)
    assert tuple(found.values()) == verdicts
    assert (reply == events.UPGRADE_FOUND) is (verdicts == ALL)
    assert {entry["objectRef"]["resource"] for entry in written.writes_by()} <= {
        *("jobs", "mutexrules", "mutextargets", "mutexrunconfigs")
    }


@proves("MUT-2")
@pytest.mark.parametrize("version", [None, "newest"])
def test_a_node_without_a_version_is_named(upgrade: Upgrade, version: str | None) -> None:
    """The run does not begin."""
    upgrade.label(upgrade.nodes[1], {VERSION_LABEL: version})
    reply, found = detected(upgrade)
    assert (reply, found["UpgradeChecked"]) == ("", "False")
    assert upgrade.nodes[1] in condition(upgrade.again(upgrade.run), "UpgradeChecked")["message"]
