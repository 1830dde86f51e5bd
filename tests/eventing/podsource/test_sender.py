"""Tests that hint events are coalesced and posted to a real HTTP server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from aiohttp import web

from eventing import events
from eventing.events import ObjectReference
from eventing.http_binding import decode_event
from eventing.podsource import sender as sender_module
from eventing.podsource.sender import MIN_INTERVAL_SECONDS, HintSender
from eventing.task_supervisor import TaskSupervisor
from functions.event_data import require_data

MAINTENANCE = ObjectReference("nodemaintenance.medik8s.io/v1beta1", "nm", "uid-1")
TIMEOUT_SECONDS = 10.0


class RecordingSink:
    """An event sink that rejects the first `rejections` events with 503, and stores later ones with arrival times.

    The sink calls `before_rejection` before each rejection.
    """

    def __init__(self, rejections: int = 0) -> None:
        self.received_events: list[tuple[float, Any]] = []
        self.remaining_rejections = rejections
        self.before_rejection: Callable[[], None] = lambda: None
        self.changed = asyncio.Event()

    async def post(self, request: web.Request) -> web.Response:
        if self.remaining_rejections:
            self.remaining_rejections -= 1
            self.before_rejection()
            return web.Response(status=503)
        self.received_events.append((time.monotonic(), decode_event(dict(request.headers), await request.read())))
        self.changed.set()
        return web.Response(status=202)

    async def wait_for_events(self, count: int) -> None:
        """Wait until the sink has stored `count` events."""
        while len(self.received_events) < count:
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), TIMEOUT_SECONDS)

    def list_pods_versions(self) -> list[str]:
        return [require_data(event)["podsVersion"] for _, event in self.received_events]


def run_with_sender(sink: RecordingSink, send_hints: Callable[[HintSender], Awaitable[None]]) -> None:
    """Start an HTTP server for the sink, and call `send_hints` with a sender that posts to this server."""

    async def serve_and_send() -> None:
        app = web.Application()
        app.router.add_post("/", sink.post)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            tasks = TaskSupervisor()
            async with HintSender(f"http://127.0.0.1:{runner.addresses[0][1]}/", tasks) as sender, tasks:
                await send_hints(sender)
        finally:
            await runner.cleanup()

    asyncio.run(serve_and_send())


def enqueue_hint(
    sender: HintSender,
    version: str,
    *,
    urgent: bool = False,
    node: str = "node-1",
    reference: ObjectReference = MAINTENANCE,
    flags: tuple[str, ...] = (),
    repeats: int = 0,
) -> None:
    data = {"podsVersion": version}
    sender.enqueue(events.PODS_GONE, reference, node, data, urgent=urgent, flags=flags, repeats=repeats)


@pytest.fixture(autouse=True)
def without_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exclude the loopback address from any HTTP proxy in the environment."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def test_simultaneous_hints_are_coalesced() -> None:
    """NMO-12: hints about fifty pods that are deleted simultaneously are sent as one event with the newest state."""
    sink = RecordingSink()

    async def send_hints(sender: HintSender) -> None:
        for number in range(50):
            enqueue_hint(sender, str(number))
        await sink.wait_for_events(1)

    run_with_sender(sink, send_hints)

    assert sink.list_pods_versions() == ["49"]


def test_urgent_hint_is_sent_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    """NMO-10: an urgent hint, for example about a node's last pod, is sent immediately and replaces pending hints."""
    sink = RecordingSink()
    # The test does not wait until this interval ends.
    monkeypatch.setattr(sender_module, "COALESCE_SECONDS", 2 * TIMEOUT_SECONDS)

    async def send_hints(sender: HintSender) -> None:
        enqueue_hint(sender, "1")
        enqueue_hint(sender, "2", urgent=True)
        await sink.wait_for_events(1)

    run_with_sender(sink, send_hints)

    assert sink.list_pods_versions() == ["2"]


def test_event_has_flags_of_newest_hint() -> None:
    """X-4: an event for several coalesced hints has the flags of the newest hint.

    Only `status` handles progress hints; after the last pod has left, `evict` also needs the hint.
    """
    sink = RecordingSink()

    async def send_hints(sender: HintSender) -> None:
        enqueue_hint(sender, "1", flags=("progress",))
        enqueue_hint(sender, "2", urgent=True, flags=("more",))
        await sink.wait_for_events(1)

    run_with_sender(sink, send_hints)

    ((_, event),) = sink.received_events
    assert (event.get_extension("more"), event.get_extension("progress")) == ("true", None)


