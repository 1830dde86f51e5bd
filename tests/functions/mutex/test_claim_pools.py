"""Tests of `claim-pools`, which claims the pools and records their original state before anything is changed."""

from __future__ import annotations

from eventing import events
from functions.event_data import data_of
from kube.mutex import pools
from kube.mutex.objects import RULE_LABEL, RUN, condition, has_finalizer, path
from kube.mutex.versions import VERSION_LABEL, WORKER
from kube.nodes import node_path
from tests.fault_proxy import SILENCE, Faults
from tests.functions.conftest import Functions
from tests.functions.mutex.conftest import OLD, Upgrade
from tests.proofs import proves

LABEL = f"{RULE_LABEL}only.node-upgrade-mutex-operator"
BEGIN = ("check-run", "detect-upgrade", "claim-pools")


@proves("MUT-34", "MUT-44")
def test_the_record_has_everything_as_it_was(upgrade: Upgrade) -> None:
    """Check that the record contains the original selectors and pauses, and the nodes in their order.

    The run config gets its finalizer and the pools their claims; no selector is changed.
    """
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
    """Check that a run waits for a pool that another run has claimed, and records nothing.

    The condition names the other run.
    """
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
    """Check that a run that waits for another run's end records nothing until then.

    A change that is made while the run waits is therefore part of the original state: here, an administrator's
    selector.
    """
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
    """Return the event types that a tick emits for the run config."""
    name = upgrade.run["metadata"]["name"]
    return [reply.get_type() for reply in upgrade.told_by_a_tick() if data_of(reply)["run"]["name"] == name]


@proves("MUT-44")
def test_what_a_run_that_is_gone_has_claimed_is_free(upgrade: Upgrade) -> None:
    """Check that the claim of a run config that no longer exists does not block the pool.

    Such a claim remains if a user removes the run config's finalizer.
    """
    claim = {"metadata": {"annotations": {"nodemaintenance.dev/mutex-run": "gone"}}}
    upgrade.admin.patch(pools.pool_path("blue"), claim)
    upgrade.judge()
    upgrade.through(*BEGIN)
    assert pools.claimed_by(upgrade.pool("blue")) == upgrade.run["metadata"]["uid"]


@proves("MUT-38")
def test_a_worker_outside_all_targets_is_named(upgrade: Upgrade) -> None:
    """Check that a worker outside all targets is named in a condition and in an Event.

    The worker has no rule label, so the canary would select and upgrade it.
    """
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
    """Check that a repeated event gets the same reply and changes nothing in the record."""
    upgrade.judge()
    upgrade.through(*BEGIN)
    before = upgrade.again(upgrade.run)["metadata"]["resourceVersion"]
    assert upgrade.answer("claim-pools", events.UPGRADE_FOUND) == events.POOLS_CLAIMED
    assert upgrade.again(upgrade.run)["metadata"]["resourceVersion"] == before


@proves("MUT-49", "MUT-35")
def test_what_a_run_that_vanished_has_edited_is_not_recorded_as_before(upgrade: Upgrade) -> None:
    """Check that a new run records the original selectors of the pools, not those that a deleted run has edited.

    The run config was deleted without its finalizer and created again. Its pools are claimed before a tick has restored
    them, and one of its nodes has lost its labels.
    """
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
    """Check that an active run gets its finalizer back after a user replaced the run config with its manifest.

    Without the finalizer, a deletion would remove the run config before its pools are restored.
    """
    upgrade.start()
    upgrade.admin.patch(path(upgrade.run), {"metadata": {"finalizers": None}})

    found, _ = upgrade.told_by_a_tick()  # the second one is `job.due`
    assert found.get_type() == events.UPGRADE_FOUND
    assert upgrade.functions.answer("claim-pools", found) is None

    assert has_finalizer(upgrade.again(upgrade.run))
    assert [reply.get_type() for reply in upgrade.told_by_a_tick()] == [events.JOB_DUE]


@proves("MUT-44")
def test_who_has_claimed_a_pool_is_among_the_runs_that_are_read(
    upgrade: Upgrade, spoiled: Functions, faults: Faults
) -> None:
    """Check that the step lists the runs only after the pools.

    Otherwise a run that claims a pool in between would be taken for one that no longer exists.
    """
    upgrade.judge()
    found = upgrade.through("check-run", "detect-upgrade")
    faults.spoil(lambda request: SILENCE if request == "list machineconfigpools 1" else None)
    assert spoiled.post("claim-pools", found).status_code == 503
    assert (faults.seen["list machineconfigpools"], faults.seen["list mutexrunconfigs"]) == (1, 0)
    faults.speak_again()
