"""Fuzz tests of the local broker: hundreds of invalid events and responses do not stop it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
import requests

from tests.eventing.local.broker_process import Broker, reply, trigger
from tests.invalid_events import UNKNOWN, Hostile, Request
from tests.receiver import Answer, Received, Receiver

Start = Callable[..., Broker]
TRIES = 300


def posted(session: requests.Session, url: str, request: Request) -> requests.Response:
    return session.post(url, data=request.body, headers=dict(request.headers), timeout=10)


@pytest.mark.slow
def test_hostile_events_end_nothing_and_hold_up_nothing(receiver: Receiver, start: Start) -> None:
    """X-6: Each hostile event is accepted, or refused in one line, and the next valid event is delivered without delay.

    An accepted event is delivered or dropped.
    """
    broker = start(trigger("f", delivery={"retry": 0}))
    hostile = Hostile(Random(1), UNKNOWN, "node-1")

    with requests.Session() as session:
        answers = [posted(session, broker.url, hostile.request()) for _ in range(TRIES)]
    accepted = sum(answer.status_code == 202 for answer in answers)
    receiver.wait_for("/f", accepted)
    broker.post(id="after")
    after = broker.wait_line(msg="delivered", id="after")

    assert {answer.status_code for answer in answers} <= {202, 400, 413, 415}
    assert all(len(answer.text.splitlines()) == 1 for answer in answers if answer.status_code != 202)
    assert accepted > TRIES / 4
    assert "Traceback" not in broker.text
    assert after["ms"] < 1000
    assert broker.process.poll() is None


@pytest.mark.slow
def test_hostile_answers_end_nothing(receiver: Receiver, start: Start) -> None:
    """X-6: A subscriber with arbitrary responses counts as failed, and the broker continues."""
    broker = start(trigger("f", type="ask", delivery={"retry": 0}))
    hostile = Hostile(Random(2), UNKNOWN, "node-1")

    def answer(_: Received) -> Answer:
        request = hostile.request()
        return Answer(200, {name: value for name, value in request.headers.items() if value.isascii()}, request.body)

    receiver.answers["/f"] = answer
    for number in range(TRIES // 2):
        broker.post(id=str(number), type="ask", partitionkey=str(number))
    receiver.wait_for("/f", TRIES // 2)

    receiver.answers["/f"] = lambda _: reply(id="fine", type="fine")
    broker.post(id="after", type="ask")
    broker.wait_line(msg="delivered", id="after")

    assert broker.process.poll() is None
    assert "Traceback" not in broker.text
