"""Tests of `protect` on a real API server with KubeVirt's CRDs and the disruption controller."""

from __future__ import annotations

import pytest

from eventing import events
from functions.event_data import data_of
from kube.budgets import CREATED_BY, TARGET, budgets_in
from kube.maintenance.groups import KUBEVIRT, MEDIK8S
from kube.paths import Object, events_path
from tests.functions.conftest import Functions
from tests.functions.event_builders import tick
from tests.functions.virtualization.conftest import Machines
from tests.functions.virtualization.test_migrate import install_kubevirt
from tests.kubevirt import ABLE, UNABLE, edit, instances, launched, vmi
from tests.proofs import proves
from tests.workload import Workload, audit, pod_on

COLLECTED_SECONDS = 60.0
"""Timeout for garbage collection: the collector discovers new kinds only every 30 s, and their objects after that."""


def budgets(machines: Machines) -> dict[str, Object]:
    items = machines.admin.list(budgets_in(machines.work.namespace))["items"]
    return {item["metadata"]["name"]: item for item in items}


@proves("DRN-9", "DRN-7", "X-3a")
def test_a_machine_that_migrates_has_a_budget_as_long_as_it_is_there(machines: Machines, functions: Functions) -> None:
    """Check that each VMI with `LiveMigrate`, on any node, has one budget, which is garbage-collected with the VMI."""
    item = machines.create(vmi("able", "another-node"))
    machines.create(vmi("plain", "another-node", strategy=None))
    for _ in range(2):
        assert functions.answer("protect", tick()) is None
        assert list(budgets(machines)) == [f"launcher-{item['metadata']['uid']}"]

    machines.admin.delete(f"{instances(machines.work.namespace)}/able", uid=item["metadata"]["uid"])
    machines.work.until(budgets_in(machines.work.namespace), lambda known: not known, COLLECTED_SECONDS)


@proves("DRN-9", "OSV-2")
def test_a_drain_says_what_a_launcher_pod_waits_for(work: Workload, functions: Functions, machines: Machines) -> None:
    """Check that a blocked virt-launcher pod reports why its VMI cannot migrate, and later that it is migrating.

    The pod is never evicted.
    """
    node = work.node()
    item = launched(work, vmi("late", node, able=UNABLE))
    functions.answer("protect", tick())
    counted(machines, item)
    functions.prepare(work.maintenance(node, group=KUBEVIRT))

    assert blocked(functions) == ("NotMigratable", "no disk: mend that, or shut down virtual machine late")
    assert [each["reason"] for each in announced(machines, item)] == ["NotMigratable"]

    edit(machines.admin, item, conditions=[ABLE])
    functions.answer("migrate", tick())
    reason, message = blocked(functions)
    assert (reason, message.rpartition(" ")[2]) == ("Migrating", "Pending")
    assert functions.answer("protect", tick()) is None


def blocked(functions: Functions) -> tuple[str, str]:
    """Run `protect` and then `evict`; return the reason and the message of the only blocked pod."""
    changed = functions.answer("protect", tick())
    assert changed is not None
    assert changed.get_type() == events.LAUNCHERS_CHANGED
    told = functions.answer("evict", changed)
    assert told is not None
    (item,) = data_of(told)["blocked"]
    assert data_of(told)["evicted"] == []
    return item["reason"], item["message"]


def counted(machines: Machines, item: Object) -> None:
    """Wait until the disruption controller has counted the VMI's pod."""
    path = f"{budgets_in(machines.work.namespace)}/launcher-{item['metadata']['uid']}"
    machines.work.wait_for(path, lambda found: bool(found and found.get("status", {}).get("currentHealthy") == 1))


@proves("DRN-10")
def test_beside_kubevirt_a_budget_of_ours_goes_when_another_one_stands(
    machines: Machines, functions: Functions
) -> None:
    """Check that with KubeVirt a budget of ours is deleted only once KubeVirt's budget exists, and is not recreated.

    If there was no budget for a moment, a drain would shut the VMI down.
    """
    item = machines.create(vmi("able", machines.node))
    uid = item["metadata"]["uid"]
    functions.answer("protect", tick())
    install_kubevirt(machines)
    functions.answer("protect", tick())
    assert list(budgets(machines)) == [f"launcher-{uid}"]

    selector = {"matchLabels": {"kubevirt.io/created-by": uid}}
    owner = {"apiVersion": item["apiVersion"], "kind": item["kind"], "name": "able", "uid": uid}
    metadata = {"name": "theirs", "ownerReferences": [owner]}
    theirs = {"metadata": metadata, "spec": {"minAvailable": 1, "selector": selector}}
    machines.admin.create(budgets_in(machines.work.namespace), theirs)
    for _ in range(2):
        functions.answer("protect", tick())
        assert list(budgets(machines)) == ["theirs"]


