"""Tests of `resync` on a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import datetime, timezone

import pytest
from cloudevents.core.base import BaseCloudEvent

from eventing import events, replay_extensions
from eventing.http_binding import received
from functions.event_data import data_of
from functions.installs import CLAIMS
from functions.maintenance import due_events, resync, event_objects
from kube.maintenance import leases
from kube.maintenance import objects as m
from kube.maintenance.groups import GROUPS, KUBEVIRT
from kube.nodes import LABEL
from kube.paths import PODS, Object
from tests.fault_proxy import Fault, Faults
from tests.functions.conftest import Functions
from tests.functions.event_builders import added, said, tick, updated
from tests.functions.request_hooks import lists_of
from tests.kube.samples import IN_MAINTENANCE, maintenance
from tests.proofs import proves
from tests.receiver import Receiver
from tests.workload import Audit, Workload

pytestmark = pytest.mark.usefixtures("at_rest")


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """Yield an HTTP server that receives events in place of the broker at K_SINK."""
    running = Receiver()
    monkeypatch.setenv("K_SINK", running.url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield running
    running.close()


def sent_to(sink: Receiver) -> list[BaseCloudEvent]:
    """Return the events that were posted to the sink."""
    return [received(request.headers, request.body) for request in sink.requests]


def told(functions: Functions, item: Object) -> list[str]:
    """Run a tick and return the type of its reply, which may refer only to this maintenance."""
    reply = functions.answer("resync", tick())
    if reply is None:
        return []
    assert data_of(reply)["maintenance"] == events.Reference.of(item).as_data()
    return [reply.get_type()]


@proves("X-3")
@pytest.mark.usefixtures("alone")
def test_each_state_is_told_what_it_waits_for_and_nothing_else(
    functions: Functions, work: Workload, audit: Audit
) -> None:
    """X-3, X-5: for each state of a maintenance, a tick emits exactly the event that the maintenance waits for.

    A `resync` whose install already holds the install Lease writes nothing.
    """
    CLAIMS.confirm(functions.clusters["resync"])
    node = work.node()
    work.pods(node, "a")
    item = work.maintenance(node)
    steps = []

    steps.append(told(functions, item))
    begun = functions.answer("begin", added(item))
    assert begun is not None
    steps.append(told(functions, item))
    cordoned = functions.answer("cordon", begun)
    assert cordoned is not None
    tainted = functions.answer("taint", cordoned)
    assert tainted is not None
    steps.append(told(functions, item))
    functions.answer("evict", tainted)
    work.until(f"/api/v1/namespaces/{work.namespace}/pods", lambda pods: not pods)
    drained = functions.answer("evict", said(events.PODS_GONE, item))
    assert drained is not None
    functions.answer("status", drained)
    steps.append(told(functions, item))
    work.pods(node, "late")
    steps.append(told(functions, item))
    work.delete(m.path(item))
    steps.append(told(functions, item))
    functions.answer("restore", updated(work.again(item)))
    steps.append(told(functions, item))

    assert steps == [
        [events.MAINTENANCE_FOUND],
        [events.NODE_DRIFTED],
        [events.NODE_TAINTED],
        [],
        [events.NODE_TAINTED],
        [events.MAINTENANCE_ENDED],
        [],
    ]
    assert audit.writes_by("system:serviceaccount:node-maintenance:resync") == []


@pytest.mark.usefixtures("alone")
def test_what_is_on_its_way_is_left_alone(
    functions: Functions, work: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X-3: a tick emits nothing for a maintenance in flight, and emits at once for a new one."""
    node = work.node()
    work.pods(node, "pod")
    item = work.maintenance(node)
    monkeypatch.setattr(due_events, "UNDER_WAY_SECONDS", 3600)
    new = told(functions, item)
    functions.prepare(item)
    functions.answer("status", said(events.MAINTENANCE_BEGUN, item))

    moving = told(functions, item)
    monkeypatch.setattr(due_events, "UNDER_WAY_SECONDS", 0)
    resting = told(functions, item)

    assert (new, moving, resting) == ([events.MAINTENANCE_FOUND], [], [events.NODE_TAINTED])


