"""Machines among quotas, budgets and labels of other people: none has a drain shut one down, or wait for ever (X-1)."""

from __future__ import annotations

import pytest

from functions import installs as acting
from functions.data import data_of
from functions.rotation import Turns
from functions.virtualization import protect
from kube import install_claim
from kube.budgets import budgets_in
from kube.maintenance.groups import KUBEVIRT
from kube.paths import Object
from kube.virtualization.launcher_budgets import LABEL
from kube.virtualization.lookup import ONE_BY_ONE
from kube.virtualization.migration_claim import CLAIM_PATH, REFUSED
from tests.faults import SILENCE, Fault, Faults
from tests.functions.conftest import Functions
from tests.functions.hints import tick
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
    """One for all pods of a namespace, as teams write them: it keeps one of two."""
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
    """Whoever knows the uid of a machine may write it anywhere."""
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
    """It asked for no pod any more."""
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
    """Whoever may change a VMI writes its status, too: more of it than an annotation holds."""
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
    """It answers 403. What is refused is told, rests, and takes nobody's slot."""
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
    """The webhook of one namespace may be broken. The event is tried again, behind what took all of the first look, and
    the tick does what is left."""
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
    """Each takes a whole look, and the next one begins behind it, however many there are with nothing to be written."""
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
    """A machine that cannot be migrated, which its budget says."""
    return machines.create(vmi(f"vm-{number}", machines.node, able=UNABLE))


@proves("DRN-15")
def test_while_another_install_has_the_claim_nothing_is_migrated_or_protected(
    machines: Machines, functions: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that are set up differently would write over each other's words."""
    machines.create(vmi("able", machines.node))
    monkeypatch.setattr(acting, "CLAIMS", acting.Claims())
    drop(machines.admin)
    taken_by(machines.admin, THEIRS)
    try:
        for step in QUOTAS:
            functions.answer(step, tick())
        assert install_claim.holder(machines.admin.get(install_claim.CLAIM_PATH)) == THEIRS
        assert (machines.migrations(), machines.admin.list(budgets_in(machines.work.namespace))["items"]) == ({}, [])
    finally:
        drop(machines.admin)


@proves("DRN-8")
def test_on_more_nodes_than_are_read_one_by_one_the_drained_one_is_found(
    machines: Machines, functions: Functions
) -> None:
    """They are listed, which takes another right, and no request for each."""
    names = [machines.node, *(machines.work.node() for _ in range(ONE_BY_ONE))]
    space = instances(machines.work.namespace)
    machines.admin.together(*(machines.admin.api.create(space, vmi(name, name)) for name in names))

    functions.answer("migrate", tick())

    assert set(machines.migrations().values()) == {machines.node}
