"""Tests of `detect-upgrade`, which compares the versions of the control plane and the workers."""

from __future__ import annotations

import pytest

from eventing import events
from kube.client.api import JSON_PATCH
from kube.mutex.objects import condition, path
from kube.mutex.pools import CLUSTER_VERSIONS
from kube.mutex.versions import VERSION_LABEL
from kube.paths import Object
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


@proves("MUT-31", "MUT-32", "C26")
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
    """Check that an upgrade is available if the control plane is at the desired version and a worker is older.

    The step writes only conditions.
    """
    upgrade.cvo.want(wanted, state, reached)
    reply, found = detected(upgrade)
    assert tuple(found.values()) == verdicts
    assert (reply == events.UPGRADE_FOUND) is (verdicts == ALL)
    assert {entry["objectRef"]["resource"] for entry in written.writes_by()} <= {
        *("jobs", "mutexrules", "mutextargets", "mutexrunconfigs")
    }


@proves("MUT-31", "MUT-36")
def test_targets_without_a_node_have_no_upgrade(upgrade: Upgrade) -> None:
    """Check that targets without a node have no upgrade, even if workers outside the targets are older.

    Otherwise a run would have no nodes to label, and its canary would select all workers.
    """
    for name in upgrade.nodes:
        upgrade.label(name, {"role": "green"})
    assert detected(upgrade)[0] == ""
    found = condition(upgrade.again(upgrade.run), "UpgradeAvailable")
    assert (found["status"], found["message"]) == ("False", "the targets have no node")
    assert upgrade.told_by_a_tick() == []


@proves("C23")
def test_the_cluster_version_may_have_the_name_of_the_document(upgrade: Upgrade) -> None:
    """Check that the step reads the ClusterVersion `cluster` if there is none with the real name `version`."""
    real = f"{CLUSTER_VERSIONS}/version"
    found = upgrade.admin.get(real)
    upgrade.admin.delete(real, uid=found["metadata"]["uid"])
    try:
        upgrade.admin.create(CLUSTER_VERSIONS, {**bare(found), "metadata": {"name": "cluster"}})
        write_status(upgrade, "cluster", found["status"])
        assert detected(upgrade)[0] == events.UPGRADE_FOUND
    finally:
        upgrade.admin.run(upgrade.admin.api.request("DELETE", f"{CLUSTER_VERSIONS}/cluster"))
        upgrade.admin.create(CLUSTER_VERSIONS, {**bare(found), "metadata": {"name": "version"}})
        write_status(upgrade, "version", found["status"])


def write_status(upgrade: Upgrade, name: str, status: Object) -> None:
    """Replace the whole status; a merge patch would drop null fields, one of which the schema requires."""
    change = [{"op": "add", "path": "/status", "value": status}]
    upgrade.admin.patch(f"{CLUSTER_VERSIONS}/{name}/status", change, JSON_PATCH)


def bare(item: Object) -> Object:
    """Return the apiVersion, kind and spec of an object, to create it again."""
    return {name: item[name] for name in ("apiVersion", "kind", "spec")}


@proves("MUT-2")
@pytest.mark.parametrize("version", [None, "newest"])
def test_a_node_without_a_version_is_named(upgrade: Upgrade, version: str | None) -> None:
    """Check that the condition names a node without a valid version, and that the run does not begin."""
    upgrade.label(upgrade.nodes[1], {VERSION_LABEL: version})
    reply, found = detected(upgrade)
    assert (reply, found["UpgradeChecked"]) == ("", "False")
    assert upgrade.nodes[1] in condition(upgrade.again(upgrade.run), "UpgradeChecked")["message"]


@proves("MUT-49", "MUT-42")
def test_a_run_that_lost_its_record_gives_back_before_it_begins_anew(upgrade: Upgrade) -> None:
    """Check that a run that lost its record restores its pools before a new run begins.

    Otherwise the new run would record the edited selectors as the original ones. The new run has another id, so it uses
    no Job of the lost one.
    """
    upgrade.start()
    lost = upgrade.status()["record"]["id"]
    upgrade.admin.patch(f"{path(upgrade.run)}/status", {"status": {"record": None}})

    told = [reply.get_type() for reply in upgrade.told_by_a_tick() if not reply.get_extension("node")]
    assert told == [events.RUN_ENDED]
    assert upgrade.answer("detect-upgrade", events.RUN_VALIDATED) == events.RUN_ENDED
    assert upgrade.answer("restore-pools", events.RUN_ENDED) == events.RUN_FINISHED
    upgrade.through("check-run", "detect-upgrade", "claim-pools")

    record = upgrade.status()["record"]
    assert record["pools"]["blue"]["selector"] == upgrade.before["blue"]["nodeSelector"]
    assert record["canary"]["selector"] == upgrade.before["canary"]["nodeSelector"]
    assert record["id"] != lost
