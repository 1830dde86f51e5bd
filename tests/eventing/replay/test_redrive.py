"""Tests for redriving a dead letter: the conditions of success, and the error of a failed attempt."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
from cloudevents.core.v1.event import CloudEvent

from eventing import endpoints, events
from eventing.dead_letters import DeadLetter, add_dead_letter_extensions
from eventing.http_binding import encode_binary
from eventing.journal.entries import Attempt, Entry
from eventing.replay.redrive import awaits_redrive, find_failed_function, redrive
from localcluster.http_receiver import Receiver, Response

REPLY_EVENT = CloudEvent({"id": "2", "source": "/f", "type": "t", "datacontenttype": "application/json"}, {"n": 1})


@pytest.fixture
def function_and_broker(receiver: Receiver) -> Receiver:
    """Return a receiver that acts as the function at `/cordon` and as the broker at `/broker`."""
    message = encode_binary(REPLY_EVENT)
    receiver.answers["/cordon"] = lambda _: Response(200, message.headers, message.body)
    return receiver


def build_dead_letter() -> Entry:
    event = CloudEvent(
        {"id": "1", "source": "/s", "type": events.MAINTENANCE_BEGUN, "datacontenttype": "application/json"}, {}
    )
    dead_letter = add_dead_letter_extensions(event, DeadLetter("http://gone/cordon", 503, "away"))
    return Entry(1, datetime.now(timezone.utc), dead_letter)


@pytest.mark.parametrize(
    ("destination", "function"), [("http://[x", ""), ("http://a\u2100b/x", ""), ("", ""), ("evict", "evict")]
)
def test_invalid_destination_identifies_no_function(destination: str, function: str) -> None:
    """X-1: an invalid destination names no function, and does not break the list of dead letters.

    Any client may have written the destination. If an attempt has failed, the attempt names the function.
    """
    now = build_dead_letter().arrived
    invalid_entry = Entry(
        1, now, add_dead_letter_extensions(build_dead_letter().event, DeadLetter(destination, 503, ""))
    )
    failed_entry = replace(invalid_entry, attempts=(Attempt("/s", "1", "cordon", now, 0.1, 503),))
    attempt = Attempt("/s", "1", "cordon", now, 0.1, 204, replay="redrive 1")

    assert find_failed_function(invalid_entry) == function
    assert find_failed_function(failed_entry) == (function or "cordon")
    assert awaits_redrive(failed_entry)
    assert awaits_redrive(replace(failed_entry, attempts=(*failed_entry.attempts, attempt))) is bool(function)


def test_redrive_succeeds_if_broker_accepts_reply(function_and_broker: Receiver) -> None:
    """X-6: the event is posted only to the function, without dead letter extensions, and its reply to the broker."""
    attempt = redrive(build_dead_letter(), f"{function_and_broker.url}/cordon", f"{function_and_broker.url}/broker")

    assert (attempt.status, attempt.error, attempt.function) == (200, "", "cordon")
    assert [reply["id"] for reply in attempt.replies] == ["2"]
    assert [request.id for request in function_and_broker.list_requests("/cordon")] == ["1"]
    assert [request.id for request in function_and_broker.list_requests("/broker")] == ["2"]
    assert "ce-knativeerrordest" not in function_and_broker.list_requests("/cordon")[0].headers


def test_token_is_sent_to_broker_only(
    function_and_broker: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X-6: the token is sent to the broker but not to the function, as in a Trigger's delivery."""
    (tmp_path / "token").write_text("identity-token\n")
    monkeypatch.setenv(endpoints.TOKEN_FILE_VARIABLE, str(tmp_path / "token"))

    redrive(build_dead_letter(), f"{function_and_broker.url}/cordon", f"{function_and_broker.url}/broker")

    assert function_and_broker.list_requests("/broker")[0].headers["authorization"] == "Bearer identity-token"
    assert "authorization" not in function_and_broker.list_requests("/cordon")[0].headers


@pytest.mark.parametrize("status", [302, 400, 403, 429, 503])
def test_redrive_fails_if_broker_rejects_reply(function_and_broker: Receiver, status: int) -> None:
    """X-6: the attempt fails with the broker's reason if the broker rejects the reply; redirects are not followed."""
    function_and_broker.answers["/broker"] = lambda _: Response(
        status, {"location": f"{function_and_broker.url}/elsewhere"}, b"queue full"
    )

    attempt = redrive(build_dead_letter(), f"{function_and_broker.url}/cordon", f"{function_and_broker.url}/broker")

    assert attempt.failed
    assert attempt.error == f"the broker rejected the reply with {status}: queue full"
    assert attempt.replies == ()
    assert function_and_broker.list_requests("/elsewhere") == []


@pytest.mark.parametrize("status", [302, 400, 500])
def test_redrive_fails_if_function_rejects_event(function_and_broker: Receiver, status: int) -> None:
    """X-6: the attempt fails with the function's error if it rejects the event; nothing is sent to the broker."""
    function_and_broker.answers["/cordon"] = lambda _: Response(
        status, {"location": f"{function_and_broker.url}/elsewhere"}, b"not me"
    )

    attempt = redrive(build_dead_letter(), f"{function_and_broker.url}/cordon", f"{function_and_broker.url}/broker")

    assert attempt.failed
    assert "not me" in attempt.error
    assert function_and_broker.list_requests("/broker") == function_and_broker.list_requests("/elsewhere") == []
