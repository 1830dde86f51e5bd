"""Tests for the events and API requests that a drain causes per VM, and that a tick causes without VMs."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import closing
from datetime import datetime, timezone

import pytest

from eventing import events
from eventing.journal.entries import Query
from eventing.journal.store import Journal
from localcluster.processes import wait_until_ready
from tests.chain.mutex.test_speed import TICK_FREE_SECONDS, RequestLog
from tests.chain.virtualization.environment import VirtualizationEnvironment
from tests.proofs import proves

pytestmark = pytest.mark.slow

VM_COUNT = 6
MAX_REQUESTS_PER_VM, MAX_EVENTS_PER_VM = 120, 40
"""Maximum numbers of API requests and events per migrated VM, including those of the drain itself."""
KUBEVIRT_RESOURCES = ("virtualmachineinstances", "virtualmachineinstancemigrations", "kubevirts")


@proves("DRN-8")
def test_migration_stays_within_event_and_request_limits(environment: VirtualizationEnvironment) -> None:
    """Check that each VM takes one create request for its migration, and a limited number of requests and events."""
    node, _ = environment.create_node(), environment.create_node()
    names = [environment.create_vm(f"live-{number}", node) for number in range(VM_COUNT)]
    environment.wait_until_running(*names)
    environment.wait_until_delivered()
    log, started_at = RequestLog(environment.cluster.audit_log), datetime.now(timezone.utc)
    environment.wait_for_state(environment.create_maintenance(node))
    environment.wait_until_delivered()

    requests = Counter(log.list_requests())
    with closing(Journal(environment.journal)) as journal:
        event_counts = Counter(entry.event.get_type() for entry in journal.select(Query(since=started_at)))
    figures = f"{requests.total() / VM_COUNT:.0f} requests, {event_counts.total() / VM_COUNT:.0f} events"
    print(f"per VM, for {VM_COUNT} VMs: {figures}")
    print(requests.most_common(6), event_counts.most_common(6))
    assert requests["create", "virtualmachineinstancemigrations"] == VM_COUNT
    assert requests["create", "leases"] + requests["patch", "leases"] <= 2 * VM_COUNT
    assert event_counts[events.REFERENCE_UPDATED] > 0
    assert requests.total() <= MAX_REQUESTS_PER_VM * VM_COUNT
    assert event_counts.total() <= MAX_EVENTS_PER_VM * VM_COUNT


@proves("X-3")
def test_tick_without_vms_causes_three_list_requests(environment: VirtualizationEnvironment) -> None:
    """Check that a tick without VMs causes three list requests, and that pods without a VM cause no requests for VMs.

    Two functions each list the VMIs once, and one of the two functions also lists the product's budgets.
    """
    environment.wait_until_delivered()
    tick_log = RequestLog(environment.cluster.audit_log)
    wait_until_ready("a tick", lambda: len(select_kubevirt_requests(tick_log)) >= 2, environment.product.servers)
    environment.wait_until_delivered()
    assert select_kubevirt_requests(tick_log) == [("list", KUBEVIRT_RESOURCES[0])] * 2
    assert Counter(tick_log.list_requests())["list", "poddisruptionbudgets"] == 1

    log, started = RequestLog(environment.cluster.audit_log), time.monotonic()
    environment.create_pods(environment.create_node(), 3)
    environment.wait_until_delivered()
    assert select_kubevirt_requests(log) == []
    assert time.monotonic() - started < TICK_FREE_SECONDS


def select_kubevirt_requests(request_log: RequestLog) -> list[tuple[str, str]]:
    """Return the requests for resources of KubeVirt."""
    return [(verb, resource) for verb, resource in request_log.list_requests() if resource in KUBEVIRT_RESOURCES]
