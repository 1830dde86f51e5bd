"""Tests of `begin` on a real API server."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from eventing import events
from functions.event_data import data_of
from functions.installs import CLAIMS
from functions.maintenance import event_objects
from kube.evictions import pod_path
from kube.maintenance import leases
from kube.maintenance import objects as m
from kube.maintenance.groups import GROUPS, KUBEVIRT, MEDIK8S, Group
from kube.nodes import node_path
from kube.paths import PODS
from tests.functions.conftest import Functions
from tests.functions.event_builders import added, said
from tests.functions.maintenance.test_status import drain
from tests.functions.request_hooks import before, requests_of
from tests.proofs import proves
from tests.workload import Audit, Workload, written

every_group = pytest.mark.parametrize("group", GROUPS.values(), ids=lambda group: group.api_version.split("/")[0])

HELD, EXPIRED = "2999-01-01T00:00:00.000000Z", "2020-01-01T00:00:00.000000Z"
"""Renew times of another tool's lease: one for a lease that is still valid, one for an expired lease."""


def foreign_lease(work: Workload, node: str, renewed: str, holder: str | None = "another-tool") -> None:
    """Create the node's lease with another tool as its holder."""
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 60, "renewTime": renewed}
    work.admin.create(leases.LEASES, {"metadata": {"name": leases.lease_name(node)}, "spec": spec})


@proves("NMO-7", "NMO-11", "NMO-16", "KNM-3")
@every_group
def test_the_node_is_held_and_counted(functions: Functions, work: Workload, group: Group) -> None:
    """NMO-11, NMO-16, NMO-20, KNM-3, X-7: `begin` sets finalizer, owner, lease and pod counts."""
    node = work.node()
    work.pods(node, "bare", "second")
    work.pods(node, "static", annotations={"kubernetes.io/config.mirror": "x"})
    work.daemonset("agent", node)
    item = work.maintenance(node, group)

    reply = functions.answer("begin", added(item))

    item = work.again(item)
    assert reply is not None
    assert reply.get_type() == events.MAINTENANCE_BEGUN
    told = dict(data_of(reply))
    assert int(told.pop("podsVersion")) > 0
    assert told == {
        "maintenance": events.Reference.of(item).as_data(),
        "node": node,
        "totalpods": 4,
        "evictionPods": 2,
        "maintenanceVersion": item["metadata"]["resourceVersion"],
        "closed": False,
        "left": [{"namespace": work.namespace, "name": name} for name in ("bare", "second")],
    }
    assert item["metadata"]["finalizers"] == [m.FINALIZER]
    (owner,) = item["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", node, work.read_node(node)["metadata"]["uid"])
    assert m.snapshot(item) == {"totalpods": 4, "evictionPods": 2}
    assert leases.is_holder(work.admin.get(leases.lease_path(node)), item)


@proves("X-1")
def test_only_the_object_and_the_lease_are_written(functions: Functions, work: Workload, audit: Audit) -> None:
    """X-1, NMO-11: `begin` creates one lease and patches the maintenance once; it writes neither node nor pods."""
    node = work.node()
    item = work.maintenance(node)

    functions.begin(item)

    name = item["metadata"]["name"]
    assert written(audit.writes_by()) == [("create", "leases", f"node-{node}"), ("patch", "nodemaintenances", name)]


@proves("X-2", "NMO-11")
def test_a_duplicate_writes_nothing_and_says_the_same(functions: Functions, work: Workload, audit: Audit) -> None:
    """X-2: a duplicate event writes nothing, and its reply is the same event without the snapshot.

    The second pass does not read the pods, so `status` reads them.
    """
    node = work.node()
    work.pods(node, "bare")
    item = work.maintenance(node)
    event = added(item)
    first = functions.answer("begin", event)
    work.pods(node, "late")
    before, writes = work.again(item), len(audit.writes_by())

    second = functions.answer("begin", event)

    assert first is not None
    assert second is not None
    seen = ("maintenanceVersion", "closed", "left", "podsVersion")
    told = {name: value for name, value in data_of(first).items() if name not in seen}
    assert set(seen) <= set(data_of(first))
    assert (second.get_id(), second.get_data()) == (first.get_id(), told)
    assert work.again(item) == before
    assert len(audit.writes_by()) == writes


