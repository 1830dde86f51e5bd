"""Tests of `migrate` and `protect` with quotas, budgets and labels of other users in their way (X-1).

No drain may shut a VMI down, or wait forever, because of them.
"""

from __future__ import annotations

import pytest

from functions import installs as acting
from functions.event_data import data_of
from functions.round_robin import Turns
from functions.virtualization import protect
from kube import install_lease
from kube.budgets import budgets_in
from kube.maintenance.groups import KUBEVIRT
from kube.paths import Object
from kube.virtualization.virt_launcher_budgets import LABEL
from kube.virtualization.lookup import ONE_BY_ONE
from kube.virtualization.migration_claims import CLAIM_PATH, REFUSED
from tests.fault_proxy import SILENCE, Fault, Faults
from tests.functions.conftest import Functions
from tests.functions.event_builders import tick
from tests.functions.test_installs import THEIRS, drop, taken_by
from tests.functions.virtualization.conftest import Machines
from tests.kubevirt import ABLE, UNABLE, edit, instances, launched, migration, migrations, vmi
from tests.proofs import proves
from tests.workload import Workload

pytestmark = pytest.mark.slow

QUOTAS = {
    "migrate": "count/virtualmachineinstancemigrations.kubevirt.io",
    "protect": "count/poddisruptionbudgets.policy",
}


@proves("DRN-9")
def test_beside_a_budget_that_lets_some_go_no_launcher_is_evicted(
    work: Workload, machines: Machines, functions: Functions
) -> None:
    """Check that no virt-launcher pod is evicted although a namespace-wide budget would allow one eviction.

    Users often write such a budget for all pods of a namespace; here it keeps one of two pods.
    """
    node = work.node()
    for name in ("able", "other"):
        launched(work, vmi(name, node))
    work.budget("namespace-wide", {"kubevirt.io": "virt-launcher"}, 1, counted=2)
    functions.answer("protect", tick())

    told = functions.answer("evict", functions.prepare(work.maintenance(node, group=KUBEVIRT)))

    assert told is not None
    assert data_of(told)["evicted"] == []
    functions.answer("protect", tick())
    said = [item["metadata"]["annotations"] for item in machines.admin.list(budgets_in(work.namespace))["items"][:2]]
    assert {each["nodemaintenance.dev/waits-reason"] for each in said} == {"Migrating"}


@proves("DRN-9")
def test_a_label_on_a_budget_elsewhere_protects_nothing(
    work: Workload, machines: Machines, functions: Functions
) -> None:
    """Check that a budget in another namespace with the label of our budgets does not count as a VMI's budget.

    Any user who knows the VMI's uid can write that label.
    """
    item = machines.create(vmi("able", machines.node))
    elsewhere = work.add_namespace()
    labels = {LABEL: item["metadata"]["uid"]}
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"no": "pod"}}}
    machines.admin.create(budgets_in(elsewhere), {"metadata": {"name": "z", "labels": labels}, "spec": spec})

    functions.answer("protect", tick())

    assert len(machines.admin.list(budgets_in(work.namespace))["items"]) == 1
    work.delete(f"{budgets_in(elsewhere)}/z")


@proves("DRN-9")
def test_a_budget_that_was_edited_is_mended_by_the_tick(
    work: Workload, machines: Machines, functions: Functions
) -> None:
    """Check that a tick restores a budget that was edited so that it protects no pod."""
    machines.create(vmi("able", machines.node))
    functions.answer("protect", tick())
    path = budgets_in(work.namespace)
    (made,) = machines.admin.list(path)["items"]
    change = {"minAvailable": 0, "selector": {"matchLabels": {"more": "labels"}}}
    machines.admin.patch(f"{path}/{made['metadata']['name']}", {"spec": change})

    functions.answer("protect", tick())

    (now,) = machines.admin.list(path)["items"]
    assert now["spec"] == made["spec"]


def test_a_machine_that_says_too_much_leaves_the_others_protected(
    work: Workload, machines: Machines, functions: Functions
) -> None:
    """Check that the other VMIs get their budgets although the status of one VMI is too long for an annotation.

    Any user who may change a VMI can also write its status.
    """
    loud = machines.create(vmi("a", machines.node))
    machines.admin.create(migrations(work.namespace), migration("by-hand", "a"))
    (moving,) = machines.admin.list(migrations(work.namespace))["items"]
    edit(
        machines.admin,
        loud,
        migrationState={"migrationUid": moving["metadata"]["uid"], "targetNode": "x" * 300_000},
    )
    machines.create(vmi("b", machines.node, able=UNABLE))

    functions.answer("protect", tick())

    assert len(machines.admin.list(budgets_in(work.namespace))["items"]) == 2


