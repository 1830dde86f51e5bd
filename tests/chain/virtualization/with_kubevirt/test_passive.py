"""Tests that the product stays passive with KubeVirt, and takes over when KubeVirt is removed (DRN-10)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from kube.maintenance.groups import KUBEVIRT
from kube.paths import Object
from kube.virtualization.virt_launcher_budgets import LABEL
from kube.virtualization.vmis import LIVE_MIGRATE_IF_POSSIBLE, MIGRATIONS
from tests.chain.virtualization.with_kubevirt.environment import TAINT, BesideStage
from tests.chain.virtualization.environment import SECONDS, blocked, node_of
from tests.chain.virtualization.test_migrations import nodes
from tests.proofs import proves
from tests.waiting import until
from tests.workload import audit

pytestmark = pytest.mark.slow

REMEDY = f"set spec.configuration.migrations.nodeDrainTaintKey of KubeVirt kubevirt/kubevirt to {TAINT}"


def says(item: Object, reason: str, text: str = "") -> bool:
    """Return whether the maintenance reports exactly one blocked pod, with this reason and `text` in the message."""
    return [told == reason and text in message for told, message in blocked(item).values()] == [True]


@proves("DRN-10", "C3")
def test_a_taint_that_kubevirt_does_not_know_is_told_with_the_remedy(stage: BesideStage) -> None:
    """Drain taints that KubeVirt is not configured with are reported with the remedy.

    Without configuration, KubeVirt knows only the taint of the older API group. Once configured, the drain continues.
    """
    node, older, _ = stage.node(), stage.node(), stage.node()
    before = stage.run(stage.machine("unheard", node), stage.machine("heard", older))
    with stage.told({}):
        path = stage.maintain(node)
        stage.reaches(path, lambda item: says(item, "WaitsForKubeVirt", REMEDY))
        with stage.holding(*nodes(stage)):
            heard = stage.maintain(older, group=KUBEVIRT.api_version)
            stage.reaches(heard, lambda item: says(item, "Migrating", "is Running"))
        stage.reaches(heard)
        assert node_of(stage.instances()["unheard"]) == node
    stage.beat(node)
    stage.reaches(path)
    assert stage.run(*before) == before
    assert stage.ours() == []


@proves("DRN-10", "DRN-9")
def test_where_its_api_runs_kubevirt_migrates_whomever_a_drain_would_evict(stage: BesideStage) -> None:
    """Evictions that virt-api refuses make KubeVirt migrate the VMI, whatever the taint.

    A VMI that cannot migrate is reported.
    """
    node, _ = stage.node(), stage.node()
    possible = stage.machine("possible", node, evict=LIVE_MIGRATE_IF_POSSIBLE)
    before = stage.run(stage.machine("asked", node), possible, stage.machine("stuck", node, why="no disk"))
    evictions = audit(stage.cluster)
    with stage.told({}), stage.api:
        path = stage.maintain(node)
        stage.reaches(path, lambda item: says(item, "NotMigratable", "no disk"))
        assert node not in {node_of(stage.instances()[name]) for name in ("asked", "possible")}
        stage.able("stuck")
        stage.reaches(path)
    assert stage.run(*before) == before
    assert stage.shut_down(evictions) == set()
    assert stage.ours() == []


@proves("DRN-10", "DRN-9")
def test_a_migration_that_fails_is_told_and_kubevirts_to_try_again(stage: BesideStage) -> None:
    """Failed migrations are reported and retried by KubeVirt; meanwhile the VM runs and is not evicted."""
    node, _ = stage.node(), stage.node()
    before = stage.run(stage.machine("unlucky", node))
    everywhere = [each for each in nodes(stage) if each != node]
    stage.fail_on(*everywhere)
    evictions = audit(stage.cluster)
    path = stage.maintain(node)
    stage.reaches(path, lambda item: says(item, "MigrationFailed", "failed once"))
    stage.fail_on(*everywhere, fails=False)

    def pending(item: Object) -> bool:
        return says(item, "MigrationFailed", "is Pending")

    again = stage.by_beats(node, lambda: stage.reaches(path, pending, seconds=5))
    assert node_of(stage.instances()["unlucky"]) == node

    ((_, message),) = blocked(again).values()
    stage.hasten(message.removesuffix(" is Pending").rpartition(" ")[2])
    stage.reaches(path)
    assert stage.run("unlucky") == before
    assert stage.shut_down(evictions) == set()
    assert stage.ours() == []


@proves("DRN-10")
def test_when_kubevirt_comes_amid_a_drain_a_machine_is_never_without_a_budget(stage: BesideStage) -> None:
    """VMs have a budget at all times while KubeVirt is removed and installed again during a drain.

    The product creates budget and migration while KubeVirt is removed, and deletes its budget once KubeVirt's exists.
    """
    node, _ = stage.node(), stage.node()
    before = stage.run(stage.machine("between", node))
    evictions = audit(stage.cluster)
    standing: list[int] = []

    def only_theirs(known: dict[str, Object]) -> bool:
        standing.append(len(known))
        return bool(known) and not any(LABEL in (each["metadata"].get("labels") or {}) for each in known.values())

    with ThreadPoolExecutor(1) as thread, stage.without_kubevirt():
        stage.tick()
        assert stage.ours() == []  # because KubeVirt's budget remains
        for budget in stage.admin.list(stage.budgets_path)["items"]:
            stage.admin.delete(f"{stage.budgets_path}/{budget['metadata']['name']}", uid=budget["metadata"]["uid"])
        stage.tick()
        assert stage.protected() == {"between"}
        path = stage.maintain(node)
        stage.reaches(path, lambda item: says(item, "Migrating"))
        theirs = thread.submit(until, stage.admin, stage.budgets_path, only_theirs, SECONDS)
    stage.by_ticks(lambda: stage.reaches(path, seconds=3))
    assert stage.run("between") == before
    assert stage.shut_down(evictions) == set()
    theirs.result()
    assert min(standing) == 1
    assert len(stage.admin.list(MIGRATIONS)["items"]) == 1
