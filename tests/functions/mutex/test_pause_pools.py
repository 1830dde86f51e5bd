"""Tests of `pause-pools`, which pauses the target pools when it is the run's turn."""

from __future__ import annotations

import pytest

from eventing import events
from functions.serving.handler import SECONDS_TO_ANSWER
from kube.mutex import pools
from kube.mutex.objects import RUN_LABEL, condition, path
from tests.fault_proxy import SILENCE, Fault, Faults
from tests.functions.conftest import Functions
from tests.functions.event_builders import resource
from tests.functions.mutex.conftest import BEFORE_JOBS, Upgrade
from tests.proofs import proves
from tests.workload import Audit

BEGIN = ("check-run", "detect-upgrade", "claim-pools")


@proves("MUT-34")
def test_pausing_twice_writes_once(upgrade: Upgrade, written: Audit) -> None:
    """Check that a repeated event pauses each target pool only once, and that the canary is not paused."""
    upgrade.judge()
    upgrade.through(*BEGIN, "pause-pools")
    assert upgrade.answer("pause-pools", events.POOLS_CLAIMED) == events.POOLS_PAUSED
    writes = [entry for entry in written.writes_by() if "/spec/paused" in str(entry.get("requestObject"))]
    assert [entry["objectRef"]["name"] for entry in writes] == ["blue"]
    assert condition(upgrade.again(upgrade.run), "TargetPoolsPaused")["status"] == "True"


@proves("MUT-34")
def test_a_pool_that_was_paused_before_is_not_written_and_is_named(upgrade: Upgrade, written: Audit) -> None:
    """Check that a pool that was already paused is not written, and is named in the condition.

    A pool that the run has paused itself is not named.
    """
    upgrade.add_pool("green")
    upgrade.admin.patch(pools.pool_path("blue"), {"spec": {"paused": True}})
    upgrade.judge()
    upgrade.through(*BEGIN, "pause-pools")

    writes = [entry for entry in written.writes_by() if "/spec/paused" in str(entry.get("requestObject"))]
    found = condition(upgrade.again(upgrade.run), "TargetPoolsPaused")
    assert [entry["objectRef"]["name"] for entry in writes] == ["green"]
    assert [pools.is_paused(upgrade.pool(name)) for name in ("blue", "green")] == [True, True]
    assert (found["status"], found["message"]) == ("True", "paused before by somebody else: blue")


@proves("MUT-52")
def test_requests_are_verified_unless_the_run_says_otherwise(upgrade: Upgrade) -> None:
    """Check that the step verifies the API server's certificate unless the run sets `skipTLSVerify`.

    The test checks whether the API client has opened its unverified connections.
    """
    upgrade.judge()
    upgrade.through(*BEGIN)
    unverified = upgrade.functions.clusters["pause-pools"].api._rest.unverified()
    assert upgrade.answer("pause-pools", events.POOLS_CLAIMED) == events.POOLS_PAUSED
    assert not unverified.is_open
    upgrade.admin.patch(path(upgrade.run), {"spec": {"skipTLSVerify": True}})
    upgrade.unpause("blue")
    assert upgrade.answer("pause-pools", events.POOLS_CLAIMED) == events.POOLS_PAUSED
    assert unverified.is_open
    assert pools.is_paused(upgrade.pool("blue"))


@proves("MUT-33", "MUT-1")
def test_a_pool_that_is_the_runs_no_more_is_left_alone_and_stops_it(upgrade: Upgrade) -> None:
    """Check that a pool that another run has claimed is not paused, and that the condition reports it."""
    upgrade.judge()
    upgrade.through(*BEGIN)
    other = upgrade.other_under_way()["metadata"]["uid"]
    upgrade.write_record({"turnAt": "2026-01-01T00:00:00Z", "pausedAt": "2026-01-01T00:00:00Z"})
    upgrade.admin.patch(pools.pool_path("blue"), {"metadata": {"annotations": {RUN_LABEL: other}}})
    assert upgrade.answer("pause-pools", events.POOLS_CLAIMED) == ""
    found = condition(upgrade.again(upgrade.run), "TargetPoolsPaused")
    assert (found["status"], "not claimed" in found["message"]) == ("False", True)
    assert upgrade.pool("blue")["spec"]["paused"] is False


