"""The step `claim-pools`: pools are claimed, and how they were is recorded, before anything is changed."""

from __future__ import annotations

from eventing import events
from functions.data import data_of
from kube.mutex import pools
from kube.mutex.objects import RULE_LABEL, RUN, condition, has_finalizer, path
from kube.mutex.versions import VERSION_LABEL, WORKER
from kube.nodes import node_path
from tests.faults import SILENCE, Faults
from tests.functions.conftest import Functions
from tests.functions.mutex.conftest import OLD, Upgrade
from tests.proofs import proves

LABEL = f"{RULE_LABEL}only.node-upgrade-mutex-operator"
BEGIN = ("check-run", "detect-upgrade", "claim-pools")


@proves("MUT-34", "MUT-44")
def test_the_record_has_everything_as_it_was(upgrade: Upgrade) -> None:
    """Selectors, pauses, nodes in their order; finalizer and claims are there, and no selector is touched."""
    upgrade.admin.patch(pools.pool_path("blue"), {"spec": {"paused": True}})
    upgrade.judge()
    upgrade.through(*BEGIN)
    record = upgrade.status()["record"]
    assert record["order"] == upgrade.nodes
    assert record["pools"]["blue"]["selector"] == upgrade.before["blue"]["nodeSelector"]
    assert record["pools"]["blue"]["paused"] is True
    assert record["canary"]["selector"] == upgrade.before["canary"]["nodeSelector"]
    assert has_finalizer(upgrade.again(upgrade.run))
    uid = upgrade.run["metadata"]["uid"]
    assert {pools.claimed_by(upgrade.pool(name)) for name in ("blue", "canary")} == {uid}
    assert upgrade.pool("canary")["spec"] == upgrade.before["canary"]


@proves("MUT-44")
def test_a_pool_of_another_run_is_waited_for(upgrade: Upgrade) -> None:
    """The condition names who has it; nothing is recorded."""
    other = upgrade.create(RUN, "other", upgrade.run["spec"])
    claim = {"metadata": {"annotations": {"nodemaintenance.dev/mutex-run": other["metadata"]["uid"]}}}
    upgrade.admin.patch(pools.pool_path("blue"), claim)
    upgrade.judge()
    upgrade.through("check-run", "detect-upgrade")
    assert upgrade.answer("claim-pools", events.UPGRADE_FOUND) == ""
    assert "node-upgrade-mutex-operator/other" in condition(upgrade.again(upgrade.run), "TargetPoolsPaused")["message"]
    assert "record" not in upgrade.status()
    assert pools.claimed_by(upgrade.pool("canary")) == ""


@proves("MUT-44", "MUT-49", "MUT-35")
def test_a_run_that_waits_for_another_ones_end_records_nothing(upgrade: Upgrade) -> None:
    """What is changed meanwhile is how it was before: an administrator's selector, and nodes that came."""
    other = upgrade.other_under_way(startedAt="2026-01-01T00:00:00Z", turnAt="2026-01-01T00:00:00Z")
    upgrade.judge()
    upgrade.through("check-run", "detect-upgrade")
    assert upgrade.answer("claim-pools", events.UPGRADE_FOUND) == ""
    found = upgrade.again(upgrade.run)
    assert "/other under way" in condition(found, "TargetPoolsPaused")["message"]
    assert ("record" in found["status"], has_finalizer(found), pools.claimed_by(upgrade.pool("blue"))) == (
        False,
        False,
        "",
    )
    assert said_of(upgrade) == []

    changed = {"matchExpressions": [{"key": WORKER, "operator": "Exists"}]}
    upgrade.admin.patch(pools.pool_path("blue"), {"spec": {"nodeSelector": changed}})
    upgrade.admin.patch(f"{path(other)}/status", {"status": {"record": {"finishedAt": "2026-01-01T01:00:00Z"}}})
    assert said_of(upgrade) == [events.UPGRADE_FOUND]
    assert upgrade.answer("claim-pools", events.UPGRADE_FOUND) == events.POOLS_CLAIMED
    assert upgrade.status()["record"]["pools"]["blue"]["selector"] == upgrade.pool("blue")["spec"]["nodeSelector"]


def said_of(upgrade: Upgrade) -> list[str]:
    """What a tick says of the run config, and of no other."""
    name = upgrade.run["metadata"]["name"]
    return [reply.get_type() for reply in upgrade.told_by_a_tick() if data_of(reply)["run"]["name"] == name]


