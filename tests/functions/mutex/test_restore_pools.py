"""Tests of `restore-pools`, which restores the state before the run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cloudevents.core.base import BaseCloudEvent

from eventing import events
from eventing.events import Reference
from functions.mutex import resync_runs
from functions.serving.handler import SECONDS_TO_ANSWER
from kube.mutex import run_record
from kube.mutex.node_labels import is_released, run_of
from kube.mutex.objects import RUN, RUN_LABEL, condition, has_finalizer, path
from kube.mutex.pools import POOLS, claimed_by, pool_path
from kube.mutex.run_record import Stage
from kube.mutex.versions import WORKER
from kube.paths import Object
from tests.fault_proxy import SILENCE, Fault, Faults
from tests.functions.conftest import DELIVERIES, Functions
from tests.functions.mutex.conftest import BEFORE_JOBS, Upgrade
from tests.openshift import pool
from tests.proofs import proves


def spec(upgrade: Upgrade) -> dict[str, Object]:
    return {name: upgrade.pool(name)["spec"] for name in ("blue", "canary")}


@proves("MUT-51", "MUT-49")
@pytest.mark.parametrize("count", range(3, len(BEFORE_JOBS) + 1))
def test_a_run_that_is_deleted_early_gives_everything_back(upgrade: Upgrade, count: int) -> None:
    """Check that a run that is deleted before its first Job restores everything, whichever step was the last."""
    upgrade.judge()
    upgrade.through(*BEFORE_JOBS[:count])
    upgrade.admin.run(upgrade.admin.api.request("DELETE", path(upgrade.run)))
    assert upgrade.answer("check-run", events.RUN_FOUND) == events.RUN_ENDED
    assert upgrade.answer("restore-pools", events.RUN_ENDED) == events.RUN_FINISHED
    assert spec(upgrade) == upgrade.before
    assert all(is_released(upgrade.node(name)) and not run_of(upgrade.node(name)) for name in upgrade.nodes)
    assert {claimed_by(upgrade.pool(name)) for name in upgrade.before} == {""}
    assert upgrade.answer("restore-pools", events.RUN_ENDED) == ""


def strays_told(upgrade: Upgrade) -> dict[str, BaseCloudEvent]:
    """Map the name of each orphaned node to the `run.ended` that a tick emits for it."""
    ended = [reply for reply in upgrade.told_by_a_tick() if reply.get_type() == events.RUN_ENDED]
    return {str(reply.get_extension("node")): reply for reply in ended}


def cleared(upgrade: Upgrade) -> None:
    """Advance the run until the first node's Jobs are complete, and the node is not released yet."""
    upgrade.start()
    upgrade.answer("run-job", events.POOLS_EDITED)
    upgrade.end(upgrade.jobs()[-1])
    assert upgrade.answer("run-job", events.JOB_DUE) == events.NODE_CLEARED


def done(upgrade: Upgrade) -> None:
    """Advance the run until all nodes are done, and the pools are not restored yet."""
    upgrade.start()
    cleaned = {name: {"cleanedAt": "2026-01-01T00:00:00Z"} for name in upgrade.nodes}
    upgrade.admin.patch(f"{path(upgrade.run)}/status", {"status": {"record": {"nodes": cleaned}}})


@pytest.mark.slow
@proves("MUT-51", "MUT-49")
@pytest.mark.parametrize(("bring", "stage"), [(cleared, Stage.CLEARED), (done, Stage.DONE)])
def test_a_run_that_is_deleted_between_two_nodes_gives_everything_back(
    upgrade: Upgrade, bring: Callable[[Upgrade], None], stage: Stage
) -> None:
    """Check that a run that is deleted between two nodes restores everything, and that late events do nothing.

    A run is in these stages only for a moment.
    """
    bring(upgrade)
    assert run_record.stage(upgrade.again(upgrade.run), lambda rule: True) is stage
    upgrade.admin.run(upgrade.admin.api.request("DELETE", path(upgrade.run)))
    assert upgrade.answer("release-node", events.NODE_CLEARED) == ""
    assert upgrade.answer("check-run", events.RUN_FOUND) == events.RUN_ENDED
    assert upgrade.answer("restore-pools", events.RUN_ENDED) == events.RUN_FINISHED
    assert spec(upgrade) == upgrade.before
    assert all(is_released(upgrade.node(name)) and not run_of(upgrade.node(name)) for name in upgrade.nodes)
    assert upgrade.answer("release-node", events.NODE_CLEARED) == ""


