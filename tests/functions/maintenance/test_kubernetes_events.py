"""Tests of the Kubernetes Events that `kubectl describe` shows for a maintenance and its node."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from eventing import events
from functions.maintenance import event_objects
from functions.maintenance.kubernetes_events import announce_on_node
from kube.client.sync_client import Cluster
from kube.maintenance import objects as m
from kube.maintenance.kubernetes_events import BEGIN, EVENTS, FAIL, REMOVE, SUCCEED, TEXTS, UNCORDON
from kube.maintenance.groups import GROUPS, Group
from kube.paths import Object
from kube.times import timestamp
from localcluster.access import UNPRIVILEGED
from tests.functions.conftest import Functions
from tests.functions.event_builders import added, said, updated
from tests.functions.maintenance.test_status import drain
from tests.proofs import proves
from tests.workload import Audit, Workload, written

every_group = pytest.mark.parametrize("group", GROUPS.values(), ids=lambda group: group.api_version.split("/")[0])


def about(work: Workload, kind: str, name: str) -> dict[str, Object]:
    """Return our Events about an object by reason; each reason occurs once."""
    found = work.admin.list(EVENTS, fields=f"involvedObject.kind={kind},involvedObject.name={name}")["items"]
    ours = [item for item in found if item["source"].get("component") == "node-maintenance"]
    assert len({item["reason"] for item in ours}) == len(ours)
    return {item["reason"]: item for item in ours}


def kubelets_event(node: str, reason: str) -> Object:
    """Build the Event that a kubelet writes up to ten seconds after its node was cordoned."""
    moment = timestamp(datetime.now(timezone.utc))
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{node}.kubelet", "namespace": "default"},
        "involvedObject": {"kind": "Node", "name": node, "uid": node},
        **{"type": "Normal", "reason": reason, "message": f"Node {node} status is now: {reason}"},
        **{"source": {"component": "kubelet", "host": node}, "firstTimestamp": moment, "lastTimestamp": moment},
    }


def described(work: Workload, item: Object) -> str:
    """Return the Events that `kubectl describe` prints for a maintenance."""
    kind = f"nodemaintenances.{m.group(item).api_version.split('/')[0]}"
    return work.local.kubectl("describe", kind, item["metadata"]["name"]).stdout.partition("\nEvents:")[2]


def succeeded(functions: Functions, work: Workload, node: str, group: Group) -> Object:
    """Run all steps of a maintenance of an empty node, and return the maintenance after its success."""
    item = drain(functions, work, work.maintenance(node, group, reason="new disk"))
    assert item["status"]["phase"] == "Succeeded"
    return item


@proves("NMO-27")
@every_group
def test_a_maintenance_is_told_at_itself_and_at_its_node(functions: Functions, work: Workload, group: Group) -> None:
    """NMO-27: `kubectl describe` of maintenance and node shows BeginMaintenance and SucceedMaintenance once."""
    node = work.node()
    item = succeeded(functions, work, node, group)

    for text in (described(work, item), work.local.kubectl("describe", "node", node).stdout):
        assert text.count("BeginMaintenance") == text.count("SucceedMaintenance") == 1
        assert "Begin a node maintenance: new disk" in text
        assert "Node maintenance was succeeded" in text


@proves("OSV-12", "OSV-12a")
def test_a_cordoned_node_is_told_once_beside_a_kubelet(functions: Functions, work: Workload) -> None:
    """OSV-12, OSV-12a: CordonNode is recorded once on the node, apart from the kubelet's own Event."""
    node = work.node()
    item = succeeded(functions, work, node, next(iter(GROUPS.values())))

    functions.answer("cordon", said(events.MAINTENANCE_BEGUN, item))
    functions.answer("status", said(events.NODE_DRAINED, item))

    work.admin.create(EVENTS, kubelets_event(node, "NodeNotSchedulable"))
    functions.answer("status", said(events.NODE_DRAINED, item))

    described = work.local.kubectl("describe", "node", node).stdout
    assert described.count("Cordon a node") == described.count("CordonNode") == 1
    assert described.count(f"Node {node} status is now: NodeNotSchedulable") == 1
    assert described.count("NodeNotSchedulable") == 2  # in the reason and the message of the kubelet's Event


