"""Tests of `release-node`, which releases one node when all its Jobs are complete."""

from __future__ import annotations

import pytest

from eventing import events
from kube.client.api_errors import Rejected
from kube.maintenance.objects import REQUESTER
from kube.mutex import pools
from kube.mutex.node_labels import is_released, run_of
from kube.mutex.objects import NAMESPACE, RUN, RUN_LABEL, Reference, condition, path, rule_label
from kube.nodes import LABEL
from kube.paths import Object
from tests.functions.event_builders import resource
from tests.functions.mutex.conftest import Upgrade
from tests.proofs import proves
from tests.workload import Audit, Workload

REDO = {"paused": ("pause-pools", events.POOLS_CLAIMED), "edited": ("edit-pools", events.NODES_LABELLED)}
"""Change of a pool that another client undid → the step that repeats it, and the event that triggers the step."""


@pytest.mark.slow
@proves("MUT-43", "MUT-44")
def test_all_labels_go_in_one_write_after_the_record_is_claimed(upgrade: Upgrade, written: Audit) -> None:
    """Check that the node's name is recorded first, and all of its labels are then removed in one write.

    The other node keeps its labels. A repeated event causes no write.
    """
    name = upgrade.release()
    writes = [entry for entry in written.writes_by() if entry["user"]["username"].endswith(":release-node")]
    assert [entry["objectRef"]["resource"] for entry in writes] == ["mutexrunconfigs", "nodes", "mutexrunconfigs"]
    assert is_released(upgrade.node(name))
    assert not is_released(upgrade.node(upgrade.nodes[1]))
    assert upgrade.status()["record"]["released"] == name
    assert upgrade.answer("release-node", events.NODE_CLEARED) == events.NODE_RELEASED
    again = [entry for entry in written.writes_by() if entry["user"]["username"].endswith(":release-node")]
    assert len(again) == len(writes)


@pytest.mark.slow
@proves("MUT-44")
def test_the_server_refuses_to_record_a_second_released_node(upgrade: Upgrade) -> None:
    """Check that the CRD rejects a record with a second released node, or with another run id.

    A node must be removed from the record before the next one is recorded.
    """
    name, other = upgrade.release(), upgrade.nodes[1]
    for change, said in (
        ({"released": other}, f"status.record.released is {name}"),
        ({"id": "another"}, "status.record.id names the run under way"),
        ({"number": 0, "id": "another"}, "status.record"),
    ):
        with pytest.raises(Rejected, match=said):
            upgrade.admin.patch(f"{path(upgrade.run)}/status", {"status": {"record": change}})


@proves("MUT-43", "MUT-44")
def test_nobody_is_released_before_the_jobs_are_complete(upgrade: Upgrade) -> None:
    """Check that a forged or early event releases no node before its Jobs are complete."""
    upgrade.start()
    assert upgrade.answer("release-node", events.NODE_CLEARED) == ""
    upgrade.answer("run-job", events.POOLS_EDITED)
    assert upgrade.answer("release-node", events.NODE_CLEARED) == ""
    assert not any(is_released(upgrade.node(name)) for name in upgrade.nodes)


@pytest.mark.slow
@proves("MUT-36")
def test_a_canary_that_was_written_meanwhile_is_edited_first(upgrade: Upgrade) -> None:
    """Check that the labels of other nodes, the canary's selector and a pool's pause are restored before the release.

    The labels come before the canary, which selects nodes without labels.
    """
    ready(upgrade)
    other = upgrade.nodes[1]
    upgrade.label(other, {rule_label(Reference(NAMESPACE, "only")): None})
    upgrade.admin.patch(pools.pool_path("canary"), {"spec": {"nodeSelector": {"matchExpressions": None}}})
    assert upgrade.answer("release-node", events.NODE_CLEARED) == events.POOLS_PAUSED
    assert upgrade.answer("label-nodes", events.POOLS_PAUSED) == events.NODES_LABELLED
    assert not is_released(upgrade.node(other))
    upgrade.answer("edit-pools", events.NODES_LABELLED)
    upgrade.unpause("blue")
    assert upgrade.answer("release-node", events.NODE_CLEARED) == events.POOLS_CLAIMED
    assert not is_released(upgrade.node(upgrade.nodes[0]))


