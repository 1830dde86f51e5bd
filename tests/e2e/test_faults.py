"""Tests that a fault during the drains of ten nodes only delays the drains (X-2, X-3)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import pytest
import requests

from chaos.event_fault_proxy import NetworkFaultProxy
from eventing.journal.store import Journal, Query
from localcluster.http_receiver import Receiver
from localcluster.processes import wait_until_ready
from tests.e2e.environment import MAX_RECOVERY_SECONDS, TIMEOUT_SECONDS, E2eEnvironment, NodeDrains
from tests.machine_speed import is_below_scaled_limit

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("restore_product")]
OUTAGE_SECONDS = 20.0
"""Seconds without an event source for maintenances; at least one tick is emitted during this time."""
REJECTION_SECONDS = 10.0
TERMINATING_PODS = 20
"""Number of terminating pods, out of a hundred, at which a test injects its fault."""
CHAIN_FUNCTIONS = ("begin", "cordon", "taint", "evict", "status")
"""The functions in the chain; each one consumes the event that the previous function emits."""


@pytest.fixture(scope="module")
def routed_fault_proxy(environment: E2eEnvironment) -> Iterator[NetworkFaultProxy]:
    """Yield a fault proxy between Broker and functions; rerouting takes time, so all tests with the proxy run last."""
    proxy = NetworkFaultProxy(environment.product)
    with closing(Receiver(default_answer=proxy)) as receiver:
        environment.product.route_triggers(lambda name: f"{receiver.url}/{name}")
        yield proxy
        environment.product.route_triggers(environment.product.get_function_url)


@pytest.fixture
def fault_proxy(routed_fault_proxy: NetworkFaultProxy) -> Iterator[NetworkFaultProxy]:
    """Yield the fault proxy with reset counters, and stop its faults afterwards."""
    routed_fault_proxy.reset_counters()
    yield routed_fault_proxy
    routed_fault_proxy.stop_faults()


def assert_recovery(
    drains: NodeDrains, fault: str, *, max_seconds: float = MAX_RECOVERY_SECONDS, is_audit_log_complete: bool = True
) -> None:
    """Assert that the drains succeed within `max_seconds` after the fault, and delete the maintenances."""
    ended_at = time.monotonic()
    drains.wait_until_succeeded()
    seconds = time.monotonic() - ended_at
    print(f"{fault}: all Succeeded {seconds:.1f} s after the fault")
    drains.assert_each_pod_evicted_once(is_log_complete=is_audit_log_complete)
    drains.end_maintenances()
    assert is_below_scaled_limit(seconds, max_seconds)


@pytest.mark.parametrize("function", ["cordon", "evict", "status"])
def test_killed_function_only_delays_drains(environment: E2eEnvironment, function: str) -> None:
    """Check that killing a function's process during drains only delays the drains."""
    drains = environment.prepare_drains("2s", nodes=environment.fault_nodes)
    drains.create_maintenances()
    if function != "cordon":
        drains.wait_for_terminating_pods(TERMINATING_PODS)
    environment.histogram.record(function)
    environment.product.kill_functions(function)
    time.sleep(1)
    environment.product.start_functions(function)
    assert_recovery(drains, f"{function} killed")


@pytest.mark.parametrize("environment", ["knative"], indirect=True)
def test_killed_data_plane_only_delays_drains(environment: E2eEnvironment) -> None:
    """Check that killing ingress, filter and channel, which loses all accepted events, only delays the drains."""
    drains = environment.prepare_drains("2s", nodes=environment.fault_nodes)
    drains.create_maintenances()
    drains.wait_for_terminating_pods(TERMINATING_PODS)
    environment.product.kill_data_plane("ingress", "filter", "dispatcher")
    time.sleep(1)
    environment.product.start_data_plane("dispatcher", "ingress", "filter")
    assert_recovery(drains, "ingress, filter and channel killed")


def test_maintenances_succeed_after_source_outage(environment: E2eEnvironment) -> None:
    """Check that maintenances created or deleted while the event source is down are processed after the restart."""
    middle = len(environment.fault_nodes) // 2
    ending_drains = environment.prepare_drains("100ms", nodes=environment.fault_nodes[:middle])
    ending_drains.create_maintenances()
    ending_drains.wait_until_succeeded()
    drains = environment.prepare_drains("1s", nodes=environment.fault_nodes[middle:])
    source = environment.product.adapters["maintenances"]

    source.kill()
    down_at = time.monotonic()
    for maintenance in ending_drains.maintenances:
        ending_drains.request_deletion(maintenance)
    drains.create_maintenances()
    time.sleep(OUTAGE_SECONDS - (time.monotonic() - down_at))
    source.start()

    restarted_at = time.monotonic()
    drains.wait_until_succeeded()
    ending_drains.wait_until_restored()
    print(
        f"source down: all maintenances in the expected state {time.monotonic() - restarted_at:.1f} s after the restart"
    )
    drains.assert_each_pod_evicted_once()
    drains.end_maintenances()


