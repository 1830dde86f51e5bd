"""Tests for `migrate` on a real API server with KubeVirt's CRDs."""

from __future__ import annotations

import threading
from datetime import datetime, timezone

import pytest

from functions.serving import handler
from functions.virtualization.migrate import MAX_DELETIONS_PER_PASS
from kube.client.deadline import get_seconds_left
from kube.paths import LEASES_PATH, Object
from kube.virtualization.evacuation import MAX_KEPT_MIGRATIONS
from kube.virtualization.migration_claims import CLAIM_DURATION, LEASE_PATH, MigrationClaim, build_lease, parse_claims
from localcluster.audit_log import AuditLog
from tests.functions.conftest import Functions
from tests.functions.event_builders import build_tick
from tests.functions.request_hooks import run_before_request
from tests.functions.virtualization.conftest import VmiScenario
from tests.kubevirt import MIGRATABLE, NOT_MIGRATABLE, build_migration, build_vmi, get_migrations_path, patch_vmi_status
from tests.proofs import proves
from tests.workload import summarize_writes

MEDIK8S_DRAIN_TAINT: Object = {"key": "medik8s.io/drain", "effect": "NoSchedule"}


@proves("DRN-7", "DRN-8", "OSV-2", "X-3a")
def test_each_migratable_vmi_gets_one_migration(vmi_scenario: VmiScenario, functions: Functions) -> None:
    """Check that each migratable VMI with `LiveMigrate` on a drained node gets exactly one migration.

    An administrator has set the drain taint with a value. VMIs that cannot or should not migrate get no migration.
    """
    migratable_vmi = vmi_scenario.create_vmi(build_vmi("able", vmi_scenario.node))
    vmi_scenario.create_vmi(build_vmi("unable", vmi_scenario.node, migratable=NOT_MIGRATABLE))
    vmi_scenario.create_vmi(build_vmi("plain", vmi_scenario.node, strategy=None))
    vmi_scenario.create_vmi(build_vmi("gate", vmi_scenario.node, strategy="LiveMigration"))
    vmi_scenario.create_vmi(build_vmi("elsewhere", "another-node"))

    for _ in range(2):
        assert functions.invoke("migrate", build_tick()) is None
        assert vmi_scenario.map_migrations_to_vmis() == {f"evacuation-{migratable_vmi['metadata']['uid']}-1": "able"}


@proves("C3", "DRN-8")
def test_medik8s_drain_taint_causes_migration(vmi_scenario: VmiScenario, functions: Functions) -> None:
    """Check that the medik8s drain taint also causes migrations, and that no migration starts without a taint."""
    vmi_scenario.replace_taints()
    vmi_scenario.create_vmi(build_vmi("able", vmi_scenario.node))
    functions.invoke("migrate", build_tick())
    assert vmi_scenario.map_migrations_to_vmis() == {}

    vmi_scenario.replace_taints(MEDIK8S_DRAIN_TAINT)
    functions.invoke("migrate", build_tick())
    assert list(vmi_scenario.map_migrations_to_vmis().values()) == ["able"]


@proves("OSV-2")
def test_vmi_migrates_once_it_is_migratable(vmi_scenario: VmiScenario, functions: Functions) -> None:
    """Check that a VMI migrates once its condition `LiveMigratable` becomes True."""
    vmi = vmi_scenario.create_vmi(build_vmi("late", vmi_scenario.node, migratable=NOT_MIGRATABLE))
    functions.invoke("migrate", build_tick())
    assert vmi_scenario.map_migrations_to_vmis() == {}

    patch_vmi_status(vmi_scenario.administrator_client, vmi, conditions=[MIGRATABLE])
    functions.invoke("migrate", build_tick())
    assert list(vmi_scenario.map_migrations_to_vmis().values()) == ["late"]