@proves("DRN-8", "DRN-9")
@pytest.mark.parametrize("step", QUOTAS)
def test_a_quota_in_one_namespace_leaves_the_others_alone(machines: Machines, functions: Functions, step: str) -> None:
    """Check that a quota in one namespace does not affect other namespaces.

    The API server rejects the objects with 403. The rejection is recorded in the Lease and in the budget, the migration
    backs off, and its slot goes to another VMI.
    """
    first, second = sorted([machines.work.namespace, machines.work.add_namespace()])
    path = f"/api/v1/namespaces/{first}/resourcequotas"
    machines.admin.create(path, {"metadata": {"name": "none"}, "spec": {"hard": {QUOTAS[step]: "0"}}})
    machines.work.wait_for(f"{path}/none", lambda one: bool(one and (one.get("status") or {}).get("hard")))
    for space in (first, second):
        for name in ("a", "b"):
            machines.admin.create(instances(space), vmi(name, machines.node))

    functions.answer(step, tick())

    made = {"migrate": migrations, "protect": budgets_in}[step](second)
    assert len(machines.admin.list(made)["items"]) == 2
    if step == "migrate":
        noted = machines.admin.get(CLAIM_PATH)["metadata"]["annotations"][REFUSED]
        assert noted.count("forbidden") == 2
        functions.answer("protect", tick())
        (said, _) = machines.admin.list(budgets_in(first))["items"]
        assert "forbidden" in said["metadata"]["annotations"]["nodemaintenance.dev/waits-message"]


@proves("DRN-9", "X-2")
@pytest.mark.parametrize("fault", [Fault(500, "failed calling webhook"), SILENCE], ids=["an error", "silence"])
def test_a_budget_that_cannot_be_written_leaves_the_others_protected(
    machines: Machines, functions: Functions, faults: Faults, spoiled: Functions, fault: Fault
) -> None:
    """Check that a budget that cannot be created does not stop the others.

    The webhook of one namespace may be broken. The event is retried and starts with the next VMI, and the tick does the
    rest.
    """
    for number in range(3):
        machines.create(vmi(f"vm-{number}", machines.node))
    path = budgets_in(machines.work.namespace)
    machines.taint()
    its_own = [f"create poddisruptionbudgets {number}" for number in (1, 4)]
    faults.spoil(lambda request: fault if request in its_own else None)
    event = tick()
    for _ in range(2):
        assert spoiled.post("protect", event).status_code == 503
    faults.speak_again()

    assert len(machines.admin.list(path)["items"]) == 2
    functions.answer("protect", tick())
    assert len(machines.admin.list(path)["items"]) == 3


@proves("DRN-9", "X-2")
def test_a_machine_behind_budgets_whose_every_write_hangs_is_protected_all_the_same(
    machines: Machines, functions: Functions, faults: Faults, spoiled: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a VMI gets its budget although the writes for the two VMIs before it hang.

    Each hanging write takes a whole pass. The next pass starts after it, and skips VMIs without pending writes.
    """
    made = {item["metadata"]["uid"]: item for item in (create_unable(machines, number) for number in range(8))}
    functions.answer("protect", tick())
    *_, first, second, late = ordered = sorted(made)
    for uid in (first, second):
        edit(machines.admin, made[uid], conditions=[ABLE])
    path = budgets_in(machines.work.namespace)
    (budget,) = [one for one in machines.admin.list(path)["items"] if one["metadata"]["labels"][LABEL] == late]
    machines.work.delete(f"{path}/{budget['metadata']['name']}")
    faults.spoil(lambda request: SILENCE if request.startswith("patch poddisruptionbudgets") else None)
    monkeypatch.setattr(protect, "TURNS", Turns(after=ordered[-1]))

    for _ in range(3):
        spoiled.post("protect", tick())
    faults.speak_again()

    assert len(machines.admin.list(path)["items"]) == len(made)


def create_unable(machines: Machines, number: int) -> Object:
    """Create a VMI that cannot be migrated; its budget will state that reason."""
    return machines.create(vmi(f"vm-{number}", machines.node, able=UNABLE))


@proves("DRN-15")
def test_while_another_install_has_the_claim_nothing_is_migrated_or_protected(
    machines: Machines, functions: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that both steps write nothing while another install holds the install lease.

    Two installs with different settings would overwrite each other's annotations.
    """
    machines.create(vmi("able", machines.node))
    monkeypatch.setattr(acting, "CLAIMS", acting.Claims())
    drop(machines.admin)
    taken_by(machines.admin, THEIRS)
    try:
        for step in QUOTAS:
            functions.answer(step, tick())
        assert install_lease.holder(machines.admin.get(install_lease.CLAIM_PATH)) == THEIRS
        assert (machines.migrations(), machines.admin.list(budgets_in(machines.work.namespace))["items"]) == ({}, [])
    finally:
        drop(machines.admin)


@proves("DRN-8")
def test_on_more_nodes_than_are_read_one_by_one_the_drained_one_is_found(
    machines: Machines, functions: Functions
) -> None:
    """Check that a drained node is found among more nodes than the step reads one by one.

    The step then lists the nodes, which needs the `list` permission instead of one request per node.
    """
    names = [machines.node, *(machines.work.node() for _ in range(ONE_BY_ONE))]
    space = instances(machines.work.namespace)
    machines.admin.together(*(machines.admin.api.create(space, vmi(name, name)) for name in names))

    functions.answer("migrate", tick())

    assert set(machines.migrations().values()) == {machines.node}
