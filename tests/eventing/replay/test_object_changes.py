"""Tests of how recorded objects have changed since, on a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone

import pytest
from cloudevents.core.v1.event import CloudEvent

from eventing import events
from eventing.journal.entries import Attempt, Entry
from eventing.replay.object_changes import Change, Counts, objects_in, read_changes
from functions.node_patching import patch_node
from kube.client.sync_client import Cluster
from kube.maintenance.objects import path
from kube.nodes import cordon_patch, taint_patch
from kube.paths import Object
from localcluster.cluster import LocalCluster
from tests.functions.event_builders import added, node_updated, said
from tests.workload import Workload

NOW = datetime(2026, 1, 2, tzinfo=timezone.utc)


@pytest.fixture
def work(installed: LocalCluster) -> Iterator[Workload]:
    """Yield a workload with a new namespace for the test."""
    admin = Cluster(str(installed.kubeconfig))
    yield Workload(installed, admin)
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
def test_data_of_any_shape_names_no_object(data: Object) -> None:
    """X-1: Data of any shape names no object, since events of any client are recorded and may be replayed."""
    event = CloudEvent({"id": "1", "source": "/x", "type": "x", "datacontenttype": "application/json"}, data)

    assert objects_in([Entry(1, NOW, event)]) == set()


def test_lost_objects_are_listed(work: Workload) -> None:
    """X-2: Missing maintenances, nodes and pods of events or replies are listed, and unchanged objects are not."""
    node, other, elsewhere = work.node(), work.node(), work.node()
    kept, gone, anew = work.pods(elsewhere, "kept", "gone", "anew")  # `kept` may be drained meanwhile
    item, lost = work.maintenance(node), work.maintenance(other)
    listed = [
        {"namespace": pod["metadata"]["namespace"], "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        for pod in (kept, gone, anew)
    ]
    listed[2]["uid"] = "of the one before"
    reply = {"type": events.PODS_EVICTED, "data": {"evicted": listed[:1], "blocked": listed[1:]}}
    attempt = Attempt("s", "1", "evict", NOW, 0.1, 200, (reply,))
    hint = node_updated(work.read_node(other))
    entries = [
        Entry(1, NOW, said(events.NODE_TAINTED, item), (attempt,)),
        Entry(2, NOW, added(lost)),
        Entry(3, NOW, hint),
    ]
    for where in (path(lost), f"/api/v1/namespaces/{work.namespace}/pods/gone"):
        work.delete(where)
        work.wait_for(where, lambda live: live is None)  # other tests' functions may process the first maintenance
    work.delete(f"/api/v1/nodes/{other}")

    changes = work.admin.run(read_changes(work.admin.api, objects_in(entries)))

    assert changes.lost() == [
        f"node {other} no longer exists",
        f"nodemaintenance {lost['metadata']['name']} no longer exists",
        f"pod {work.namespace}/anew is another one now",
        f"pod {work.namespace}/gone no longer exists",
    ]
    assert {change for thing, change in changes.by_object.items() if thing.name == f"{work.namespace}/kept"} == set()


def test_what_budgets_count_now_is_found(work: Workload) -> None:
    """X-2: The current counts of a budget are read if it is the only budget that blocked a pod."""
    work.budget("kept", {"app": "kept"}, 1, counted=0)
    pod = {"namespace": work.namespace, "name": "a", "uid": "u"}
    blocked = [{**pod, "budget": budget} for budget in ("kept", "gone", "kept, gone", "")]
    reply = {"type": events.PODS_EVICTED, "data": {"blocked": blocked}}
    attempt = Attempt("s", "1", "evict", NOW, 0.1, 200, (reply,))
    event = CloudEvent({"id": "1", "source": "/x", "type": "x"}, {})

    changes = work.admin.run(read_changes(work.admin.api, objects_in([Entry(1, NOW, event, (attempt,))])))

    assert changes.budgets == {f"{work.namespace}/kept": Counts(healthy=0, needed=1)}
    assert f"poddisruptionbudget {work.namespace}/gone no longer exists" in changes.lost()
    assert len(changes.lost()) == 2  # the other one is the pod


def test_objects_that_changed_are_found(work: Workload) -> None:
    """X-2: A maintenance under deletion or in phase Succeeded, and a node that is now prepared, count as changed."""
    node = work.node()
    ending = work.maintenance(node, finalizers=["example.com/hold"])
    finished = work.maintenance(node)
    work.delete(path(ending))
    work.admin.patch(f"{path(finished)}/status", {"status": {"phase": "Succeeded"}})
    patch_node(node, lambda: (None, cordon_patch(work.read_node(node), "some-uid")), work.admin)
    patch_node(node, lambda: (None, taint_patch(work.read_node(node), "medik8s.io/drain", "some-uid")), work.admin)

    named = objects_in(Entry(n, NOW, said(events.NODE_TAINTED, item)) for n, item in enumerate((ending, finished)))
    changes = work.admin.run(read_changes(work.admin.api, named))

    assert {thing.name: change for thing, change in changes.by_object.items()} == {
        ending["metadata"]["name"]: Change.TERMINATING,
        finished["metadata"]["name"]: Change.SUCCEEDED,
        node: Change.PREPARED,
    }
    work.admin.patch(path(ending), {"metadata": {"finalizers": None}})