@proves("DRN-8")
def test_at_most_two_vmis_of_node_migrate_concurrently(vmi_scenario: VmiScenario, functions: Functions) -> None:
    """Check that at most two VMIs of a node migrate concurrently, and that the next migration starts after one ends."""
    for number in range(4):
        vmi_scenario.create_vmi(build_vmi(f"vm-{number}", vmi_scenario.node))
    for _ in range(2):
        functions.invoke("migrate", build_tick())
        assert sorted(vmi_scenario.map_migrations_to_vmis().values()) == ["vm-0", "vm-1"]

    set_migration_phase(vmi_scenario, "vm-0", "Succeeded")
    patch_vmi_status(
        vmi_scenario.administrator_client,
        {"metadata": {"namespace": vmi_scenario.workload.namespace, "name": "vm-0"}},
        nodeName="other",
    )
    functions.invoke("migrate", build_tick())
    assert sorted(vmi_scenario.map_migrations_to_vmis().values()) == ["vm-0", "vm-1", "vm-2"]


@proves("DRN-8")
def test_vmi_with_manual_migration_gets_no_second_migration(vmi_scenario: VmiScenario, functions: Functions) -> None:
    """Check that a VMI for which an administrator created a migration gets no second migration."""
    vmi_scenario.create_vmi(build_vmi("moved", vmi_scenario.node))
    vmi_scenario.administrator_client.create(
        get_migrations_path(vmi_scenario.workload.namespace), build_migration("by-hand", "moved")
    )

    functions.invoke("migrate", build_tick())
    assert vmi_scenario.map_migrations_to_vmis() == {"by-hand": "moved"}


@proves("DRN-9")
def test_failed_migration_is_retried_after_backoff(vmi_scenario: VmiScenario, functions: Functions) -> None:
    """Check that a failed migration is retried only after a backoff.

    The backoff starts at the failure time in the migration's status.
    """
    vmi_scenario.create_vmi(build_vmi("failing", vmi_scenario.node))
    functions.invoke("migrate", build_tick())
    set_migration_phase(vmi_scenario, "failing", "Failed")

    functions.invoke("migrate", build_tick())
    assert len(vmi_scenario.map_migrations_to_vmis()) == 1


@proves("DRN-9", "X-3")
def test_old_failed_migrations_are_deleted(vmi_scenario: VmiScenario, functions: Functions) -> None:
    """Check that each pass deletes a limited number of old failed migrations and keeps the newest ones.

    Otherwise the failed migrations of a VMI that never migrates would fill the list of every pass. Migrations of other
    clients are kept.
    """
    vmi = vmi_scenario.create_vmi(build_vmi("failing", vmi_scenario.node))
    names = [
        f"evacuation-{vmi['metadata']['uid']}-{number}"
        for number in range(1, MAX_KEPT_MIGRATIONS + MAX_DELETIONS_PER_PASS + 3)
    ]
    path = get_migrations_path(vmi_scenario.workload.namespace)
    for name in (*names, "by-hand"):
        vmi_scenario.administrator_client.create(path, build_migration(name, "failing"))
    set_migration_phase(vmi_scenario, "failing", "Failed")

    functions.invoke("migrate", build_tick())
    assert len(vmi_scenario.map_migrations_to_vmis()) == MAX_KEPT_MIGRATIONS + 3
    functions.invoke("migrate", build_tick())
    assert set(vmi_scenario.map_migrations_to_vmis()) == {*names[-MAX_KEPT_MIGRATIONS:], "by-hand"}


@proves("DRN-8", "X-2")
@pytest.mark.parametrize("is_same_event", [True, False], ids=["the same event", "another event"])
def test_claimed_migration_is_created_by_claiming_event_or_after_expiry(
    vmi_scenario: VmiScenario, functions: Functions, *, is_same_event: bool
) -> None:
    """Check that a claimed migration is created by the claiming event, or by any event after the claim has expired.

    If a process is killed after it wrote its claim, the redelivered event uses that claim.
    """
    vmi, event = vmi_scenario.create_vmi(build_vmi("able", vmi_scenario.node)), build_tick()
    name, now = f"evacuation-{vmi['metadata']['uid']}-1", datetime.now(timezone.utc)
    claim = MigrationClaim(event.get_id() if is_same_event else "another", vmi_scenario.node, now + CLAIM_DURATION)
    vmi_scenario.administrator_client.create(LEASES_PATH, build_lease({name: claim}))

    functions.invoke("migrate", event)
    assert list(vmi_scenario.map_migrations_to_vmis()) == ([name] if is_same_event else [])

    expired_claim = build_lease({name: claim._replace(until=now)})["metadata"]["annotations"]
    vmi_scenario.administrator_client.patch(LEASE_PATH, {"metadata": {"annotations": expired_claim}})
    functions.invoke("migrate", build_tick())
    assert vmi_scenario.map_migrations_to_vmis() == {name: "able"}


