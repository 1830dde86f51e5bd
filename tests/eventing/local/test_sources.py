"""Tests for the local PingSource and ContainerSource with real clocks and processes."""

from __future__ import annotations

import asyncio
import os
import select
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

import pytest
import yaml

from eventing.local.container_source import ContainerCommand, ContainerSource
from eventing.local.ping_source import Schedule
from localcluster.http_receiver import ReceivedRequest, Receiver, Response
from tests.eventing.local.broker_process import ROOT, BrokerProcess, build_source, build_trigger

StartBroker = Callable[..., BrokerProcess]

CHILD_PROGRAM = """
import os, sys, time, urllib.request
headers = {"ce-specversion": "1.0", "ce-id": str(os.getpid()), "ce-source": "/child", "ce-type": "child.alive",
           "ce-greeting": os.environ["GREETING"], "ce-identity": os.environ["KUBECONFIG"],
           "ce-port": os.environ["PORT"] or "none"}
urllib.request.urlopen(urllib.request.Request(os.environ["K_SINK"], b"", headers, method="POST")).close()
if os.environ["KEEP_RUNNING"] == "yes":
    time.sleep(600)
"""


PING_SOURCE_PATH = "/apis/v1/namespaces/test/pingsources/tick"
"""The source attribute of ticks; the broker delivers ticks with the same source in order."""
PORT_VARIABLE = {"name": "PORT", "value": "8080"}


def build_container_source(keep_running: str) -> dict[str, Any]:
    env = [
        {"name": "GREETING", "value": "hello"},
        {"name": "KEEP_RUNNING", "value": keep_running},
        {"name": "X", "valueFrom": {}},
        PORT_VARIABLE,
    ]
    child = {"name": "child", "image": "x", "command": ["python", "-c"], "args": [CHILD_PROGRAM], "env": env}
    return build_source("ContainerSource", "child", template={"spec": {"containers": [child]}})


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("*/15 * * * * *", "2026-03-01T12:00:15"),
        ("*/5 * * * *", "2026-03-01T12:05:00"),
        ("30 0 12 * * *", "2026-03-01T12:00:30"),
        ("0 0 1 1 *", "2027-01-01T00:00:00"),
    ],
)
def test_schedule_may_have_five_or_six_fields(expression: str, expected: str) -> None:
    """Check that a schedule may have five fields, or six fields of which the first is the seconds, as in Knative."""
    noon = datetime(2026, 3, 1, 12, 0, 0, tzinfo=timezone.utc)

    assert Schedule(expression, timezone.utc).get_next_time(noon).isoformat().startswith(expected)


@pytest.mark.parametrize(
    ("early_seconds", "expected_seconds"), [(0.2, 15), (3600.0, -3585)], ids=["woken up early", "set back"]
)
def test_clock_changes_do_not_repeat_or_stop_ticks(early_seconds: float, expected_seconds: int) -> None:
    """Design rule 11: a sleep that ends early repeats no tick, and setting back the clock does not stop the ticks.

    Only a tick replaces a lost event, so the source must not wait until the clock reaches its old time again.
    """
    noon = datetime(2026, 3, 1, 12, 0, 0, tzinfo=timezone.utc)

    upcoming = Schedule("*/15 * * * * *", timezone.utc).get_next_tick(noon, noon - timedelta(seconds=early_seconds))

    assert upcoming - noon == timedelta(seconds=expected_seconds)


def test_ping_source_emits_ticks_on_schedule(receiver: Receiver, start_broker: StartBroker) -> None:
    """Check that PingSource emits one event per scheduled time, with a new id and Knative's type, source and data."""
    ping = build_source("PingSource", "tick", schedule="* * * * * *", contentType="application/json", data='{"n":1}')
    start_broker(ping, build_trigger("f", type="dev.knative.sources.ping"))

    ticks = receiver.wait_for_requests("/f", 3)

    assert {tick.headers["ce-source"] for tick in ticks} == {PING_SOURCE_PATH}
    assert {tick.body for tick in ticks} == {b'{"n":1}'}
    assert {tick.headers["content-type"] for tick in ticks} == {"application/json"}
    assert len({tick.id for tick in ticks}) == len(ticks)
    assert 1.0 < ticks[2].received_at - ticks[0].received_at < 3.0


