"""What was recorded can be posted again, and changes nothing that is as it should be."""

from __future__ import annotations

import random

from eventing import events
from eventing.journal import Journal
from eventing.replay import post
from functions.app import FUNCTIONS
from localcluster.flow import Flow
from tests.chain.scene import Scene


def test_a_whole_cycle_replayed_after_its_end_changes_nothing(scene: Scene) -> None:
    """X-2: all events of a maintain-and-delete cycle, twice, in random order, after the object is gone: no write."""
    node = scene.node()
    path = scene.maintain_with_pods(node, 4)
    uid = scene.admin.get(path)["metadata"]["uid"]
    with Flow(scene.product.delivery_log) as flow:
        scene.delete(path)
        scene.gone(path)
        flow.await_type(events.NODE_RESTORED, 10)
        flow.await_type(events.TICK, 20)  # what the cycle caused is recorded and over
    book = Journal(scene.product.journal)
    recorded = [entry.event for entry in book.select() if uid in str(entry.event.get_data())]
    book.close()
    kinds = {event.get_type() for event in recorded}
    assert {events.MAINTENANCE_BEGUN, events.NODE_TAINTED, events.PODS_EVICTED, events.NODE_DRAINED} <= kinds
    assert {events.RESOURCE_ADDED, events.RESOURCE_UPDATED, events.NODE_RESTORED} <= kinds
    fresh = scene.pods(node, 2)
    before = len(scene.our_writes())

    again = recorded * 2
    random.Random(4).shuffle(again)
    for event in again:
        for name in FUNCTIONS:
            assert post(event, f"{scene.product.functions_url}/{name}").status_code in (200, 204)
        assert post(event, scene.product.broker_url).status_code == 202
    with Flow(scene.product.delivery_log) as flow:
        flow.await_type(events.TICK, 20)  # and what they caused is over, too

    assert scene.our_writes()[before:] == []
    assert scene.evictions(fresh) == []
    assert not scene.spec(node).get("unschedulable")
    assert len(scene.pods_on(node)) == 2
