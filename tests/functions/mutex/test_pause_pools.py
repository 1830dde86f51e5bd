"""The step `pause-pools`."""

from __future__ import annotations

from eventing import events
from kube.mutex import pools
from kube.mutex.objects import condition
from tests.functions.mutex.conftest import Upgrade
from tests.proofs import proves
from tests.workload import Audit

BEGIN = ("check-run", "detect-upgrade", "claim-pools")


@proves("MUT-34")
def test_pausing_twice_writes_once(upgrade: Upgrade, written: Audit) -> None:
    """Each pool of the targets, and not the canary."""
    upgrade.judge()
    upgrade.through(*BEGIN, "pause-pools")
    assert upgrade.answer("pause-pools", events.POOLS_CLAIMED) == events.POOLS_PAUSED
    writes = [entry for entry in written.writes_by() if "/spec/paused" in str(entry.get("requestObject"))]
    assert [entry["objectRef"]["name"] for entry in writes] == ["blue"]
    assert condition(upgrade.again(upgrade.run), "TargetPoolsPaused")["status"] == "True"


@proves("MUT-33", "MUT-1")
def test_a_pool_that_is_the_runs_no_more_is_left_alone_and_stops_it(upgrade: Upgrade) -> None:
    """The condition says why, and no label is set."""
    upgrade.judge()
    upgrade.through(*BEGIN)
    upgrade.admin.patch(pools.pool_path("blue"), {"metadata": {"annotations": None}})
    assert upgrade.answer("pause-pools", events.POOLS_CLAIMED) == ""
    found = condition(upgrade.again(upgrade.run), "TargetPoolsPaused")
    assert (found["status"], "not claimed" in found["message"]) == ("False", True)
    assert upgrade.pool("blue")["spec"]["paused"] is False
