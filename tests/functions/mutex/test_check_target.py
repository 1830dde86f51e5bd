"""Tests of `check-target`, which lists the nodes of a target's pools."""

from __future__ import annotations

import pytest

from eventing import events
from kube.client.api_errors import Rejected
from kube.mutex import pools
from kube.mutex.objects import TARGET, condition
from kube.mutex.versions import WORKER
from kube.paths import Object
from tests.functions.event_builders import resource
from tests.functions.mutex.conftest import Upgrade
from tests.openshift import pool
from tests.proofs import proves
from tests.workload import Audit


def looked(upgrade: Upgrade, target: Object) -> Object:
    upgrade.functions.answer("check-target", upgrade.said(events.TARGET_FOUND, item=target))
    return upgrade.again(target)


@proves("MUT-20", "MUT-21", "MUT-22")
def test_the_nodes_of_all_pools_are_listed_each_once(upgrade: Upgrade, written: Audit) -> None:
    """Check that the status lists the nodes of all pools, each node once, by the pools' labels and expressions.

    The list has the order of the pools, then that of the names. A new node of a pool is added, and nothing else is
    written.
    """
    expressions: list[Object] = [
        {"key": "role", "operator": "In", "values": ["blue"]},
        {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [upgrade.nodes[0]]},
        {"key": "isCanary", "operator": "DoesNotExist"},
    ]
    upgrade.admin.create(pools.POOLS, pool("second", {WORKER: ""}, expressions))
    target = upgrade.create(TARGET, "two", {"machineConfigPools": ["second", "blue"]})
    assert looked(upgrade, target)["status"]["nodes"] == [upgrade.nodes[1], upgrade.nodes[0]]
    upgrade.label(upgrade.nodes[1], {"isCanary": ""})
    found = looked(upgrade, target)
    assert found["status"]["nodes"] == upgrade.nodes
    assert {each["reason"] for each in found["status"]["conditions"]} == {"MachineConfigPoolFetchSucceeded"}
    upgrade.label(upgrade.nodes[1], {"isCanary": None})
    assert {entry["objectRef"]["resource"] for entry in written.writes_by()} == {"mutextargets"}


@proves("MUT-20")
def test_a_pool_that_is_not_there_makes_it_invalid_until_it_comes(upgrade: Upgrade) -> None:
    """Check that a target with a missing pool is invalid and lists no nodes until the pool exists.

    The condition names the pool.
    """
    target = upgrade.create(TARGET, "late", {"machineConfigPools": ["blue", "green"]})
    found = looked(upgrade, target)
    assert found["status"]["nodes"] == []
    assert condition(found, "ValidConfig")["reason"] == "MachineConfigPoolFetchFailed"
    assert "green" in condition(found, "ValidConfig")["message"]
    upgrade.admin.create(pools.POOLS, pool("green", {"role": "green"}))
    assert condition(looked(upgrade, target), "ValidConfig")["status"] == "True"


@pytest.mark.parametrize("spec", [{}, {"machineConfigPools": []}, {"machineConfigPools": "worker"}])
def test_the_schema_refuses(upgrade: Upgrade, spec: Object) -> None:
    """Table 5.1: The CRD rejects a target that does not name at least one pool."""
    with pytest.raises(Rejected, match="machineConfigPools"):
        upgrade.create(TARGET, "refused", spec)


def test_its_own_write_is_no_reason_to_look_again(upgrade: Upgrade, written: Audit) -> None:
    """X-2: The step ignores the update event of its own status write."""
    looked(upgrade, upgrade.target)
    count = len(written.writes_by())
    hint = resource(events.RESOURCE_UPDATED, upgrade.again(upgrade.target), TARGET)
    assert upgrade.functions.answer("check-target", hint) is None
    assert len(written.writes_by()) == count
