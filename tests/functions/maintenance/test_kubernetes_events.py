"""Tests for the Kubernetes Events that `kubectl describe` shows for a maintenance and its node."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from eventing import events
from functions import event_recorder
from functions.event_recorder import EventRecorder
from kube.client.sync_client import SyncClient
from kube.kubernetes_events import KubernetesEvent
from kube.maintenance import objects as m
from kube.maintenance.groups import GROUPS, ApiGroup
from kube.maintenance.kubernetes_events import (
    BEGIN_REASON,
    EVENT_MESSAGES,
    EVENTS_PATH,
    FAIL_REASON,
    REMOVE_REASON,
    SUCCEED_REASON,
    UNCORDON_REASON,
    build_node_kubernetes_event,
)
from kube.paths import Object, build_events_path
from kube.times import format_time
from localcluster.access import UNPRIVILEGED
from localcluster.audit_log import AuditLog
from tests.functions.conftest import Functions
from tests.functions.event_builders import build_added_event, build_product_event, build_updated_event
from tests.functions.maintenance.test_status import run_steps_with_status
from tests.kube.samples import make_pod
from tests.proofs import proves
from tests.workload import Workload, summarize_writes

every_group = pytest.mark.parametrize("group", GROUPS.values(), ids=lambda group: group.api_version.split("/")[0])


def list_product_events(workload: Workload, kind: str, name: str) -> dict[str, Object]:
    """Return the product's Kubernetes Events about an object by reason; each reason must occur only once."""
    all_events = workload.client.list(
        EVENTS_PATH, field_selector=f"involvedObject.kind={kind},involvedObject.name={name}"
    )["items"]
    product_events = [event for event in all_events if event["source"].get("component") == "node-maintenance"]
    assert len({event["reason"] for event in product_events}) == len(product_events)
    return {event["reason"]: event for event in product_events}


def build_kubelet_event(node: str, reason: str) -> Object:
    """Build the Event that a kubelet writes within ten seconds after its node was cordoned or uncordoned."""
    timestamp = format_time(datetime.now(timezone.utc))
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{node}.kubelet", "namespace": "default"},
        "involvedObject": {"kind": "Node", "name": node, "uid": node},
        **{"type": "Normal", "reason": reason, "message": f"Node {node} status is now: {reason}"},
        **{"source": {"component": "kubelet", "host": node}, "firstTimestamp": timestamp, "lastTimestamp": timestamp},
    }


def describe_events(workload: Workload, maintenance: Object) -> str:
    """Return the Events that `kubectl describe` prints for a maintenance."""
    kind = f"nodemaintenances.{m.get_group(maintenance).api_version.split('/')[0]}"
    return workload.local_cluster.kubectl("describe", kind, maintenance["metadata"]["name"]).stdout.partition(
        "\nEvents:"
    )[2]


def create_succeeded_maintenance(functions: Functions, workload: Workload, node: str, group: ApiGroup) -> Object:
    """Create a maintenance for an empty node, run all its steps, and return it when it has succeeded."""
    maintenance = run_steps_with_status(
        functions, workload, workload.create_maintenance(node, group, reason="new disk")
    )
    assert maintenance["status"]["phase"] == "Succeeded"
    return maintenance


@proves("NMO-27")
@every_group
def test_begin_and_success_are_recorded_on_maintenance_and_node(
    functions: Functions, workload: Workload, group: ApiGroup
) -> None:
    """NMO-27: `kubectl describe` of maintenance and node shows BeginMaintenance and SucceedMaintenance once."""
    node = workload.take_node()
    maintenance = create_succeeded_maintenance(functions, workload, node, group)

    for text in (
        describe_events(workload, maintenance),
        workload.local_cluster.kubectl("describe", "node", node).stdout,
    ):
        assert text.count("BeginMaintenance") == text.count("SucceedMaintenance") == 1
        assert "Begin a node maintenance: new disk" in text
        assert "Node maintenance was succeeded" in text


@proves("OSV-12", "OSV-12a")
def test_cordon_event_is_recorded_once_in_addition_to_kubelet_event(functions: Functions, workload: Workload) -> None:
    """OSV-12, OSV-12a: CordonNode is recorded once on the node, in addition to the kubelet's own Event."""
    node = workload.take_node()
    maintenance = create_succeeded_maintenance(functions, workload, node, next(iter(GROUPS.values())))

    functions.invoke("cordon", build_product_event(events.MAINTENANCE_BEGUN, maintenance))
    functions.invoke("status", build_product_event(events.NODE_DRAINED, maintenance))

    workload.client.create(EVENTS_PATH, build_kubelet_event(node, "NodeNotSchedulable"))
    functions.invoke("status", build_product_event(events.NODE_DRAINED, maintenance))

    description = workload.local_cluster.kubectl("describe", "node", node).stdout
    assert description.count("Cordon a node") == description.count("CordonNode") == 1
    assert description.count(f"Node {node} status is now: NodeNotSchedulable") == 1
    assert description.count("NodeNotSchedulable") == 2  # The kubelet's Event contains the reason twice.