@pytest.mark.slow
@proves("MUT-51", "MUT-34")
def test_after_a_deletion_a_pool_that_was_paused_before_stays_so(upgrade: Upgrade) -> None:
    """Check that after a deletion a pool stays paused that an administrator had paused before the run."""
    upgrade.admin.patch(pool_path("blue"), {"spec": {"paused": True}})
    upgrade.start()
    upgrade.admin.run(upgrade.admin.api.request("DELETE", path(upgrade.run)))
    assert upgrade.answer("restore-pools", events.RUN_ENDED) == events.RUN_FINISHED
    assert upgrade.pool("blue")["spec"]["paused"] is True
    assert upgrade.pool("blue")["spec"]["nodeSelector"] == upgrade.before["blue"]["nodeSelector"]


@proves("X-2", "MUT-44")
def test_a_run_under_way_is_not_ended_by_an_event(upgrade: Upgrade) -> None:
    """Check that neither `run.ended` nor `run.completed` restores the pools of an active run."""
    upgrade.start()
    edited = spec(upgrade)
    assert upgrade.answer("restore-pools", events.RUN_ENDED) == ""
    assert upgrade.answer("restore-pools", events.RUN_COMPLETED) == ""
    assert spec(upgrade) == edited
    assert has_finalizer(upgrade.again(upgrade.run))


@proves("MUT-49")
def test_without_a_record_the_form_of_the_document_is_restored(upgrade: Upgrade) -> None:
    """Check that a run without a record restores the selectors that document 004 describes.

    The canary gets `isCanary Exists` again, and the target pool loses the run's expressions.
    """
    upgrade.start()
    upgrade.admin.patch(f"{path(upgrade.run)}/status", {"status": {"record": None}})
    assert upgrade.answer("restore-pools", events.RUN_ENDED) == events.RUN_FINISHED
    found = {name: upgrade.pool(name)["spec"]["nodeSelector"] for name in upgrade.before}
    assert found == {name: before["nodeSelector"] for name, before in upgrade.before.items()}


@proves("MUT-49", "MUT-51")
def test_a_pool_that_lost_its_claim_is_given_back_too(upgrade: Upgrade) -> None:
    """Check that a pool whose claim another client removed during the run is restored too."""
    upgrade.start()
    upgrade.admin.patch(pool_path("blue"), {"metadata": {"annotations": None}})
    upgrade.admin.delete(path(upgrade.run), uid=upgrade.run["metadata"]["uid"])

    assert upgrade.answer("restore-pools", events.RUN_ENDED) == events.RUN_FINISHED

    assert spec(upgrade) == upgrade.before


@proves("MUT-49", "MUT-51")
@pytest.mark.parametrize("is_there", [False, True])
def test_a_pool_with_the_claim_of_a_run_config_that_has_no_run_is_given_back_too(
    upgrade: Upgrade, is_there: bool
) -> None:
    """Check that a pool is restored although its claim names a run config without a run.

    A user may have applied a manifest of the pool from an earlier run.
    """
    upgrade.start()
    claim = {RUN_LABEL: upgrade.owner(is_there=is_there)}
    upgrade.admin.patch(pool_path("blue"), {"metadata": {"annotations": claim}})
    upgrade.admin.delete(path(upgrade.run), uid=upgrade.run["metadata"]["uid"])

    assert upgrade.answer("restore-pools", events.RUN_ENDED) == events.RUN_FINISHED

    assert spec(upgrade) == upgrade.before
    assert claimed_by(upgrade.pool("blue")) == ""