def test_killed_api_server_only_delays_drains(environment: E2eEnvironment) -> None:
    """Check that killing and restarting the API server during drains only delays the drains."""
    drains = environment.prepare_drains("2s", nodes=environment.fault_nodes)
    drains.create_maintenances()
    drains.wait_for_terminating_pods(TERMINATING_PODS)
    server = next(server for server in environment.cluster.servers if server.name == "kube-apiserver")
    server.kill()
    time.sleep(1)
    server.start()
    assert_recovery(drains, "API server restarted", is_audit_log_complete=False)


def test_invalid_event_is_recorded_as_dead_letter(environment: E2eEnvironment) -> None:
    """Check that an event that no function can handle is recorded as a dead letter, and that drains continue."""
    drains = environment.prepare_drains("1s", nodes=environment.fault_nodes)
    drains.create_maintenances()
    headers = {
        "ce-specversion": "1.0",
        "ce-id": "poison",
        "ce-source": "https://example.com/test",
        "ce-type": "dev.nodemaintenance.node.tainted",
        "ce-more": "true",
        "content-type": "application/json",
    }
    with requests.Session() as session:
        session.trust_env = False
        response = session.post(environment.product.broker_url, b'["not", "an object"]', headers=headers, timeout=10)
    assert response.status_code == 202
    assert_recovery(drains, "poison event")
    with closing(Journal(environment.product.journal)) as journal:
        entries = journal.select(Query(ids=("poison",)))
    destinations = [entry.event.get_extension("knativeerrordest") for entry in entries]
    assert None in destinations
    assert environment.product.get_function_url("evict") in destinations


def test_all_events_are_recorded_after_record_was_killed(
    environment: E2eEnvironment, fault_proxy: NetworkFaultProxy
) -> None:
    """Check that killing `record` does not delay the drains, and that all events are recorded after its restart."""
    drains = environment.prepare_drains("2s", nodes=environment.fault_nodes)
    drains.create_maintenances()
    drains.wait_for_terminating_pods(TERMINATING_PODS)
    environment.histogram.record("record")
    environment.product.kill_functions("record")
    drains.wait_until_succeeded()
    environment.product.start_functions("record")

    restarted_at = time.monotonic()
    with closing(Journal(environment.product.journal)) as journal:
        wait_until_ready(
            "the recording",
            lambda: not _find_unrecorded_ids(fault_proxy.list_received_ids("record"), journal),
            [],
            TIMEOUT_SECONDS,
        )
    request_count = len(fault_proxy.list_received_ids("record"))
    print(f"record killed: all {request_count} events recorded {time.monotonic() - restarted_at:.1f} s after restart")
    assert request_count > len(CHAIN_FUNCTIONS) * len(drains.nodes)
    drains.assert_each_pod_evicted_once()
    drains.end_maintenances()


def _find_unrecorded_ids(ids: set[str], journal: Journal) -> set[str]:
    return ids - {str(entry.event.get_id()) for entry in journal.select(Query(ids=tuple(ids)))}


def test_duplicated_events_only_delay_drains(environment: E2eEnvironment, fault_proxy: NetworkFaultProxy) -> None:
    """Check that calling each function twice concurrently for each event only delays the drains.

    Events are duplicated until the drains end, which multiplies the load.
    """
    drains = environment.prepare_drains("2s", nodes=environment.fault_nodes)
    fault_proxy.handler = fault_proxy.forward_twice
    drains.create_maintenances()
    assert_recovery(drains, "every event twice", max_seconds=2 * MAX_RECOVERY_SECONDS)
    print(", ".join(f"{name} {count} times" for name, count in fault_proxy.calls.items()))
    assert min(fault_proxy.calls[name] for name in CHAIN_FUNCTIONS) >= 2 * len(drains.nodes)


def test_reordered_events_only_delay_drains(environment: E2eEnvironment, fault_proxy: NetworkFaultProxy) -> None:
    """Check that delaying each event by up to 0.5 s, so that later events overtake it, only delays the drains."""
    drains = environment.prepare_drains("2s", nodes=environment.fault_nodes)
    fault_proxy.handler = fault_proxy.forward_delayed
    drains.create_maintenances()
    assert_recovery(drains, "random order")


def test_rejected_events_only_delay_drains(environment: E2eEnvironment, fault_proxy: NetworkFaultProxy) -> None:
    """Check that rejecting all events for `evict` with 503 for 10 s only delays the drains.

    The Broker retries each event, and ticks replace events for which the Broker has given up.
    """
    drains = environment.prepare_drains("1s", nodes=environment.fault_nodes)
    fault_proxy.handler = fault_proxy.build_rejecting_handler("evict")
    drains.create_maintenances()
    time.sleep(REJECTION_SECONDS)
    fault_proxy.stop_faults()
    assert_recovery(drains, "503 for 10 s")