@proves("MUT-44")
def test_what_a_run_that_is_gone_has_claimed_is_free(upgrade: Upgrade) -> None:
    """Somebody took its finalizer off: its claim keeps nobody waiting."""
    claim = {"metadata": {"annotations": {"nodemaintenance.dev/mutex-run": "gone"}}}
    upgrade.admin.patch(pools.pool_path("blue"), claim)
    upgrade.judge()
    upgrade.through(*BEGIN)
    assert pools.claimed_by(upgrade.pool("blue")) == upgrade.run["metadata"]["uid"]


@proves("MUT-38")
def test_a_worker_outside_all_targets_is_named(upgrade: Upgrade) -> None:
    """It carries no label, and so the canary would take it."""
    upgrade.label(upgrade.nodes[1], {"role": "green", WORKER: "", VERSION_LABEL: OLD})
    upgrade.judge()
    upgrade.through(*BEGIN)
    found = condition(upgrade.again(upgrade.run), "WorkersOutsideTargets")
    assert (found["status"], upgrade.nodes[1] in found["message"]) == ("True", True)
    told = upgrade.admin.list("/api/v1/namespaces/node-upgrade-mutex-operator/events")["items"]
    assert any(each["reason"] == "WorkersNotGated" and upgrade.nodes[1] in each["message"] for each in told)
    assert upgrade.admin.get(node_path(upgrade.nodes[1]))["metadata"]["labels"]["role"] == "green"


@proves("X-2")
def test_a_second_event_claims_nothing_anew(upgrade: Upgrade) -> None:
    """It answers as the first one: the record stays."""
    upgrade.judge()
    upgrade.through(*BEGIN)
    before = upgrade.again(upgrade.run)["metadata"]["resourceVersion"]
    assert upgrade.answer("claim-pools", events.UPGRADE_FOUND) == events.POOLS_CLAIMED
    assert upgrade.again(upgrade.run)["metadata"]["resourceVersion"] == before


@proves("MUT-49", "MUT-35")
def test_what_a_run_that_vanished_has_edited_is_not_recorded_as_before(upgrade: Upgrade) -> None:
    """Its pools are claimed before a tick has given them back; one of its nodes has lost its labels since."""
    upgrade.start()
    upgrade.admin.patch(path(upgrade.run), {"metadata": {"finalizers": None}})
    upgrade.admin.delete(path(upgrade.run), uid=upgrade.run["metadata"]["uid"])
    upgrade.label(upgrade.nodes[0], {LABEL: None})
    upgrade.run = upgrade.create(RUN, "example", upgrade.run["spec"])

    upgrade.through(*BEGIN)

    record = upgrade.status()["record"]
    found = {"blue": record["pools"]["blue"]["selector"], "canary": record["canary"]["selector"]}
    assert found == {name: before["nodeSelector"] for name, before in upgrade.before.items()}
    assert record["order"] == upgrade.nodes


@proves("MUT-51")
def test_a_run_under_way_gets_its_finalizer_back(upgrade: Upgrade) -> None:
    """`kubectl replace` of its own file took it off; a deletion would let the object go with nothing given back."""
    upgrade.start()
    upgrade.admin.patch(path(upgrade.run), {"metadata": {"finalizers": None}})

    found, _ = upgrade.told_by_a_tick()  # beside it the Job is due
    assert found.get_type() == events.UPGRADE_FOUND
    assert upgrade.functions.answer("claim-pools", found) is None

    assert has_finalizer(upgrade.again(upgrade.run))
    assert [reply.get_type() for reply in upgrade.told_by_a_tick()] == [events.JOB_DUE]


@proves("MUT-44")
def test_who_has_claimed_a_pool_is_among_the_runs_that_are_read(
    upgrade: Upgrade, spoiled: Functions, faults: Faults
) -> None:
    """Runs are asked for once the pools are known: one that claimed since has not been taken for one that is gone."""
    upgrade.judge()
    found = upgrade.through("check-run", "detect-upgrade")
    faults.spoil(lambda request: SILENCE if request == "list machineconfigpools 1" else None)
    assert spoiled.post("claim-pools", found).status_code == 503
    assert (faults.seen["list machineconfigpools"], faults.seen["list mutexrunconfigs"]) == (1, 0)
    faults.speak_again()