@proves("MUT-1", "MUT-51")
def test_a_deletion_that_hangs_says_why_and_only_once(upgrade: Upgrade, spoiled: Functions, faults: Faults) -> None:
    """Check that the condition of a stuck deletion names the rejected verb, and is written only once.

    Each write of the status causes an event that retries the step, so a write per attempt would loop.
    """
    upgrade.start()
    upgrade.admin.delete(path(upgrade.run), uid=upgrade.run["metadata"]["uid"])
    faults.spoil(lambda request: Fault(403, f"cannot {request}") if request.startswith("patch nodes") else None)
    for _ in range(2):
        assert spoiled.answer("restore-pools", upgrade.said(events.RUN_ENDED)) is None
        found = condition(upgrade.again(upgrade.run), "MCPUpdated")
        assert (found["status"], found["reason"]) == ("False", "UpdateFailed")
        assert found["message"].startswith("cannot patch nodes")
        told = upgrade.again(upgrade.run)["metadata"]["resourceVersion"]
    faults.spoil(lambda request: Fault(403, "cannot list nodes") if request.startswith("list nodes") else None)
    assert spoiled.answer("restore-pools", upgrade.said(events.RUN_ENDED)) is None
    assert upgrade.again(upgrade.run)["metadata"]["resourceVersion"] == told
    faults.speak_again()
    assert upgrade.answer("restore-pools", events.RUN_ENDED) == events.RUN_FINISHED
    assert spec(upgrade) == upgrade.before


def deleted(upgrade: Upgrade) -> str:
    """Delete the run during its Jobs; return the type of the event that restores it."""
    upgrade.start()
    upgrade.admin.delete(path(upgrade.run), uid=upgrade.run["metadata"]["uid"])
    return events.RUN_ENDED


def completed(upgrade: Upgrade) -> str:
    """Complete the run's last node; return the type of the event that restores the pools."""
    done(upgrade)
    upgrade.answer("run-job", events.NODE_CLEANED)
    return events.RUN_COMPLETED


@pytest.mark.slow
@proves("MUT-49", "MUT-51", "MUT-1")
@pytest.mark.parametrize(("refused", "other"), [("blue", "green"), ("green", "blue")])
@pytest.mark.parametrize("bring", [deleted, completed])
@pytest.mark.parametrize("what", ["its selector", "its release"])
def test_a_pool_that_is_refused_keeps_no_other_one_from_being_given_back(
    upgrade: Upgrade,
    spoiled: Functions,
    faults: Faults,
    what: str,
    bring: Callable[[Upgrade], str],
    refused: str,
    other: str,
) -> None:
    """Check that a rejected pool does not keep the others from being restored, but delays the end of the run.

    An administrator's later change of a restored pool stays.
    """
    upgrade.add_pool("green")
    before = {**upgrade.before, "green": upgrade.pool("green")["spec"]}
    said = upgrade.said(bring(upgrade))
    number = {"its selector": 2, "its release": 5}[what] + sorted((refused, other)).index(refused)
    spoil = f"patch machineconfigpools {number}"
    faults.spoil(lambda request: Fault(403, "a webhook") if request == spoil else None)
    assert spoiled.answer("restore-pools", said) is None
    faults.speak_again()

    found, claim = {name: upgrade.pool(name) for name in before}, upgrade.run["metadata"]["uid"]
    assert {name: claimed_by(pool) for name, pool in found.items()} == {"canary": "", other: "", refused: claim}
    assert {name: found[name]["spec"] for name in ("canary", other)} == {n: before[n] for n in ("canary", other)}
    assert found[refused]["spec"]["paused"] is True
    assert all(is_released(upgrade.node(name)) is (what == "its release") for name in upgrade.nodes)
    again, told = upgrade.again(upgrade.run), condition(upgrade.again(upgrade.run), "MCPUpdated")
    assert (told["status"], told["message"], has_finalizer(again)) == ("False", "a webhook", True)
    assert sorted(upgrade.status()["record"]["restored"]) == sorted(["canary", other])

    upgrade.admin.patch(pool_path(other), {"spec": {"paused": True}})
    assert upgrade.answer("restore-pools", str(said.get_type())) == events.RUN_FINISHED
    assert {name: upgrade.pool(name)["spec"] for name in before} == {**before, other: {**before[other], "paused": True}}
    assert all(is_released(upgrade.node(name)) and not run_of(upgrade.node(name)) for name in upgrade.nodes)