@proves("DRN-10", "C3")
@pytest.mark.parametrize(
    ("strategy", "remedy"),
    [
        ("LiveMigrate", "nodeDrainTaintKey"),
        ("LiveMigrateIfPossible", "nodeDrainTaintKey"),
        ("External", "migrate the virtual machine, or shut it down"),
    ],
)
def test_where_kubevirt_does_not_know_the_taint_it_is_asked_by_an_eviction(
    work: Workload, machines: Machines, functions: Functions, strategy: str, remedy: str
) -> None:
    """Check that `evict` requests the evacuation by an eviction if KubeVirt does not react to the drain taint.

    It sends one eviction per event, which is rejected because of the budget. The blocked pod's message contains the
    remedy.
    """
    node = work.node()
    item = launched(work, vmi("unheard", node, strategy=strategy))
    owner = {"apiVersion": item["apiVersion"], "kind": item["kind"], "name": "unheard", "uid": item["metadata"]["uid"]}
    spec = {"minAvailable": 1, "selector": {"matchLabels": {CREATED_BY: item["metadata"]["uid"]}}}
    body = {"metadata": {"name": "theirs", "ownerReferences": [owner]}, "spec": spec}
    machines.admin.create(budgets_in(work.namespace), body)
    path = f"{budgets_in(work.namespace)}/theirs"
    work.wait_for(path, lambda found: bool(found and found.get("status", {}).get("currentHealthy") == 1))
    install_kubevirt(machines)
    evictions = audit(work.local)
    tainted = functions.prepare(work.maintenance(node, group=MEDIK8S))

    reason, message = blocked(functions)
    assert reason == "WaitsForKubeVirt"
    assert remedy in message
    assert [entry["responseStatus"]["code"] for entry in evictions.evictions()] == [429]
    told = functions.answer("evict", tainted)
    assert told is not None
    assert [each["reason"] for each in data_of(told)["blocked"]] == ["WaitsForKubeVirt"]
    assert [entry["responseStatus"]["code"] for entry in evictions.evictions()] == [429, 429]
    assert functions.answer("protect", tick()) is None


@proves("DRN-9", "DRN-8")
def test_the_pod_that_a_machine_migrates_to_is_not_evicted(
    work: Workload, machines: Machines, functions: Functions
) -> None:
    """Check that the target pod of a migration is not evicted, because the migration would fail.

    The pod is pending, so the API server would evict it without checking a budget.
    """
    node = work.node()
    item = machines.create(vmi("moving", "another-node"))
    labels = {"kubevirt.io": "virt-launcher", CREATED_BY: item["metadata"]["uid"], TARGET: "uid-of-the-migration"}
    body = pod_on(node, "target", labels=labels)
    body["metadata"]["annotations"] = {"pod-ready.stage.kwok.x-k8s.io/delay": "1h"}
    (target,) = work.put(work.namespace, [body], ready=False)
    functions.answer("protect", tick())

    told = functions.answer("evict", functions.prepare(work.maintenance(node, group=KUBEVIRT)))
    assert told is not None
    assert data_of(told)["evicted"] == []
    (blocked,) = data_of(told)["blocked"]
    assert (blocked["uid"], blocked["reason"]) == (target["metadata"]["uid"], "Migrating")


@proves("DRN-9", "DRN-7")
def test_the_budget_goes_with_the_strategy(machines: Machines, functions: Functions) -> None:
    """Check that the budget is deleted when a user removes `LiveMigrate` from the VMI, so that it can be evicted."""
    item = machines.create(vmi("fickle", "another-node"))
    functions.answer("protect", tick())
    assert len(budgets(machines)) == 1
    machines.admin.patch(f"{instances(machines.work.namespace)}/fickle", {"spec": {"evictionStrategy": None}})
    functions.answer("protect", tick())
    assert budgets(machines) == {}
    assert item["metadata"]["name"] == "fickle"


def announced(machines: Machines, item: Object) -> list[Object]:
    """Return the Events about a VMI."""
    found = machines.admin.list(events_path(machines.work.namespace))["items"]
    return [each for each in found if each["involvedObject"].get("uid") == item["metadata"]["uid"]]
