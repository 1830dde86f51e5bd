"""Tests that a second broker with the same outbox or port delivers nothing, and exits with a one-line error."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Callable

import pytest

from localcluster.http_receiver import TIMEOUT_SECONDS, ReceivedRequest, Receiver, Response
from tests.eventing.local.broker_process import ROOT, BrokerProcess, build_event_response, build_trigger

StartBroker = Callable[..., BrokerProcess]


def run_second_broker(broker: BrokerProcess, listen: str) -> str:
    """Run a second broker with the outbox of `broker`, check that it exits with 1, and return its last output line."""
    second = subprocess.run(
        broker.build_command(listen), cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
    )
    assert second.returncode == 1, second.stdout
    return second.stderr.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("listen", ["same port", "different port"])
def test_second_broker_on_same_outbox_delivers_nothing(
    receiver: Receiver, start_broker: StartBroker, listen: str
) -> None:
    """X-6: a second broker does not deliver the pending events of an outbox that is in use.

    The error message of the second broker names the file, the process that uses it, and the remedy.
    """
    is_called, may_respond = threading.Event(), threading.Event()

    def respond_when_test_permits(_: ReceivedRequest) -> Response:
        is_called.set()
        may_respond.wait(TIMEOUT_SECONDS)
        return build_event_response(id="2", type="b")

    receiver.answers["/f"] = respond_when_test_permits
    broker = start_broker(build_trigger("f", type="a"), build_trigger("g", type="b"))
    broker.post(id="1", type="a")
    assert is_called.wait(TIMEOUT_SECONDS)

    message = run_second_broker(broker, broker.url.removeprefix("http://") if listen == "same port" else "127.0.0.1:0")
    may_respond.set()

    receiver.wait_for_requests("/g")
    assert len(receiver.list_requests("/f")) == 1
    assert message == (
        f"Error: database: {broker.directory / 'delivery.db'} is in use by another broker, process "
        f"{broker.process.pid}: stop that broker, or choose another file with --database"
    )
    assert broker.process.poll() is None


@pytest.mark.slow
def test_broker_with_port_in_use_delivers_nothing(receiver: Receiver, start_broker: StartBroker) -> None:
    """X-6: a broker whose port is in use exits before it delivers pending events, and delivers them later.

    If it delivered the events before it exits, the replies would remain undelivered in the outbox.
    """
    receiver.answers["/f"] = lambda _: Response(503)
    slow_delivery = {"retry": 9, "backoffPolicy": "exponential", "backoffDelay": "PT5S"}
    broker = start_broker(build_trigger("f", type="a", delivery=slow_delivery), build_trigger("g", type="b"))
    broker.post(id="1", type="a")
    broker.wait_for_log_line(msg="retrying")
    broker.kill()
    receiver.answers["/f"] = lambda _: build_event_response(id="2", type="b")
    address = broker.url.removeprefix("http://")

    with socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))):
        message = run_second_broker(broker, address)
    request_count = len(receiver.list_requests("/f"))
    broker.restart()

    assert request_count == 1
    assert message == f"Error: cannot listen on {address}: address already in use; choose another address with --listen"
    assert [request.id for request in receiver.wait_for_requests("/g")] == ["2"]
