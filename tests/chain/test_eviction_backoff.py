"""Tests for the backoff of evictions (design rule 9) if a pod is recreated or its eviction is rejected.

The product retries these evictions at growing intervals, and the status contains the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kube.evictions.requests import build_eviction, build_eviction_path
from kube.paths import Object
from tests.chain.admission_policies import apply_policy
from tests.chain.environment import EventChainEnvironment
from tests.proofs import proves

pytestmark = pytest.mark.slow


def build_backoff_predicate(reason: str, pod_count: int) -> Callable[[Object], bool]:
    """Return a predicate that is true if `pod_count` pods are pending, all blocked for `reason` with a `retryAfter`."""

    def is_in_backoff(maintenance: Object) -> bool:
        status = maintenance.get("status") or {}
        blocked = [entry for entry in status.get("blockedPods") or [] if entry["reason"] == reason]
        return len(blocked) == status.get("pendingCount") == pod_count and all(
            "retryAfter" in entry for entry in blocked
        )

    return is_in_backoff


def test_recreated_pods_are_in_backoff(environment: EventChainEnvironment) -> None:
    """Check that recreated pods that tolerate every taint are in backoff, so that ticks do not evict them again.

    Bare pods on the node are evicted. The drain completes once the toleration is removed.
    """
    node, other_node, namespace = environment.create_node(), environment.create_node(), environment.create_namespace()
    environment.create_deployment(namespace, node, 5, tolerations=[{"operator": "Exists"}])
    bare_pods = environment.create_pods(node, 3, namespace=namespace)
    path = environment.create_maintenance(node)

    status = environment.wait_for_state(path, build_backoff_predicate("Returns", 5))["status"]

    messages = {entry["message"] for entry in status["blockedPods"]}
    assert len(environment.list_evictions(bare_pods)) == 3
    assert all(message.startswith("tolerates every taint, so ReplicaSet web-") for message in messages)
    assert "tolerates every taint" in status["lastError"]
    evictions = _list_evicted_names(environment, namespace)
    # Each pod is evicted once, and so is each replacement that is created before the product reads its ReplicaSet.
    assert len(evictions) <= 3 + 2 * 5
    for _ in range(3):
        environment.send_tick()
    assert _list_evicted_names(environment, namespace) == evictions
    environment.allow_deployment_on_node(namespace, other_node)
    spec: Any = {"template": {"spec": {"tolerations": None}}}
    environment.client.patch(f"/apis/apps/v1/namespaces/{namespace}/deployments/web", {"spec": spec})
    environment.wait_for_state(path)
    environment.request_deletion(path)
    environment.wait_for_deletion(path)


@proves("X-6")
def test_pods_with_node_name_in_template_are_in_backoff(environment: EventChainEnvironment) -> None:
    """Design rule 9: pods whose template sets `nodeName` are in backoff, and the status contains the reason.

    Such a template bypasses the scheduler and therefore the taints.
    """
    node, other_node, namespace = environment.create_node(), environment.create_node(), environment.create_namespace()
    environment.create_deployment(namespace, node, 5, sets_node_name=True)
    path = environment.create_maintenance(node)

    status = environment.wait_for_state(path, build_backoff_predicate("Returns", 5))["status"]

    messages = {entry["message"] for entry in status["blockedPods"]}
    assert all(message.startswith("was created on this node after the cordon, or while ") for message in messages)
    evictions = _list_evicted_names(environment, namespace)
    # The scheduler may still bind pods for two seconds after the cordon; timestamps in whole seconds add up to one
    # second. One eviction of all pods takes 0.4 s.
    assert len(evictions) <= 10 * 5
    for _ in range(3):
        environment.send_tick()
    assert _list_evicted_names(environment, namespace) == evictions
    environment.allow_deployment_on_node(namespace, other_node)
    spec: Any = {"template": {"spec": {"nodeName": None}}}
    environment.client.patch(f"/apis/apps/v1/namespaces/{namespace}/deployments/web", {"spec": spec})
    environment.wait_for_state(path)
    environment.request_deletion(path)
    environment.wait_for_deletion(path)


@proves("X-6")
def test_pod_whose_eviction_is_rejected_by_policy_is_in_backoff(environment: EventChainEnvironment) -> None:
    """X-6: the status quotes the message of a policy that rejects a pod's eviction, and ticks respect the backoff.

    All other pods on the node are evicted.
    """
    node, namespace = environment.create_node(), environment.create_namespace()
    environment.create_pods(node, 3, namespace=namespace)
    (pod,) = environment.create_pods(node, 1, namespace=namespace)
    with apply_policy_against_eviction(environment, pod):
        eviction_count_before = len(environment.list_evictions([pod]))
        path = environment.create_maintenance(node)

        status = environment.wait_for_state(path, build_backoff_predicate("Error", 1))["status"]

        assert "this pod must stay" in status["blockedPods"][0]["message"]
        eviction_count = len(environment.list_evictions([pod]))
        for _ in range(3):
            environment.send_tick()
        assert len(environment.list_evictions([pod])) == eviction_count
        # The product retries a rejected eviction only while evictions of other pods succeed.
        assert eviction_count - eviction_count_before <= 3
    environment.request_deletion(path)
    environment.wait_for_deletion(path)


@contextmanager
def apply_policy_against_eviction(environment: EventChainEnvironment, pod: Object) -> Iterator[None]:
    """Make a ValidatingAdmissionPolicy reject the pod's eviction while the `with` block runs."""
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/eviction"]}
    expression = f"object.metadata.name != '{name}' || object.metadata.namespace != '{namespace}'"
    dry_run_client = environment.client.with_dry_run()

    def evict_pod() -> object:
        return dry_run_client.create(build_eviction_path(pod), build_eviction(pod))

    with apply_policy(environment, name, rule, expression, "this pod must stay", evict_pod):
        yield


def _list_evicted_names(environment: EventChainEnvironment, namespace: str) -> list[str]:
    """Return the name of each pod in this namespace whose eviction was requested, once per request."""
    requests = (
        entry["objectRef"]
        for entry in environment.read_audit_log()
        if entry["objectRef"].get("subresource") == "eviction"
    )
    return [requested["name"] for requested in requests if requested["namespace"] == namespace]
