"""Tests that hints are coalesced and posted to a real HTTP server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from aiohttp import web

from eventing import events
from eventing.events import Reference
from eventing.podsource import sender as sender_module
from eventing.podsource.sender import INTERVAL_SECONDS, Sender
from eventing.podsource.task_supervisor import Tasks
from eventing.http_binding import received
from functions.event_data import data_of

MINE = Reference("nodemaintenance.medik8s.io/v1beta1", "nm", "uid-1")
ENOUGH = 10.0


class Sink:
    """A sink that stores received events with their time, after answering the first `refusals` posts with 503.

    It calls `refusing` before each such response.
    """

    def __init__(self, refusals: int = 0) -> None:
        self.taken: list[tuple[float, Any]] = []
        self.refusals = refusals
        self.refusing: Callable[[], None] = lambda: None
        self.changed = asyncio.Event()

    async def post(self, request: web.Request) -> web.Response:
        if self.refusals:
            self.refusals -= 1
            self.refusing()
            return web.Response(status=503)
        self.taken.append((time.monotonic(), received(dict(request.headers), await request.read())))
        self.changed.set()
        return web.Response(status=202)

    async def until(self, count: int) -> None:
        """Wait until `count` events are stored."""
        while len(self.taken) < count:
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), ENOUGH)

    def versions(self) -> list[str]:
        return [data_of(event)["podsVersion"] for _, event in self.taken]


def with_sender(sink: Sink, script: Callable[[Sender], Awaitable[None]]) -> None:
    """Run the script with a sender that posts to the sink, which runs in an HTTP server."""

    async def run() -> None:
        app = web.Application()
        app.router.add_post("/", sink.post)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            async with Tasks() as tasks, Sender(f"http://127.0.0.1:{runner.addresses[0][1]}/", tasks) as sender:
                await script(sender)
        finally:
            await runner.cleanup()

    asyncio.run(run())


def enqueue(
    sender: Sender,
    version: str,
    *,
    urgent: bool = False,
    node: str = "node-1",
    reference: Reference = MINE,
    flags: tuple[str, ...] = (),
    again: int = 0,
) -> None:
    data = {"podsVersion": version}
    sender.enqueue(events.PODS_GONE, reference, node, data, urgent=urgent, flags=flags, again=again)


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exclude the loopback address from any proxy in the environment."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def test_hints_close_together_are_one_event() -> None:
    """NMO-12: Hints for fifty pods that are deleted at once are sent as one event with the newest state."""
    sink = Sink()

    async def script(sender: Sender) -> None:
        for number in range(50):
            enqueue(sender, str(number))
        await sink.until(1)

    with_sender(sink, script)

    assert sink.versions() == ["49"]


def test_an_urgent_hint_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """NMO-10: An urgent hint, such as that for the last pod, is sent at once and replaces a waiting one."""
    sink = Sink()
    monkeypatch.setattr(sender_module, "COALESCE_SECONDS", 2 * ENOUGH)  # longer than `until` waits

    async def script(sender: Sender) -> None:
        enqueue(sender, "1")
        enqueue(sender, "2", urgent=True)
        await sink.until(1)

    with_sender(sink, script)

    assert sink.versions() == ["2"]


def test_the_flags_are_those_of_the_newest_hint() -> None:
    """X-4: The flags are those of the newest hint.

    Progress is only for `status`; after the last pod, `evict` also needs the hint.
    """
    sink = Sink()

    async def script(sender: Sender) -> None:
        enqueue(sender, "1", flags=("progress",))
        enqueue(sender, "2", urgent=True, flags=("more",))
        await sink.until(1)

    with_sender(sink, script)

    ((_, sent),) = sink.taken
    assert (sent.get_extension("more"), sent.get_extension("progress")) == ("true", None)


def test_urgent_hints_keep_their_distance() -> None:
    """NMO-6: The sender limits the rate of frequent urgent hints, and sends the newest one.

    It sends two hints, or more if a slow machine needs longer than one interval to enqueue all of them.
    """
    sink = Sink()
    started = time.monotonic()

    async def script(sender: Sender) -> None:
        for number in range(40):
            enqueue(sender, str(number), urgent=True)
            await asyncio.sleep(0)
        await sink.until(2)
        while sink.versions()[-1] != "39":
            await sink.until(len(sink.taken) + 1)

    with_sender(sink, script)

    last, _ = sink.taken[-1]
    assert (len(sink.taken) - 1) * INTERVAL_SECONDS <= last - started


def test_each_maintenance_gets_its_own_events() -> None:
    """X-7: Each maintenance and node gets its own event."""
    sink = Sink()
    other = Reference(MINE.api_version, "other", "uid-2")

    async def script(sender: Sender) -> None:
        enqueue(sender, "1", urgent=True)
        enqueue(sender, "1", urgent=True, reference=other)
        enqueue(sender, "1", urgent=True, node="node-2")
        await sink.until(3)

    with_sender(sink, script)

    sent = {(event.get_extension("node"), event.get_extension("maintenance")) for _, event in sink.taken}
    assert sent == {("node-1", "uid-1"), ("node-1", "uid-2"), ("node-2", "uid-1")}


def test_nothing_is_lost_while_the_sink_refuses() -> None:
    """X-6: A refused hint is sent again until the sink accepts it."""
    sink = Sink(refusals=3)

    async def script(sender: Sender) -> None:
        enqueue(sender, "1", urgent=True)
        await sink.until(1)

    with_sender(sink, script)

    assert sink.versions() == ["1"]
    assert sink.refusals == 0


def test_the_newest_hint_is_sent_when_the_sink_takes_some_again() -> None:
    """X-6: A hint that arrives while an older one is refused replaces the older one."""
    sink = Sink(refusals=1)

    async def script(sender: Sender) -> None:
        sink.refusing = lambda: enqueue(sender, "2", urgent=True)
        enqueue(sender, "1", urgent=True)
        await sink.until(1)
        enqueue(sender, "3", urgent=True)
        await sink.until(2)

    with_sender(sink, script)

    assert sink.versions() == ["2", "3"]


def test_hints_of_a_node_that_is_done_are_discarded() -> None:
    """NMO-10: The waiting hints of a drained node are discarded, and those of other nodes are sent."""
    sink = Sink()

    async def script(sender: Sender) -> None:
        enqueue(sender, "1")
        sender.discard("node-1")
        enqueue(sender, "2", urgent=True, node="node-2")
        await sink.until(1)

    with_sender(sink, script)

    assert sink.versions() == ["2"]


def test_of_a_node_that_is_done_what_came_is_told() -> None:
    """NMO-13: A hint about added pods is still sent for a drained node, since the status may not count them."""
    sink = Sink()

    async def script(sender: Sender) -> None:
        enqueue(sender, "1")
        sender.enqueue(events.PODS_CAME, MINE, "node-1", {"podsVersion": "2"}, urgent=False, flags=("more",))
        sender.discard("node-1", (events.PODS_CAME,))
        await sink.until(1)

    with_sender(sink, script)

    assert sink.versions() == ["2"]


def test_the_same_state_has_the_same_id() -> None:
    """X-2: Hints for the same state have the same id, also after a restart of the source."""
    sinks = [Sink(), Sink()]

    async def script(sender: Sender, sink: Sink) -> None:
        enqueue(sender, "7", urgent=True)
        await sink.until(1)

    for sink in sinks:
        with_sender(sink, partial(script, sink=sink))

    first, second = (sink.taken[0][1].get_id() for sink in sinks)
    assert first == second


def test_what_is_told_again_is_another_event() -> None:
    """X-2: A repeated hint for the same state has another id, so that it does not count as a redelivery."""
    sink = Sink()

    async def script(sender: Sender) -> None:
        enqueue(sender, "7", urgent=True)
        await sink.until(1)
        enqueue(sender, "7", urgent=True, again=1)
        await sink.until(2)

    with_sender(sink, script)

    first, second = (event.get_id() for _, event in sink.taken)
    assert first != second
