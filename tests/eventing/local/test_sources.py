"""Tests of PingSource and ContainerSource with real clocks and processes."""

from __future__ import annotations

import asyncio
import os
import select
import sys
import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

import pytest
import yaml

from eventing.local.container_source import ContainerSource, Program
from eventing.local.source_sink import Outlet
from eventing.local.ping_source import Schedule
from tests.eventing.local.broker_process import ROOT, Broker, source, trigger
from tests.receiver import PATIENCE, Answer, Received, Receiver

Start = Callable[..., Broker]

CHILD = """
import os, sys, time, urllib.request
headers = {"ce-specversion": "1.0", "ce-id": str(os.getpid()), "ce-source": "/child", "ce-type": "child.alive",
           "ce-greeting": os.environ["GREETING"], "ce-identity": os.environ["KUBECONFIG"],
           "ce-port": os.environ["PORT"] or "none"}
urllib.request.urlopen(urllib.request.Request(os.environ["K_SINK"], b"", headers, method="POST")).close()
if os.environ["STAY"] == "yes":
    time.sleep(600)
"""


PINGS = "/apis/v1/namespaces/test/pingsources/tick"
"""Source of the ticks, and the key that orders them."""
PORT = {"name": "PORT", "value": "8080"}


def container(stay: str) -> dict[str, Any]:
    env = [
        {"name": "GREETING", "value": "hello"},
        {"name": "STAY", "value": stay},
        {"name": "X", "valueFrom": {}},
        PORT,
    ]
    child = {"name": "child", "image": "x", "command": ["python", "-c"], "args": [CHILD], "env": env}
    return source("ContainerSource", "child", template={"spec": {"containers": [child]}})


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("*/15 * * * * *", "2026-03-01T12:00:15"),
        ("*/5 * * * *", "2026-03-01T12:05:00"),
        ("30 0 12 * * *", "2026-03-01T12:00:30"),
        ("0 0 1 1 *", "2027-01-01T00:00:00"),
    ],
)
def test_a_schedule_has_five_fields_or_six_with_seconds_first(expression: str, expected: str) -> None:
    """Check that a schedule has five fields, or six with seconds first, as in PingSource."""
    noon = datetime(2026, 3, 1, 12, 0, 0, tzinfo=timezone.utc)

    assert Schedule(expression, timezone.utc).after(noon).isoformat().startswith(expected)


@pytest.mark.parametrize(("early", "follows"), [(0.2, 15), (3600.0, -3585)], ids=["awake too early", "set back"])
def test_a_clock_that_is_early_makes_no_tick_twice_and_one_that_was_set_back_stops_none(
    early: float, follows: int
) -> None:
    """Rule 11: A sleep that ends early gives no second tick, and a clock that was set back stops no ticks.

    Only the tick repairs lost events, so the source does not wait until the clock reaches the old time again.
    """
    noon = datetime(2026, 3, 1, 12, 0, 0, tzinfo=timezone.utc)

    upcoming = Schedule("*/15 * * * * *", timezone.utc).behind(noon, noon - timedelta(seconds=early))

    assert upcoming - noon == timedelta(seconds=follows)


def test_a_ping_source_ticks_on_its_schedule(receiver: Receiver, start: Start) -> None:
    """Check that PingSource emits one event per scheduled time, with Knative's type, source and data and its own id."""
    ping = source("PingSource", "tick", schedule="* * * * * *", contentType="application/json", data='{"n":1}')
    start(ping, trigger("f", type="dev.knative.sources.ping"))

    ticks = receiver.wait_for("/f", 3)

    assert {tick.headers["ce-source"] for tick in ticks} == {PINGS}
    assert {tick.body for tick in ticks} == {b'{"n":1}'}
    assert {tick.headers["content-type"] for tick in ticks} == {"application/json"}
    assert len({tick.id for tick in ticks}) == len(ticks)
    assert 1.0 < ticks[2].at - ticks[0].at < 3.0


def test_ticks_are_not_queued_behind_a_backoff(receiver: Receiver, start: Start) -> None:
    """Check that ticks are not queued during retries: with the shipped policy, each tick is tried while it is current.

    The function refuses three ticks, and the first accepted one is the newest.
    """
    documents = yaml.safe_load_all((ROOT / "manifests/base/eventing/triggers.yaml").read_text())
    (delivery,) = [one["spec"]["delivery"] for one in documents if one["metadata"]["name"] == "resync-on-tick"]
    tried: dict[str, None] = {}

    def away(request: Received) -> Answer:
        tried[request.id] = None
        return Answer(503 if list(tried).index(request.id) < 3 else 202)

    receiver.answers["/f"] = away
    ping = source("PingSource", "tick", schedule="*/2 * * * * *", contentType="application/json", data="{}")
    broker = start(ping, trigger("f", type="dev.knative.sources.ping", delivery=delivery))

    broker.wait_line(msg="delivered", trigger="f")

    first = {request.id: request for request in reversed(receiver.at("/f"))}
    starts = [first[tick].at for tick in tried]
    assert len(starts) == 4
    assert all(1.5 < after - before < 2.5 for before, after in pairwise(starts))
    assert [line["id"] for line in broker.find(msg="dropped", trigger="f")] == list(tried)[:3]