@proves("MUT-33", "MUT-49")
def test_a_pool_that_was_replaced_is_claimed_and_paused_again(upgrade: Upgrade) -> None:
    """Check that a pool that was replaced with its manifest is claimed and paused again; the canary is only claimed.

    The manifest contains neither the claim nor the pause.
    """
    upgrade.judge()
    upgrade.through(*BEGIN, "pause-pools")
    for name in ("blue", "canary"):
        bare = {"metadata": {"annotations": None}, "spec": {"paused": False}}
        upgrade.admin.patch(pools.pool_path(name), bare)

    assert upgrade.answer("pause-pools", events.POOLS_CLAIMED) == events.POOLS_PAUSED

    uid = upgrade.run["metadata"]["uid"]
    found = {name: upgrade.pool(name) for name in ("blue", "canary")}
    assert {name: pools.claimed_by(pool) for name, pool in found.items()} == {"blue": uid, "canary": uid}
    assert {name: pools.is_paused(pool) for name, pool in found.items()} == {"blue": True, "canary": False}


@proves("MUT-33", "MUT-44", "MUT-49")
@pytest.mark.parametrize("is_there", [False, True])
def test_a_pool_that_a_run_config_claims_which_has_no_run_is_claimed_and_paused_again(
    upgrade: Upgrade, is_there: bool
) -> None:
    """Check that a pool is claimed and paused again if its claim names a run config without a run.

    A user may have applied a backup of the pool from an earlier run, whose run config is deleted or has no run.
    """
    upgrade.start()
    claim = {RUN_LABEL: upgrade.owner(is_there=is_there)}
    upgrade.admin.patch(pools.pool_path("blue"), {"metadata": {"annotations": claim}, "spec": {"paused": False}})

    assert upgrade.answer("pause-pools", events.POOLS_CLAIMED) == events.POOLS_PAUSED

    blue = upgrade.pool("blue")
    assert (pools.claimed_by(blue), pools.is_paused(blue)) == (upgrade.run["metadata"]["uid"], True)


@pytest.mark.slow
@proves("MUT-33", "MUT-1")
@pytest.mark.parametrize(("refused", "other"), [("blue", "green"), ("green", "blue")])
@pytest.mark.parametrize("before", [BEGIN, BEFORE_JOBS], ids=["at the beginning", "amid the run"])
def test_a_pool_that_is_refused_keeps_no_other_one_from_being_paused(
    upgrade: Upgrade, spoiled: Functions, faults: Faults, before: tuple[str, ...], refused: str, other: str
) -> None:
    """Check that a rejected pool does not keep another one from being paused, and that the condition has the error.

    During a run both are recorded as paused again, so the tick repeats a further change, and no update event does. At
    the beginning no node is labelled before all pools are paused.
    """
    upgrade.add_pool("green")
    upgrade.judge()
    upgrade.through(*before)
    upgrade.unpause(refused, other)
    spoil = f"patch machineconfigpools {sorted((refused, other)).index(refused) + 1}"
    faults.spoil(lambda request: Fault(403, "a webhook") if request == spoil else None)
    assert spoiled.answer("pause-pools", upgrade.said(events.POOLS_CLAIMED)) is None
    faults.speak_again()

    assert [pools.is_paused(upgrade.pool(name)) for name in (refused, other)] == [False, True]
    record, found = upgrade.status()["record"], condition(upgrade.again(upgrade.run), "TargetPoolsPaused")
    assert sorted(record.get("pausedAgain") or []) == (sorted([refused, other]) if before is BEFORE_JOBS else [])
    assert "claimedAgain" not in record
    assert (found["status"], found["message"], "pausedAt" in record) == ("False", "a webhook", before is BEFORE_JOBS)
    if before is BEFORE_JOBS:
        undone = upgrade.admin.patch(pools.pool_path(other), {"spec": {"paused": False}})
        assert upgrade.told_by(resource(events.REFERENCE_UPDATED, undone, "MachineConfigPool")) == []
    assert upgrade.answer("pause-pools", events.POOLS_CLAIMED) == events.POOLS_PAUSED


@proves("MUT-33", "X-6")
def test_a_pool_that_somebody_writes_just_then_is_tried_again_at_once(
    upgrade: Upgrade, spoiled: Functions, faults: Faults
) -> None:
    """Check that a conflict makes the broker redeliver the event, even if another pool was rejected before.

    A rejection alone would be left to the next tick.
    """
    upgrade.add_pool("green")
    upgrade.start()
    upgrade.unpause("blue", "green")
    spoil = {"patch machineconfigpools 1": Fault(403, "a webhook"), "patch machineconfigpools 2": Fault(409, "again")}
    faults.spoil(spoil.get)
    assert spoiled.post("pause-pools", upgrade.said(events.POOLS_CLAIMED)).status_code == 503
    faults.speak_again()