def test_urgent_hints_are_rate_limited() -> None:
    """NMO-6: the sender limits the rate of urgent hints, and always sends the newest one.

    It sends two hints, or more if a slow machine takes longer than one interval to enqueue all hints.
    """
    sink = RecordingSink()
    started = time.monotonic()

    async def send_hints(sender: HintSender) -> None:
        for number in range(40):
            enqueue_hint(sender, str(number), urgent=True)
            await asyncio.sleep(0)
        await sink.wait_for_events(2)
        while sink.list_pods_versions()[-1] != "39":
            await sink.wait_for_events(len(sink.received_events) + 1)

    run_with_sender(sink, send_hints)

    last_time, _ = sink.received_events[-1]
    assert (len(sink.received_events) - 1) * MIN_INTERVAL_SECONDS <= last_time - started


def test_hints_about_different_maintenances_or_nodes_are_not_coalesced() -> None:
    """X-7: hints about different maintenances or nodes are sent as separate events."""
    sink = RecordingSink()
    other_maintenance = ObjectReference(MAINTENANCE.api_version, "other", "uid-2")

    async def send_hints(sender: HintSender) -> None:
        enqueue_hint(sender, "1", urgent=True)
        enqueue_hint(sender, "1", urgent=True, reference=other_maintenance)
        enqueue_hint(sender, "1", urgent=True, node="node-2")
        await sink.wait_for_events(3)

    run_with_sender(sink, send_hints)

    targets = {(event.get_extension("node"), event.get_extension("maintenance")) for _, event in sink.received_events}
    assert targets == {("node-1", "uid-1"), ("node-1", "uid-2"), ("node-2", "uid-1")}


def test_rejected_hint_is_retried() -> None:
    """X-6: a rejected hint is sent again until the sink accepts it."""
    sink = RecordingSink(rejections=3)

    async def send_hints(sender: HintSender) -> None:
        enqueue_hint(sender, "1", urgent=True)
        await sink.wait_for_events(1)

    run_with_sender(sink, send_hints)

    assert sink.list_pods_versions() == ["1"]
    assert sink.remaining_rejections == 0


def test_newer_hint_replaces_rejected_hint() -> None:
    """X-6: a hint that is enqueued while the sink rejects an older hint replaces the older hint."""
    sink = RecordingSink(rejections=1)

    async def send_hints(sender: HintSender) -> None:
        sink.before_rejection = lambda: enqueue_hint(sender, "2", urgent=True)
        enqueue_hint(sender, "1", urgent=True)
        await sink.wait_for_events(1)
        enqueue_hint(sender, "3", urgent=True)
        await sink.wait_for_events(2)

    run_with_sender(sink, send_hints)

    assert sink.list_pods_versions() == ["2", "3"]


def test_hints_of_drained_node_are_discarded() -> None:
    """NMO-10: pending hints for a drained node are discarded, and hints for other nodes are sent."""
    sink = RecordingSink()

    async def send_hints(sender: HintSender) -> None:
        enqueue_hint(sender, "1")
        sender.discard_hints("node-1")
        enqueue_hint(sender, "2", urgent=True, node="node-2")
        await sink.wait_for_events(1)

    run_with_sender(sink, send_hints)

    assert sink.list_pods_versions() == ["2"]


def test_hints_about_added_pods_of_drained_node_are_sent() -> None:
    """NMO-13: a hint about pods added to a drained node is sent, because the status may not count these pods yet."""
    sink = RecordingSink()

    async def send_hints(sender: HintSender) -> None:
        enqueue_hint(sender, "1")
        sender.enqueue(events.PODS_ADDED, MAINTENANCE, "node-1", {"podsVersion": "2"}, urgent=False, flags=("more",))
        sender.discard_hints("node-1", (events.PODS_ADDED,))
        await sink.wait_for_events(1)

    run_with_sender(sink, send_hints)

    assert sink.list_pods_versions() == ["2"]


def test_hints_about_same_state_have_same_id() -> None:
    """X-2: hints about the same state have the same id, even across a restart of PodSource."""
    sinks = [RecordingSink(), RecordingSink()]

    async def send_hints(sender: HintSender, sink: RecordingSink) -> None:
        enqueue_hint(sender, "7", urgent=True)
        await sink.wait_for_events(1)

    for sink in sinks:
        run_with_sender(sink, partial(send_hints, sink=sink))

    first, second = (sink.received_events[0][1].get_id() for sink in sinks)
    assert first == second


def test_repeated_hint_has_different_id() -> None:
    """X-2: a repeated hint about the same state has a different id, so that it does not count as a redelivery."""
    sink = RecordingSink()

    async def send_hints(sender: HintSender) -> None:
        enqueue_hint(sender, "7", urgent=True)
        await sink.wait_for_events(1)
        enqueue_hint(sender, "7", urgent=True, repeats=1)
        await sink.wait_for_events(2)

    run_with_sender(sink, send_hints)

    first, second = (event.get_id() for _, event in sink.received_events)
    assert first != second