def test_what_is_read_is_read_once(functions: Functions, work: Workload) -> None:
    """Check that `begin` sends five requests for a new maintenance, and three reads for a duplicate event."""
    CLAIMS.confirm(functions.clusters["begin"])
    node = work.node()
    item = work.maintenance(node)
    path, event = m.path(item), added(item)
    read = {f"GET {path}": 1, f"GET {node_path(node)}": 1}
    written = {f"POST {leases.LEASES}": 1, f"PATCH {path}": 1}

    with requests_of(functions.clusters["begin"].api) as first:
        functions.answer("begin", event)
    with requests_of(functions.clusters["begin"].api) as second:
        functions.answer("begin", event)

    assert first == {**read, f"GET {PODS}": 1, **written}
    assert second == {**read, f"GET {leases.lease_path(node)}": 1}


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_both_modes_are_understood(functions: Functions, work: Workload, mode: str) -> None:
    """X-1: `begin` accepts an event in binary and in structured mode."""
    item = work.maintenance(work.node())

    response = functions.post("begin", added(item), mode=mode)

    assert response.status_code == 200
    assert response.headers["ce-type"] == events.MAINTENANCE_BEGUN
    assert response.content_type == "application/json"


@proves("NMO-19")
def test_an_unknown_node_is_a_failure(functions: Functions, work: Workload, audit: Audit) -> None:
    """NMO-19: for an unknown node, `begin` emits `maintenance.failed` and writes nothing."""
    item = work.maintenance("nowhere")

    reply = functions.answer("begin", added(item))

    assert reply is not None
    assert reply.get_type() == events.MAINTENANCE_FAILED
    assert data_of(reply)["error"] == 'nodes "nowhere" not found'
    assert audit.writes_by() == []


@pytest.mark.parametrize("suffix", ["/status", "/", "/..", "?x=1", "#x", ",x", "=x", " ", "\n"])
def test_an_odd_node_name_is_an_unknown_node(functions: Functions, work: Workload, audit: Audit, suffix: str) -> None:
    """NMO-19: a node name with characters of a path or a selector is an unknown node, and the status reports that."""
    name = f"{work.node()}{suffix}"
    item = work.maintenance(name)

    reply = functions.answer("begin", added(item))

    assert reply is not None
    assert data_of(reply)["error"] == f'nodes "{name}" not found'
    assert audit.writes_by() == []
    functions.answer("status", reply)
    assert work.again(item)["status"]["lastError"] == f'nodes "{name}" not found'
    work.delete(m.path(item))


def test_one_that_has_succeeded_is_not_begun_again(functions: Functions, work: Workload) -> None:
    """X-2: `begin` ignores a duplicate of the first event after the drain has succeeded."""
    item = drain(functions, work, work.maintenance(work.node()))
    assert m.phase(item) == m.SUCCEEDED

    assert functions.answer("begin", added(item)) is None


@proves("NMO-22")
@pytest.mark.parametrize("second_group", [MEDIK8S, KUBEVIRT], ids=["same-group", "other-group"])
def test_a_second_maintenance_of_the_node_is_refused(
    functions: Functions, work: Workload, audit: Audit, second_group: Group
) -> None:
    """NMO-22, X-7: a second maintenance of the node, of any group, fails with the first one's name."""
    node = work.node()
    first, second = work.maintenance(node), work.maintenance(node, second_group)
    functions.begin(first)
    writes = len(audit.writes_by())

    reply = functions.answer("begin", added(second))

    assert reply is not None
    assert reply.get_type() == events.MAINTENANCE_FAILED
    said_why = data_of(reply)["error"]
    assert said_why.startswith(f"invalid nodeName, a NodeMaintenance for node {node} already exists: ")
    assert first["metadata"]["name"] in said_why
    refused = [(entry["verb"], entry["responseStatus"]["code"]) for entry in audit.writes_by()[writes:]]
    assert refused == [("create", 409)]  # the lease exists already


