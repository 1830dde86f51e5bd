"""Tests, on a real API server, for detecting how objects have changed since they were recorded."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone

import pytest
from cloudevents.core.v1.event import CloudEvent

from eventing import events
from eventing.journal.entries import Attempt, Entry
from eventing.replay.object_changes import BudgetCounts, ObjectChange, find_recorded_objects, read_changes
from functions.node_patching import patch_node
from kube.client.sync_client import SyncClient
from kube.maintenance.objects import build_path
from kube.nodes import build_cordon_patch, build_taint_patch
from kube.paths import Object
from localcluster.cluster import LocalCluster
from tests.functions.event_builders import build_added_event, build_node_updated_event, build_product_event
from tests.workload import Workload

FIXED_TIME = datetime(2026, 1, 2, tzinfo=timezone.utc)


@pytest.fixture
def workload(installed_cluster: LocalCluster) -> Iterator[Workload]:
    """Yield a workload in a new namespace."""
    admin = SyncClient(str(installed_cluster.kubeconfig))
    yield Workload(installed_cluster, admin)
    admin.close()


@pytest.mark.parametrize(
    "data",
    [
        {"kind": []},
        {"kind": {}, "metadata": 1},
        {"evicted": [{"namespace": 1, "name": "a", "uid": "u"}]},
        {"blocked": [{"namespace": "n", "name": "a", "uid": {"a": 1}}, "x", None]},
        {"evicted": "x", "blocked": {"namespace": "n"}},
        {"blocked": [{"namespace": 1, "name": "a", "uid": "u", "budget": "b"}]},
    ],
)
def test_malformed_data_yields_no_object_references(data: Object) -> None:
    """X-1: malformed data contains no object references and causes no error; any client may post events."""
    event = CloudEvent({"id": "1", "source": "/x", "type": "x", "datacontenttype": "application/json"}, data)

    assert find_recorded_objects([Entry(1, FIXED_TIME, event)]) == set()


def test_missing_objects_are_listed(workload: Workload) -> None:
    """X-2: missing maintenances, nodes and pods in events or replies are listed, but existing objects are not."""
    node, deleted_node, pods_node = workload.take_node(), workload.take_node(), workload.take_node()
    kept_pod, deleted_pod, replaced_pod = workload.create_bare_pods(
        pods_node, "kept", "gone", "replaced"
    )  # Another test may drain `kept_pod` at the same time.
    maintenance, deleted_maintenance = workload.create_maintenance(node), workload.create_maintenance(deleted_node)
    pod_references = [
        {"namespace": pod["metadata"]["namespace"], "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        for pod in (kept_pod, deleted_pod, replaced_pod)
    ]
    pod_references[2]["uid"] = "uid-of-the-previous-pod"
    pod_references.append({**pod_references[2], "uid": "uid-of-an-older-pod"})
    reply = {"type": events.PODS_EVICTED, "data": {"evicted": pod_references[:1], "blocked": pod_references[1:]}}
    attempt = Attempt("s", "1", "evict", FIXED_TIME, 0.1, 200, (reply,))
    hint = build_node_updated_event(workload.read_node(deleted_node))
    entries = [
        Entry(1, FIXED_TIME, build_product_event(events.NODE_TAINTED, maintenance), (attempt,)),
        Entry(2, FIXED_TIME, build_added_event(deleted_maintenance)),
        Entry(3, FIXED_TIME, hint),
    ]
    for path in (build_path(deleted_maintenance), f"/api/v1/namespaces/{workload.namespace}/pods/gone"):
        workload.delete(path)
        workload.wait_for_object(
            path, lambda current: current is None
        )  # The functions of other tests may process the first maintenance.
    workload.delete(f"/api/v1/nodes/{deleted_node}")

    changes = workload.client.run(read_changes(workload.client.api, find_recorded_objects(entries)))

    assert changes.describe_missing_objects() == [
        f"node {deleted_node} no longer exists",
        f"nodemaintenance {deleted_maintenance['metadata']['name']} no longer exists",
        f"pod {workload.namespace}/gone no longer exists",
        f"pod {workload.namespace}/replaced was deleted and created again",
    ]
    assert {
        change for reference, change in changes.by_object.items() if reference.name == f"{workload.namespace}/kept"
    } == set()


def test_current_budget_counts_are_read(workload: Workload) -> None:
    """X-2: a PodDisruptionBudget's current counts are read if it is the only PDB that blocked a pod."""
    workload.create_budget("kept", {"app": "kept"}, 1, expected_healthy=0)
    pod = {"namespace": workload.namespace, "name": "a", "uid": "u"}
    blocked = [{**pod, "budget": budget} for budget in ("kept", "gone", "kept, gone", "")]
    reply = {"type": events.PODS_EVICTED, "data": {"blocked": blocked}}
    attempt = Attempt("s", "1", "evict", FIXED_TIME, 0.1, 200, (reply,))
    event = CloudEvent({"id": "1", "source": "/x", "type": "x"}, {})

    changes = workload.client.run(
        read_changes(workload.client.api, find_recorded_objects([Entry(1, FIXED_TIME, event, (attempt,))]))
    )

    assert changes.budgets == {f"{workload.namespace}/kept": BudgetCounts(healthy=0, needed=1)}
    assert f"poddisruptionbudget {workload.namespace}/gone no longer exists" in changes.describe_missing_objects()
    assert len(changes.describe_missing_objects()) == 2  # The pod itself is also missing.


def test_changed_objects_are_found(workload: Workload) -> None:
    """X-2: a deleted or succeeded maintenance, and a newly cordoned and tainted node, count as changed."""
    node = workload.take_node()
    terminating = workload.create_maintenance(node, finalizers=["example.com/hold"])
    finished = workload.create_maintenance(node)
    workload.delete(build_path(terminating))
    workload.client.patch(f"{build_path(finished)}/status", {"status": {"phase": "Succeeded"}})
    patch_node(node, lambda: (None, build_cordon_patch(workload.read_node(node), "some-uid")), workload.client)
    patch_node(
        node,
        lambda: (None, build_taint_patch(workload.read_node(node), "medik8s.io/drain", "some-uid")),
        workload.client,
    )

    references = find_recorded_objects(
        Entry(number, FIXED_TIME, build_product_event(events.NODE_TAINTED, maintenance))
        for number, maintenance in enumerate((terminating, finished))
    )
    changes = workload.client.run(read_changes(workload.client.api, references))

    assert {reference.name: change for reference, change in changes.by_object.items()} == {
        terminating["metadata"]["name"]: ObjectChange.TERMINATING,
        finished["metadata"]["name"]: ObjectChange.SUCCEEDED,
        node: ObjectChange.CORDONED_AND_TAINTED,
    }
    workload.client.patch(build_path(terminating), {"metadata": {"finalizers": None}})
