"""Tests that the command that the product suggests for a blocked pod unblocks the drain, executed as printed."""

from __future__ import annotations

import shlex

import pytest

from console.operations.budget_hints import read_budget_hints
from kube.client.api import STRATEGIC_MERGE_PATCH
from kube.evictions.requests import build_pod_path
from kube.maintenance.blocked_groups import BlockedGroup, group_blocked_pods
from kube.maintenance.objects import format_full_name, get_blocked_pods
from kube.paths import DEFAULT_NAMESPACE, Object
from tests.chain.environment import EventChainEnvironment
from tests.proofs import proves

LABELS = {"app": "web"}


def has_blocked_pods(maintenance: Object) -> bool:
    """Return whether the maintenance's status lists a blocked pod."""
    return bool(get_blocked_pods(maintenance))


def wait_for_cause_of_blockage(environment: EventChainEnvironment, path: str) -> BlockedGroup:
    """Wait until pods are blocked for exactly one cause, and return the group of these pods."""
    maintenance = environment.wait_with_ticks(
        lambda: environment.wait_for_state(path, has_blocked_pods, timeout=1), timeout=90
    )
    (group,) = group_blocked_pods(get_blocked_pods(maintenance), format_full_name(maintenance))
    return group


def execute_remedy_and_wait_for_success(environment: EventChainEnvironment, path: str, expected_reason: str) -> None:
    """Execute the command of the last suggested remedy, and delete the maintenance after its drain has succeeded."""
    group = wait_for_cause_of_blockage(environment, path)
    assert group.reason == expected_reason

    execute_command_and_wait_for_success(environment, path, group.remedies[-1].command)


def execute_command_and_wait_for_success(environment: EventChainEnvironment, path: str, command: str) -> None:
    """Execute the suggested command as printed, and delete the maintenance after its drain has succeeded."""
    program, *arguments = shlex.split(command)
    assert program == "kubectl"
    environment.cluster.kubectl(*arguments)

    environment.wait_with_ticks(lambda: environment.wait_for_state(path, timeout=1))
    environment.request_deletion(path)
    environment.wait_for_deletion(path)


@pytest.mark.parametrize(
    "limit",
    [{"minAvailable": 1}, {"minAvailable": "100%"}, {"maxUnavailable": 0}],
    ids=["number", "all pods", "no unavailable pod"],
)
def test_suggested_change_of_pdb_unblocks_pod(environment: EventChainEnvironment, limit: Object) -> None:
    """Check that the suggested change of a PDB unblocks the pod, whichever of its fields limits the evictions."""
    node, namespace = environment.create_node(), environment.create_namespace()
    environment.create_deployment(namespace, node, 1)
    environment.create_budget(namespace, LABELS, name="web", disruptions_allowed=0, **limit)

    execute_remedy_and_wait_for_success(environment, environment.create_maintenance(node), "DisruptionBudget")


@pytest.mark.parametrize("limit", [1, "60%"], ids=["number", "percentage"])
def test_suggested_scale_command_unblocks_pod(environment: EventChainEnvironment, limit: int | str) -> None:
    """Check that the suggested number of replicas makes the PDB allow the eviction of the Deployment's pod."""
    node, other_node, namespace = environment.create_node(), environment.create_node(), environment.create_namespace()
    environment.create_deployment(namespace, node, 1)
    environment.create_budget(namespace, LABELS, name="web", disruptions_allowed=0, minAvailable=limit)
    path = environment.create_maintenance(node)
    group = wait_for_cause_of_blockage(environment, path)
    client = environment.client
    hints = client.run(read_budget_hints(client.api, [client.get(path)], DEFAULT_NAMESPACE))
    remedy = group.add_scale_command(hints.scale_commands[group.budget_key]).remedies[0]
    environment.allow_deployment_on_node(namespace, other_node)

    assert remedy.command == f"kubectl scale deployment/web -n {namespace} --replicas={2 if limit == 1 else 3}"
    execute_command_and_wait_for_success(environment, path, remedy.command)


def test_suggested_unhealthy_pod_policy_unblocks_unready_pod(environment: EventChainEnvironment) -> None:
    """Check that the suggested eviction policy unblocks an unready pod whose PDB covers no healthy pod."""
    node, namespace = environment.create_node(), environment.create_namespace()
    (pod,) = environment.create_pods(node, 1, namespace=namespace, labels=LABELS)
    unready = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    environment.client.patch(f"{build_pod_path(pod)}/status", unready, STRATEGIC_MERGE_PATCH)
    environment.create_budget(namespace, LABELS, name="web", disruptions_allowed=0, minAvailable=1)

    execute_remedy_and_wait_for_success(environment, environment.create_maintenance(node), "DisruptionBudget")


def test_suggested_deletion_of_second_pdb_unblocks_pod(environment: EventChainEnvironment) -> None:
    """NMO-6: the suggested deletion of one of two PodDisruptionBudgets unblocks the pod."""
    node, namespace = environment.create_node(), environment.create_namespace()
    environment.create_pods(node, 1, namespace=namespace, labels=LABELS)
    for name in ("one", "two"):
        environment.create_budget(namespace, LABELS, name=name, disruptions_allowed=1, minAvailable=0)

    execute_remedy_and_wait_for_success(environment, environment.create_maintenance(node), "MultipleBudgets")


@proves("DRN-1a")
def test_suggested_drain_option_unblocks_pod(environment: EventChainEnvironment) -> None:
    """DRN-1a: the suggested change of `spec.drain` unblocks a pod without a controller."""
    node = environment.create_node()
    environment.create_pods(node, 1)

    execute_remedy_and_wait_for_success(
        environment, environment.create_maintenance(node, drain={"force": False}), "Force"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "reason"),
    [({"finalizers": ["example.com/hold"]}, "Finalizers"), ({"delete": "1h"}, "Terminating")],
    ids=["finalizer", "kubelet"],
)
def test_suggested_removal_of_stuck_pod_unblocks_drain(
    environment: EventChainEnvironment, options: Object, reason: str
) -> None:
    """OSV-15: the suggested commands remove a pod that has outlived its grace period."""
    node = environment.create_node()
    environment.create_pods(node, 1, grace=1, **options)

    execute_remedy_and_wait_for_success(environment, environment.create_maintenance(node), reason)