@proves("NMO-22")
@pytest.mark.parametrize("second_group", [MEDIK8S, KUBEVIRT], ids=["same-group", "other-group"])
def test_a_second_maintenance_is_refused_also_where_the_lease_was_deleted(
    functions: Functions, work: Workload, audit: Audit, second_group: Group
) -> None:
    """NMO-22: a second maintenance of the node fails even if the first one's lease was deleted."""
    node = work.node()
    first = drain(functions, work, work.maintenance(node))
    work.delete(leases.lease_path(node))
    second, writes = work.maintenance(node, second_group), len(audit.writes_by())

    reply = functions.answer("begin", added(second))

    assert reply is not None
    assert reply.get_type() == events.MAINTENANCE_FAILED
    assert first["metadata"]["name"] in str(data_of(reply)["error"])
    assert written(audit.writes_by()[writes:]) == []
    functions.answer("begin", added(first))
    assert leases.is_holder(work.admin.get(leases.lease_path(node)), first)


@proves("NMO-27", "NMO-27a")
@pytest.mark.parametrize(
    ("renewed", "begins"),
    [(HELD, False), (EXPIRED, True)],
    ids=["held", "expired"],
)
def test_a_lease_of_another_tool(functions: Functions, work: Workload, renewed: str, begins: bool) -> None:
    """NMO-27a: another tool's valid lease blocks the maintenance; `begin` takes over an expired one."""
    node = work.node()
    foreign_lease(work, node, renewed)
    item = work.maintenance(node)

    reply = functions.answer("begin", added(item))

    assert reply is not None
    assert reply.get_type() == (events.MAINTENANCE_BEGUN if begins else events.MAINTENANCE_FAILED)
    assert m.has_begun(work.again(item)) is begins
    assert leases.is_holder(work.admin.get(leases.lease_path(node)), item) is begins
    if not begins:
        held = f"the lease of node {node} is held by another-tool: the maintenance begins when it is released"
        assert data_of(reply)["error"] == held
        functions.answer("status", reply)
        shown = work.again(item)["status"]
        assert (shown["lastError"], shown.get("phase")) == (held, None)
        assert work.read_node(node)["spec"].get("unschedulable") is None


@pytest.mark.parametrize("holder", ["", None], ids=["empty", "null"])
def test_a_lease_that_was_released_holds_nobody_up(functions: Functions, work: Workload, holder: str | None) -> None:
    """NMO-27a: a lease without a holder does not block the maintenance, even before it expires."""
    node = work.node()
    foreign_lease(work, node, HELD, holder)
    item = work.maintenance(node)

    assert functions.begin(item).get_type() == events.MAINTENANCE_BEGUN

    assert leases.is_holder(work.admin.get(leases.lease_path(node)), item)


def test_a_lease_that_is_released_while_it_is_acquired_is_no_failure(functions: Functions, work: Workload) -> None:
    """X-6: `begin` answers 503 if the lease is deleted between its read and its write, and succeeds when retried."""
    node = work.node()
    path = leases.lease_path(node)
    foreign_lease(work, node, EXPIRED)
    item = work.maintenance(node)

    with before(functions.clusters["begin"], "PATCH", path, lambda: work.delete(path)):
        response = functions.post("begin", added(item))

    assert (response.status_code, f"the lease of node {node}" in response.text) == (503, True)
    functions.begin(item)
    assert leases.is_holder(work.admin.get(path), item)


