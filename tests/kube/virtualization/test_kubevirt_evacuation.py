"""Tests for the reason why a VMI on a drained node waits if KubeVirt migrates VMIs."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kube.budgets import VIRT_LAUNCHER_REASONS
from kube.nodes import Node
from kube.paths import Object
from kube.virtualization.evacuation import Wait
from kube.virtualization.kubevirt_evacuation import find_kubevirt_waits
from tests.kube.samples import make_node
from tests.kube.virtualization.test_evacuation import UNMIGRATABLE_CONDITION, make_migration, make_vmi
from tests.proofs import proves

KUBEVIRT_TAINT_KEY, MEDIK8S_TAINT_KEY = "kubevirt.io/drain", "medik8s.io/drain"
WAIT_FOR_MIGRATION = Wait("a", "Migrating", "KubeVirt is about to migrate it")
TAINT_KEY_FIELD = "spec.configuration.migrations.nodeDrainTaintKey"


def make_kubevirt(taint_key: str = "", default_strategy: str = "") -> Object:
    """Return a KubeVirt object with this taint key, and with this default eviction strategy."""
    configuration: Object = {"migrations": {"nodeDrainTaintKey": taint_key}} if taint_key else {}
    defaults = {"evictionStrategy": default_strategy} if default_strategy else {}
    return {
        "metadata": {"namespace": "kubevirt", "name": "kv"},
        "spec": {"configuration": {**configuration, **defaults}},
    }


def make_drained_nodes(*node_taint_keys: str) -> Mapping[str, Node]:
    """Return a single drained node "a" that has taints with these keys."""
    return {"a": make_node(*((key, "", "NoSchedule") for key in node_taint_keys))}


def get_wait_of_vmi(
    vmi: Object, *migrations: Object, nodes: Mapping[str, Node] | None = None, taint_key: str = ""
) -> Wait:
    """Return the `Wait` of the VMI, which states the reason why it waits."""
    (wait,) = find_kubevirt_waits(
        [vmi], list(migrations), nodes or make_drained_nodes(KUBEVIRT_TAINT_KEY), make_kubevirt(taint_key)
    ).values()
    return wait


@proves("DRN-10")
@pytest.mark.parametrize(
    "vmi",
    [
        make_vmi("x", node="b"),
        make_vmi("x", strategy=None),
        make_vmi("x", strategy="None"),
        make_vmi("x", strategy="LiveMigrateIfPossible", conditions=[UNMIGRATABLE_CONDITION]),
        make_vmi("x", phase="Succeeded"),
    ],
    ids=["on other node", "no strategy", "strategy None", "not possible", "ended"],
)
def test_vmi_that_kubevirt_does_not_migrate_has_no_reason_to_wait(vmi: Object) -> None:
    """Check that a VMI that KubeVirt does not migrate has no reason to wait."""
    assert find_kubevirt_waits([vmi], [], make_drained_nodes(KUBEVIRT_TAINT_KEY), make_kubevirt()) == {}


@proves("DRN-10")
@pytest.mark.parametrize(
    ("node_taint_keys", "kubevirt_taint_key", "reported_key"),
    [
        ((KUBEVIRT_TAINT_KEY,), "", ""),
        ((MEDIK8S_TAINT_KEY, KUBEVIRT_TAINT_KEY), "", ""),
        ((MEDIK8S_TAINT_KEY,), MEDIK8S_TAINT_KEY, ""),
        ((MEDIK8S_TAINT_KEY,), "", MEDIK8S_TAINT_KEY),
        ((KUBEVIRT_TAINT_KEY,), MEDIK8S_TAINT_KEY, KUBEVIRT_TAINT_KEY),
    ],
)
def test_unsupported_taint_is_reported_with_remedy(
    node_taint_keys: tuple[str, ...], kubevirt_taint_key: str, reported_key: str
) -> None:
    """Check that the message names the field to set if KubeVirt does not support the taint key of the drained node."""
    wait = get_wait_of_vmi(make_vmi("x"), nodes=make_drained_nodes(*node_taint_keys), taint_key=kubevirt_taint_key)

    if reported_key:
        assert (wait.node, wait.reason) == ("a", "WaitsForKubeVirt")
        assert f"set {TAINT_KEY_FIELD} of KubeVirt kubevirt/kv to {reported_key}" in wait.message
        assert (
            f"with the taint {kubevirt_taint_key or KUBEVIRT_TAINT_KEY}, but node a has {reported_key}" in wait.message
        )
    else:
        assert wait == WAIT_FOR_MIGRATION


@proves("DRN-10", "C14")
@pytest.mark.parametrize(
    ("strategy", "default_strategy"),
    [("LiveMigrateIfPossible", ""), (None, "LiveMigrate"), (None, "LiveMigrateIfPossible")],
)
def test_vmi_that_kubevirt_migrates_waits_for_kubevirt(strategy: str | None, default_strategy: str) -> None:
    """Check that a VMI waits for KubeVirt if its own or the default eviction strategy makes KubeVirt migrate it."""
    kubevirt, vmi = make_kubevirt(default_strategy=default_strategy), make_vmi("x", strategy=strategy)

    assert find_kubevirt_waits([vmi], [], make_drained_nodes(KUBEVIRT_TAINT_KEY), kubevirt) == {
        ("ns", "x"): WAIT_FOR_MIGRATION
    }
    assert (
        find_kubevirt_waits([vmi], [], make_drained_nodes(MEDIK8S_TAINT_KEY), kubevirt)["ns", "x"].reason
        == "WaitsForKubeVirt"
    )
    assert (
        find_kubevirt_waits([make_vmi("x", strategy="None")], [], make_drained_nodes(KUBEVIRT_TAINT_KEY), kubevirt)
        == {}
    )


@proves("DRN-10", "C14")
@pytest.mark.parametrize("taint", [KUBEVIRT_TAINT_KEY, MEDIK8S_TAINT_KEY])
def test_vmi_with_strategy_external_waits_for_eviction_request(taint: str) -> None:
    """Check that a VMI with the strategy External waits for an eviction request, which notifies its controller.

    The VMI's condition LiveMigratable does not matter, because the external controller decides how it moves the VMI.
    """
    wait_before_request = get_wait_of_vmi(
        make_vmi("x", strategy="External", conditions=[UNMIGRATABLE_CONDITION]), nodes=make_drained_nodes(taint)
    )
    wait_after_request = get_wait_of_vmi(
        make_vmi("x", strategy="External", evacuationNodeName="a"), nodes=make_drained_nodes(taint)
    )

    assert wait_before_request.reason == "WaitsForKubeVirt"
    assert wait_before_request.message.endswith("migrate the virtual machine, or shut it down")
    assert wait_after_request.reason == "Migrating"
    assert wait_after_request.message == "the controller for evictionStrategy External is about to move it"
    assert (
        get_wait_of_vmi(make_vmi("x", strategy="External"), make_migration("m", "x")).message
        == "migration m is Running"
    )


@proves("DRN-10")
def test_vmi_marked_for_evacuation_waits_for_migration_with_any_taint() -> None:
    """Check that a VMI waits for its migration if KubeVirt has marked it for evacuation from its current node."""
    assert (
        get_wait_of_vmi(make_vmi("x", evacuationNodeName="a"), nodes=make_drained_nodes(MEDIK8S_TAINT_KEY))
        == WAIT_FOR_MIGRATION
    )
    assert (
        get_wait_of_vmi(make_vmi("x", evacuationNodeName="b"), nodes=make_drained_nodes(MEDIK8S_TAINT_KEY)).reason
        == "WaitsForKubeVirt"
    )


@proves("DRN-10", "OSV-2")
def test_unfinished_migration_is_reported_before_missing_migratability() -> None:
    """Check that an unfinished migration is reported, or else the reason why the VMI cannot migrate."""
    assert get_wait_of_vmi(make_vmi("x"), make_migration("m", "x", phase="Scheduling")) == (
        "a",
        "Migrating",
        "migration m is Scheduling",
    )
    unmigratable_wait = get_wait_of_vmi(
        make_vmi("x", conditions=[UNMIGRATABLE_CONDITION]),
        make_migration("old", "x", phase="Succeeded"),
        make_migration("m", "other"),
    )
    assert unmigratable_wait.reason == "NotMigratable"
    assert unmigratable_wait.message.startswith("PVC disk is not shared: correct this")


def make_failed_migration(name: str, node: str = "a", created_at: str = "") -> Object:
    """Return a failed migration of the VMI "x" that KubeVirt created for the drain of this node."""
    migration = make_migration(name, "x", phase="Failed")
    migration["metadata"].update(annotations={"kubevirt.io/evacuationMigration": node}, creationTimestamp=created_at)
    return migration


@proves("DRN-10", "DRN-9")
def test_migration_failures_are_reported_until_next_migration_starts() -> None:
    """Check that failed migrations are reported until the next migration starts, and not only until its creation."""
    failed_migrations = [
        make_failed_migration("m1"),
        make_failed_migration("m2"),
        make_failed_migration("elsewhere", node="b"),
        make_migration("by-hand", "x", phase="Failed"),
    ]
    wait_after_one_failure = get_wait_of_vmi(make_vmi("x"), make_failed_migration("m1"))
    assert wait_after_one_failure == ("a", "MigrationFailed", "its migration failed once; KubeVirt retries it")
    wait = get_wait_of_vmi(make_vmi("x"), *failed_migrations, make_migration("m3", "x", phase="Pending"))
    assert wait.reason == "MigrationFailed"
    assert "failed 2 times" in wait.message
    assert wait.message.endswith("migration m3 is Pending")
    assert get_wait_of_vmi(make_vmi("x"), *failed_migrations, make_migration("m3", "x")).reason == "Migrating"
    assert (
        get_wait_of_vmi(
            make_vmi("x"), make_failed_migration("elsewhere", node="b"), make_migration("m3", "x", phase="Pending")
        ).reason
        == "Migrating"
    )


@proves("DRN-10", "DRN-9")
def test_migration_failures_before_success_are_not_reported() -> None:
    """Check that only failures since the last successful migration are reported, after which the VMI has returned."""
    success = make_migration("back", "x", phase="Succeeded")
    success["metadata"]["creationTimestamp"] = "2026-01-01T00:00:05Z"
    earlier_failure, later_failure = (
        make_failed_migration(f"at-{second}", created_at=f"2026-01-01T00:00:0{second}Z") for second in (4, 6)
    )

    assert get_wait_of_vmi(make_vmi("x"), earlier_failure, success) == WAIT_FOR_MIGRATION
    wait = get_wait_of_vmi(make_vmi("x"), earlier_failure, success, later_failure)
    assert wait.message == "its migration failed once; KubeVirt retries it"


@proves("DRN-10", "C3")
def test_failure_in_earlier_drain_does_not_hide_wait_for_kubevirt() -> None:
    """Check that the wait for KubeVirt is reported instead of a migration failure during an earlier drain.

    Only the reason WaitsForKubeVirt makes `evict` send the eviction that notifies KubeVirt.
    """
    assert (
        get_wait_of_vmi(make_vmi("x"), make_failed_migration("m1"), nodes=make_drained_nodes(MEDIK8S_TAINT_KEY)).reason
        == "WaitsForKubeVirt"
    )
    assert (
        get_wait_of_vmi(
            make_vmi("x", evacuationNodeName="a"),
            make_failed_migration("m1"),
            nodes=make_drained_nodes(MEDIK8S_TAINT_KEY),
        ).reason
        == "MigrationFailed"
    )
    pending = make_migration("m2", "x", phase="Pending")
    assert (
        get_wait_of_vmi(
            make_vmi("x"), make_failed_migration("m1"), pending, nodes=make_drained_nodes(MEDIK8S_TAINT_KEY)
        ).reason
        == "MigrationFailed"
    )


@proves("DRN-10")
def test_migration_of_earlier_vmi_with_same_name_is_ignored() -> None:
    """Check that migrations of an earlier VMI with the same name are ignored."""
    vmi, failed_migration, earlier_migration = make_vmi("x"), make_failed_migration("m1"), make_migration("m2", "x")
    own_migration = make_migration("m3", "x", phase="Scheduling")
    vmi["metadata"]["creationTimestamp"] = own_migration["metadata"]["creationTimestamp"] = "2026-11-20T10:00:00Z"
    for migration in (failed_migration, earlier_migration):
        migration["metadata"]["creationTimestamp"] = "2026-11-20T09:59:59Z"

    assert get_wait_of_vmi(vmi, failed_migration, earlier_migration) == WAIT_FOR_MIGRATION
    assert (
        get_wait_of_vmi(vmi, failed_migration, earlier_migration, own_migration).message == "migration m3 is Scheduling"
    )


@proves("DRN-10")
def test_every_reason_is_valid_in_annotations_of_pdb() -> None:
    """Check that every reason why a VMI waits for KubeVirt is valid in the annotations of a PDB."""
    waits = [
        get_wait_of_vmi(make_vmi("x")),
        get_wait_of_vmi(make_vmi("x"), make_migration("m", "x")),
        get_wait_of_vmi(make_vmi("x", conditions=[UNMIGRATABLE_CONDITION])),
    ]
    waits += [
        get_wait_of_vmi(make_vmi("x", strategy="External")),
        get_wait_of_vmi(make_vmi("x", strategy="External", evacuationNodeName="a")),
    ]
    assert {wait.reason for wait in waits} <= set(VIRT_LAUNCHER_REASONS)
