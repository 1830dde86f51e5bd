"""Tests for replaying a recorded event: valid responses, and the selection of the recorded attempt for a comparison."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timezone

import pytest

from eventing import events
from eventing.http_binding import BATCH_CONTENT_TYPE
from eventing.journal.entries import REDRIVE_PREFIX, Attempt, Entry
from eventing.replay import function_client
from eventing.replay.function_client import NoResponse, find_recorded_attempt, replay_event
from localcluster.http_receiver import Receiver, Response

FIXED_TIME = datetime(2026, 1, 2, tzinfo=timezone.utc)
MAINTENANCE = events.ObjectReference("nodemaintenance.medik8s.io/v1beta1", "nm", "uid-1")
BATCH_HEADERS = {"content-type": BATCH_CONTENT_TYPE}


def build_entry() -> Entry:
    return Entry(1, FIXED_TIME, events.build_event(events.NODE_DRAINED, "evict", MAINTENANCE, "node-1"))


def test_batch_of_events_is_valid_response_even_if_empty(receiver: Receiver) -> None:
    """X-2: a batch of events is a valid response; a function that emits no event returns the empty batch `[]`."""
    receiver.answers["/cordon"] = lambda _: Response(200, BATCH_HEADERS, b'[{"id": "2", "type": "t"}]')
    receiver.answers["/status"] = lambda _: Response(200, BATCH_HEADERS, b"[]")

    cordon, status = (
        replay_event(build_entry(), name, f"{receiver.url}/{name}", dry_run=True) for name in ("cordon", "status")
    )

    assert ([reply["id"] for reply in cordon.replies], status.replies) == (["2"], ())
    assert all(BATCH_CONTENT_TYPE in request.headers["accept"] for request in receiver.requests)


def test_loopback_url_bypasses_proxy(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that requests to a loopback URL bypass the environment's proxy even without `NO_PROXY`, as in kubectl."""
    receiver.answers["/status"] = lambda _: Response(200, BATCH_HEADERS, b"[]")
    with closing(Receiver()) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)

        response = replay_event(build_entry(), "status", f"{receiver.url}/status", dry_run=True)

        assert (response.status, proxy.requests) == (200, [])


@pytest.mark.parametrize("status", [400, 415, 500, 503])
def test_multi_line_error_response_is_joined_into_one_line(receiver: Receiver, status: int) -> None:
    receiver.answers["/status"] = lambda _: Response(status, {}, b"other clients\nkeep  changing the status\n")

    response = replay_event(build_entry(), "status", f"{receiver.url}/status", dry_run=True)

    assert (response.status, response.error, response.replies) == (status, "other clients keep changing the status", ())


INVALID_RESPONSES = {
    "redirect": Response(302, {"location": "/login"}),
    "redirect with batch": Response(307, BATCH_HEADERS, b"[]"),
    "accepted": Response(202),
    "no body": Response(200),
    "no content": Response(204),
    "HTML page": Response(200, {"content-type": "text/html"}, b"<p>Welcome"),
    "batch without body": Response(200, BATCH_HEADERS, b""),
    "batch that is not a list": Response(200, BATCH_HEADERS, b"{}"),
    "batch without events": Response(200, BATCH_HEADERS, b"[1]"),
}


@pytest.mark.parametrize("response", INVALID_RESPONSES.values(), ids=INVALID_RESPONSES)
def test_response_that_is_neither_batch_nor_error_raises_no_response(receiver: Receiver, response: Response) -> None:
    """X-2: a response that is neither a batch nor an error does not count as an empty batch of a function."""
    receiver.answers["/status"] = lambda _: response

    with pytest.raises(NoResponse, match=f"status responded with {response.status} and "):
        replay_event(build_entry(), "status", f"{receiver.url}/status", dry_run=True)


@pytest.mark.parametrize(
    "sent_bytes", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n"], ids=["no data", "headers only"]
)
def test_incomplete_response_raises_timeout(sent_bytes: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """X-6: a server that does not complete its response causes a timeout, even if it has sent a part of it."""
    monkeypatch.setattr(function_client, "TIMEOUT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as thread:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/status"
        connection = thread.submit(server.accept)
        connection.add_done_callback(lambda connection: connection.result()[0].sendall(sent_bytes))

        with pytest.raises(NoResponse, match=f"no response from {url} within "):
            replay_event(build_entry(), "status", url, dry_run=True)

        connection.result()[0].close()


def build_attempt(error: str, *, function: str = "evict", status: int = 200, replay: str = "") -> Attempt:
    """Build an attempt whose error text identifies the attempt in the test."""
    return Attempt("s", "e-1", function, FIXED_TIME, 0.1, status, (), error, replay)


ATTEMPT_CASES: dict[str, tuple[Sequence[Attempt], str | None]] = {
    "no attempts": ((), None),
    "only another function's attempt": ((build_attempt("other", function="status"),), None),
    "one success": ((build_attempt("first"),), "first"),
    "success, then evictions after the response": ((build_attempt("first"), build_attempt("late")), "first"),
    "failure, then successes": (
        (build_attempt("away", status=503), build_attempt("first"), build_attempt("late")),
        "first",
    ),
    "success, then failure": ((build_attempt("first"), build_attempt("away", status=503)), "first"),
    "only failures": ((build_attempt("away", status=503), build_attempt("still away", status=503)), "still away"),
    "only replay and redrive": (
        (build_attempt("again", replay="1"), build_attempt("redriven", replay=f"{REDRIVE_PREFIX}1")),
        None,
    ),
}


@pytest.mark.parametrize(("attempts", "expected"), ATTEMPT_CASES.values(), ids=ATTEMPT_CASES)
def test_first_successful_attempt_has_recorded_response(attempts: Sequence[Attempt], expected: str | None) -> None:
    """X-2: a replay is compared with the first successful attempt; later ones record evictions after the response."""
    recorded_attempt = find_recorded_attempt(replace(build_entry(), attempts=tuple(attempts)), "evict")

    assert (recorded_attempt.error if recorded_attempt else None) == expected
