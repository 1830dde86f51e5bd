"""Test for the escalation of a drain on the real engines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from eventing import events
from eventing.journal.store import Journal, Query
from functions.event_data import require_data
from kube.maintenance import objects as m
from localcluster.processes import wait_until_ready
from tests.e2e.environment import TIMEOUT_SECONDS, E2eEnvironment
from tests.manifests.rendering import MANIFESTS
from tests.workload import Workload

pytestmark = pytest.mark.e2e
STEP_EVENT_TYPES = (events.DRAIN_OVERDUE, events.DRAIN_ESCALATED)


@pytest.fixture
def delete_permission(environment: E2eEnvironment) -> Iterator[None]:
    """Let `evict` delete pods by means of the component `deleting`, and revoke this permission after the test."""
    manifest = MANIFESTS / "components" / "deleting" / "rbac.yaml"
    environment.cluster.kubectl("apply", "-f", manifest)
    yield
    environment.cluster.kubectl("delete", "-f", manifest)


@pytest.mark.usefixtures("delete_permission")
def test_escalation_step_deletes_pod_that_pdb_blocks(environment: E2eEnvironment) -> None:
    """Check that a tick begins the escalation step of a blocked drain, which then succeeds without any eviction.

    The journal contains the event that names the escalation step, and the event about the beginning of the step.
    """
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
    query = Query(maintenance=maintenance["metadata"]["uid"], types=STEP_EVENT_TYPES)
    with closing(Journal(environment.product.journal)) as journal:
        wait_until_ready("the journal", lambda: len(journal.select(query)) >= len(STEP_EVENT_TYPES), [])
        recorded = [
            (entry.event.get_type(), require_data(entry.event).get("action")) for entry in journal.select(query)
        ]
    assert {(event_type, "Delete") for event_type in STEP_EVENT_TYPES} <= set(recorded)
    workload.delete(m.build_path(maintenance))
    workload.wait_for_object(m.build_path(maintenance), lambda current: current is None, TIMEOUT_SECONDS)
