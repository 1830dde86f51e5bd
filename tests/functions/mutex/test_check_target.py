"""Tests for `check-target`, which lists the nodes of a target's MachineConfigPools."""

from __future__ import annotations

import pytest

from eventing import events
from kube.client.api_errors import Rejected
from kube.mutex import pools
from kube.mutex.objects import TARGET_KIND, get_condition
from kube.mutex.versions import WORKER_LABEL
from kube.paths import Object
from localcluster.audit_log import AuditLog
from localcluster.simulators.openshift import build_pool
from tests.functions.event_builders import build_resource_event
from tests.functions.mutex.conftest import UpgradeScenario
from tests.proofs import proves


def check_target(upgrade: UpgradeScenario, target: Object) -> Object:
    upgrade.functions.invoke("check-target", upgrade.build_event(events.TARGET_CHECK_PENDING, mutex_object=target))
    return upgrade.read_object(target)


@proves("MUT-20", "MUT-21", "MUT-22")
def test_nodes_of_all_pools_are_listed_once(upgrade: UpgradeScenario, audit_after_setup: AuditLog) -> None:
    """Check that the target's status lists each node that its pools' labels and expressions select once.

    The nodes are sorted by the order of their pools, then by name. A node that joins a pool is added to the list.
    `check-target` writes nothing else.
    """
    expressions: list[Object] = [
        {"key": "role", "operator": "In", "values": ["blue"]},
        {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [upgrade.nodes[0]]},
        {"key": "isCanary", "operator": "DoesNotExist"},
    ]
    upgrade.administrator_client.create(pools.POOLS_PATH, build_pool("second", {WORKER_LABEL: ""}, expressions))
    target = upgrade.create_object(TARGET_KIND, "two", {"machineConfigPools": ["second", "blue"]})
    assert check_target(upgrade, target)["status"]["nodes"] == [upgrade.nodes[1], upgrade.nodes[0]]
    upgrade.patch_node_labels(upgrade.nodes[1], {"isCanary": ""})
    checked_target = check_target(upgrade, target)
    assert checked_target["status"]["nodes"] == upgrade.nodes
    assert {condition["reason"] for condition in checked_target["status"]["conditions"]} == {
        "MachineConfigPoolFetchSucceeded"
    }
    upgrade.patch_node_labels(upgrade.nodes[1], {"isCanary": None})
    assert {entry["objectRef"]["resource"] for entry in audit_after_setup.list_writes_by()} == {"mutextargets"}


@proves("MUT-20")
def test_target_with_missing_pool_is_invalid(upgrade: UpgradeScenario) -> None:
    """Check that a target with a missing pool is invalid and lists no nodes until the pool exists.

    The condition names the missing pool.
    """
    target = upgrade.create_object(TARGET_KIND, "late", {"machineConfigPools": ["blue", "green"]})
    checked_target = check_target(upgrade, target)
    assert checked_target["status"]["nodes"] == []
    assert get_condition(checked_target, "ValidConfig")["reason"] == "MachineConfigPoolFetchFailed"
    assert "green" in get_condition(checked_target, "ValidConfig")["message"]
    upgrade.administrator_client.create(pools.POOLS_PATH, build_pool("green", {"role": "green"}))
    assert get_condition(check_target(upgrade, target), "ValidConfig")["status"] == "True"


@pytest.mark.parametrize("spec", [{}, {"machineConfigPools": []}, {"machineConfigPools": "worker"}])
def test_crd_rejects_target_without_pools(upgrade: UpgradeScenario, spec: Object) -> None:
    """Table 5.1: The CRD rejects a target that does not name at least one pool."""
    with pytest.raises(Rejected, match="machineConfigPools"):
        upgrade.create_object(TARGET_KIND, "refused", spec)


def test_check_target_ignores_event_of_own_status_write(upgrade: UpgradeScenario, audit_after_setup: AuditLog) -> None:
    """X-2: `check-target` ignores the update event that its status write causes."""
    check_target(upgrade, upgrade.target)
    count = len(audit_after_setup.list_writes_by())
    hint = build_resource_event(events.RESOURCE_UPDATED, upgrade.read_object(upgrade.target), TARGET_KIND)
    assert upgrade.functions.invoke("check-target", hint) is None
    assert len(audit_after_setup.list_writes_by()) == count