@proves("MUT-49", "MUT-51", "X-3")
def test_what_is_edited_again_once_it_was_given_back_is_given_back_again(
    upgrade: Upgrade, spoiled: Functions, faults: Faults
) -> None:
    """Check that a restored canary is restored again if a user applies a manifest with the run's selector.

    A canary with that selector would select each node whose labels are removed.
    """
    upgrade.start()
    edited = upgrade.pool("canary")["spec"]
    upgrade.admin.delete(path(upgrade.run), uid=upgrade.run["metadata"]["uid"])
    faults.spoil(lambda request: Fault(403, "a webhook") if request == "patch machineconfigpools 2" else None)
    assert spoiled.answer("restore-pools", upgrade.said(events.RUN_ENDED)) is None
    faults.speak_again()
    assert list(upgrade.status()["record"]["restored"]) == ["canary"]
    upgrade.admin.patch(pool_path("canary"), {"spec": edited})

    assert upgrade.answer("restore-pools", events.RUN_ENDED) == events.RUN_FINISHED

    assert spec(upgrade) == upgrade.before


@proves("MUT-44", "MUT-49", "MUT-51")
@pytest.mark.parametrize("bring", [deleted, completed])
def test_while_the_canary_is_refused_all_else_stays_as_the_run_has_it(
    upgrade: Upgrade, spoiled: Functions, faults: Faults, bring: Callable[[Upgrade], str]
) -> None:
    """Check that nothing else is restored while the canary's write is rejected.

    The canary would select each node whose labels are removed. A released node would belong to two pools if its own
    pool were restored.
    """
    kind = bring(upgrade)
    edited = spec(upgrade)
    faults.spoil(lambda request: Fault(403, "a webhook") if request == "patch machineconfigpools 1" else None)
    assert spoiled.answer("restore-pools", upgrade.said(kind)) is None
    faults.speak_again()

    assert spec(upgrade) == edited
    assert not any(is_released(upgrade.node(name)) for name in upgrade.nodes)
    assert upgrade.answer("restore-pools", kind) == events.RUN_FINISHED
    assert spec(upgrade) == upgrade.before


@proves("MUT-49", "MUT-51", "MUT-1")
def test_a_node_that_is_refused_keeps_no_pool_from_being_given_back(
    upgrade: Upgrade, spoiled: Functions, faults: Faults
) -> None:
    """Check that a rejected node does not keep the pools from being restored, but delays the end of the run.

    The selectors are restored first, so the node's labels have no effect any more.
    """
    kind = deleted(upgrade)
    faults.spoil(lambda request: Fault(403, "a webhook") if request == "patch nodes 1" else None)
    assert spoiled.answer("restore-pools", upgrade.said(kind)) is None
    faults.speak_again()

    assert spec(upgrade) == upgrade.before
    assert {claimed_by(upgrade.pool(name)) for name in upgrade.before} == {""}
    assert sorted(is_released(upgrade.node(name)) for name in upgrade.nodes) == [False, True]
    assert has_finalizer(upgrade.again(upgrade.run))
    assert upgrade.answer("restore-pools", kind) == events.RUN_FINISHED
    assert all(is_released(upgrade.node(name)) for name in upgrade.nodes)


@pytest.mark.slow
@proves("MUT-49", "MUT-51", "X-6")
@pytest.mark.parametrize(
    ("hangs", "others"),
    [("patch machineconfigpools 2", ["canary", "green"]), ("patch nodes 1", ["blue", "canary", "green"])],
)
def test_a_write_that_hangs_leaves_other_pools_their_turn(
    upgrade: Upgrade, spoiled: Functions, faults: Faults, hangs: str, others: list[str]
) -> None:
    """Check that a hanging write of a pool or a node does not keep other pools from being restored.

    The broker redelivers the event.
    """
    upgrade.add_pool("green")
    before = {**upgrade.before, "green": upgrade.pool("green")["spec"]}
    kind = deleted(upgrade)
    faults.spoil(lambda request: SILENCE if request == hangs else None)
    for _ in range(DELIVERIES):
        assert spoiled.post("restore-pools", upgrade.said(kind)).status_code == 503
        if not any(claimed_by(upgrade.pool(name)) for name in others):
            break
    faults.speak_again()

    assert [name for name in sorted(before) if not claimed_by(upgrade.pool(name))] == others
    assert {name: upgrade.pool(name)["spec"] for name in others} == {name: before[name] for name in others}
    assert sorted(upgrade.status()["record"]["restored"]) == others
    assert upgrade.answer("restore-pools", kind) == events.RUN_FINISHED


