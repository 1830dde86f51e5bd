"""Tests of redriving a dead letter: what counts as a success, and the error of a failed attempt."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
from cloudevents.core.v1.event import CloudEvent

from eventing import events, sinks
from eventing.dead_letters import DeadLetter, as_dead_letter
from eventing.journal.entries import Attempt, Entry
from eventing.replay.redrive import function_of, is_open, redrive
from eventing.http_binding import binary
from tests.receiver import Answer, Receiver

REPLY = CloudEvent({"id": "2", "source": "/f", "type": "t", "datacontenttype": "application/json"}, {"n": 1})


@pytest.fixture
def receiver(receiver: Receiver) -> Receiver:
    """Return a receiver that acts as the function at `/cordon` and as the broker at `/broker`."""
    message = binary(REPLY)
    receiver.answers["/cordon"] = lambda _: Answer(200, message.headers, message.body)
    return receiver


def letter() -> Entry:
    event = CloudEvent(
        {"id": "1", "source": "/s", "type": events.MAINTENANCE_BEGUN, "datacontenttype": "application/json"}, {}
    )
    dead = as_dead_letter(event, DeadLetter("http://gone/cordon", 503, "away"))
    return Entry(1, datetime.now(timezone.utc), dead)


@pytest.mark.parametrize(
    ("destination", "function"), [("http://[x", ""), ("http://a\u2100b/x", ""), ("", ""), ("evict", "evict")]
)
def test_a_destination_that_is_no_address_names_no_function(destination: str, function: str) -> None:
    """X-1: An invalid destination names no function, and does not break the list of dead letters.

    Any client may have written the destination. A failed attempt may name the function instead.
    """
    now = letter().arrived
    odd = Entry(1, now, as_dead_letter(letter().event, DeadLetter(destination, 503, "")))
    failed = replace(odd, attempts=(Attempt("/s", "1", "cordon", now, 0.1, 503),))
    redriven = Attempt("/s", "1", "cordon", now, 0.1, 204, replay="redrive 1")

    assert function_of(odd) == function
    assert function_of(failed) == (function or "cordon")
    assert is_open(failed)
    assert is_open(replace(failed, attempts=(*failed.attempts, redriven))) is bool(function)


def test_an_answer_that_the_broker_takes_is_a_success(receiver: Receiver) -> None:
    """X-6: The event is posted unchanged to the function only, and its reply to the broker."""
    made = redrive(letter(), f"{receiver.url}/cordon", f"{receiver.url}/broker")

    assert (made.status, made.error, made.function) == (200, "", "cordon")
    assert [reply["id"] for reply in made.replies] == ["2"]
    assert [request.id for request in receiver.at("/cordon")] == ["1"]
    assert [request.id for request in receiver.at("/broker")] == ["2"]
    assert "ce-knativeerrordest" not in receiver.at("/cordon")[0].headers


def test_the_broker_is_told_who_sends_and_the_function_is_not(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X-6: The broker gets the sender's token and the function does not, as in a Trigger's delivery."""
    (tmp_path / "token").write_text("who-i-am\n")
    monkeypatch.setenv(sinks.FILE, str(tmp_path / "token"))

    redrive(letter(), f"{receiver.url}/cordon", f"{receiver.url}/broker")

    assert receiver.at("/broker")[0].headers["authorization"] == "Bearer who-i-am"
    assert "authorization" not in receiver.at("/cordon")[0].headers


@pytest.mark.parametrize("status", [302, 400, 403, 429, 503])
def test_an_answer_that_the_broker_refuses_is_a_failure(receiver: Receiver, status: int) -> None:
    """X-6: A reply that the broker refuses makes the attempt a failure with the reason, and no redirect is followed."""
    receiver.answers["/broker"] = lambda _: Answer(status, {"location": f"{receiver.url}/elsewhere"}, b"no room")

    made = redrive(letter(), f"{receiver.url}/cordon", f"{receiver.url}/broker")

    assert made.failed
    assert made.error == f"the broker refused its answer, {status}: no room"
    assert made.replies == ()
    assert receiver.at("/elsewhere") == []


@pytest.mark.parametrize("status", [302, 400, 500])
def test_a_function_that_refuses_is_a_failure(receiver: Receiver, status: int) -> None:
    """X-6: A refusal by the function is a failure with its text, and nothing is posted to the broker."""
    receiver.answers["/cordon"] = lambda _: Answer(status, {"location": f"{receiver.url}/elsewhere"}, b"not me")

    made = redrive(letter(), f"{receiver.url}/cordon", f"{receiver.url}/broker")

    assert made.failed
    assert "not me" in made.error
    assert receiver.at("/broker") == receiver.at("/elsewhere") == []