@pytest.mark.slow
def test_ticks_do_not_pile_up_before_a_server_that_hangs(receiver: Receiver, start: Start) -> None:
    """Check that pending ticks for a hanging server are dropped when a newer one arrives, and no other events are.

    A newer tick replaces the earlier ones. A subscriber to all events gets each tick.
    """
    ends = threading.Event()
    receiver.answers["/f"] = lambda _: Answer() if ends.wait(PATIENCE) else Answer(503)
    ping = source("PingSource", "tick", schedule="* * * * * *", contentType="application/json", data="{}")
    slow = {"retry": 0, "timeout": "PT30S"}
    broker = start(ping, trigger("f", type="dev.knative.sources.ping", delivery=slow), trigger("all"))

    receiver.wait_for("/all", 3)
    broker.post(b"{}", id="forged", type="dev.knative.sources.ping", source="/somebody", subject=PINGS)
    ticks = [tick.id for tick in receiver.wait_for("/all", 6) if tick.id != "forged"]
    ends.set()
    taken = [request.id for request in receiver.wait_for("/f", 3)]

    assert taken[:2] == [ticks[0], "forged"]
    assert not {*ticks[1:3]} & {*taken}
    assert len(broker.find(msg="dropped: a later one says the same", trigger="f")) >= 2


def test_a_container_source_is_a_child_that_posts_to_us(receiver: Receiver, start: Start) -> None:
    """Check that a ContainerSource is a child process with K_SINK, its own environment and identity, but no port.

    Several sources share the host, so a fixed port could be in use.
    """
    start(container("yes"), trigger("f", type="child.alive"), PODSOURCE_KUBECONFIG="/identity")

    (alive,) = receiver.wait_for("/f")

    assert alive.headers["ce-greeting"] == "hello"
    assert alive.headers["ce-identity"] == "/identity"
    assert alive.headers["ce-port"] == "none"


@pytest.mark.slow
def test_a_child_that_ends_is_started_again(receiver: Receiver, start: Start) -> None:
    """Check that a child that ends is restarted after a delay, with a log line."""
    broker = start(container("no"), trigger("f", type="child.alive"), PODSOURCE_KUBECONFIG="/identity")

    first, second = receiver.wait_for("/f", 2)[:2]

    assert first.id != second.id
    assert second.at - first.at >= 0.5
    assert broker.wait_line(msg="source ended")["status"] == "exit 0"


def test_a_source_whose_child_has_ended_is_not_ready() -> None:
    """Check that a source whose child has ended is not ready."""
    ended = ContainerSource("child", Program(["true"], {}))

    status = asyncio.run(ended._run_once(Outlet(lambda _event: None, "http://127.0.0.1:1")))

    assert (status, ended.ready) == ("exit 0", False)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_child_ends_with_the_broker(receiver: Receiver, start: Start, end: str) -> None:
    """Check that a child ends with the broker, even if the broker is killed."""
    broker = start(container("yes"), trigger("f", type="child.alive"), PODSOURCE_KUBECONFIG="/identity")
    (alive,) = receiver.wait_for("/f")
    child = os.pidfd_open(int(alive.id))

    getattr(broker, end)()

    assert wait_end(child)


def wait_end(child: int) -> bool:
    """Return whether the process of a pidfd ends in time; the pidfd becomes readable at its end."""
    try:
        return bool(select.select([child], [], [], 10)[0])
    finally:
        os.close(child)


@pytest.mark.parametrize(
    "missing",
    [
        {"command": ["/no/such/program"]},
        {"command": ["true"], "env": [{"name": "a=b", "value": "c"}]},
    ],
    ids=["no program", "no variable"],
)
def test_a_program_that_cannot_be_started_is_reported_and_the_rest_goes_on(
    receiver: Receiver, start: Start, missing: dict[str, Any]
) -> None:
    """Check that a program that cannot be started is reported in the log, and that the broker serves other events.

    The source retries, since the program may be installed later.
    """
    broker = start(source("ContainerSource", "gone", template={"spec": {"containers": [missing]}}), trigger("f"))

    assert "not started" in broker.wait_line(msg="source ended", source="gone")["status"]
    broker.post()
    receiver.wait_for("/f")
