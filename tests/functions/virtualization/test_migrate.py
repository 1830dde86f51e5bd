"""Tests of `migrate` on a real API server with KubeVirt's CRDs."""

from __future__ import annotations

import threading
from datetime import datetime, timezone

import pytest

from functions.serving import handler
from functions.virtualization.migrate import DELETED_AT_ONCE
from kube.client.deadline import seconds_left
from kube.paths import LEASES, Object
from kube.virtualization.evacuation import KEPT
from kube.virtualization.migration_claims import CLAIM_PATH, LEASE, Claim, claimed, lease_of
from tests.functions.conftest import Functions
from tests.functions.event_builders import tick
from tests.functions.request_hooks import before
from tests.functions.virtualization.conftest import Machines
from tests.kubevirt import ABLE, UNABLE, edit, migration, migrations, vmi
from tests.proofs import proves
from tests.workload import Audit, written

MEDIK8S: Object = {"key": "medik8s.io/drain", "effect": "NoSchedule"}


@proves("DRN-7", "DRN-8", "OSV-2", "X-3a")
def test_each_machine_that_can_migrate_has_one_migration(machines: Machines, functions: Functions) -> None:
    """Check that each migratable VMI with `LiveMigrate` on a drained node gets one migration, and no second one.

    An administrator has set the taint, with a value. VMIs that cannot or should not migrate get none.
    """
    able = machines.create(vmi("able", machines.node))
    machines.create(vmi("unable", machines.node, able=UNABLE))
    machines.create(vmi("plain", machines.node, strategy=None))
    machines.create(vmi("gate", machines.node, strategy="LiveMigration"))
    machines.create(vmi("elsewhere", "another-node"))

    for _ in range(2):
        assert functions.answer("migrate", tick()) is None
        assert machines.migrations() == {f"evacuation-{able['metadata']['uid']}-1": "able"}


@proves("C3", "DRN-8")
def test_the_other_key_does_the_same(machines: Machines, functions: Functions) -> None:
    """Check that the medik8s drain taint causes migrations too, and that none starts without a taint."""
    machines.taint()
    machines.create(vmi("able", machines.node))
    functions.answer("migrate", tick())
    assert machines.migrations() == {}

    machines.taint(MEDIK8S)
    functions.answer("migrate", tick())
    assert list(machines.migrations().values()) == ["able"]


@proves("OSV-2")
def test_one_that_becomes_migratable_migrates(machines: Machines, functions: Functions) -> None:
    """Check that a VMI migrates once its condition `LiveMigratable` becomes True."""
    item = machines.create(vmi("late", machines.node, able=UNABLE))
    functions.answer("migrate", tick())
    assert machines.migrations() == {}

    edit(machines.admin, item, conditions=[ABLE])
    functions.answer("migrate", tick())
    assert list(machines.migrations().values()) == ["late"]


@proves("DRN-8")
def test_two_migrate_from_a_node_at_once(machines: Machines, functions: Functions) -> None:
    """Check that at most two VMIs of a node migrate at once, and that the next one starts when one has finished."""
    for number in range(4):
        machines.create(vmi(f"vm-{number}", machines.node))
    for _ in range(2):
        functions.answer("migrate", tick())
        assert sorted(machines.migrations().values()) == ["vm-0", "vm-1"]

    finish(machines, "vm-0", "Succeeded")
    edit(machines.admin, {"metadata": {"namespace": machines.work.namespace, "name": "vm-0"}}, nodeName="other")
    functions.answer("migrate", tick())
    assert sorted(machines.migrations().values()) == ["vm-0", "vm-1", "vm-2"]


@proves("DRN-8")
def test_a_migration_by_hand_is_enough(machines: Machines, functions: Functions) -> None:
    """Check that a VMI that an administrator is migrating gets no second migration."""
    machines.create(vmi("moved", machines.node))
    machines.admin.create(migrations(machines.work.namespace), migration("by-hand", "moved"))

    functions.answer("migrate", tick())
    assert machines.migrations() == {"by-hand": "moved"}


@proves("DRN-9")
def test_a_failed_migration_is_not_tried_again_at_once(machines: Machines, functions: Functions) -> None:
    """Check that a failed migration is retried only after a backoff.

    The backoff starts at the failure time in the migration's own status.
    """
    machines.create(vmi("failing", machines.node))
    functions.answer("migrate", tick())
    finish(machines, "failing", "Failed")

    functions.answer("migrate", tick())
    assert len(machines.migrations()) == 1