@pytest.mark.slow
def test_ticks_do_not_queue_up_during_retries(receiver: Receiver, start_broker: StartBroker) -> None:
    """Check that ticks do not queue up: with the shipped retry policy, a tick's retries end before the next tick.

    The function rejects three ticks, and the first tick that it accepts is the newest one.
    """
    documents = yaml.safe_load_all((ROOT / "manifests/base/eventing/triggers.yaml").read_text())
    (delivery,) = [
        document["spec"]["delivery"] for document in documents if document["metadata"]["name"] == "resync-on-tick"
    ]
    tick_ids: dict[str, None] = {}

    def reject_three_ticks(request: ReceivedRequest) -> Response:
        tick_ids[request.id] = None
        return Response(503 if list(tick_ids).index(request.id) < 3 else 202)

    receiver.answers["/f"] = reject_three_ticks
    ping = build_source("PingSource", "tick", schedule="*/2 * * * * *", contentType="application/json", data="{}")
    broker = start_broker(ping, build_trigger("f", type="dev.knative.sources.ping", delivery=delivery))

    broker.wait_for_log_line(msg="delivered", trigger="f")

    first = {request.id: request for request in reversed(receiver.list_requests("/f"))}
    first_attempt_times = [first[tick].received_at for tick in tick_ids]
    assert len(first_attempt_times) == 4
    assert all(1.5 < after - before < 2.5 for before, after in pairwise(first_attempt_times))
    assert [line["id"] for line in broker.find_log_lines(msg="dropped", trigger="f")] == list(tick_ids)[:3]


def test_container_source_runs_child_process(receiver: Receiver, start_broker: StartBroker) -> None:
    """Check that a ContainerSource runs as a child process with K_SINK, its own environment and its own identity.

    PORT is unset: several sources share the host, so a fixed port could be in use.
    """
    start_broker(
        build_container_source("yes"), build_trigger("f", type="child.alive"), PODSOURCE_KUBECONFIG="/identity"
    )

    (child_event,) = receiver.wait_for_requests("/f")

    assert child_event.headers["ce-greeting"] == "hello"
    assert child_event.headers["ce-identity"] == "/identity"
    assert child_event.headers["ce-port"] == "none"


@pytest.mark.slow
def test_exited_child_process_is_restarted(receiver: Receiver, start_broker: StartBroker) -> None:
    """Check that a child process that exits is restarted after a delay, and that the restart is logged."""
    broker = start_broker(
        build_container_source("no"), build_trigger("f", type="child.alive"), PODSOURCE_KUBECONFIG="/identity"
    )

    first, second = receiver.wait_for_requests("/f", 2)[:2]

    assert first.id != second.id
    assert second.received_at - first.received_at >= 0.5
    assert broker.wait_for_log_line(msg="source process exited, restarting")["status"] == "exit 0"


def test_source_whose_child_process_exited_is_not_ready() -> None:
    """Check that a source whose child process has exited is not ready."""
    source = ContainerSource("child", ContainerCommand(["true"], {}))

    status = asyncio.run(source._run_child("http://127.0.0.1:1"))

    assert (status, source.is_ready) == ("exit 0", False)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can end a child process with its parent")
@pytest.mark.parametrize("end_method", ["kill", "stop"])
def test_child_process_ends_with_broker(receiver: Receiver, start_broker: StartBroker, end_method: str) -> None:
    """Check that the child process exits together with the broker, even if the broker is killed."""
    broker = start_broker(
        build_container_source("yes"), build_trigger("f", type="child.alive"), PODSOURCE_KUBECONFIG="/identity"
    )
    (child_event,) = receiver.wait_for_requests("/f")
    child = os.pidfd_open(int(child_event.id))

    getattr(broker, end_method)()

    assert has_exited_in_time(child)


def has_exited_in_time(pidfd: int) -> bool:
    """Return whether the process of this pidfd exits within 10 s; the pidfd then becomes readable."""
    try:
        return bool(select.select([pidfd], [], [], 10)[0])
    finally:
        os.close(pidfd)


@pytest.mark.parametrize(
    "invalid_container",
    [
        {"command": ["/no/such/program"]},
        {"command": ["true"], "env": [{"name": "a=b", "value": "c"}]},
    ],
    ids=["no such program", "invalid variable name"],
)
def test_failed_start_of_source_program_is_logged_and_broker_continues(
    receiver: Receiver, start_broker: StartBroker, invalid_container: dict[str, Any]
) -> None:
    """Check that a source program that cannot be started is logged, and that the broker still delivers events.

    The source retries the start, because the program may be installed later.
    """
    broker = start_broker(
        build_source("ContainerSource", "gone", template={"spec": {"containers": [invalid_container]}}),
        build_trigger("f"),
    )

    assert "not started" in broker.wait_for_log_line(msg="source process exited, restarting", source="gone")["status"]
    broker.post()
    receiver.wait_for_requests("/f")