def test_a_lease_that_goes_before_it_is_read_is_no_failure(functions: Functions, work: Workload) -> None:
    """X-6: `begin` answers 503 if the lease is deleted between the failed create and the read of the holder."""
    node = work.node()
    path = leases.lease_path(node)
    foreign_lease(work, node, HELD)
    item = work.maintenance(node)

    with before(functions.clusters["begin"], "GET", path, lambda: work.delete(path)):
        response = functions.post("begin", added(item))

    assert (response.status_code, f"the lease of node {node}" in response.text) == (503, True)
    functions.begin(item)
    assert leases.is_holder(work.admin.get(path), item)


def test_a_lease_that_is_renewed_while_it_is_acquired_is_its_holder_s(functions: Functions, work: Workload) -> None:
    """NMO-27a, X-6: `begin` does not take over an expired lease that its holder renews between read and write."""
    node = work.node()
    path = leases.lease_path(node)
    foreign_lease(work, node, EXPIRED)
    item = work.maintenance(node)
    renewed = {"spec": {"renewTime": HELD}}

    with before(functions.clusters["begin"], "PATCH", path, lambda: work.admin.patch(path, renewed)):
        response = functions.post("begin", added(item))
    reply = functions.answer("begin", added(item))

    assert (response.status_code, f"the lease of node {node}" in response.text) == (503, True)
    assert reply is not None
    assert "is held by another-tool" in data_of(reply)["error"]
    assert not m.has_begun(work.again(item))


@proves("NMO-27a")
def test_one_whose_lease_another_maintenance_has_says_whose(functions: Functions, work: Workload) -> None:
    """NMO-27a: for a maintenance in progress, `begin` counts the failed renewal and names the lease's new holder."""
    node = work.node()
    item, other = work.maintenance(node), work.maintenance(node, KUBEVIRT)
    functions.begin(item)
    taken = leases.lease_of(node, other, datetime.now(timezone.utc))
    work.admin.patch(leases.lease_path(node), {"metadata": taken["metadata"], "spec": taken["spec"]})

    reply = functions.answer("begin", said(events.MAINTENANCE_FOUND, item))

    assert reply is not None
    assert (reply.get_type(), data_of(reply)["leaseErrors"]) == (events.MAINTENANCE_FAILED, 1)
    holder = f"{other['metadata']['name']} ({other['apiVersion']})"
    assert f"the lease of node {node} is held by {holder}" in data_of(reply)["error"]


@proves("NMO-7", "NMO-11")
def test_a_daemon_without_its_daemonset_counts_among_those_that_leave(functions: Functions, work: Workload) -> None:
    """NMO-7, NMO-11: a DaemonSet pod whose DaemonSet is gone counts as a pod to evict."""
    node = work.node()
    metadata = work.daemonset("agent", node)["metadata"]
    daemonset = f"/apis/apps/v1/namespaces/{work.namespace}/daemonsets/agent"
    work.admin.run(work.admin.api.request("DELETE", daemonset, body={"propagationPolicy": "Orphan"}))
    work.wait_for(daemonset, lambda found: found is None)
    pod = f"/api/v1/namespaces/{work.namespace}/pods/{metadata['name']}"
    # the garbage collector does not delete a pod whose owner's kind it cannot find
    owner = {**metadata["ownerReferences"][0], "apiVersion": "gone.example.com/v1"}
    work.admin.patch(pod, {"metadata": {"ownerReferences": [owner]}})

    begun = functions.begin(work.maintenance(node))

    assert (data_of(begun)["totalpods"], data_of(begun)["evictionPods"]) == (1, 1)


@proves("DRN-1a")
def test_a_pod_that_has_time_left_to_end_counts_among_those_that_leave(functions: Functions, work: Workload) -> None:
    """DRN-1a: a terminating pod counts as a pod to evict until `skipWaitForDeleteTimeoutSeconds` have passed."""
    node = work.node()
    (pod,) = work.pods(node, "slow", finalizers=("example.com/hold",))
    work.delete(pod_path(pod))
    item = work.maintenance(node, drain={"skipWaitForDeleteTimeoutSeconds": 3600})

    begun = functions.begin(item)

    assert data_of(begun)["evictionPods"] == 1
    work.admin.patch(pod_path(pod), {"metadata": {"finalizers": []}})