@pytest.mark.slow
@proves("MUT-43", "X-3")
@pytest.mark.parametrize(
    ("word", "own", "kind"),
    [
        ("paused", {"paused": False}, events.POOLS_CLAIMED),
        ("edited", {"nodeSelector": {"matchExpressions": None}}, events.POOLS_PAUSED),
    ],
)
def test_a_pool_that_is_changed_back_within_seconds_is_left_to_the_tick(
    upgrade: Upgrade, word: str, own: Object, kind: str
) -> None:
    """Check that a pool that another client changes back within seconds is left to the tick, and no node is released.

    Otherwise `release-node` and the repairing step would keep triggering each other. The condition reports the conflict
    once, until the node is released.
    """
    ready(upgrade)
    where, redo = pools.pool_path("blue"), REDO[word]
    upgrade.admin.patch(where, {"spec": own})
    assert upgrade.answer("release-node", events.NODE_CLEARED) == kind
    assert upgrade.answer(*redo) != ""
    upgrade.admin.patch(where, {"spec": own})
    assert upgrade.answer("release-node", events.NODE_CLEARED) == ""
    assert not is_released(upgrade.node(upgrade.nodes[0]))

    told = upgrade.again(upgrade.run)
    found = condition(told, "NodeUpgrade")
    assert (found["status"], found["reason"]) == ("False", "NodeUpgradeWaiting")
    assert f"somebody changes the MachineConfigPool blue back whenever it is {word}: keep him" in found["message"]
    assert upgrade.answer("release-node", events.NODE_CLEARED) == ""
    assert upgrade.again(upgrade.run)["metadata"]["resourceVersion"] == told["metadata"]["resourceVersion"]
    assert upgrade.functions.answer("check-run", resource(events.RESOURCE_UPDATED, told, RUN)) is None
    upgrade.answer(*redo)
    assert upgrade.answer("release-node", events.NODE_CLEARED) == events.NODE_RELEASED


@pytest.mark.slow
@proves("MUT-36")
def test_without_a_canary_that_goes_on_nobody_is_released(upgrade: Upgrade) -> None:
    """Check that no node is released while the canary is paused or missing, even before `check-run` has noticed it."""
    ready(upgrade)
    upgrade.admin.patch(pools.pool_path("canary"), {"spec": {"paused": True}})
    assert upgrade.answer("release-node", events.NODE_CLEARED) == ""
    assert "the canary, is paused" in condition(upgrade.again(upgrade.run), "NodeUpgrade")["message"]
    upgrade.admin.delete(pools.pool_path("canary"), uid=upgrade.pool("canary")["metadata"]["uid"])
    assert upgrade.answer("release-node", events.NODE_CLEARED) == ""
    assert "there is no MachineConfigPool canary" in condition(upgrade.again(upgrade.run), "NodeUpgrade")["message"]
    assert not is_released(upgrade.node(upgrade.nodes[0]))


@proves("MUT-32", "MUT-45")
def test_nobody_is_released_while_the_control_plane_is_upgraded_once_more(upgrade: Upgrade) -> None:
    """Check that no node is released while the control plane is being upgraded to a later version.

    The conditions report it, and the node is released when the control plane has reached that version.
    """
    ready(upgrade)
    upgrade.cvo.want("4.16.5", "Partial")
    assert upgrade.answer("release-node", events.NODE_CLEARED) == ""
    assert not is_released(upgrade.node(upgrade.nodes[0]))
    for kind in ("NodeUpgrade", "UpgradeReady"):
        found = condition(upgrade.again(upgrade.run), kind)
        assert (found["status"], "is Partial, not Completed" in found["message"]) == ("False", True)
    upgrade.cvo.want("4.16.5")
    assert events.NODE_CLEARED in [reply.get_type() for reply in upgrade.told_by_a_tick()]
    assert upgrade.answer("release-node", events.NODE_CLEARED) == events.NODE_RELEASED
    found = condition(upgrade.again(upgrade.run), "UpgradeReady")
    assert (found["status"], found["message"]) == ("True", "the control plane is at 4.16.5")


@pytest.mark.slow
@proves("MUT-32", "X-2")
def test_a_node_that_is_released_stays_so_whatever_is_wanted_then(upgrade: Upgrade) -> None:
    """Check that a released node stays released if another version is desired afterwards.

    This is also true if the process was killed between the two writes of the release.
    """
    name = upgrade.release()
    upgrade.cvo.want("4.16.5", "Partial")
    assert upgrade.answer("release-node", events.NODE_CLEARED) == events.NODE_RELEASED
    upgrade.write_record({"nodes": {name: {"releasedAt": None}}})
    assert upgrade.answer("release-node", events.NODE_CLEARED) == events.NODE_RELEASED
    assert "releasedAt" in upgrade.status()["record"]["nodes"][name]


