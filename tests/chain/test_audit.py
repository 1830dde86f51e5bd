"""Tests for the product's API requests, based on the API server's audit log."""

from __future__ import annotations

import pytest

from kube.nodes import build_node_path
from kube.paths import Object
from localcluster.audit_log import OWN_USER_PREFIX, AuditLog
from tests.chain.environment import EventChainEnvironment
from tests.chain.test_not_ready import WRITTEN_RESOURCES
from tests.proofs import proves

# This module runs first in its xdist group, so that the fixture's maintenances are idle for as long as possible.
pytestmark = pytest.mark.usefixtures("finished_maintenances")


@proves("NMO-5", "C32")
def test_nothing_is_evicted_before_cordon_and_taint(environment: EventChainEnvironment) -> None:
    """NMO-5, C32: the node is cordoned and tainted before the first eviction."""
    node = environment.create_node()
    pods = environment.create_pods(node, 5)
    path = environment.create_maintenance(node)
    environment.wait_for_state(path)

    writes = [entry for entry in environment.list_product_writes() if entry["objectRef"].get("name") == node]
    successful_writes = [
        entry for entry in writes if entry["responseStatus"]["code"] < 300
    ]  # The audit log also contains failed writes, such as conflicts, which are retried.
    node_write_times = [
        entry["stageTimestamp"] for entry in successful_writes if entry["objectRef"]["resource"] == "nodes"
    ]
    eviction_times = [entry["requestReceivedTimestamp"] for entry in environment.list_evictions(pods)]

    assert len(node_write_times) == 2
    assert len(eviction_times) == 5
    assert max(node_write_times) < min(eviction_times)
    environment.request_deletion(path)
    environment.wait_for_deletion(path)


@proves("NMO-6")
def test_each_eviction_has_uid_precondition_and_no_pod_is_deleted(environment: EventChainEnvironment) -> None:
    """NMO-6, 9: every eviction has the pod's uid as a precondition, and the product never deletes a pod directly."""
    node = environment.create_node()
    pods = environment.create_pods(node, 5)
    path = environment.create_maintenance(node)
    environment.wait_for_state(path)

    delete_options = {
        entry["objectRef"]["name"]: entry["requestObject"]["deleteOptions"]
        for entry in environment.list_evictions(pods)
    }

    assert {name: options["preconditions"]["uid"] for name, options in delete_options.items()} == {
        pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods
    }
    assert not [entry for entry in environment.list_product_writes() if _is_pod_deletion_by_product(entry)]
    environment.request_deletion(path)
    environment.wait_for_deletion(path)


@proves("C10")
def test_maintenance_writes_only_what_drain_requires_and_leaves_node_ready(environment: EventChainEnvironment) -> None:
    """C10: the product writes only what a drain requires, and the Node is not recreated and stays Ready.

    In the Node, the product changes only `unschedulable`, taints and labels.
    """
    node = environment.create_node()
    environment.create_pods(node, 2)
    before, audit = environment.client.get(build_node_path(node)), AuditLog(environment.cluster.audit_log)
    path = environment.create_maintenance(node)
    environment.wait_for_state(path)
    during = environment.client.get(build_node_path(node))
    environment.request_deletion(path)
    environment.wait_for_deletion(path)
    after = environment.client.get(build_node_path(node))

    assert before["metadata"]["uid"] == during["metadata"]["uid"] == after["metadata"]["uid"]
    assert [is_node_ready(node) for node in (during, after)] == [True, True]
    writes = audit.list_writes_by()
    assert {entry["objectRef"]["resource"] for entry in writes} <= WRITTEN_RESOURCES
    node_writes = [entry for entry in writes if entry["objectRef"]["resource"] == "nodes"]
    assert {(entry["verb"], entry["objectRef"].get("subresource", "")) for entry in node_writes} == {("patch", "")}
    changes = [change for entry in node_writes for change in entry["requestObject"] if change["op"] != "test"]
    assert {change["path"].split("/")[2] for change in changes} == {"unschedulable", "taints", "labels"}


def is_node_ready(node: Object) -> bool:
    """Return whether the node's condition Ready is True."""
    return any(
        (condition["type"], condition["status"]) == ("Ready", "True") for condition in node["status"]["conditions"]
    )


def _is_pod_deletion_by_product(audit_entry: Object) -> bool:
    reference = audit_entry["objectRef"]
    return (
        audit_entry["user"]["username"].startswith(OWN_USER_PREFIX)
        and audit_entry["verb"] in ("delete", "deletecollection")
        and reference["resource"] == "pods"
    )
