"""Test for the escalation of a drain: each escalation step is recorded before it deletes a pod."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from eventing import events
from functions.event_data import require_data
from tests.chain.environment import EventChainEnvironment
from tests.chain.journal_reading import wait_for_recorded_events
from tests.manifests.rendering import MANIFESTS

pytestmark = pytest.mark.slow


@pytest.fixture
def delete_permission(environment: EventChainEnvironment) -> Iterator[None]:
    """Let `evict` delete pods by means of the component `deleting`, and revoke this permission after the test."""
    manifest = MANIFESTS / "components" / "deleting" / "rbac.yaml"
    environment.cluster.kubectl("apply", "-f", manifest)
    yield
    environment.cluster.kubectl("delete", "-f", manifest)


@pytest.mark.usefixtures("delete_permission")
def test_drain_with_deadline_and_escalation_succeeds_despite_budget(environment: EventChainEnvironment) -> None:
    """Check that deadline and escalation steps are reported, and that each step's event precedes its deletion."""
    namespace = environment.create_namespace()
    node = environment.create_node()
    (pod,) = environment.create_pods(node, 1, namespace=namespace, labels={"app": "x"}, delete="1h")
    environment.create_budget(namespace, {"app": "x"}, disruptions_allowed=0, minAvailable=1)
    steps = [{"after": "1s", "action": "Delete"}, {"after": "2s", "action": "DeleteNow"}]
    path = environment.create_maintenance(node, drain={"deadline": "1s", "escalation": steps})

    maintenance = environment.wait_with_ticks(lambda: environment.wait_for_state(path, timeout=6), 90)

    entries = wait_for_recorded_events(environment, maintenance["metadata"]["uid"])
    escalated = [
        (index, require_data(entry.event)["action"])
        for index, entry in enumerate(entries)
        if entry.event.get_type() == events.DRAIN_ESCALATED
    ]
    deleted = [
        (index, item["action"])
        for index, entry in enumerate(entries)
        if entry.event.get_type() in (events.PODS_EVICTED, events.NODE_DRAINED)
        for item in require_data(entry.event).get("evicted") or []
    ]
    assert [action for _, action in escalated] == [action for _, action in deleted] == ["Delete", "DeleteNow"]
    assert all(before < after for (before, _), (after, _) in zip(escalated, deleted, strict=True))
    assert environment.list_evictions([pod]) == []
    described = environment.cluster.kubectl("describe", "node", node).stdout
    assert {"DrainDeadlineExceeded", "EscalateDrain"} <= set(described.split())
    environment.request_deletion(path)
    environment.wait_for_deletion(path)
