"""Test for the escalation of a drain on the real engines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kube.maintenance import objects as m
from tests.e2e.environment import TIMEOUT_SECONDS, E2eEnvironment
from tests.manifests.rendering import MANIFESTS
from tests.workload import Workload

pytestmark = pytest.mark.e2e


@pytest.fixture
def delete_permission(environment: E2eEnvironment) -> Iterator[None]:
    """Grant `evict` the right to delete pods through the component `deleting`, and revoke it after the test."""
    manifest = MANIFESTS / "components" / "deleting" / "rbac.yaml"
    environment.cluster.kubectl("apply", "-f", manifest)
    yield
    environment.cluster.kubectl("delete", "-f", manifest)


@pytest.mark.usefixtures("delete_permission")
def test_step_deletes_pod_that_budget_blocks(environment: E2eEnvironment) -> None:
    """Check that a tick begins the step of a blocked drain, and that the drain then succeeds without any eviction."""
    workload, labels = Workload(environment.cluster, environment.client), {"app": "db"}
    (node,) = environment.nodes[:1]
    workload.create_bare_pods(node, "db", labels=labels)
    workload.create_budget("db", labels, 1, expected_healthy=1)
    steps = [{"after": "1s", "action": "Delete"}]
    maintenance = workload.create_maintenance(node, drain={"deadline": "1s", "escalation": steps})

    states: list[tuple[str, str]] = []

    def has_succeeded(current: m.Maintenance | None) -> bool:
        assert current is not None
        step = m.get_status(current).get("escalation") or {}
        states.append((str(step.get("action") or ""), m.get_phase(current)))
        return m.get_phase(current) == m.SUCCEEDED

    workload.wait_for_object(m.build_path(maintenance), has_succeeded, TIMEOUT_SECONDS)

    assert ("Delete", "Running") in states
    assert states[-1] == ("", "Succeeded")
    workload.delete(m.build_path(maintenance))
    workload.wait_for_object(m.build_path(maintenance), lambda current: current is None, TIMEOUT_SECONDS)