@proves("NMO-27", "OSV-12")
def test_the_end_is_told_at_the_node(functions: Functions, work: Workload) -> None:
    """NMO-27, OSV-12: `restore` records UncordonNode on the node, and RemovedMaintenance on node and maintenance."""
    node = work.node()
    item = succeeded(functions, work, node, next(iter(GROUPS.values())))
    work.delete(m.path(item))

    functions.answer("restore", updated(work.again(item)))

    name = item["metadata"]["name"]
    told = about(work, "Node", node)
    assert {UNCORDON, REMOVE} <= told.keys()
    assert {reason: told[reason]["message"] for reason in (SUCCEED, REMOVE)} == {
        reason: TEXTS[reason] for reason in (SUCCEED, REMOVE)
    }
    assert {item["type"] for item in told.values()} == {"Normal"}
    assert "NodeSchedulable" not in told
    assert about(work, "NodeMaintenance", name)[REMOVE]["involvedObject"]["uid"] == item["metadata"]["uid"]
    text = work.local.kubectl("describe", "node", node).stdout
    assert text.count("Uncordon a node") == text.count("Removed a node maintenance") == 1


@proves("NMO-27")
def test_a_failure_is_a_warning_that_says_why(functions: Functions, work: Workload) -> None:
    """NMO-27, NMO-19: FailedMaintenance is a Warning with the error; the same failure is not recorded again."""
    item = work.maintenance("no-such-node")
    for _ in range(2):
        failed = functions.answer("begin", added(item))
        assert failed is not None
        functions.answer("status", failed)

    told = about(work, "NodeMaintenance", item["metadata"]["name"])
    assert (set(told), told[FAIL]["type"], told[FAIL]["count"]) == ({FAIL}, "Warning", 1)
    assert told[FAIL]["message"] == 'Failed a node maintenance: nodes "no-such-node" not found'


@proves("OSV-12")
def test_replayed_events_tell_nothing_again(functions: Functions, work: Workload, audit: Audit) -> None:
    """NMO-27, OSV-12, X-2: a redelivered event writes no Kubernetes Event."""
    node = work.node()
    item = succeeded(functions, work, node, next(iter(GROUPS.values())))
    before = len(audit.writes_by())

    functions.answer("status", said(events.MAINTENANCE_BEGUN, item))
    functions.answer("status", said(events.NODE_DRAINED, item))
    functions.answer("cordon", said(events.MAINTENANCE_BEGUN, item))

    assert written(audit.writes_by()[before:]) == []


def test_what_happens_again_is_counted(functions: Functions, work: Workload, audit: Audit) -> None:
    """OSV-12: a second success increments the count of SucceedMaintenance; BeginMaintenance keeps count 1."""
    node = work.node()
    item = succeeded(functions, work, node, next(iter(GROUPS.values())))
    work.pods(node, "late")
    functions.answer("status", said(events.PODS_EVICTED, item, data={"blocked": []}))
    work.delete(f"/api/v1/namespaces/{work.namespace}/pods/late")
    work.until(f"/api/v1/namespaces/{work.namespace}/pods", lambda pods: not pods)
    before = len(audit.writes_by())

    functions.answer("status", said(events.NODE_DRAINED, item))

    told = about(work, "Node", node)
    assert (told[SUCCEED]["count"], told[BEGIN]["count"]) == (2, 1)
    patched = [what for what in written(audit.writes_by()[before:]) if what[:2] == ("patch", "events")]
    assert len(patched) == 2  # one on the maintenance and one on its node


def test_a_maintenance_goes_on_where_no_event_may_be_written(work: Workload, caplog: pytest.LogCaptureFixture) -> None:
    """NMO-27: a Kubernetes Event that the API server rejects is logged and raises no error."""
    item = work.maintenance("n")
    nobody = Cluster(str(work.local.kubeconfig_for(UNPRIVILEGED)))

    with caplog.at_level("INFO", logger=event_objects.log.name):
        announce_on_node("n", UNCORDON, "text", item, nobody, kind="Normal")
    nobody.close()

    (line,) = [record.message for record in caplog.records]
    assert line.startswith('the Event UncordonNode could not be written: events is forbidden: User "unprivileged"')