@pytest.mark.parametrize("name", ["x/status", "..", "x?watch=1"])
def test_a_lease_that_names_no_object_holds_nobody_up(functions: Functions, work: Workload, name: str) -> None:
    """X-2: a lease whose holder annotation has an invalid object name does not block the maintenance."""
    node = work.node()
    lease = leases.lease_of(node, work.maintenance("nowhere"), datetime.now(timezone.utc))
    lease["metadata"]["annotations"] = {leases.HOLDER_ANNOTATION: f"{MEDIK8S.api_version} {name} some-uid"}
    work.admin.create(leases.LEASES, lease)

    reply = functions.begin(work.maintenance(node))

    assert reply.get_type() == events.MAINTENANCE_BEGUN


def test_the_lease_of_a_maintenance_that_is_gone_is_taken_over(functions: Functions, work: Workload) -> None:
    """NMO-22: `begin` takes over the lease of a maintenance that no longer exists."""
    node = work.node()
    first, second = work.maintenance(node), work.maintenance(node, KUBEVIRT)
    functions.begin(first)
    work.vanish(first)

    functions.begin(second)

    assert leases.is_holder(work.admin.get(leases.lease_path(node)), second)


def test_the_lease_of_a_maintenance_that_is_over_is_taken_over(functions: Functions, work: Workload) -> None:
    """NMO-22, rule 12: `begin` takes over a lease that a late write created for a released maintenance."""
    node = work.node()
    first = work.maintenance(node, finalizers=["example.com/hold"])
    functions.prepare(first)
    work.delete(m.path(first))
    functions.answer("restore", said(events.MAINTENANCE_ENDED, first))
    work.admin.create(leases.LEASES, leases.lease_of(node, first, datetime.now(timezone.utc)))
    second = work.maintenance(node)

    functions.begin(second)

    assert leases.is_holder(work.admin.get(leases.lease_path(node)), second)
    work.admin.patch(m.path(first), {"metadata": {"finalizers": []}})


def test_a_lease_that_is_half_over_is_renewed(functions: Functions, work: Workload) -> None:
    """NMO-27: `begin` renews the lease of a maintenance in progress when the renewal is due."""
    node = work.node()
    item = work.maintenance(node)
    functions.begin(item)
    work.admin.patch(leases.lease_path(node), {"spec": {"renewTime": EXPIRED}})

    functions.answer("begin", said(events.MAINTENANCE_FOUND, item))

    assert work.admin.get(leases.lease_path(node))["spec"]["renewTime"] > "2026"


def test_a_failed_one_begins_when_its_turn_comes(functions: Functions, work: Workload) -> None:
    """NMO-19: a maintenance that failed because its node was unknown begins after the node is created."""
    item = work.maintenance(late := f"late-{work.namespace}")
    failed = functions.answer("begin", added(item))
    assert failed is not None
    functions.answer("status", failed)

    work.local.add_named(late)
    reply = functions.answer("begin", said(events.MAINTENANCE_FOUND, item))

    assert reply is not None
    assert reply.get_type() == events.MAINTENANCE_BEGUN