@pytest.mark.slow
@proves("MUT-35")
def test_a_node_that_was_made_anew_before_its_release_is_dropped(upgrade: Upgrade) -> None:
    """Check that a node that was recreated before its release is dropped, whatever else would delay the release.

    The recreated node is not part of the run, so no node is recorded as released.
    """
    ready(upgrade)
    name = upgrade.nodes[0]
    upgrade.remove(name, anew=True)
    upgrade.cvo.want("4.16.5", "Partial")
    assert upgrade.answer("release-node", events.NODE_CLEARED) == events.NODE_RELEASED
    assert "released" not in upgrade.status()["record"]
    assert upgrade.answer("await-version", events.NODE_RELEASED) == events.NODE_CLEANED
    assert "droppedAt" in upgrade.status()["record"]["nodes"][name]


@pytest.mark.slow
@proves("MUT-44")
def test_a_node_under_maintenance_waits_until_it_is_given_back(upgrade: Upgrade, work: Workload) -> None:
    """Check that a node under maintenance is released only after the maintenance has ended.

    The condition names the maintenance and its requester. A maintenance of another run counts too.
    """
    ready(upgrade)
    labels = {RUN_LABEL: f"{upgrade.status()['record']['id']}0"}
    maintenance = work.maintenance(upgrade.nodes[0], annotations={REQUESTER: "alice"}, labels=labels)
    upgrade.functions.chain(maintenance, "begin", "cordon")
    assert upgrade.answer("release-node", events.NODE_CLEARED) == ""
    said = condition(upgrade.again(upgrade.run), "NodeUpgrade")["message"]
    assert f"by NodeMaintenance {maintenance['metadata']['name']}, asked for by alice, and is released when" in said
    upgrade.label(upgrade.nodes[0], {LABEL: None})
    assert upgrade.answer("release-node", events.NODE_CLEARED) == events.NODE_RELEASED


@pytest.mark.slow
@proves("MUT-44")
def test_a_node_that_a_maintenance_left_waits_until_it_is_given_back(upgrade: Upgrade) -> None:
    """Check that a node with the label of a deleted maintenance is not released, and that the condition reports it."""
    ready(upgrade)
    upgrade.label(upgrade.nodes[0], {LABEL: "somebody"})
    assert upgrade.answer("release-node", events.NODE_CLEARED) == ""
    assert "a maintenance that is gone" in condition(upgrade.again(upgrade.run), "NodeUpgrade")["message"]


@pytest.mark.slow
@proves("MUT-44")
def test_a_maintenance_by_a_job_of_the_run_itself_is_not_waited_for(upgrade: Upgrade, work: Workload) -> None:
    """Check that a maintenance that the run's own Job requested does not delay the release.

    The Job drains the node before the upgrade, so the release would otherwise wait forever.
    """
    ready(upgrade)
    maintenance = work.maintenance(upgrade.nodes[0], labels={RUN_LABEL: upgrade.status()["record"]["id"]})
    upgrade.functions.chain(maintenance, "begin", "cordon")
    assert upgrade.answer("release-node", events.NODE_CLEARED) == events.NODE_RELEASED
    assert is_released(upgrade.node(upgrade.nodes[0]))


@pytest.mark.slow
@proves("MUT-43", "X-3")
def test_a_node_whose_run_label_is_gone_is_released_all_the_same(upgrade: Upgrade) -> None:
    """Check that a node that has lost the run's label is released, and gets the label back.

    Otherwise `release-node` and `await-version` would keep triggering each other.
    """
    ready(upgrade)
    upgrade.label(upgrade.nodes[0], {RUN_LABEL: None})
    assert upgrade.answer("release-node", events.NODE_CLEARED) == events.NODE_RELEASED
    assert is_released(upgrade.node(upgrade.nodes[0]))
    assert run_of(upgrade.node(upgrade.nodes[0])) == upgrade.status()["record"]["id"]
    assert upgrade.answer("await-version", events.NODE_RELEASED) == ""


@pytest.mark.slow
@proves("MUT-43", "MUT-44")
def test_a_node_that_carries_another_runs_label_is_not_recorded_as_released(upgrade: Upgrade) -> None:
    """Check that a node with another run's label is not recorded as released, because its rule labels would stay.

    The condition reports it, and no event is emitted.
    """
    ready(upgrade)
    upgrade.label(upgrade.nodes[0], {RUN_LABEL: "another"})
    assert upgrade.answer("release-node", events.NODE_CLEARED) == ""
    assert "names another run, another" in condition(upgrade.again(upgrade.run), "NodeUpgrade")["message"]
    assert "releasedAt" not in upgrade.status()["record"]["nodes"][upgrade.nodes[0]]


def ready(upgrade: Upgrade) -> None:
    """Advance the run until its first node may be released."""
    upgrade.start()
    upgrade.answer("run-job", events.POOLS_EDITED)
    upgrade.end(upgrade.jobs()[-1])
    assert upgrade.answer("run-job", events.JOB_DUE) == events.NODE_CLEARED
