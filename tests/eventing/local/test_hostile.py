"""Fuzz tests: hundreds of invalid events and responses do not stop the local broker."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
import requests

from localcluster.http_receiver import ReceivedRequest, Receiver, Response
from tests.eventing.local.broker_process import BrokerProcess, build_event_response, build_trigger
from tests.invalid_events import UNKNOWN_MAINTENANCE, InvalidEventGenerator, Request

StartBroker = Callable[..., BrokerProcess]
REQUEST_COUNT = 300


def post_request(session: requests.Session, url: str, request: Request) -> requests.Response:
    return session.post(url, data=request.body, headers=dict(request.headers), timeout=10)


@pytest.mark.slow
def test_hostile_events_do_not_stop_broker(receiver: Receiver, start_broker: StartBroker) -> None:
    """X-6: the broker accepts a hostile event or rejects it with a one-line error, and then delivers a valid event.

    Each accepted event is delivered or dropped.
    """
    broker = start_broker(build_trigger("f", delivery={"retry": 0}))
    event_generator = InvalidEventGenerator(Random(1), UNKNOWN_MAINTENANCE, "node-1")

    with requests.Session() as session:
        answers = [post_request(session, broker.url, event_generator.build_request()) for _ in range(REQUEST_COUNT)]
    accepted = sum(answer.status_code == 202 for answer in answers)
    receiver.wait_for_requests("/f", accepted)
    broker.post(id="after")
    after = broker.wait_for_log_line(msg="delivered", id="after")

    assert {answer.status_code for answer in answers} <= {202, 400, 413, 415}
    assert all(len(answer.text.splitlines()) == 1 for answer in answers if answer.status_code != 202)
    assert accepted > REQUEST_COUNT / 4
    assert "Traceback" not in broker.output
    assert after["ms"] < 1000
    assert broker.process.poll() is None


@pytest.mark.slow
def test_hostile_responses_do_not_stop_broker(receiver: Receiver, start_broker: StartBroker) -> None:
    """X-6: arbitrary responses of a subscriber count as failed attempts, and the broker continues."""
    broker = start_broker(build_trigger("f", type="ask", delivery={"retry": 0}))
    event_generator = InvalidEventGenerator(Random(2), UNKNOWN_MAINTENANCE, "node-1")

    def respond_with_random_content(_: ReceivedRequest) -> Response:
        request = event_generator.build_request()
        return Response(200, {name: value for name, value in request.headers.items() if value.isascii()}, request.body)

    receiver.answers["/f"] = respond_with_random_content
    for number in range(REQUEST_COUNT // 2):
        broker.post(id=str(number), type="ask", partitionkey=str(number))
    receiver.wait_for_requests("/f", REQUEST_COUNT // 2)

    receiver.answers["/f"] = lambda _: build_event_response(id="fine", type="fine")
    broker.post(id="after", type="ask")
    broker.wait_for_log_line(msg="delivered", id="after")

    assert broker.process.poll() is None
    assert "Traceback" not in broker.output
