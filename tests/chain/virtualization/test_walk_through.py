"""Tests of the documentation's walk-through: start a VM, drain its node with the oldest API, run elsewhere (DRN-16)."""

from __future__ import annotations

from kube.maintenance.groups import KUBEVIRT_ALPHA
from kube.paths import Object
from tests.chain.virtualization.environment import Stage, booted, is_running, node_of
from tests.proofs import proves
from tests.fake_kubevirt_base import phase


@proves("DRN-11", "DRN-16", "DRN-16a", "OSV-4", "C17")
def test_a_machine_without_a_strategy_runs_again_on_another_node(stage: Stage) -> None:
    """Drains shut down a VM without an eviction strategy; it is Scheduling, then Running on another node.

    The printed columns and the VMI's fields are those of the documentation.
    """
    node, _ = stage.node(), stage.node()
    name = stage.machine("testvm", node, strategy="Halted", evict="")
    stage.stopped(name)
    assert stage.instances() == {}
    stage.start(name)
    before = stage.run(name)
    first = stage.instances()[name]
    assert (first["status"]["phase"], first["status"]["nodeName"]) == ("Running", node)
    assert first["status"]["migrationMethod"] == "BlockMigration"
    (interface,) = first["status"]["interfaces"]
    assert all(interface[field] for field in ("ipAddress", "mac", "name"))
    heads = stage.cluster.kubectl("get", "vmis", "-n", stage.space).stdout.splitlines()[0].split()
    assert heads[:5] == ["NAME", "AGE", "PHASE", "IP", "NODENAME"]

    seen: list[tuple[str, str]] = []
    path = stage.maintain(node, group=KUBEVIRT_ALPHA.api_version)

    def is_elsewhere(known: dict[str, Object]) -> bool:
        seen.append((phase(known.get(name, {})), node_of(known.get(name, {}))))
        return is_running(known.get(name)) and node_of(known[name]) != node

    after = stage.await_instances(is_elsewhere)
    assert booted(after[name]) != before[name]
    scheduling = seen.index(("Scheduling", ""))
    assert ("Running", node) not in seen[scheduling:]
    assert stage.migrations() == {}
    stage.reaches(path)


@proves("DRN-11")
def test_an_instance_that_nobody_owns_is_gone_for_good(stage: Stage) -> None:
    """VMIs without a VM are not created again after a drain, like pods without a controller."""
    node, _ = stage.node(), stage.node()
    name = stage.instance("ownerless", node)
    stage.run(name)

    stage.reaches(stage.maintain(node))
    stage.await_instances(lambda known: name not in known)
    stage.tick()
    assert stage.instances() == {}


@proves("DRN-9", "DRN-7")
def test_a_strategy_that_is_taken_off_amid_a_drain_lets_it_end(stage: Stage) -> None:
    """Removing the eviction strategy of a VMI that cannot migrate lets the drain shut it down and complete."""
    node, _ = stage.node(), stage.node()
    name = stage.machine("given-up", node, why="the disk is not shared")
    before = stage.run(name)
    path = stage.maintain(node)
    stage.reaches(path, lambda item: bool((item.get("status") or {}).get("blockedPods")))
    stage.admin.patch(f"{stage.instances_path}/{name}", {"spec": {"evictionStrategy": None}})
    stage.reaches(path)
    stage.rebooted(before, name)
