"""Tests for `resync` on a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone

import pytest
from cloudevents.core.base import BaseCloudEvent

from chaos.api_fault_proxy import Fault, FaultProxy
from eventing import events, extensions
from eventing.http_binding import decode_event
from functions.event_data import require_data
from functions.installs import INSTALL_LEASE_CACHE
from functions.maintenance import event_objects, observation, resync
from kube.maintenance import leases
from kube.maintenance import objects as m
from kube.maintenance.groups import GROUPS, KUBEVIRT
from kube.nodes import MAINTENANCE_LABEL
from kube.paths import PODS_PATH, Object
from localcluster.audit_log import AuditLog
from localcluster.http_receiver import Receiver
from tests.functions.conftest import Functions
from tests.functions.event_builders import build_added_event, build_product_event, build_tick, build_updated_event
from tests.functions.request_hooks import record_list_requests
from tests.kube.samples import NODE_IN_MAINTENANCE, make_maintenance
from tests.proofs import proves
from tests.workload import Workload

pytestmark = pytest.mark.usefixtures("no_wait_for_events_in_flight")


@pytest.fixture
def broker_sink(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """Yield an HTTP server at `K_SINK` that receives the function's events instead of a broker."""
    running = Receiver()
    monkeypatch.setenv("K_SINK", running.url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield running
    running.close()


def decode_received_events(sink: Receiver) -> list[BaseCloudEvent]:
    """Return the events that were posted to the sink."""
    return [decode_event(request.headers, request.body) for request in sink.requests]


def run_tick(functions: Functions, maintenance: Object) -> list[str]:
    """Invoke `resync` with a tick, and return the type of its reply in a list, or [] without a reply.

    The helper asserts that the reply refers to this maintenance.
    """
    reply = functions.invoke("resync", build_tick())
    if reply is None:
        return []
    assert require_data(reply)["maintenance"] == events.ObjectReference.from_object(maintenance).as_data()
    return [reply.get_type()]


@proves("X-3")
@pytest.mark.usefixtures("clean_cluster")
def test_tick_emits_event_that_each_state_waits_for(functions: Functions, workload: Workload, audit: AuditLog) -> None:
    """X-3, X-5: for each state of a maintenance, a tick emits exactly the event that the maintenance waits for.

    If its install already holds the install Lease, `resync` writes nothing.
    """
    INSTALL_LEASE_CACHE.confirm(functions.clusters["resync"])
    node = workload.take_node()
    workload.create_bare_pods(node, "a")
    maintenance = workload.create_maintenance(node)
    steps = []

    steps.append(run_tick(functions, maintenance))
    begun_event = functions.invoke("begin", build_added_event(maintenance))
    assert begun_event is not None
    steps.append(run_tick(functions, maintenance))
    cordoned_event = functions.invoke("cordon", begun_event)
    assert cordoned_event is not None
    tainted_event = functions.invoke("taint", cordoned_event)
    assert tainted_event is not None
    steps.append(run_tick(functions, maintenance))
    functions.invoke("evict", tainted_event)
    workload.wait_for_collection(f"/api/v1/namespaces/{workload.namespace}/pods", lambda pods: not pods)
    drained_event = functions.invoke("evict", build_product_event(events.PODS_GONE, maintenance))
    assert drained_event is not None
    functions.invoke("status", drained_event)
    steps.append(run_tick(functions, maintenance))
    workload.create_bare_pods(node, "late")
    steps.append(run_tick(functions, maintenance))
    workload.delete(m.build_path(maintenance))
    steps.append(run_tick(functions, maintenance))
    functions.invoke("restore", build_updated_event(workload.read_maintenance(maintenance)))
    steps.append(run_tick(functions, maintenance))

    assert steps == [
        [events.MAINTENANCE_PENDING],
        [events.NODE_DRIFTED],
        [events.NODE_TAINTED],
        [],
        [events.NODE_TAINTED],
        [events.MAINTENANCE_RESTORE_PENDING],
        [],
    ]
    assert audit.list_writes_by("system:serviceaccount:node-maintenance:resync") == []


@pytest.mark.usefixtures("clean_cluster")
def test_tick_emits_nothing_for_maintenance_with_event_in_flight(
    functions: Functions, workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X-3: a tick emits nothing for a maintenance with an event in flight, unless the maintenance is new."""
    node = workload.take_node()
    workload.create_bare_pods(node, "pod")
    maintenance = workload.create_maintenance(node)
    monkeypatch.setattr(observation, "IN_FLIGHT_SECONDS", 3600)
    before_begin = run_tick(functions, maintenance)
    functions.run_until_tainted(maintenance)
    functions.invoke("status", build_product_event(events.MAINTENANCE_BEGUN, maintenance))

    in_flight = run_tick(functions, maintenance)
    monkeypatch.setattr(observation, "IN_FLIGHT_SECONDS", 0)
    after_flight = run_tick(functions, maintenance)

    assert (before_begin, in_flight, after_flight) == ([events.MAINTENANCE_PENDING], [], [events.NODE_TAINTED])


@proves("NMO-27a")
@pytest.mark.usefixtures("clean_cluster")
def test_tick_requests_due_lease_renewal_while_event_is_in_flight(
    functions: Functions, workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Design rule 11: a tick requests a due lease renewal even if an event of the maintenance is in flight."""
    node = workload.take_node()
    workload.create_bare_pods(node, "pod")
    maintenance = workload.create_maintenance(node)
    functions.invoke("status", functions.run_begin(maintenance))
    monkeypatch.setattr(observation, "IN_FLIGHT_SECONDS", 3600)
    workload.client.patch(leases.build_lease_path(node), {"spec": {"renewTime": "2020-01-01T00:00:00.000000Z"}})

    assert run_tick(functions, maintenance) == [events.MAINTENANCE_PENDING]

    functions.invoke("begin", build_product_event(events.MAINTENANCE_PENDING, maintenance))
    assert run_tick(functions, maintenance) == []


@pytest.mark.usefixtures("clean_cluster")
def test_tick_emits_nothing_while_all_pods_terminate(functions: Functions, workload: Workload) -> None:
    """X-3: a tick emits nothing while all pods are terminating, and emits an event when a new pod appears."""
    node = workload.take_node()
    workload.create_bare_pods(node, "slow", finalizers=("example.com/hold",))
    maintenance = workload.create_maintenance(node)
    functions.invoke("evict", functions.run_until_tainted(maintenance))

    while_terminating = run_tick(functions, maintenance)
    workload.create_bare_pods(node, "late")
    with_new_pod = run_tick(functions, maintenance)

    assert (while_terminating, with_new_pod) == ([], [events.NODE_TAINTED])
    workload.client.patch(f"/api/v1/namespaces/{workload.namespace}/pods/slow", {"metadata": {"finalizers": []}})


@proves("X-3")
@pytest.mark.usefixtures("clean_cluster")
def test_tick_updates_cordoned_condition_while_pods_terminate(functions: Functions, workload: Workload) -> None:
    """X-3: if `pods.evicted` was lost, a tick updates the Cordoned condition before the last pod is gone."""
    node = workload.take_node()
    workload.create_bare_pods(node, "slow", finalizers=("example.com/hold",))
    maintenance = workload.create_maintenance(node)
    functions.invoke("status", functions.run_begin(maintenance))
    functions.run_chain(maintenance, "begin", "cordon", "taint", "evict")
    assert m.get_condition(workload.read_maintenance(maintenance), "Cordoned")["status"] == "False"

    tick_reply = functions.invoke("resync", build_tick())
    assert tick_reply is not None
    evicted = functions.invoke("evict", tick_reply)
    assert evicted is not None
    functions.invoke("status", evicted)

    assert m.get_condition(workload.read_maintenance(maintenance), "Cordoned")["status"] == "True"
    assert run_tick(functions, maintenance) == []
    workload.client.patch(f"/api/v1/namespaces/{workload.namespace}/pods/slow", {"metadata": {"finalizers": []}})


@pytest.mark.usefixtures("clean_cluster")
def test_tick_emits_nothing_for_succeeded_maintenance(
    functions: Functions, workload: Workload, audit: AuditLog
) -> None:
    """X-3: a tick emits nothing for a succeeded maintenance until the renewal of its lease is due."""
    node = workload.take_node()
    maintenance = workload.create_maintenance(node)
    drained_event = functions.run_chain(maintenance, "begin", "cordon", "taint", "evict")
    functions.invoke("status", drained_event)
    writes = len(audit.list_writes_by())

    assert [run_tick(functions, maintenance), run_tick(functions, maintenance)] == [[], []]
    assert len(audit.list_writes_by()) == writes

    workload.client.patch(leases.build_lease_path(node), {"spec": {"renewTime": "2020-01-01T00:00:00.000000Z"}})
    assert run_tick(functions, maintenance) == [events.MAINTENANCE_PENDING]


@pytest.mark.usefixtures("clean_cluster")
def test_tick_emits_node_drifted_if_label_is_missing(functions: Functions, workload: Workload) -> None:
    """Design rule 10: a tick emits `node.drifted` for a node that lost its label, until the label is restored."""
    node = workload.take_node()
    maintenance = workload.create_maintenance(node)
    drained_event = functions.run_chain(maintenance, "begin", "cordon", "taint", "evict")
    functions.invoke("status", drained_event)
    workload.local_cluster.kubectl("label", "node", node, f"{MAINTENANCE_LABEL}-")

    drifted_event = functions.invoke("resync", build_tick())
    assert drifted_event is not None
    assert drifted_event.get_type() == events.NODE_DRIFTED
    cordoned_event = functions.invoke("cordon", drifted_event)
    assert cordoned_event is not None
    functions.invoke("taint", cordoned_event)

    assert run_tick(functions, maintenance) == []
    assert workload.read_node(node)["metadata"]["labels"][MAINTENANCE_LABEL] == maintenance["metadata"]["uid"]


@pytest.mark.usefixtures("clean_cluster")
@pytest.mark.parametrize("is_replaced", [False, True], ids=["deleted", "replaced"])
def test_tick_emits_nothing_if_node_is_deleted_or_replaced(
    functions: Functions, workload: Workload, is_replaced: bool
) -> None:
    """NMO-20: a tick emits nothing for a maintenance whose node is deleted or replaced."""
    node = workload.take_node()
    maintenance = workload.create_maintenance(node)
    functions.run_until_tainted(maintenance)
    # The API server does not serve this API version, so the garbage collector does not delete the maintenance.
    owner = {
        "apiVersion": "example.com/v1",
        "kind": "Node",
        "name": node,
        "uid": workload.read_node(node)["metadata"]["uid"],
    }
    workload.client.patch(m.build_path(maintenance), {"metadata": {"ownerReferences": [owner]}})
    workload.delete(f"/api/v1/nodes/{node}")
    if is_replaced:
        workload.client.create("/api/v1/nodes", {"metadata": {"name": node}})

    assert run_tick(functions, maintenance) == []


@pytest.mark.usefixtures("clean_cluster")
def test_tick_emits_pending_for_failed_maintenance_after_node_creation(
    functions: Functions, workload: Workload
) -> None:
    """NMO-19: a tick emits `maintenance.pending` for a failed maintenance after its missing node is created."""
    maintenance = workload.create_maintenance(node := f"late-{workload.namespace}")
    failure_event = functions.invoke("begin", build_added_event(maintenance))
    assert failure_event is not None
    functions.invoke("status", failure_event)

    before = run_tick(functions, maintenance)
    workload.local_cluster.create_nodes(node)

    assert (before, run_tick(functions, maintenance)) == ([], [events.MAINTENANCE_PENDING])


@proves("X-3")
@pytest.mark.usefixtures("clean_cluster")
def test_tick_emits_pending_for_failed_maintenance_that_holds_lease(functions: Functions, workload: Workload) -> None:
    """X-3, X-6: a tick emits `maintenance.pending` for a failed maintenance that already holds its lease."""
    node = workload.take_node()
    maintenance = workload.create_maintenance(node)
    workload.client.create(leases.LEASES_PATH, leases.build_lease(node, maintenance, datetime.now(timezone.utc)))
    functions.invoke(
        "status",
        build_product_event(events.MAINTENANCE_STEP_FAILED, maintenance, data={"step": "begin", "error": "may not"}),
    )

    pending_event = functions.invoke("resync", build_tick())
    assert pending_event is not None
    assert pending_event.get_type() == events.MAINTENANCE_PENDING
    functions.invoke("begin", pending_event)

    assert m.has_begun(workload.read_maintenance(maintenance))


@proves("X-3")
@pytest.mark.usefixtures("clean_cluster")
@pytest.mark.parametrize("removed_field", ["finalizers", "annotations", "ownerReferences"])
def test_tick_emits_pending_for_maintenance_with_removed_metadata(
    functions: Functions, workload: Workload, removed_field: str
) -> None:
    """X-3: a tick emits `maintenance.pending` for a maintenance until `begin` has restored its removed metadata."""
    maintenance = workload.create_maintenance(workload.take_node())
    drained_event = functions.run_chain(maintenance, "begin", "cordon", "taint", "evict")
    functions.invoke("status", drained_event)
    workload.client.patch(m.build_path(maintenance), {"metadata": {removed_field: None}})

    pending_event = functions.invoke("resync", build_tick())
    assert pending_event is not None
    assert pending_event.get_type() == events.MAINTENANCE_PENDING
    functions.invoke("begin", pending_event)

    assert run_tick(functions, maintenance) == []


@proves("X-3", "NMO-19")
@pytest.mark.usefixtures("clean_cluster")
def test_maintenance_with_removed_metadata_and_deleted_node_fails(functions: Functions, workload: Workload) -> None:
    """X-3, NMO-19: a maintenance with removed metadata and a deleted node fails; later ticks emit nothing for it."""
    node = workload.take_node()
    maintenance = workload.create_maintenance(node)
    functions.invoke("status", functions.run_begin(maintenance))
    workload.client.patch(
        m.build_path(maintenance), {"metadata": dict.fromkeys(["finalizers", "annotations", "ownerReferences"])}
    )
    workload.delete(f"/api/v1/nodes/{node}")

    pending_event = functions.invoke("resync", build_tick())
    assert pending_event is not None
    failure_event = functions.invoke("begin", pending_event)
    assert failure_event is not None
    functions.invoke("status", failure_event)

    assert (
        m.get_phase(workload.read_maintenance(maintenance)),
        node in m.get_last_error(workload.read_maintenance(maintenance)),
    ) == (m.FAILED, True)
    assert run_tick(functions, maintenance) == []


@pytest.mark.usefixtures("clean_cluster")
def test_tick_emits_pending_for_second_maintenance_only_after_first_is_gone(
    functions: Functions, workload: Workload
) -> None:
    """NMO-22, X-7: a tick emits nothing for a node's second maintenance until the first maintenance is gone."""
    node = workload.take_node()
    first, second = workload.create_maintenance(node), workload.create_maintenance(node, KUBEVIRT)
    drained_event = functions.run_chain(first, "begin", "cordon", "taint", "evict")
    functions.invoke("status", drained_event)
    failure_event = functions.invoke("begin", build_added_event(second))
    assert failure_event is not None
    functions.invoke("status", failure_event)
    before = run_tick(functions, second)

    workload.delete(m.build_path(first))
    functions.invoke("restore", build_updated_event(workload.read_maintenance(first)))

    assert (before, run_tick(functions, second)) == ([], [events.MAINTENANCE_PENDING])


@pytest.mark.usefixtures("clean_cluster")
def test_nodes_of_forbidden_api_group_are_not_treated_as_orphaned(
    functions: Functions, proxied_functions: Functions, fault_proxy: FaultProxy, workload: Workload
) -> None:
    """X-6, design rule 4: if an API group cannot be listed, a tick emits events for maintenances of the other groups.

    The nodes under maintenance by the unlisted group are not treated as orphaned.
    """
    for group in GROUPS.values():
        functions.run_until_tainted(workload.create_maintenance(workload.take_node(), group))
    fault_proxy.inject(lambda request: Fault(403, "may not") if request == "list nodemaintenances 1" else None)

    replies = resync.resync(build_tick(), proxied_functions.clusters["resync"])

    fault_proxy.stop_faults()
    assert [event.get_type() for event in replies] == [events.NODE_TAINTED] * (len(GROUPS) - 1)


@proves("X-6")
@pytest.mark.usefixtures("clean_cluster")
@pytest.mark.parametrize("failed_request", ["list nodemaintenances", "list nodes", "list leases"])
def test_resync_answers_503_if_list_request_fails(
    proxied_functions: Functions, fault_proxy: FaultProxy, workload: Workload, failed_request: str
) -> None:
    """X-6: if a list request fails, `resync` answers 503 and emits nothing."""
    workload.create_maintenance(workload.take_node())
    fault_proxy.inject(lambda request: Fault(500, "no answer") if request.startswith(failed_request) else None)

    response = proxied_functions.post("resync", build_tick())

    fault_proxy.stop_faults()
    assert response.status_code == 503


@pytest.mark.usefixtures("clean_cluster")
def test_replay_does_not_advance_rotation_of_pod_lists(
    functions: Functions, workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Design rule 10: ticks list the pods of drained nodes in rotation, which a replay does not advance."""
    nodes = {workload.take_node(), workload.take_node()}
    for node in nodes:
        functions.invoke(
            "status", functions.run_chain(workload.create_maintenance(node), "begin", "cordon", "taint", "evict")
        )
    monkeypatch.setattr(resync, "MAX_READS_PER_TICK", 1)

    reads = []
    for _ in range(6):
        with record_list_requests(functions.clusters["resync"].api) as requests:
            assert functions.invoke("resync", build_tick()) is None
        reads += [(request.fields, request.version) for request in requests if request.path == PODS_PATH]
        assert functions.invoke("resync", extensions.add_replay_extensions(build_tick(), "r", dry_run=True)) is None

    assert len(reads) == 6
    assert {fields.rpartition("=")[2] for fields, _ in reads[:2]} == nodes
    assert reads == reads[:2] * 3
    assert {version for _, version in reads} == {"0"}


@pytest.mark.parametrize(
    ("draining_count", "succeeded_count", "read_counts"),
    [(30, 30, (15, 5)), (30, 2, (18, 2)), (30, 0, (20, 0)), (4, 30, (4, 16)), (4, 3, (4, 3))],
)
def test_pod_lists_are_divided_between_draining_and_succeeded_maintenances(
    draining_count: int, succeeded_count: int, read_counts: tuple[int, int]
) -> None:
    """Design rule 10: a tick lists the pods of at most twenty nodes, of which five are reserved for drained nodes."""
    phases = ["Running"] * draining_count + ["Succeeded"] * succeeded_count
    maintenances = [
        {**make_maintenance({"phase": phase}), "metadata": {**make_maintenance()["metadata"], "uid": f"uid-{number}"}}
        for number, phase in enumerate(phases)
    ]

    selected_phases = [
        m.get_phase(maintenance)
        for maintenance in resync._select_maintenances_for_pod_read(maintenances, resync.ReadRotations())
    ]

    assert (selected_phases.count("Running"), selected_phases.count("Succeeded")) == read_counts


def test_malformed_maintenance_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """X-3: a tick logs a malformed maintenance, emits nothing for it, and continues with the other maintenances."""
    malformed, now = make_maintenance({"phase": "Running"}), datetime.now(timezone.utc)
    lease = leases.build_lease("node-1", malformed, now)
    lease["spec"]["renewTime"] = "soon"
    snapshot = observation.ResyncSnapshot([malformed], {"node-1": NODE_IN_MAINTENANCE}, {"node-1": lease})

    with caplog.at_level("INFO", logger=event_objects.log.name):
        due_event = resync._try_find_due_event(observation.Observation(malformed, snapshot, now))

    assert due_event == ""
    (error,) = [vars(record)["fields"]["error"] for record in caplog.records]
    assert "does not match" in error


@pytest.mark.usefixtures("clean_cluster")
def test_resync_posts_several_events_to_k_sink(functions: Functions, workload: Workload, broker_sink: Receiver) -> None:
    """X-3: `resync` posts several events to K_SINK, because an HTTP response can contain only one event."""
    maintenances = [
        workload.create_maintenance(workload.take_node()),
        workload.create_maintenance(workload.take_node(), KUBEVIRT),
    ]

    response = functions.post("resync", build_tick())

    assert response.status_code == 204
    assert {event.get_extension("maintenance") for event in decode_received_events(broker_sink)} == {
        maintenance["metadata"]["uid"] for maintenance in maintenances
    }
    assert {event.get_type() for event in decode_received_events(broker_sink)} == {events.MAINTENANCE_PENDING}
    assert len({request.client_port for request in broker_sink.requests}) == 1


@pytest.mark.usefixtures("clean_cluster")
def test_resync_answers_503_if_k_sink_is_unreachable_or_unset(
    functions: Functions, workload: Workload, broker_sink: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X-6: `resync` answers 503 if it has several events, and K_SINK is unreachable or unset."""
    for _ in range(2):
        workload.create_maintenance(workload.take_node())
    broker_sink.close()

    unreachable = functions.post("resync", build_tick())
    monkeypatch.delenv("K_SINK")
    unset = functions.post("resync", build_tick())

    assert (unreachable.status_code, unset.status_code) == (503, 503)
    assert unreachable.text.startswith("the broker at K_SINK did not accept an event: ")
    assert unset.text.startswith("cannot publish several events: K_SINK is not set")


@pytest.mark.usefixtures("clean_cluster")
@pytest.mark.parametrize("node_name", ["a,b", "a=b", "a\\b", "a b", "x/y", "x?y", "..", ".", "a\n"])
def test_maintenance_with_invalid_node_name_does_not_stop_tick(
    functions: Functions, workload: Workload, broker_sink: Receiver, node_name: str
) -> None:
    """X-3: a maintenance with an invalid node name does not stop the tick for other maintenances."""
    invalid, valid = workload.create_maintenance(node_name), workload.create_maintenance(workload.take_node())

    assert functions.post("resync", build_tick()).status_code == 204

    assert {event.get_extension("maintenance") for event in decode_received_events(broker_sink)} == {
        invalid["metadata"]["uid"],
        valid["metadata"]["uid"],
    }