@proves("MUT-49", "MUT-51", "X-6")
def test_a_canary_whose_write_is_slow_has_nearly_all_of_the_time(
    upgrade: Upgrade, spoiled: Functions, faults: Faults
) -> None:
    """Check that the canary's write may use nearly all of the step's time, because the targets wait for it anyway.

    An admission webhook may take more than half of that time.
    """
    kind = deleted(upgrade)
    with faults.slow("patch machineconfigpools 1", SECONDS_TO_ANSWER / 2 + 0.05):
        spoiled.post("restore-pools", upgrade.said(kind))

    assert upgrade.pool("blue")["spec"]["nodeSelector"] == upgrade.before["blue"]["nodeSelector"]


@proves("MUT-44", "X-2")
def test_a_late_event_does_not_write_over_the_next_claim(upgrade: Upgrade, spoiled: Functions, faults: Faults) -> None:
    """Check that a late event does not restore pools that the run config claims for its next run meanwhile."""
    upgrade.judge()
    found = upgrade.through("check-run", "detect-upgrade")
    asked: list[str] = []

    def claims_before_the_second(request: str) -> None:
        asked.append(request)
        if len(asked) == 2:
            assert upgrade.functions.answer("claim-pools", found) is not None

    faults.spoil(claims_before_the_second)
    assert spoiled.post("restore-pools", upgrade.said(events.RUN_ENDED)).status_code == 204
    faults.speak_again()

    assert len(asked) >= 2
    assert {claimed_by(upgrade.pool(name)) for name in upgrade.before} == {upgrade.run["metadata"]["uid"]}
    assert "finishedAt" not in upgrade.status()["record"]


@proves("MUT-49", "X-2")
def test_what_comes_late_takes_no_pool_that_was_given_back(
    upgrade: Upgrade, spoiled: Functions, faults: Faults
) -> None:
    """Check that late events do not pause or edit pools that are being restored.

    Otherwise a pool of a finished run could stay paused.
    """
    done(upgrade)
    upgrade.answer("run-job", events.NODE_CLEANED)
    shown = {"status": {"step": Stage.DONE.value, "progress": None, "job": None}}  # written at the end of the last node
    upgrade.admin.patch(f"{path(upgrade.run)}/status", shown)

    def says_again_before_the_end(request: str) -> None:
        if request == "patch mutexrunconfigs/status 1":
            assert upgrade.answer("pause-pools", events.POOLS_CLAIMED) == ""
            assert upgrade.answer("edit-pools", events.NODES_LABELLED) == ""

    faults.spoil(says_again_before_the_end)
    reply = spoiled.answer("restore-pools", upgrade.said(events.RUN_COMPLETED))
    faults.speak_again()

    assert reply is not None
    assert upgrade.status()["step"] == "Finished"
    assert spec(upgrade) == upgrade.before
    assert {claimed_by(upgrade.pool(name)) for name in upgrade.before} == {""}


@proves("MUT-34", "MUT-49")
def test_at_the_end_of_a_run_a_pool_that_was_paused_before_goes_on(upgrade: Upgrade) -> None:
    """Check that a completed run also unpauses a pool that was paused before the run.

    Step 7 of document 004 unpauses all target pools. Only a deleted run leaves such a pool paused.
    """
    upgrade.admin.patch(pool_path("blue"), {"spec": {"paused": True}})
    done(upgrade)
    assert upgrade.pool("blue")["spec"]["paused"] is True
    assert upgrade.answer("restore-pools", events.RUN_COMPLETED) == events.RUN_FINISHED
    assert upgrade.pool("blue")["spec"] == upgrade.before["blue"]


@proves("MUT-34", "MUT-51")
def test_a_run_that_never_began_leaves_an_administrators_pause(upgrade: Upgrade) -> None:
    """Check that a run that has only claimed its pools leaves a pool paused that an administrator has paused."""
    upgrade.start()
    done = {name: {"cleanedAt": "2026-01-01T00:00:00Z"} for name in upgrade.nodes}
    upgrade.admin.patch(f"{path(upgrade.run)}/status", {"status": {"record": {"nodes": done}}})
    assert upgrade.answer("restore-pools", events.RUN_COMPLETED) == events.RUN_FINISHED
    claim = {"annotations": {RUN_LABEL: upgrade.run["metadata"]["uid"]}}
    upgrade.admin.patch(pool_path("blue"), {"metadata": claim, "spec": {"paused": True}})

    assert upgrade.answer("restore-pools", events.RUN_ENDED) == events.RUN_FINISHED

    assert upgrade.pool("blue")["spec"]["paused"] is True
    assert claimed_by(upgrade.pool("blue")) == ""