@pytest.mark.slow
@proves("MUT-33", "X-6")
def test_a_pool_whose_write_hangs_leaves_the_others_their_turn(
    upgrade: Upgrade, spoiled: Functions, faults: Faults
) -> None:
    """Check that a pool whose write hangs does not keep the others from being paused and recorded.

    The broker redelivers the event.
    """
    upgrade.add_pool("green")
    upgrade.start()
    upgrade.unpause("blue", "green")
    faults.spoil(lambda request: SILENCE if request == "patch machineconfigpools 1" else None)
    assert spoiled.post("pause-pools", upgrade.said(events.POOLS_CLAIMED)).status_code == 503
    faults.speak_again()

    assert [pools.is_paused(upgrade.pool(name)) for name in ("blue", "green")] == [False, True]
    assert list(upgrade.status()["record"]["pausedAgain"]) == ["green"]
    assert upgrade.answer("pause-pools", events.POOLS_CLAIMED) == events.POOLS_PAUSED


@pytest.mark.slow
@proves("MUT-33", "X-6")
def test_a_pool_whose_write_is_slow_has_nearly_all_of_the_time_when_it_is_the_only_one(
    upgrade: Upgrade, spoiled: Functions, faults: Faults
) -> None:
    """Check that the only pool to be written may use nearly all of the step's time; a paused pool does not count.

    An admission webhook may take more than half of that time.
    """
    upgrade.add_pool("green")
    upgrade.start()
    upgrade.unpause("blue")
    with faults.slow("patch machineconfigpools 1", SECONDS_TO_ANSWER / 2 + 0.05):
        assert spoiled.post("pause-pools", upgrade.said(events.POOLS_CLAIMED)).status_code == 200

    assert list(upgrade.status()["record"]["pausedAgain"]) == ["blue"]


@proves("MUT-44")
@pytest.mark.parametrize(
    "more",
    [{"startedAt": "2026-01-01T00:00:00Z"}, {"startedAt": "2099-01-01T00:00:00Z", "turnAt": "2026-01-01T00:00:00Z"}],
    ids=["it began earlier", "it has the turn"],
)
def test_a_run_over_other_pools_is_waited_for(upgrade: Upgrade, more: dict[str, str]) -> None:
    """Check that a run waits for an active run over other pools, and continues when that is finished.

    No pool is paused meanwhile, and the condition names the other run.
    """
    upgrade.judge()
    upgrade.through(*BEGIN)
    other = upgrade.other_under_way(**more)

    waited = upgrade.answer("pause-pools", events.POOLS_CLAIMED)
    found, paused = condition(upgrade.again(upgrade.run), "TargetPoolsPaused"), upgrade.pool("blue")["spec"]["paused"]
    done = {"status": {"record": {"finishedAt": "2026-01-01T01:00:00Z"}}}
    upgrade.admin.patch(f"{path(other)}/status", done)

    assert (waited, paused, found["status"]) == ("", False, "False")
    assert "/other under way" in found["message"]
    assert upgrade.answer("pause-pools", events.POOLS_CLAIMED) == events.POOLS_PAUSED
    assert upgrade.status()["record"]["turnAt"]


@proves("MUT-44")
def test_of_two_that_take_the_turn_at_once_neither_goes_on(upgrade: Upgrade) -> None:
    """Check that of two runs that take the turn at the same time both withdraw.

    Each run sees the other when it checks all runs again. At the next tick, the run that began first takes the turn.
    """
    upgrade.judge()
    upgrade.through(*BEGIN)
    upgrade.admin.patch(
        f"{path(upgrade.run)}/status", {"status": {"record": {"turnAt": "2026-01-01T00:00:00Z"}}}
    )  # the process was killed before it checked the other runs again
    other = upgrade.other_under_way(startedAt="2099-01-01T00:00:00Z", turnAt="2026-01-01T00:00:00Z")

    assert upgrade.answer("pause-pools", events.POOLS_CLAIMED) == ""
    assert "turnAt" not in upgrade.status()["record"]
    upgrade.admin.patch(f"{path(other)}/status", {"status": {"record": {"turnAt": None}}})
    assert upgrade.answer("pause-pools", events.POOLS_CLAIMED) == events.POOLS_PAUSED
