"""A recorded event posted again: what counts as a function's answer, and which of then it is held against."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from eventing import events
from eventing.journal.entries import Entry
from eventing.replay.again import NoAnswer, replay
from eventing.wire import BATCH
from tests.receiver import Answer, Receiver

AT = datetime(2026, 1, 2, tzinfo=timezone.utc)
ABOUT = events.Reference("nodemaintenance.medik8s.io/v1beta1", "nm", "uid-1")
TYPED = {"content-type": BATCH}


def entry() -> Entry:
    return Entry(1, AT, events.event(events.NODE_DRAINED, "evict", ABOUT, "node-1"))


def test_a_batch_is_an_answer_and_so_is_an_empty_one(receiver: Receiver) -> None:
    """X-2: a function that has nothing to say answers `[]`."""
    receiver.answers["/cordon"] = lambda _: Answer(200, TYPED, b'[{"id": "2", "type": "t"}]')
    receiver.answers["/status"] = lambda _: Answer(200, TYPED, b"[]")

    cordon, status = (replay(entry(), name, f"{receiver.url}/{name}", dry_run=True) for name in ("cordon", "status"))

    assert ([reply["id"] for reply in cordon.replies], status.replies) == (["2"], ())
    assert all(BATCH in request.headers["accept"] for request in receiver.requests)


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
    """X-2: it must not pass for a function that had nothing to say."""
    receiver.answers["/status"] = lambda _: answer

    with pytest.raises(NoAnswer, match=f"status answered {answer.status} and "):
        replay(entry(), "status", f"{receiver.url}/status", dry_run=True)