@proves("NMO-27", "OSV-12")
def test_uncordon_and_removal_are_recorded(functions: Functions, workload: Workload) -> None:
    """NMO-27, OSV-12: `restore` records UncordonNode on the node, and RemovedMaintenance on node and maintenance."""
    node = workload.take_node()
    maintenance = create_succeeded_maintenance(functions, workload, node, next(iter(GROUPS.values())))
    workload.delete(m.build_path(maintenance))

    functions.invoke("restore", build_updated_event(workload.read_maintenance(maintenance)))

    name = maintenance["metadata"]["name"]
    events_by_reason = list_product_events(workload, "Node", node)
    assert {UNCORDON_REASON, REMOVE_REASON} <= events_by_reason.keys()
    assert {reason: events_by_reason[reason]["message"] for reason in (SUCCEED_REASON, REMOVE_REASON)} == {
        reason: EVENT_MESSAGES[reason] for reason in (SUCCEED_REASON, REMOVE_REASON)
    }
    assert {event["type"] for event in events_by_reason.values()} == {"Normal"}
    assert "NodeSchedulable" not in events_by_reason
    assert (
        list_product_events(workload, "NodeMaintenance", name)[REMOVE_REASON]["involvedObject"]["uid"]
        == maintenance["metadata"]["uid"]
    )
    text = workload.local_cluster.kubectl("describe", "node", node).stdout
    assert text.count("Uncordon a node") == text.count("Removed a node maintenance") == 1


@proves("NMO-27")
def test_maintenance_failure_is_recorded_as_warning(functions: Functions, workload: Workload) -> None:
    """NMO-27, NMO-19: FailedMaintenance is a Warning with the error; the same failure is not recorded again."""
    maintenance = workload.create_maintenance("no-such-node")
    for _ in range(2):
        failure_event = functions.invoke("begin", build_added_event(maintenance))
        assert failure_event is not None
        functions.invoke("status", failure_event)

    events_by_reason = list_product_events(workload, "NodeMaintenance", maintenance["metadata"]["name"])
    assert (set(events_by_reason), events_by_reason[FAIL_REASON]["type"], events_by_reason[FAIL_REASON]["count"]) == (
        {FAIL_REASON},
        "Warning",
        1,
    )
    assert events_by_reason[FAIL_REASON]["message"] == 'Failed a node maintenance: nodes "no-such-node" not found'


@proves("OSV-12")
def test_redelivered_event_records_no_kubernetes_event(
    functions: Functions, workload: Workload, audit: AuditLog
) -> None:
    """NMO-27, OSV-12, X-2: a redelivered event writes no Kubernetes Event."""
    node = workload.take_node()
    maintenance = create_succeeded_maintenance(functions, workload, node, next(iter(GROUPS.values())))
    before = len(audit.list_writes_by())

    functions.invoke("status", build_product_event(events.MAINTENANCE_BEGUN, maintenance))
    functions.invoke("status", build_product_event(events.NODE_DRAINED, maintenance))
    functions.invoke("cordon", build_product_event(events.MAINTENANCE_BEGUN, maintenance))

    assert summarize_writes(audit.list_writes_by()[before:]) == []


def test_repeated_success_increments_count_of_kubernetes_event(
    functions: Functions, workload: Workload, audit: AuditLog
) -> None:
    """OSV-12: a second success increments the count of SucceedMaintenance; BeginMaintenance keeps count 1."""
    node = workload.take_node()
    maintenance = create_succeeded_maintenance(functions, workload, node, next(iter(GROUPS.values())))
    workload.create_bare_pods(node, "late")
    functions.invoke("status", build_product_event(events.PODS_EVICTED, maintenance, data={"blocked": []}))
    workload.delete(f"/api/v1/namespaces/{workload.namespace}/pods/late")
    workload.wait_for_collection(f"/api/v1/namespaces/{workload.namespace}/pods", lambda pods: not pods)
    before = len(audit.list_writes_by())

    functions.invoke("status", build_product_event(events.NODE_DRAINED, maintenance))

    events_by_reason = list_product_events(workload, "Node", node)
    assert (events_by_reason[SUCCEED_REASON]["count"], events_by_reason[BEGIN_REASON]["count"]) == (2, 1)
    event_patches = [
        write for write in summarize_writes(audit.list_writes_by()[before:]) if write[:2] == ("patch", "events")
    ]
    assert len(event_patches) == 2  # One Event is about the maintenance, and one about its node.


def test_rejected_kubernetes_event_is_logged(workload: Workload, caplog: pytest.LogCaptureFixture) -> None:
    """NMO-27: a Kubernetes Event that the API server rejects is logged and raises no error."""
    maintenance = workload.create_maintenance("n")
    unprivileged_client = SyncClient(str(workload.local_cluster.ensure_kubeconfig(UNPRIVILEGED)))

    kubernetes_event = build_node_kubernetes_event("n", UNCORDON_REASON, maintenance)

    with caplog.at_level("INFO", logger=event_recorder.log.name):
        assert unprivileged_client.run(EventRecorder().record(unprivileged_client.api, [kubernetes_event])) == []
    unprivileged_client.close()

    (line,) = [record.message for record in caplog.records]
    assert line.startswith('cannot record Event UncordonNode: events is forbidden: User "unprivileged"')


def test_identical_kubernetes_event_is_recorded_once(workload: Workload) -> None:
    """OSV-12: `record` writes an identical Event once; a second process finds the existing Event.

    One call writes a limited number of Events, and the next call writes the remaining ones.
    """
    pods, api = [make_pod(f"pod-{number}", namespace=workload.namespace) for number in range(22)], workload.client.api
    kubernetes_events = [KubernetesEvent.from_object(pod, "v1", "Pod", "Waits", "a") for pod in pods]
    first_recorder, second_recorder = EventRecorder(), EventRecorder()

    counts = [
        len(workload.client.run(recorder.record(api, kubernetes_events)))
        for recorder in (first_recorder, first_recorder, first_recorder, second_recorder)
    ]

    assert counts == [event_recorder.MAX_EVENTS_PER_CALL, 2, 0, event_recorder.MAX_EVENTS_PER_CALL]
    stored = workload.client.list(build_events_path(workload.namespace), field_selector="reason=Waits")["items"]
    assert [event["count"] for event in stored] == [1] * 22
