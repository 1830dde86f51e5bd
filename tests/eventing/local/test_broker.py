"""Tests of a second broker with the same outbox or port: it delivers nothing and ends with a one-line error."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Callable

import pytest

from tests.eventing.local.broker_process import ROOT, Broker, reply, trigger
from tests.receiver import PATIENCE, Answer, Received, Receiver

Start = Callable[..., Broker]


def ended(broker: Broker, listen: str) -> str:
    """Run another broker on this outbox, check that it exits with 1, and return its last line."""
    second = subprocess.run(broker.command(listen), cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert second.returncode == 1, second.stdout
    return second.stderr.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("listen", ["the same port", "another port"])
def test_a_second_broker_delivers_nothing_of_an_outbox_that_another_has(
    receiver: Receiver, start: Start, listen: str
) -> None:
    """X-6: A second broker does not deliver the pending events of an outbox that is in use.

    Its error names the file, the process and the remedy.
    """
    asked, go = threading.Event(), threading.Event()

    def answer(_: Received) -> Answer:
        asked.set()
        go.wait(PATIENCE)
        return reply(id="2", type="b")

    receiver.answers["/f"] = answer
    broker = start(trigger("f", type="a"), trigger("g", type="b"))
    broker.post(id="1", type="a")
    assert asked.wait(PATIENCE)

    said = ended(broker, broker.url.removeprefix("http://") if listen == "the same port" else "127.0.0.1:0")
    go.set()

    receiver.wait_for("/g")
    assert len(receiver.at("/f")) == 1
    assert said == (
        f"Error: database: {broker.folder / 'delivery.db'} is being delivered by another broker, process "
        f"{broker.process.pid}: stop that one, or name another file by --database"
    )
    assert broker.process.poll() is None


@pytest.mark.slow
def test_a_broker_without_its_port_delivers_nothing(receiver: Receiver, start: Start) -> None:
    """X-6: A broker whose port is in use ends before it posts pending events, and delivers them at its next start.

    Otherwise the replies would stay in the outbox.
    """
    receiver.answers["/f"] = lambda _: Answer(503)
    slow = {"retry": 9, "backoffPolicy": "exponential", "backoffDelay": "PT5S"}
    broker = start(trigger("f", type="a", delivery=slow), trigger("g", type="b"))
    broker.post(id="1", type="a")
    broker.wait_line(msg="retrying")
    broker.kill()
    receiver.answers["/f"] = lambda _: reply(id="2", type="b")
    address = broker.url.removeprefix("http://")

    with socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))):
        said = ended(broker, address)
    tried = len(receiver.at("/f"))
    broker.restart()

    assert tried == 1
    assert said == f"Error: {address}: address already in use; name another address by --listen"
    assert [request.id for request in receiver.wait_for("/g")] == ["2"]
