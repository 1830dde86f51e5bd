"""Tests of `edit-pools`, which edits the selectors of the target pools and of the canary."""

from __future__ import annotations

import pytest

from eventing import events
from functions.serving.handler import SECONDS_TO_ANSWER
from kube.mutex import pools
from kube.mutex.objects import RUN_LABEL, condition
from kube.selectors import matches
from tests.fault_proxy import Fault, Faults
from tests.functions.conftest import Functions
from tests.functions.event_builders import resource
from tests.functions.mutex.conftest import BEFORE_JOBS, Upgrade
from tests.proofs import proves


@proves("MUT-36", "MUT-37", "C24", "C25")
def test_a_labelled_node_is_the_targets_and_a_released_one_the_canarys(upgrade: Upgrade) -> None:
    """Check that a labelled node belongs to its target pool, and a node without rule labels to the canary.

    The pools keep their matchLabels, and the canary loses its own expressions.
    """
    upgrade.start()
    blue, canary = (upgrade.pool(name)["spec"]["nodeSelector"] for name in ("blue", "canary"))
    assert canary["matchLabels"] == upgrade.before["canary"]["nodeSelector"]["matchLabels"]
    assert [each["operator"] for each in canary["matchExpressions"]] == ["DoesNotExist"]
    labels = upgrade.node(upgrade.nodes[0])["metadata"]["labels"]
    assert (matches(blue, labels), matches(canary, labels)) == (True, False)
    free = {key: value for key, value in labels.items() if not key.startswith("mutexrule.")}
    assert (matches(blue, free), matches(canary, free)) == (False, True)


@proves("MUT-36")
def test_a_selector_that_somebody_wrote_is_written_again(upgrade: Upgrade) -> None:
    """Check that a selector that another client changed is edited again, and that a correct one is not written."""
    upgrade.start()
    edited = upgrade.pool("canary")
    assert upgrade.answer("edit-pools", events.NODES_LABELLED) == events.POOLS_EDITED
    assert upgrade.pool("canary")["metadata"]["resourceVersion"] == edited["metadata"]["resourceVersion"]
    upgrade.admin.patch(pools.pool_path("canary"), {"spec": {"nodeSelector": {"matchExpressions": None}}})
    assert upgrade.answer("edit-pools", events.NODES_LABELLED) == events.POOLS_EDITED
    assert upgrade.pool("canary")["spec"] == edited["spec"]


@proves("MUT-36", "MUT-44", "MUT-49")
@pytest.mark.parametrize("is_there", [False, True])
def test_a_pool_that_a_run_config_claims_which_has_no_run_is_claimed_and_edited_again(
    upgrade: Upgrade, is_there: bool
) -> None:
    """Check that a pool is claimed and edited again if its claim names a run config without a run.

    A user may have applied a backup of the pool from an earlier run.
    """
    upgrade.start()
    edited = upgrade.pool("blue")
    own, claim = {"nodeSelector": {"matchExpressions": None}}, {RUN_LABEL: upgrade.owner(is_there=is_there)}
    upgrade.admin.patch(pools.pool_path("blue"), {"metadata": {"annotations": claim}, "spec": own})

    assert upgrade.answer("edit-pools", events.NODES_LABELLED) == events.POOLS_EDITED

    blue = upgrade.pool("blue")
    assert (pools.claimed_by(blue), blue["spec"]) == (upgrade.run["metadata"]["uid"], edited["spec"])


@pytest.mark.slow
@proves("MUT-37", "MUT-36", "MUT-1")
@pytest.mark.parametrize(("refused", "other"), [("blue", "green"), ("green", "blue")])
def test_a_target_that_is_refused_keeps_the_canary_waiting_and_no_other_target(
    upgrade: Upgrade, spoiled: Functions, faults: Faults, refused: str, other: str
) -> None:
    """Check that a rejected target pool delays the canary, but not another target pool.

    All three are recorded as edited again, so the tick repeats a further change, and no update event does. The
    condition contains the error.
    """
    upgrade.add_pool("green")
    upgrade.start()
    names = (refused, other, "canary")
    edited = {name: upgrade.pool(name)["spec"] for name in names}
    own = {"spec": {"nodeSelector": {"matchExpressions": None}}}
    undone = {name: upgrade.admin.patch(pools.pool_path(name), own)["spec"] for name in names}
    spoil = f"patch machineconfigpools {sorted((refused, other)).index(refused) + 1}"
    faults.spoil(lambda request: Fault(403, "a webhook") if request == spoil else None)
    assert spoiled.answer("edit-pools", upgrade.said(events.NODES_LABELLED)) is None
    faults.speak_again()

    assert {name: upgrade.pool(name)["spec"] for name in names} == {**undone, other: edited[other]}
    assert sorted(upgrade.status()["record"]["editedAgain"]) == sorted(names)
    found = condition(upgrade.again(upgrade.run), "MCPUpdated")
    assert (found["status"], found["message"]) == ("False", "a webhook")
    hint = resource(events.REFERENCE_UPDATED, upgrade.admin.patch(pools.pool_path(other), own), "MachineConfigPool")
    assert upgrade.told_by(hint) == []
    assert upgrade.answer("edit-pools", events.NODES_LABELLED) == events.POOLS_EDITED
    assert {name: upgrade.pool(name)["spec"] for name in names} == edited


@pytest.mark.slow
@proves("MUT-36", "X-6")
def test_a_target_whose_write_is_slow_has_nearly_all_of_the_time_when_only_the_canary_waits_for_it(
    upgrade: Upgrade, spoiled: Functions, faults: Faults
) -> None:
    """Check that the only target pool to be written may use nearly all of the step's time, since only the canary waits.

    An admission webhook may take more than half of that time.
    """
    upgrade.start()
    own = {"spec": {"nodeSelector": {"matchExpressions": None}}}
    for name in ("blue", "canary"):
        upgrade.admin.patch(pools.pool_path(name), own)
    with faults.slow("patch machineconfigpools 1", SECONDS_TO_ANSWER / 2 + 0.05):
        spoiled.post("edit-pools", upgrade.said(events.NODES_LABELLED))

    assert "blue" in upgrade.status()["record"]["editedAgain"]


@proves("MUT-36", "MUT-44")
@pytest.mark.parametrize("labelled", [True, False])
def test_the_canary_stays_shut_when_no_node_is_left_to_be_labelled(upgrade: Upgrade, labelled: bool) -> None:
    """Check that the canary is not edited if no node is left to be labelled, and that the pools are restored.

    Otherwise the canary would select all workers without a label, and they would be upgraded without a Job.
    """
    upgrade.judge()
    upgrade.through(*BEFORE_JOBS[: BEFORE_JOBS.index("label-nodes") + labelled])
    upgrade.write_record({"nodes": {name: {"droppedAt": "2026-01-01T00:00:00Z"} for name in upgrade.nodes}})
    assert upgrade.answer("edit-pools", events.NODES_LABELLED) == ""
    assert upgrade.pool("canary")["spec"] == upgrade.before["canary"]
    assert [reply.get_type() for reply in upgrade.told_by_a_tick()] == [events.RUN_COMPLETED]
    assert upgrade.answer("restore-pools", events.RUN_COMPLETED) == events.RUN_FINISHED
    assert {name: upgrade.pool(name)["spec"] for name in upgrade.before} == upgrade.before