@proves("MUT-49", "MUT-51", "X-3")
def test_what_was_labelled_too_late_is_given_back_by_a_tick(
    upgrade: Upgrade, spoiled: Functions, faults: Faults
) -> None:
    """Check that a tick removes labels that were written after the run was deleted and its pools restored.

    The patches of the labels were in flight at that time.
    """
    upgrade.judge()
    paused = upgrade.through(*BEFORE_JOBS[:4])

    def ends_before_the_first_label(request: str) -> None:
        if request == "patch nodes 1":
            upgrade.admin.delete(path(upgrade.run), uid=upgrade.run["metadata"]["uid"])
            assert upgrade.answer("restore-pools", events.RUN_ENDED) == events.RUN_FINISHED

    faults.spoil(ends_before_the_first_label)
    spoiled.post("label-nodes", paused)
    faults.speak_again()
    assert {run_record.uid_of_id(run_of(upgrade.node(name))) for name in upgrade.nodes} == {
        upgrade.run["metadata"]["uid"]
    }

    ended = strays_told(upgrade)
    assert sorted(ended) == upgrade.nodes
    for reply in ended.values():
        assert upgrade.functions.answer("restore-pools", reply) is None
    assert all(is_released(upgrade.node(name)) and not run_of(upgrade.node(name)) for name in upgrade.nodes)
    assert strays_told(upgrade) == {}


@proves("MUT-44", "X-2")
def test_a_node_of_a_run_under_way_keeps_its_labels_whatever_an_event_says(upgrade: Upgrade) -> None:
    """Check that a `run.ended` for a node removes no labels if the node's run is active.

    The tick that emitted it may have read the runs before that run began.
    """
    upgrade.start()
    said = events.event(events.RUN_ENDED, "test", events.Reference.of(upgrade.run), upgrade.nodes[0])
    assert upgrade.functions.answer("restore-pools", said) is None
    assert not is_released(upgrade.node(upgrade.nodes[0]))


def vanished(upgrade: Upgrade) -> None:
    """Remove the run config's finalizer, as `kubectl replace` does, and delete the run config at once."""
    upgrade.admin.patch(path(upgrade.run), {"metadata": {"finalizers": None}})
    upgrade.admin.delete(path(upgrade.run), uid=upgrade.run["metadata"]["uid"])


@proves("MUT-44", "MUT-51", "X-3")
def test_the_pools_of_a_run_that_vanished_are_given_back_before_its_first_node(upgrade: Upgrade) -> None:
    """Check that the pools of a run that no longer exists are restored before a node loses its labels.

    Otherwise the run's canary would select all nodes at once. Paused pools stay paused, because no user has approved an
    upgrade.
    """
    upgrade.start()
    vanished(upgrade)

    ended = strays_told(upgrade)
    assert sorted(ended) == upgrade.nodes
    upgrade.functions.answer("restore-pools", ended[upgrade.nodes[0]])

    first, second = (upgrade.node(name) for name in upgrade.nodes)
    assert (is_released(first), is_released(second)) == (True, False)
    assert spec(upgrade) == {**upgrade.before, "blue": {**upgrade.before["blue"], "paused": True}}
    assert {claimed_by(upgrade.pool(name)) for name in upgrade.before} == {""}


