"""The step `restore-pools`: everything is as it was before the run."""

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
from tests.faults import SILENCE, Fault, Faults
from tests.functions.conftest import Functions
from tests.functions.mutex.conftest import BEFORE_JOBS, Upgrade
from tests.openshift import pool
from tests.proofs import proves


def spec(upgrade: Upgrade) -> dict[str, Object]:
    return {name: upgrade.pool(name)["spec"] for name in ("blue", "canary")}


@proves("MUT-51", "MUT-49")
@pytest.mark.parametrize("count", range(3, len(BEFORE_JOBS) + 1))
def test_a_run_that_is_deleted_early_gives_everything_back(upgrade: Upgrade, count: int) -> None:
    """After each of the steps that come before the Jobs: claimed, paused, labelled, edited."""
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
    """Node → the event of a tick that has the labels of a run taken off it which is no more."""
    ended = [reply for reply in upgrade.told_by_a_tick() if reply.get_type() == events.RUN_ENDED]
    return {str(reply.get_extension("node")): reply for reply in ended}


def cleared(upgrade: Upgrade) -> None:
    """The first node's Jobs are complete, and it is not released yet."""
    upgrade.start()
    upgrade.answer("run-job", events.POOLS_EDITED)
    upgrade.end(upgrade.jobs()[-1])
    assert upgrade.answer("run-job", events.JOB_DUE) == events.NODE_CLEARED


def done(upgrade: Upgrade) -> None:
    """All nodes are upgraded and cleaned; everything is still as the run has it."""
    upgrade.start()
    cleaned = {name: {"cleanedAt": "2026-01-01T00:00:00Z"} for name in upgrade.nodes}
    upgrade.admin.patch(f"{path(upgrade.run)}/status", {"status": {"record": {"nodes": cleaned}}})


@pytest.mark.slow
@proves("MUT-51", "MUT-49")
@pytest.mark.parametrize(("bring", "stage"), [(cleared, Stage.CLEARED), (done, Stage.DONE)])
def test_a_run_that_is_deleted_between_two_nodes_gives_everything_back(
    upgrade: Upgrade, bring: Callable[[Upgrade], None], stage: Stage
) -> None:
    """Where a run is for a moment only; what was to follow comes late and does nothing."""
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
    """Whoever paused it lets it go on."""
    upgrade.admin.patch(pool_path("blue"), {"spec": {"paused": True}})
    upgrade.start()
    upgrade.admin.run(upgrade.admin.api.request("DELETE", path(upgrade.run)))
    assert upgrade.answer("restore-pools", events.RUN_ENDED) == events.RUN_FINISHED
    assert upgrade.pool("blue")["spec"]["paused"] is True
    assert upgrade.pool("blue")["spec"]["nodeSelector"] == upgrade.before["blue"]["nodeSelector"]


@proves("X-2", "MUT-44")
def test_a_run_under_way_is_not_ended_by_an_event(upgrade: Upgrade) -> None:
    """Neither of the two kinds, and a pool that another run has is left alone."""
    upgrade.start()
    edited = spec(upgrade)
    assert upgrade.answer("restore-pools", events.RUN_ENDED) == ""
    assert upgrade.answer("restore-pools", events.RUN_COMPLETED) == ""
    assert spec(upgrade) == edited
    assert has_finalizer(upgrade.again(upgrade.run))


@proves("MUT-49")
def test_without_a_record_the_form_of_the_document_is_restored(upgrade: Upgrade) -> None:
    """Somebody emptied the status: the canary has `isCanary Exists` again, the target none of the run's expressions."""
    upgrade.start()
    upgrade.admin.patch(f"{path(upgrade.run)}/status", {"status": {"record": None}})
    assert upgrade.answer("restore-pools", events.RUN_ENDED) == events.RUN_FINISHED
    found = {name: upgrade.pool(name)["spec"]["nodeSelector"] for name in upgrade.before}
    assert found == {name: before["nodeSelector"] for name, before in upgrade.before.items()}


@proves("MUT-49", "MUT-51")
def test_a_pool_that_lost_its_claim_is_given_back_too(upgrade: Upgrade) -> None:
    """Somebody took the annotation off amid the run; pause and selector are the run's all the same."""
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
    """Somebody applied a file that was written amid an earlier run."""
    upgrade.start()
    claim = {RUN_LABEL: upgrade.owner(is_there=is_there)}
    upgrade.admin.patch(pool_path("blue"), {"metadata": {"annotations": claim}})
    upgrade.admin.delete(path(upgrade.run), uid=upgrade.run["metadata"]["uid"])

    assert upgrade.answer("restore-pools", events.RUN_ENDED) == events.RUN_FINISHED

    assert spec(upgrade) == upgrade.before
    assert claimed_by(upgrade.pool("blue")) == ""


@proves("MUT-1", "MUT-51")
def test_a_deletion_that_hangs_says_why_and_only_once(upgrade: Upgrade, spoiled: Functions, faults: Faults) -> None:
    """The verb is in the condition. It is not written anew for each node: a write brings the event that tries again."""
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
    """The run is called off amid its Jobs."""
    upgrade.start()
    upgrade.admin.delete(path(upgrade.run), uid=upgrade.run["metadata"]["uid"])
    return events.RUN_ENDED


