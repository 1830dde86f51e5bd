"""Tests of the events and API requests that a drain costs per VM, and that a tick costs without VMs."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import closing
from datetime import datetime, timezone

import pytest

from eventing import events
from eventing.journal.entries import Query
from eventing.journal.store import Journal
from localcluster.processes import await_ready
from tests.chain.mutex.test_speed import BETWEEN, Requests
from tests.chain.virtualization.environment import Stage
from tests.proofs import proves

pytestmark = pytest.mark.slow

MACHINES = 6
REQUESTS, EVENTS = 120, 40
"""Maximum per migrated VM, including those of the drain."""
OF_MACHINES = ("virtualmachineinstances", "virtualmachineinstancemigrations", "kubevirts")


@proves("DRN-8")
def test_a_migration_costs_so_many_events_and_requests_and_no_more(stage: Stage) -> None:
    """Migrations cost one create request each, and a bounded number of requests and events per VM."""
    node, _ = stage.node(), stage.node()
    names = [stage.machine(f"live-{number}", node) for number in range(MACHINES)]
    stage.run(*names)
    stage.await_delivered()
    asked, began = Requests(stage.cluster.audit_log), datetime.now(timezone.utc)
    stage.reaches(stage.maintain(node))
    stage.await_delivered()

    requests = Counter(asked.all())
    with closing(Journal(stage.journal)) as book:
        told = Counter(entry.event.get_type() for entry in book.select(Query(since=began)))
    figures = f"{requests.total() / MACHINES:.0f} requests, {told.total() / MACHINES:.0f} events"
    print(f"for each of {MACHINES} machines: {figures}")
    print(requests.most_common(6), told.most_common(6))
    assert requests["create", "virtualmachineinstancemigrations"] == MACHINES
    assert requests["create", "leases"] + requests["patch", "leases"] <= 2 * MACHINES
    assert told[events.REFERENCE_UPDATED] > 0
    assert requests.total() <= REQUESTS * MACHINES
    assert told.total() <= EVENTS * MACHINES


@proves("X-3")
def test_without_a_machine_a_tick_asks_three_lists_and_nothing_between_is_heard(stage: Stage) -> None:
    """Ticks without VMs cost three list requests, and other pods cause no requests for KubeVirt's kinds between ticks.

    Both functions list the VMIs, and one lists the product's budgets.
    """
    stage.await_delivered()
    ticked = Requests(stage.cluster.audit_log)
    await_ready("a tick", lambda: len(about_machines(ticked)) >= 2, stage.product.servers)
    stage.await_delivered()
    assert about_machines(ticked) == [("list", OF_MACHINES[0])] * 2
    assert Counter(ticked.all())["list", "poddisruptionbudgets"] == 1

    asked, began = Requests(stage.cluster.audit_log), time.monotonic()
    stage.pods(stage.node(), 3)
    stage.await_delivered()
    assert about_machines(asked) == []
    assert time.monotonic() - began < BETWEEN


def about_machines(asked: Requests) -> list[tuple[str, str]]:
    """Return the requests for KubeVirt's kinds."""
    return [(verb, resource) for verb, resource in asked.all() if resource in OF_MACHINES]