@proves("MUT-44", "MUT-51")
def test_a_pool_of_a_run_that_vanished_keeps_no_other_one_from_being_given_back(
    upgrade: Upgrade, spoiled: Functions, faults: Faults
) -> None:
    """Check that a rejected pool of a run that no longer exists does not keep the others from being restored.

    The node keeps its labels until all pools are restored, since without them it would belong to no pool.
    """
    upgrade.add_pool("green")
    before = upgrade.pool("green")["spec"]
    upgrade.start()
    vanished(upgrade)
    ended = strays_told(upgrade)[upgrade.nodes[0]]
    faults.spoil(lambda request: Fault(403, "a webhook") if request == "patch machineconfigpools 3" else None)
    assert spoiled.answer("restore-pools", ended) is None
    faults.speak_again()

    assert (upgrade.pool("green")["spec"], claimed_by(upgrade.pool("green"))) == ({**before, "paused": True}, "")
    assert claimed_by(upgrade.pool("blue")) == upgrade.run["metadata"]["uid"]
    assert not is_released(upgrade.node(upgrade.nodes[0]))
    upgrade.functions.answer("restore-pools", ended)
    assert is_released(upgrade.node(upgrade.nodes[0]))


@proves("MUT-44", "MUT-51")
def test_while_the_canary_of_a_run_that_vanished_is_refused_its_targets_stay_edited(
    upgrade: Upgrade, spoiled: Functions, faults: Faults
) -> None:
    """Check that the targets of a run that no longer exists are not restored while its canary's write is rejected.

    The released nodes still belong to the canary, and would belong to two pools.
    """
    upgrade.start()
    vanished(upgrade)
    ended, edited = strays_told(upgrade)[upgrade.nodes[0]], spec(upgrade)
    faults.spoil(lambda request: Fault(403, "a webhook") if request == "patch machineconfigpools 1" else None)
    assert spoiled.answer("restore-pools", ended) is None
    faults.speak_again()

    assert spec(upgrade) == edited
    assert not is_released(upgrade.node(upgrade.nodes[0]))
    upgrade.functions.answer("restore-pools", ended)
    assert spec(upgrade) == {**upgrade.before, "blue": {**upgrade.before["blue"], "paused": True}}
    assert is_released(upgrade.node(upgrade.nodes[0]))


@proves("MUT-44", "MUT-51")
def test_a_node_keeps_its_labels_while_another_runs_canary_would_have_it(upgrade: Upgrade) -> None:
    """Check that an orphaned node keeps its labels while another run's canary would select it.

    The run config was created again before a tick, and its new run has claimed the pools with the edited selectors.
    """
    upgrade.start()
    vanished(upgrade)
    left = events.event(events.RUN_ENDED, "test", Reference.of(upgrade.run), upgrade.nodes[0])
    upgrade.run = upgrade.create(RUN, "example", upgrade.run["spec"])
    upgrade.through(*BEFORE_JOBS[:3])

    assert upgrade.functions.answer("restore-pools", left) is None
    assert strays_told(upgrade) == {}

    assert not is_released(upgrade.node(upgrade.nodes[0]))
    assert {claimed_by(upgrade.pool(name)) for name in upgrade.before} == {upgrade.run["metadata"]["uid"]}


@proves("MUT-51", "X-3")
def test_nodes_of_a_run_that_vanished_are_told_some_a_tick(upgrade: Upgrade, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that each tick emits a limited number of events for orphaned nodes, in rotation.

    A node whose labels cannot be removed therefore does not block the others.
    """
    monkeypatch.setattr(resync_runs, "STRAYS", 1)
    upgrade.start()
    vanished(upgrade)

    told = [list(strays_told(upgrade)) for _ in upgrade.nodes]

    assert sorted(told) == [[name] for name in upgrade.nodes]


@proves("MUT-34")
def test_a_pool_that_the_run_never_had_keeps_its_pause_at_the_end(upgrade: Upgrade) -> None:
    """Check that the end of a run does not unpause a pool that is claimed but not part of the run.

    It was claimed for a run that never began, and an administrator has paused it since.
    """
    done(upgrade)
    upgrade.admin.create(POOLS, pool("green", {WORKER: "", "role": "green"}))
    claim = {"annotations": {RUN_LABEL: upgrade.run["metadata"]["uid"]}}
    upgrade.admin.patch(pool_path("green"), {"metadata": claim, "spec": {"paused": True}})

    assert upgrade.answer("restore-pools", events.RUN_COMPLETED) == events.RUN_FINISHED

    assert (upgrade.pool("green")["spec"]["paused"], upgrade.pool("blue")["spec"]["paused"]) == (True, False)
    assert claimed_by(upgrade.pool("green")) == ""