def completed(upgrade: Upgrade) -> str:
    """Its last node is done."""
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
    """The run has not ended until all are, and of one that is an administrator does as he likes."""
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
    """By a file that somebody wrote amid the run: a canary that is open would have the nodes as their labels go."""
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
    """It would have each node whose labels go, and a target that is as before those that it has already."""
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
    """Selectors are as before by then, so its labels do nothing; the run has not ended until they are off."""
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
    """That of another pool, or of a node; the broker delivers the event again."""
    upgrade.add_pool("green")
    before = {**upgrade.before, "green": upgrade.pool("green")["spec"]}
    kind = deleted(upgrade)
    faults.spoil(lambda request: SILENCE if request == hangs else None)
    assert spoiled.post("restore-pools", upgrade.said(kind)).status_code == 503
    faults.speak_again()

    assert [name for name in sorted(before) if not claimed_by(upgrade.pool(name))] == others
    assert {name: upgrade.pool(name)["spec"] for name in others} == {name: before[name] for name in others}
    assert sorted(upgrade.status()["record"]["restored"]) == others
    assert upgrade.answer("restore-pools", kind) == events.RUN_FINISHED


@proves("MUT-49", "MUT-51", "X-6")
def test_a_canary_whose_write_is_slow_has_nearly_all_of_the_time(
    upgrade: Upgrade, spoiled: Functions, faults: Faults
) -> None:
    """As behind a webhook that takes more than half of it; the targets wait for it anyway."""
    kind = deleted(upgrade)
    with faults.slow("patch machineconfigpools 1", SECONDS_TO_ANSWER / 2 + 0.05):
        spoiled.post("restore-pools", upgrade.said(kind))

    assert upgrade.pool("blue")["spec"]["nodeSelector"] == upgrade.before["blue"]["nodeSelector"]


@proves("MUT-44", "X-2")
def test_a_late_event_does_not_write_over_the_next_claim(upgrade: Upgrade, spoiled: Functions, faults: Faults) -> None:
    """Between its two readings the run config claims its pools anew: they are its next run's."""
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
    """Amid the return of the pools, before the run is closed: else one stays paused, of a run that is finished."""
    done(upgrade)
    upgrade.answer("run-job", events.NODE_CLEANED)
    shown = {"status": {"step": Stage.DONE.value, "progress": None, "job": None}}  # as the last node's end writes it
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
    """Step 7 of the document unpauses all target pools; a deleted run leaves such a pool paused."""
    upgrade.admin.patch(pool_path("blue"), {"spec": {"paused": True}})
    done(upgrade)
    assert upgrade.pool("blue")["spec"]["paused"] is True
    assert upgrade.answer("restore-pools", events.RUN_COMPLETED) == events.RUN_FINISHED
    assert upgrade.pool("blue")["spec"] == upgrade.before["blue"]


@proves("MUT-34", "MUT-51")
def test_a_run_that_never_began_leaves_an_administrators_pause(upgrade: Upgrade) -> None:
    """The one before is finished; of the next one there are only claims, and nobody paused for it."""
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
    """The run is deleted and everything given back while the patches of its labels are on their way."""
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
    """A tick may have read the runs before it began."""
    upgrade.start()
    said = events.event(events.RUN_ENDED, "test", events.Reference.of(upgrade.run), upgrade.nodes[0])
    assert upgrade.functions.answer("restore-pools", said) is None
    assert not is_released(upgrade.node(upgrade.nodes[0]))


def vanished(upgrade: Upgrade) -> None:
    """Somebody took the finalizer off, as `kubectl replace` does, and deleted the run config: it is gone at once."""
    upgrade.admin.patch(path(upgrade.run), {"metadata": {"finalizers": None}})
    upgrade.admin.delete(path(upgrade.run), uid=upgrade.run["metadata"]["uid"])


@proves("MUT-44", "MUT-51", "X-3")
def test_the_pools_of_a_run_that_vanished_are_given_back_before_its_first_node(upgrade: Upgrade) -> None:
    """Else the open canary would have the nodes as their labels go, all at once. Paused pools stay so: nobody asked."""
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
    """The node keeps its labels until all are: it would be of none of them."""
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
    """The released nodes are the canary's still, and would be of two pools."""
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
    """The run config is created anew before the tick, and has claimed the pools as they were left."""
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
    """In turns, so that one whose labels cannot be taken off keeps no other from it."""
    monkeypatch.setattr(resync_runs, "STRAYS", 1)
    upgrade.start()
    vanished(upgrade)

    told = [list(strays_told(upgrade)) for _ in upgrade.nodes]

    assert sorted(told) == [[name] for name in upgrade.nodes]


@proves("MUT-34")
def test_a_pool_that_the_run_never_had_keeps_its_pause_at_the_end(upgrade: Upgrade) -> None:
    """It was claimed for a run that did not begin, and an administrator has paused it since."""
    done(upgrade)
    upgrade.admin.create(POOLS, pool("green", {WORKER: "", "role": "green"}))
    claim = {"annotations": {RUN_LABEL: upgrade.run["metadata"]["uid"]}}
    upgrade.admin.patch(pool_path("green"), {"metadata": claim, "spec": {"paused": True}})

    assert upgrade.answer("restore-pools", events.RUN_COMPLETED) == events.RUN_FINISHED

    assert (upgrade.pool("green")["spec"]["paused"], upgrade.pool("blue")["spec"]["paused"]) == (True, False)
    assert claimed_by(upgrade.pool("green")) == ""