@proves("NMO-11", "X-3")
@pytest.mark.parametrize("lost", ["finalizers", "annotations", "ownerReferences", ""], ids=lambda name: name or "all")
def test_what_somebody_took_off_is_put_back(functions: Functions, work: Workload, audit: Audit, lost: str) -> None:
    """NMO-11, X-3: `begin` restores metadata that another writer removed, with the pod counts from the status.

    `kubectl replace` with the user's file removes all of it.
    """
    node = work.node()
    work.pods(node, "goes", "stays")
    item = work.maintenance(node)
    functions.answer("status", functions.begin(item))
    before = work.again(item)["metadata"]
    work.delete(f"/api/v1/namespaces/{work.namespace}/pods/goes?gracePeriodSeconds=0")
    names = [lost] if lost else ["finalizers", "annotations", "ownerReferences"]
    work.admin.patch(m.path(item), {"metadata": dict.fromkeys(names)})
    writes = len(audit.writes_by())

    reply = functions.answer("begin", said(events.MAINTENANCE_FOUND, item))

    after = work.again(item)["metadata"]
    assert {name: after[name] for name in ("finalizers", "annotations", "ownerReferences")} == {
        name: before[name] for name in ("finalizers", "annotations", "ownerReferences")
    }
    assert m.snapshot(work.again(item)) == {"totalpods": 2, "evictionPods": 2}
    assert reply is not None
    assert reply.get_type() == events.MAINTENANCE_BEGUN
    assert written(audit.writes_by()[writes:]) == [("patch", "nodemaintenances", item["metadata"]["name"])]


def test_one_that_is_being_deleted_does_not_begin(functions: Functions, work: Workload, audit: Audit) -> None:
    """X-2: `begin` ignores a maintenance that is being deleted."""
    item = work.maintenance(work.node(), finalizers=["example.com/hold"])
    work.delete(m.path(item))

    assert functions.answer("begin", added(item)) is None
    assert audit.writes_by() == []


def test_the_finalizers_and_owners_of_others_stay(functions: Functions, work: Workload) -> None:
    """NMO-16: `begin` keeps the finalizers and owners that others set on the maintenance."""
    node = work.node()
    namespace = work.admin.get(f"/api/v1/namespaces/{work.namespace}")
    owner = {"apiVersion": "v1", "kind": "Namespace", "name": work.namespace, "uid": namespace["metadata"]["uid"]}
    item = work.maintenance(node, finalizers=["example.com/hold"], ownerReferences=[owner])

    functions.begin(item)

    metadata = work.again(item)["metadata"]
    assert metadata["finalizers"] == ["example.com/hold", m.FINALIZER]
    assert [item["kind"] for item in metadata["ownerReferences"]] == ["Namespace", "Node"]


@proves("NMO-7", "NMO-8")
def test_the_operators_lines_are_in_the_log(
    functions: Functions, work: Workload, caplog: pytest.LogCaptureFixture
) -> None:
    """NMO-7, NMO-8, NMO-17, KNM-5: `begin` logs the lines that administrators search for."""
    node = work.node()
    work.pods(node, "bare")
    work.daemonset("agent", node)
    daemon = next(
        pod["metadata"]["name"]
        for pod in work.admin.list(f"/api/v1/namespaces/{work.namespace}/pods", labels="app=agent")["items"]
    )
    item = work.maintenance(node, reason="new disks")

    with caplog.at_level("INFO", logger=event_objects.log.name):
        functions.begin(item)

    lines = [record.message for record in caplog.records if record.name == "controller_nodemaintenance"]
    assert lines == [
        "Reconciling NodeMaintenance",
        "Applying maintenance mode",
        f"Applying Maintenance mode on Node: {node} with Reason: new disks",
        f"WARNING: ignoring DaemonSet-managed Pods: {work.namespace}/{daemon}; deleting Pods not managed by "
        f"ReplicationController, ReplicaSet, Job, DaemonSet or StatefulSet: {work.namespace}/bare",
    ]
    assert vars(caplog.records[1])["fields"]["reason"] == "new disks"


def test_a_maintenance_without_a_reason_is_logged_without_one(
    functions: Functions, work: Workload, caplog: pytest.LogCaptureFixture
) -> None:
    """NMO-17: a maintenance without a reason is logged with an empty reason."""
    node = work.node()
    item = work.maintenance(node, reason="")

    with caplog.at_level("INFO", logger=event_objects.log.name):
        functions.begin(item)

    assert f"Applying Maintenance mode on Node: {node} with Reason: " in [record.message for record in caplog.records]
