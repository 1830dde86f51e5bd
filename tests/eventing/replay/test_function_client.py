"""Tests of replaying a recorded event: which responses are a function's, and which recorded attempt is compared."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timezone

import pytest

from eventing import events
from eventing.journal.entries import REDRIVE, Attempt, Entry
from eventing.replay import function_client
from eventing.replay.function_client import NoFunction, TooLate, recorded, replay
from eventing.http_binding import BATCH
from tests.receiver import Answer, Receiver

AT = datetime(2026, 1, 2, tzinfo=timezone.utc)
ABOUT = events.Reference("nodemaintenance.medik8s.io/v1beta1", "nm", "uid-1")
TYPED = {"content-type": BATCH}


def entry() -> Entry:
    return Entry(1, AT, events.event(events.NODE_DRAINED, "evict", ABOUT, "node-1"))


def test_a_batch_is_an_answer_and_so_is_an_empty_one(receiver: Receiver) -> None:
    """X-2: A batch is a response, and so is the empty batch `[]` of a function without a reply."""
    receiver.answers["/cordon"] = lambda _: Answer(200, TYPED, b'[{"id": "2", "type": "t"}]')
    receiver.answers["/status"] = lambda _: Answer(200, TYPED, b"[]")

    cordon, status = (replay(entry(), name, f"{receiver.url}/{name}", dry_run=True) for name in ("cordon", "status"))

    assert ([reply["id"] for reply in cordon.replies], status.replies) == (["2"], ())
    assert all(BATCH in request.headers["accept"] for request in receiver.requests)


def test_a_recorded_event_for_this_machine_goes_to_no_proxy(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a loopback URL bypasses a proxy of the environment even without `NO_PROXY`, as with kubectl."""
    receiver.answers["/status"] = lambda _: Answer(200, TYPED, b"[]")
    with closing(Receiver()) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)

        found = replay(entry(), "status", f"{receiver.url}/status", dry_run=True)

        assert (found.status, proxy.requests) == (200, [])


@pytest.mark.parametrize("status", [400, 415, 500, 503])
def test_an_error_is_an_answer_with_its_words_in_one_line(receiver: Receiver, status: int) -> None:
    receiver.answers["/status"] = lambda _: Answer(status, {}, b"others\nkeep  writing\n")

    found = replay(entry(), "status", f"{receiver.url}/status", dry_run=True)

    assert (found.status, found.error, found.replies) == (status, "others keep writing", ())


NO_ANSWERS = {
    "a redirect": Answer(302, {"location": "/login"}),
    "a redirect with a batch": Answer(307, TYPED, b"[]"),
    "accepted": Answer(202),
    "nothing": Answer(200),
    "no content": Answer(204),
    "a page": Answer(200, {"content-type": "text/html"}, b"<p>Welcome"),
    "a batch of nothing": Answer(200, TYPED, b""),
    "a batch that is none": Answer(200, TYPED, b"{}"),
    "a batch of no events": Answer(200, TYPED, b"[1]"),
}


@pytest.mark.parametrize("answer", NO_ANSWERS.values(), ids=NO_ANSWERS)
def test_what_is_neither_batch_nor_error_is_no_function_s_answer(receiver: Receiver, answer: Answer) -> None:
    """X-2: A response that is neither a batch nor an error must not count as an empty response of a function."""
    receiver.answers["/status"] = lambda _: answer

    with pytest.raises(NoFunction, match=f"status answered {answer.status} and "):
        replay(entry(), "status", f"{receiver.url}/status", dry_run=True)


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n"], ids=["nothing", "a head"])
def test_who_takes_a_connection_and_ends_no_answer_is_too_late(head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """X-6: A server that does not complete its response counts as a timeout, whatever it has sent."""
    monkeypatch.setattr(function_client, "SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as thread:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/status"
        taken = thread.submit(server.accept)
        taken.add_done_callback(lambda taken: taken.result()[0].sendall(head))

        with pytest.raises(TooLate, match=f"no answer from {url}: it takes too long"):
            replay(entry(), "status", url, dry_run=True)

        taken.result()[0].close()


def made(error: str, *, function: str = "evict", status: int = 200, replay: str = "") -> Attempt:
    """Build an attempt that its error text identifies."""
    return Attempt("s", "e-1", function, AT, 0.1, status, (), error, replay)


ATTEMPTS: dict[str, tuple[Sequence[Attempt], str | None]] = {
    "none": ((), None),
    "another's": ((made("other", function="status"),), None),
    "a success": ((made("first"),), "first"),
    "late evictions behind it": ((made("first"), made("late")), "first"),
    "failures before it": ((made("away", status=503), made("first"), made("late")), "first"),
    "a failure behind it": ((made("first"), made("away", status=503)), "first"),
    "failures alone": ((made("away", status=503), made("still away", status=503)), "still away"),
    "a replay and a redrive": ((made("again", replay="1"), made("redriven", replay=f"{REDRIVE}1")), None),
}


@pytest.mark.parametrize(("attempts", "expected"), ATTEMPTS.values(), ids=ATTEMPTS)
def test_the_first_answer_is_the_one_of_then(attempts: Sequence[Attempt], expected: str | None) -> None:
    """X-2: The first success is the recorded response; later successes come from evictions after the first response."""
    then = recorded(replace(entry(), attempts=tuple(attempts)), "evict")

    assert (then.error if then else None) == expected