@proves("DRN-9", "X-3")
def test_of_migrations_that_failed_the_newest_are_left(machines: Machines, functions: Functions) -> None:
    """Check that each pass deletes a limited number of old failed migrations and keeps the newest ones.

    Otherwise the failures of a VMI that never migrates would fill every pass. Migrations of other clients stay.
    """
    item = machines.create(vmi("failing", machines.node))
    names = [f"evacuation-{item['metadata']['uid']}-{number}" for number in range(1, KEPT + DELETED_AT_ONCE + 3)]
    path = migrations(machines.work.namespace)
    for name in (*names, "by-hand"):
        machines.admin.create(path, migration(name, "failing"))
    finish(machines, "failing", "Failed")

    functions.answer("migrate", tick())
    assert len(machines.migrations()) == KEPT + 3
    functions.answer("migrate", tick())
    assert set(machines.migrations()) == {*names[-KEPT:], "by-hand"}


@proves("DRN-8", "X-2")
@pytest.mark.parametrize("again", [True, False], ids=["the same event", "another event"])
def test_what_is_claimed_is_created_by_its_attempt_or_later(
    machines: Machines, functions: Functions, *, again: bool
) -> None:
    """Check that a claimed migration is created by the claiming event, or by any event after the claim has expired.

    A process may die after its claim. Its redelivered event then continues with the claim.
    """
    item, event = machines.create(vmi("able", machines.node)), tick()
    name, now = f"evacuation-{item['metadata']['uid']}-1", datetime.now(timezone.utc)
    mine = Claim(event.get_id() if again else "another", machines.node, now + LEASE)
    machines.admin.create(LEASES, lease_of({name: mine}))

    functions.answer("migrate", event)
    assert list(machines.migrations()) == ([name] if again else [])

    over = lease_of({name: mine._replace(until=now)})["metadata"]["annotations"]
    machines.admin.patch(CLAIM_PATH, {"metadata": {"annotations": over}})
    functions.answer("migrate", tick())
    assert machines.migrations() == {name: "able"}


@proves("DRN-8", "X-2")
def test_who_was_held_up_creates_nothing_late(
    machines: Machines, functions: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a creation that hangs until the step's deadline still occupies its slot.

    The next pass therefore exceeds no limit.
    """
    for number in range(3):
        machines.create(vmi(f"vm-{number}", machines.node))
    path = migrations(machines.work.namespace)

    def hang() -> None:
        threading.Event().wait(seconds_left())

    with before(functions.clusters["migrate"], "POST", path, hang), monkeypatch.context() as patched:
        patched.setattr(handler, "SECONDS_TO_ANSWER", 0.7)
        assert functions.post("migrate", tick()).status_code == 503
    made = machines.migrations()
    claims = claimed(machines.admin.get(CLAIM_PATH))
    assert claims.keys() - made.keys()
    assert len(claims.keys() | made.keys()) == 2
    functions.answer("migrate", tick())
    assert machines.migrations() == made


@proves("DRN-8")
def test_the_server_gives_a_migration_up_in_time(machines: Machines, functions: Functions, audit: Audit) -> None:
    """Check that a creation passes its time limit to the API server.

    A request that hangs in a webhook must not create a migration after another one got its slot.
    """
    machines.create(vmi("able", machines.node))
    functions.answer("migrate", tick())

    (made,) = (entry for entry in audit.writes_by() if "instancemigrations" in entry["requestURI"])
    assert made["requestURI"].endswith("?timeout=2s")


@proves("DRN-8")
def test_a_claim_is_written_before_what_it_is_for(machines: Machines, functions: Functions, audit: Audit) -> None:
    """Check that the claim is written before the migration is created, and removed afterwards.

    Concurrent processes therefore see the claim, and the write of the slower one is rejected.
    """
    machines.create(vmi("able", machines.node))
    functions.answer("migrate", tick())

    assert [resource for _, resource, _ in written(audit.writes_by())] == [
        "leases",
        "virtualmachineinstancemigrations",
        "leases",
    ]


@proves("DRN-10")
def test_beside_kubevirt_nothing_is_made(machines: Machines, functions: Functions, audit: Audit) -> None:
    """Check that no migration is created while a KubeVirt object exists, because KubeVirt migrates the VMIs itself."""
    machines.create(vmi("able", machines.node))
    install_kubevirt(machines)

    functions.answer("migrate", tick())
    assert machines.migrations() == {}
    assert audit.writes_by() == []


def install_kubevirt(machines: Machines) -> None:
    """Create a KubeVirt object, by which the steps detect KubeVirt."""
    namespace = machines.work.namespace
    body = {"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": {"name": "kubevirt"}, "spec": {}}
    machines.admin.create(f"/apis/kubevirt.io/v1/namespaces/{namespace}/kubevirts", body)


def finish(machines: Machines, instance: str, phase: str) -> None:
    """Set the phase of all migrations of a VMI."""
    for name, moved in machines.migrations().items():
        if moved == instance:
            path = f"{migrations(machines.work.namespace)}/{name}/status"
            machines.admin.patch(path, {"status": {"phase": phase}})