@proves("NMO-27a")
@pytest.mark.usefixtures("alone")
def test_a_lease_is_renewed_however_busy_its_drain_is(
    functions: Functions, work: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 11: a tick asks for the renewal of a due lease even if the maintenance is in flight."""
    node = work.node()
    work.pods(node, "pod")
    item = work.maintenance(node)
    functions.answer("status", functions.begin(item))
    monkeypatch.setattr(due_events, "UNDER_WAY_SECONDS", 3600)
    work.admin.patch(leases.lease_path(node), {"spec": {"renewTime": "2020-01-01T00:00:00.000000Z"}})

    assert told(functions, item) == [events.MAINTENANCE_FOUND]

    functions.answer("begin", said(events.MAINTENANCE_FOUND, item))
    assert told(functions, item) == []


@pytest.mark.usefixtures("alone")
def test_pods_that_are_ending_are_waited_for(functions: Functions, work: Workload) -> None:
    """X-3: a tick emits nothing while all pods are terminating, and emits an event when a new pod appears."""
    node = work.node()
    work.pods(node, "slow", finalizers=("example.com/hold",))
    item = work.maintenance(node)
    functions.answer("evict", functions.prepare(item))

    ending = told(functions, item)
    work.pods(node, "late")
    late = told(functions, item)

    assert (ending, late) == ([], [events.NODE_TAINTED])
    work.admin.patch(f"/api/v1/namespaces/{work.namespace}/pods/slow", {"metadata": {"finalizers": []}})


@proves("X-3")
@pytest.mark.usefixtures("alone")
def test_a_node_that_is_closed_is_told_while_its_pods_end(functions: Functions, work: Workload) -> None:
    """X-3: if `pods.evicted` was lost, a tick updates the reported cordon before the last pod has ended."""
    node = work.node()
    work.pods(node, "slow", finalizers=("example.com/hold",))
    item = work.maintenance(node)
    functions.answer("status", functions.begin(item))
    functions.chain(item, "begin", "cordon", "taint", "evict")
    assert m.condition(work.again(item), "Cordoned")["status"] == "False"

    found = functions.answer("resync", tick())
    assert found is not None
    evicted = functions.answer("evict", found)
    assert evicted is not None
    functions.answer("status", evicted)

    assert m.condition(work.again(item), "Cordoned")["status"] == "True"
    assert told(functions, item) == []
    work.admin.patch(f"/api/v1/namespaces/{work.namespace}/pods/slow", {"metadata": {"finalizers": []}})


@pytest.mark.usefixtures("alone")
def test_a_healthy_success_stays_quiet(functions: Functions, work: Workload, audit: Audit) -> None:
    """X-3: a tick emits nothing for a succeeded maintenance until the renewal of its lease is due."""
    node = work.node()
    item = work.maintenance(node)
    drained = functions.chain(item, "begin", "cordon", "taint", "evict")
    functions.answer("status", drained)
    writes = len(audit.writes_by())

    assert [told(functions, item), told(functions, item)] == [[], []]
    assert len(audit.writes_by()) == writes

    work.admin.patch(leases.lease_path(node), {"spec": {"renewTime": "2020-01-01T00:00:00.000000Z"}})
    assert told(functions, item) == [events.MAINTENANCE_FOUND]


@pytest.mark.usefixtures("alone")
def test_a_missing_label_is_a_drift(functions: Functions, work: Workload) -> None:
    """Rule 10: a tick emits `node.drifted` for a node that lost its label, until the label is restored."""
    node = work.node()
    item = work.maintenance(node)
    drained = functions.chain(item, "begin", "cordon", "taint", "evict")
    functions.answer("status", drained)
    work.local.kubectl("label", "node", node, f"{LABEL}-")

    drifted = functions.answer("resync", tick())
    assert drifted is not None
    assert drifted.get_type() == events.NODE_DRIFTED
    cordoned = functions.answer("cordon", drifted)
    assert cordoned is not None
    functions.answer("taint", cordoned)

    assert told(functions, item) == []
    assert work.read_node(node)["metadata"]["labels"][LABEL] == item["metadata"]["uid"]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("replaced", [False, True], ids=["gone", "replaced"])
def test_a_node_that_is_gone_is_left_to_the_collector(functions: Functions, work: Workload, replaced: bool) -> None:
    """NMO-20: a tick emits nothing for a maintenance whose node is deleted or replaced."""
    node = work.node()
    item = work.maintenance(node)
    functions.prepare(item)
    # this API version is not served, so the garbage collector keeps the maintenance
    owner = {
        "apiVersion": "example.com/v1",
        "kind": "Node",
        "name": node,
        "uid": work.read_node(node)["metadata"]["uid"],
    }
    work.admin.patch(m.path(item), {"metadata": {"ownerReferences": [owner]}})
    work.delete(f"/api/v1/nodes/{node}")
    if replaced:
        work.admin.create("/api/v1/nodes", {"metadata": {"name": node}})

    assert told(functions, item) == []


@pytest.mark.usefixtures("alone")
def test_a_failed_one_is_found_when_its_node_comes(functions: Functions, work: Workload) -> None:
    """NMO-19: a tick emits `maintenance.found` for a failed maintenance once its unknown node is created."""
    item = work.maintenance(late := f"late-{work.namespace}")
    failed = functions.answer("begin", added(item))
    assert failed is not None
    functions.answer("status", failed)

    before = told(functions, item)
    work.local.add_named(late)

    assert (before, told(functions, item)) == ([], [events.MAINTENANCE_FOUND])


@proves("X-3")
@pytest.mark.usefixtures("alone")
def test_one_that_failed_after_it_took_its_lease_is_found(functions: Functions, work: Workload) -> None:
    """X-3, X-6: a tick emits `maintenance.found` for a failed maintenance that holds its lease already."""
    node = work.node()
    item = work.maintenance(node)
    work.admin.create(leases.LEASES, leases.lease_of(node, item, datetime.now(timezone.utc)))
    functions.answer("status", said(events.MAINTENANCE_FAILED, item, data={"step": "begin", "error": "may not"}))

    found = functions.answer("resync", tick())
    assert found is not None
    assert found.get_type() == events.MAINTENANCE_FOUND
    functions.answer("begin", found)

    assert m.has_begun(work.again(item))


@proves("X-3")
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("lost", ["finalizers", "annotations", "ownerReferences"])
def test_one_whose_metadata_was_replaced_is_found(functions: Functions, work: Workload, lost: str) -> None:
    """X-3: a tick emits `maintenance.found` for a maintenance with removed metadata, until `begin` restores it."""
    item = work.maintenance(work.node())
    drained = functions.chain(item, "begin", "cordon", "taint", "evict")
    functions.answer("status", drained)
    work.admin.patch(m.path(item), {"metadata": {lost: None}})

    found = functions.answer("resync", tick())
    assert found is not None
    assert found.get_type() == events.MAINTENANCE_FOUND
    functions.answer("begin", found)

    assert told(functions, item) == []


@proves("X-3", "NMO-19")
@pytest.mark.usefixtures("alone")
def test_one_whose_metadata_was_replaced_says_that_its_node_is_gone(functions: Functions, work: Workload) -> None:
    """X-3, NMO-19: a maintenance without metadata whose node is deleted fails, and ticks emit nothing more for it."""
    node = work.node()
    item = work.maintenance(node)
    functions.answer("status", functions.begin(item))
    work.admin.patch(m.path(item), {"metadata": dict.fromkeys(["finalizers", "annotations", "ownerReferences"])})
    work.delete(f"/api/v1/nodes/{node}")

    found = functions.answer("resync", tick())
    assert found is not None
    failed = functions.answer("begin", found)
    assert failed is not None
    functions.answer("status", failed)

    assert (m.phase(work.again(item)), node in m.last_error(work.again(item))) == (m.FAILED, True)
    assert told(functions, item) == []


@pytest.mark.usefixtures("alone")
def test_a_refused_second_one_is_found_when_its_turn_comes(functions: Functions, work: Workload) -> None:
    """NMO-22, X-7: a tick emits nothing for a second maintenance until the first one is gone."""
    node = work.node()
    first, second = work.maintenance(node), work.maintenance(node, KUBEVIRT)
    drained = functions.chain(first, "begin", "cordon", "taint", "evict")
    functions.answer("status", drained)
    failed = functions.answer("begin", added(second))
    assert failed is not None
    functions.answer("status", failed)
    before = told(functions, second)

    work.delete(m.path(first))
    functions.answer("restore", updated(work.again(first)))

    assert (before, told(functions, second)) == ([], [events.MAINTENANCE_FOUND])


@pytest.mark.usefixtures("alone")
def test_a_group_that_is_refused_stops_no_other_and_has_no_strays(
    functions: Functions, spoiled: Functions, faults: Faults, work: Workload
) -> None:
    """X-6, rule 4: a tick emits events for the other groups if one group cannot be listed.

    The nodes of that group are not treated as orphaned.
    """
    for group in GROUPS.values():
        functions.prepare(work.maintenance(work.node(), group))
    faults.spoil(lambda request: Fault(403, "may not") if request == "list nodemaintenances 1" else None)

    told = resync.resync(tick(), spoiled.clusters["resync"])

    faults.speak_again()
    assert [event.get_type() for event in told] == [events.NODE_TAINTED] * (len(GROUPS) - 1)


@proves("X-6")
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("request_of_it", ["list nodemaintenances", "list nodes", "list leases"])
def test_a_list_that_gets_no_answer_fails_the_whole_tick(
    spoiled: Functions, faults: Faults, work: Workload, request_of_it: str
) -> None:
    """X-6: if a list gets no response, the function answers 503 and emits nothing."""
    work.maintenance(work.node())
    faults.spoil(lambda request: Fault(500, "no answer") if request.startswith(request_of_it) else None)

    response = spoiled.post("resync", tick())

    faults.speak_again()
    assert response.status_code == 503


@pytest.mark.usefixtures("alone")
def test_a_replay_takes_nobodys_turn(functions: Functions, work: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 10: ticks read the cached pods of succeeded maintenances in rotation, which a replay does not advance."""
    nodes = {work.node(), work.node()}
    for node in nodes:
        functions.answer("status", functions.chain(work.maintenance(node), "begin", "cordon", "taint", "evict"))
    monkeypatch.setattr(resync, "LOOKS", 1)

    looks = []
    for _ in range(6):
        with lists_of(functions.clusters["resync"].api) as asked:
            assert functions.answer("resync", tick()) is None
        looks += [(one.fields, one.version) for one in asked if one.path == PODS]
        assert functions.answer("resync", replay_extensions.marked(tick(), "r", dry_run=True)) is None

    assert len(looks) == 6
    assert {fields.rpartition("=")[2] for fields, _ in looks[:2]} == nodes
    assert looks == looks[:2] * 3
    assert {version for _, version in looks} == {"0"}


@pytest.mark.parametrize(
    ("draining", "resting", "looked"),
    [(30, 30, (15, 5)), (30, 2, (18, 2)), (30, 0, (20, 0)), (4, 30, (4, 16)), (4, 3, (4, 3))],
)
def test_drains_are_looked_at_first_and_some_of_what_rests_always(
    draining: int, resting: int, looked: tuple[int, int]
) -> None:
    """Rule 10: a tick reads the pods of twenty nodes, drains first; up to five reads are for succeeded ones."""
    phases = ["Running"] * draining + ["Succeeded"] * resting
    items = [
        {**maintenance({"phase": phase}), "metadata": {**maintenance()["metadata"], "uid": f"uid-{number}"}}
        for number, phase in enumerate(phases)
    ]

    chosen = [m.phase(item) for item in resync._inspected(items, resync.Rounds())]

    assert (chosen.count("Running"), chosen.count("Succeeded")) == looked


def test_what_is_malformed_is_in_the_log_and_waits_for_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """X-3: a malformed maintenance is logged and gets no event, and does not stop the tick for others."""
    spoiled, now = maintenance({"phase": "Running"}), datetime.now(timezone.utc)
    lease = leases.lease_of("node-1", spoiled, now)
    lease["spec"]["renewTime"] = "soon"
    lists = due_events.Known([spoiled], {"node-1": IN_MAINTENANCE}, {"node-1": lease})

    async def look() -> due_events.Due:
        raise ValueError("no time in RFC 3339")

    with caplog.at_level("INFO", logger=event_objects.log.name):
        known = resync._due(spoiled, lists, now)
        looked = asyncio.run(resync._looked(spoiled, look()))

    assert (known, looked) == ("", (spoiled, ""))
    errors = [vars(record)["fields"]["error"] for record in caplog.records]
    assert [("does not match" in error, "RFC 3339" in error) for error in errors] == [(True, False), (False, True)]


@pytest.mark.usefixtures("alone")
def test_several_events_go_to_the_broker(functions: Functions, work: Workload, sink: Receiver) -> None:
    """X-3: several events are posted to K_SINK, because an HTTP response can carry only one."""
    items = [work.maintenance(work.node()), work.maintenance(work.node(), KUBEVIRT)]

    response = functions.post("resync", tick())

    assert response.status_code == 204
    assert {event.get_extension("maintenance") for event in sent_to(sink)} == {
        item["metadata"]["uid"] for item in items
    }
    assert {event.get_type() for event in sent_to(sink)} == {events.MAINTENANCE_FOUND}
    assert len({request.connection for request in sink.requests}) == 1


@pytest.mark.usefixtures("alone")
def test_a_broker_that_is_away_is_tried_again(
    functions: Functions, work: Workload, sink: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X-6: a tick with several events answers 503 if K_SINK is unreachable or unset."""
    for _ in range(2):
        work.maintenance(work.node())
    sink.close()

    away = functions.post("resync", tick())
    monkeypatch.delenv("K_SINK")
    unset = functions.post("resync", tick())

    assert (away.status_code, unset.status_code) == (503, 503)
    assert away.text.startswith("the broker at K_SINK accepted no event: ")
    assert unset.text.startswith("several events to publish and K_SINK is not set")


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", ["a,b", "a=b", "a\\b", "a b", "x/y", "x?y", "..", ".", "a\n"])
def test_an_odd_node_name_does_not_stop_the_others(
    functions: Functions, work: Workload, sink: Receiver, name: str
) -> None:
    """X-3: a maintenance with an invalid node name does not stop the tick for others."""
    odd, good = work.maintenance(name), work.maintenance(work.node())

    assert functions.post("resync", tick()).status_code == 204

    assert {event.get_extension("maintenance") for event in sent_to(sink)} == {
        odd["metadata"]["uid"],
        good["metadata"]["uid"],
    }