@pytest.mark.slow
@proves("DRN-8", "X-2")
def test_hanging_migration_creation_occupies_migration_slot(
    vmi_scenario: VmiScenario, functions: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a migration whose creation hangs until the step's deadline still occupies its migration slot.

    The next pass therefore exceeds no limit.
    """
    for number in range(3):
        vmi_scenario.create_vmi(build_vmi(f"vm-{number}", vmi_scenario.node))
    path = get_migrations_path(vmi_scenario.workload.namespace)

    def hang_until_deadline() -> None:
        threading.Event().wait(get_seconds_left())

    with (
        run_before_request(functions.clusters["migrate"], "POST", path, hang_until_deadline),
        monkeypatch.context() as patched,
    ):
        patched.setattr(handler, "API_DEADLINE_SECONDS", 0.7)
        assert functions.post("migrate", build_tick()).status_code == 503
    migrations = vmi_scenario.map_migrations_to_vmis()
    claims = parse_claims(vmi_scenario.administrator_client.get(LEASE_PATH))
    assert claims.keys() - migrations.keys()
    assert len(claims.keys() | migrations.keys()) == 2
    functions.invoke("migrate", build_tick())
    assert vmi_scenario.map_migrations_to_vmis() == migrations


@proves("DRN-8")
def test_migration_creation_sends_timeout_to_api_server(
    vmi_scenario: VmiScenario, functions: Functions, audit: AuditLog
) -> None:
    """Check that the creation of a migration sends its time limit to the API server.

    A request that hangs in an admission webhook must not create a migration after another VMI got the migration slot.
    """
    vmi_scenario.create_vmi(build_vmi("able", vmi_scenario.node))
    functions.invoke("migrate", build_tick())

    (creation,) = (entry for entry in audit.list_writes_by() if "instancemigrations" in entry["requestURI"])
    assert creation["requestURI"].endswith("?timeout=2s")


@proves("DRN-8")
def test_claim_for_migration_slot_is_written_before_migration(
    vmi_scenario: VmiScenario, functions: Functions, audit: AuditLog
) -> None:
    """Check that the claim is written before the migration is created, and removed afterwards.

    Concurrent processes therefore read the claim, and the write of the slower process is rejected.
    """
    vmi_scenario.create_vmi(build_vmi("able", vmi_scenario.node))
    functions.invoke("migrate", build_tick())

    assert [resource for _, resource, _ in summarize_writes(audit.list_writes_by())] == [
        "leases",
        "virtualmachineinstancemigrations",
        "leases",
    ]


@proves("DRN-10")
def test_no_migration_is_created_while_kubevirt_is_installed(
    vmi_scenario: VmiScenario, functions: Functions, audit: AuditLog
) -> None:
    """Check that no migration is created while a KubeVirt object exists, because KubeVirt migrates the VMIs itself."""
    vmi_scenario.create_vmi(build_vmi("able", vmi_scenario.node))
    install_kubevirt(vmi_scenario)

    functions.invoke("migrate", build_tick())
    assert vmi_scenario.map_migrations_to_vmis() == {}
    assert audit.list_writes_by() == []


def install_kubevirt(vmi_scenario: VmiScenario) -> None:
    """Create a KubeVirt object, by which the steps detect KubeVirt."""
    namespace = vmi_scenario.workload.namespace
    body = {"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": {"name": "kubevirt"}, "spec": {}}
    vmi_scenario.administrator_client.create(f"/apis/kubevirt.io/v1/namespaces/{namespace}/kubevirts", body)


def set_migration_phase(vmi_scenario: VmiScenario, vmi_name: str, phase: str) -> None:
    """Set the phase of all migrations of a VMI."""
    for name, migrated_name in vmi_scenario.map_migrations_to_vmis().items():
        if migrated_name == vmi_name:
            path = f"{get_migrations_path(vmi_scenario.workload.namespace)}/{name}/status"
            vmi_scenario.administrator_client.patch(path, {"status": {"phase": phase}})
