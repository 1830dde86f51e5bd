"""Tests for invalid NodeMaintenances, unknown and deleted nodes, and pods that cannot be evicted or removed."""

from __future__ import annotations

import json

import pytest

from kube.maintenance.groups import MEDIK8S
from kube.paths import Object
from localcluster.errors import LocalClusterError
from tests.chain.environment import EventChainEnvironment
from tests.proofs import proves

pytestmark = pytest.mark.abreast


@pytest.mark.slow
@proves("NMO-19")
def test_maintenance_for_unknown_node_fails_until_node_is_created(environment: EventChainEnvironment) -> None:
    """NMO-19: a maintenance for an unknown node fails with the reason, and begins at a tick once the node exists."""
    path = environment.create_maintenance("chain-not-yet")
    status = environment.wait_for_state(path, lambda maintenance: bool((maintenance.get("status") or {}).get("phase")))[
        "status"
    ]
    assert (status["phase"], status["lastError"]) == ("Failed", 'nodes "chain-not-yet" not found')

    environment.create_node("chain-not-yet")
    new_status = environment.wait_with_ticks(lambda: environment.wait_for_state(path, timeout=1))["status"]

    assert "lastError" not in new_status
    environment.request_deletion(path)
    environment.wait_for_deletion(path)


@proves("NMO-18")
@pytest.mark.parametrize(
    ("spec", "expected_message"),
    [
        pytest.param({"spec": {"nodeName": ""}}, "spec.nodeName", id="empty"),
        pytest.param({"spec": {"reason": "x"}}, "spec.nodeName: Required value", id="missing"),
        pytest.param({}, "spec: Required value", id="no spec"),
        pytest.param({"spec": {"nodeName": 7}}, "spec.nodeName", id="number"),
    ],
)
def test_schema_rejects_invalid_node_name(
    environment: EventChainEnvironment, spec: Object, expected_message: str
) -> None:
    """NMO-2, NMO-18: even without the admission webhook, the CRD's schema rejects an invalid `nodeName`."""
    type_and_metadata = {"apiVersion": MEDIK8S.api_version, "kind": "NodeMaintenance", "metadata": {"name": "bad"}}

    with pytest.raises(LocalClusterError) as error:
        environment.cluster.kubectl("create", "-f", "-", input=json.dumps({**type_and_metadata, **spec}))

    assert expected_message in str(error.value)


@proves("NMO-18", "NMO-21")
def test_node_name_of_maintenance_cannot_be_changed(environment: EventChainEnvironment) -> None:
    """NMO-21: the API server rejects a change to `spec.nodeName`, while `spec.reason` may change at any time."""
    node = environment.create_node()
    path = environment.create_maintenance(node)
    environment.wait_for_state(path)

    with pytest.raises(LocalClusterError) as error:
        environment.cluster.kubectl(
            "patch", "nm", path.rsplit("/", 1)[1], "--type=merge", '-p={"spec":{"nodeName":"x"}}'
        )
    environment.cluster.kubectl("patch", "nm", path.rsplit("/", 1)[1], "--type=merge", '-p={"spec":{"reason":"other"}}')

    assert "updating spec.NodeName isn't allowed" in str(error.value)
    environment.request_deletion(path)
    environment.wait_for_deletion(path)


@proves("NMO-20")
def test_deleting_node_deletes_its_maintenance(environment: EventChainEnvironment) -> None:
    """NMO-20, NMO-14: deleting a node also deletes its NodeMaintenance."""
    node = environment.create_node()
    path = environment.create_maintenance(node)
    environment.wait_for_state(path)

    environment.cluster.kubectl("delete", "node", node)

    assert environment.wait_for_deletion(path, timeout=10) < 10


def test_pod_with_finalizer_is_reported_as_blocked(environment: EventChainEnvironment) -> None:
    """NMO-12, OSV-15: a terminating pod with a finalizer is reported as blocked until the finalizer is removed."""
    node = environment.create_node()
    (pod,) = environment.create_pods(node, 1, finalizers=["example.com/hold"], grace=1)
    path = environment.create_maintenance(node)

    status = environment.wait_with_ticks(lambda: environment.wait_for_state(path, _has_blocked_pods, timeout=1))[
        "status"
    ]
    assert status["phase"] == "Running"
    assert [(blocked_pod["reason"], blocked_pod["name"]) for blocked_pod in status["blockedPods"]] == [
        ("Finalizers", pod["metadata"]["name"])
    ]
    assert "example.com/hold" in status["blockedPods"][0]["message"]

    arguments = ("-n", pod["metadata"]["namespace"], "pod", pod["metadata"]["name"])
    environment.cluster.kubectl("patch", *arguments, "--type=merge", '-p={"metadata":{"finalizers":null}}')
    environment.wait_for_state(path)
    environment.request_deletion(path)
    environment.wait_for_deletion(path)


def test_terminating_namespace_does_not_block_drain(environment: EventChainEnvironment) -> None:
    """NMO-6: pods in a terminating namespace, where evictions are forbidden, do not block other evictions."""
    node, namespace = environment.create_node(), environment.create_namespace()
    environment.create_pods(node, 5, namespace=namespace, delete="1s")
    environment.create_pods(node, 3)
    environment.cluster.kubectl("delete", "namespace", namespace, "--wait=false")

    path = environment.create_maintenance(node)
    status = environment.wait_for_state(path)["status"]

    assert "lastError" not in status
    assert environment.list_pods_on(node) == []
    environment.request_deletion(path)
    environment.wait_for_deletion(path)


def _has_blocked_pods(maintenance: Object) -> bool:
    return bool((maintenance.get("status") or {}).get("blockedPods"))
