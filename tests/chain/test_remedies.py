"""Tests that the command which the product suggests for a blocked pod, executed as printed, unblocks the drain."""

from __future__ import annotations

import shlex

import pytest

from kube.client.api import STRATEGIC_MERGE_PATCH
from kube.evictions.requests import build_pod_path
from kube.maintenance.blocked_groups import BlockedGroup, group_blocked_pods
from kube.maintenance.objects import format_full_name, get_blocked_pods
from kube.paths import Object
from tests.chain.environment import ChainEnvironment
from tests.proofs import proves

LABELS = {"app": "web"}


def has_blocked_pods(maintenance: Object) -> bool:
    """Return whether the status lists a blocked pod."""
    return bool(get_blocked_pods(maintenance))


def wait_for_cause(environment: ChainEnvironment, path: str) -> BlockedGroup:
    """Wait until a pod is blocked, and return the only cause."""
    maintenance = environment.wait_with_ticks(
        lambda: environment.wait_for_state(path, has_blocked_pods, timeout=1), timeout=90
    )
    (group,) = group_blocked_pods(get_blocked_pods(maintenance), format_full_name(maintenance))
    return group


def unblock_and_finish(environment: ChainEnvironment, path: str, expected_reason: str) -> None:
    """Execute the command of the last remedy, wait until the drain has succeeded, and end the maintenance."""
    group = wait_for_cause(environment, path)
    assert group.reason == expected_reason

    program, *arguments = shlex.split(group.remedies[-1].command)
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
def test_looser_budget_unblocks_workload(environment: ChainEnvironment, limit: Object) -> None:
    """Check that the suggested change of a budget lets the pod leave, whichever field limits the evictions."""
    node, namespace = environment.create_node(), environment.create_namespace()
    environment.create_deployment(namespace, node, 1)
    environment.create_budget(namespace, LABELS, name="web", disruptions_allowed=0, **limit)

    unblock_and_finish(environment, environment.create_maintenance(node), "DisruptionBudget")


def test_policy_for_unready_pods_unblocks_them(environment: ChainEnvironment) -> None:
    """Check that the suggestion for an unready pod, whose budget has no healthy pod, lets the pod leave."""
    node, namespace = environment.create_node(), environment.create_namespace()
    (pod,) = environment.create_pods(node, 1, namespace=namespace, labels=LABELS)
    unready = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    environment.client.patch(f"{build_pod_path(pod)}/status", unready, STRATEGIC_MERGE_PATCH)
    environment.create_budget(namespace, LABELS, name="web", disruptions_allowed=0, minAvailable=1)

    unblock_and_finish(environment, environment.create_maintenance(node), "DisruptionBudget")


def test_deletion_of_second_budget_unblocks_pod(environment: ChainEnvironment) -> None:
    """NMO-6: the suggested deletion of one of two budgets lets the pod leave."""
    node, namespace = environment.create_node(), environment.create_namespace()
    environment.create_pods(node, 1, namespace=namespace, labels=LABELS)
    for name in ("one", "two"):
        environment.create_budget(namespace, LABELS, name=name, disruptions_allowed=1, minAvailable=0)

    unblock_and_finish(environment, environment.create_maintenance(node), "MultipleBudgets")


@proves("DRN-1a")
def test_suggested_drain_option_unblocks_pod(environment: ChainEnvironment) -> None:
    """DRN-1a: the suggested change of `spec.drain` lets a pod without a controller leave."""
    node = environment.create_node()
    environment.create_pods(node, 1)

    unblock_and_finish(environment, environment.create_maintenance(node, drain={"force": False}), "Force")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "reason"),
    [({"finalizers": ["example.com/hold"]}, "Finalizers"), ({"delete": "1h"}, "Terminating")],
    ids=["finalizer", "kubelet"],
)
def test_suggested_removal_of_stuck_pod_unblocks_drain(
    environment: ChainEnvironment, options: Object, reason: str
) -> None:
    """OSV-15: the suggestions for a pod that outlives its grace period remove the pod, which takes ten seconds more."""
    node = environment.create_node()
    environment.create_pods(node, 1, grace=1, **options)

    unblock_and_finish(environment, environment.create_maintenance(node), reason)
