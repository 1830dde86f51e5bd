"""What becomes of a batch that was not done, and what several batches answer together (rules 8 and 9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from cloudevents.core.base import BaseCloudEvent

from eventing import events
from eventing.wire import binary, received
from functions.data import data_of
from functions.maintenance.batches import LookingAtPods
from functions.maintenance.evict import LAST, NO_TIME, _data, _more
from kube.budgets import Blocked
from kube.evictions import Batch
from kube.maintenance.progress import LONGEST_ERROR
from kube.maintenance.shown import Looked
from kube.paths import Object
from kube.words import shortened
from tests.kube.samples import maintenance, pod

NOBODY = maintenance({})


def blocked(name: str, reason: str) -> Blocked:
    return Blocked({"namespace": "ns", "name": name, "uid": f"ns-{name}-uid"}, reason, "why")


def known(name: str, reason: str) -> Object:
    """A maintenance whose status has that pod blocked."""
    return maintenance({"blockedPods": [{"namespace": "ns", "name": name, "reason": reason}]})


@pytest.mark.parametrize("reason", ["NoAnswer", "Changing", "Busy"])
def test_with_progress_elsewhere_it_is_tried_again_at_once(reason: str) -> None:
    """It is not blocked: the next look sees whether it was done."""
    batch = Batch(evicted=[{"uid": "x"}], blocked=[blocked("a", reason), blocked("b", "Error")])

    assert _more(batch, NOBODY)
    assert [item.reason for item in batch.blocked] == ["Error"]


@pytest.mark.parametrize("reason", ["NoAnswer", "Changing", "Busy"])
def test_without_progress_it_is_blocked(reason: str) -> None:
    """Nothing went: no haste."""
    batch = Batch(blocked=[blocked("a", reason)])

    assert not _more(batch, NOBODY)
    assert [item.reason for item in batch.blocked] == [reason]


def test_one_that_was_blocked_before_stays_so() -> None:
    """Others go beside it, again and again; its pause grows all the same."""
    batch = Batch(evicted=[{"uid": "x"}], blocked=[blocked("a", "NoAnswer")])

    assert not _more(batch, known("a", "NoAnswer"))
    assert [item.reason for item in batch.blocked] == ["NoAnswer"]


def test_whose_turn_did_not_come_goes_on_at_once_only_with_progress() -> None:
    """A server too slow to evict any is not asked again in the same breath; the status says why."""
    fast, slow = Batch(gone=[{"uid": "x"}], unsent=[pod("a")]), Batch(unsent=[pod("a")])

    assert _more(fast, NOBODY)
    assert not _more(slow, NOBODY)
    assert [(item.pod["name"], item.reason) for item in slow.blocked] == [("a", "NoTime")]


def test_the_pod_of_evict_itself_says_what_it_waits_for() -> None:
    """Others than the API server: its own evictions from other nodes, whose answers it has to tell."""
    batch = Batch(unsent=[pod("a"), pod("b")])

    assert not _more(batch, NOBODY, "b")
    assert [item.message for item in batch.blocked] == [NO_TIME, LAST]


def test_what_is_under_way_is_neither_blocked_nor_a_reason_for_haste() -> None:
    """Its pod will be seen to go; those whose turn did not come are next."""
    assert not _more(Batch(under_way=[{"uid": "x"}]), NOBODY)
    assert _more(Batch(under_way=[{"uid": "x"}], unsent=[pod("a")]), NOBODY)


OF = events.Reference("nodemaintenance.medik8s.io/v1beta1", "nm", "nm-uid")
HINT = events.event(events.BUDGET_OPENED, "test", OF, "node-1")


def told(*evicted: str, blocked: Sequence[Object] = (), error: str = "", more: bool = False) -> BaseCloudEvent:
    """What one batch answers."""
    data: dict[str, Any] = {"evicted": [{"uid": uid} for uid in evicted], "blocked": list(blocked), "error": error}
    flags = ("more",) if more else ()
    return events.event(events.PODS_EVICTED, "evict", OF, "node-1", cause=HINT, data=data, flags=flags)


def refused(uid: str, message: str, **more: str) -> Object:
    return {"uid": uid, "message": message, **more}


def merged(*replies: BaseCloudEvent, more: bool = False) -> BaseCloudEvent:
    """The one answer to batches that each gave one of these."""
    answer = LookingAtPods().merged(HINT, [[reply] for reply in replies], more=more)
    assert answer is not None
    (reply,) = answer
    return reply


def test_several_batches_answer_as_one() -> None:
    """Rule 8: who was evicted by any; who is refused now, or rests since an earlier one; each error once."""
    resting = refused("b", "too busy", retryAfter="2026-01-02T03:04:05Z")
    first = told("a", blocked=[resting, refused("c", "earlier")], error="too busy")
    last = told("d", blocked=[refused("e", "forbidden")], error="forbidden")

    reply = merged(first, last)

    data = data_of(reply)
    assert [pod["uid"] for pod in data["evicted"]] == ["a", "d"]
    assert data["blocked"] == [resting, refused("e", "forbidden")]
    assert data["error"] == "forbidden; too busy"
    assert (reply.get_source(), reply.get_extension("more")) == (events.SOURCE + "evict", None)


def test_who_rested_and_was_asked_again_is_named_once() -> None:
    """Rule 9: the later answer about a pod counts, be it evicted or refused."""
    resting = [refused(uid, "too busy", retryAfter="2026-01-02T03:04:05Z") for uid in ("a", "b")]

    data = data_of(merged(told(blocked=resting), told("a", blocked=[refused("b", "forbidden")], error="forbidden")))

    assert (data["blocked"], data["error"]) == ([refused("b", "forbidden")], "forbidden")


def test_that_there_is_more_to_see_is_not_lost() -> None:
    """Rule 8: said by the last batch, or by a batch behind it that failed."""
    failure = events.event(events.MAINTENANCE_FAILED, "evict", OF, "node-1", cause=HINT, data={"error": "x"})

    flagged = [merged(told("a"), told("b", more=True)), merged(told("a"), told("b"), failure)]

    assert [reply.get_extension("more") for reply in flagged] == ["true", "true"]
    assert merged(told("a"), told("b")).get_extension("more") is None


def test_however_many_are_refused_and_at_whatever_length_an_event_can_say_it() -> None:
    """X-6: in one batch, and in several that answer as one; whoever has no place there is tried at each look."""
    many = [
        {"namespace": "ns", "name": f"pod-{number}", "uid": f"{of}{number}"} for of in "ab" for number in range(330)
    ]
    said = "\N{PILE OF POO}" * 1024
    batches = [Batch(blocked=[Blocked(pod, "Error", said) for pod in part]) for part in (many[:330], many[330:])]
    first, last = (_data(batch, "1", "1") for batch in batches)
    later = [{**pod, "retryAfter": "2026-01-02T03:04:05Z"} for pod in first["blocked"]]

    one = told(blocked=last["blocked"], error=last["error"])
    several = merged(told(blocked=later, error=first["error"]), one)

    for reply in (one, several):
        message = binary(reply)
        told_of = data_of(received(message.headers, message.body))["blocked"]
        assert [pod["uid"] for pod in told_of] == sorted(pod["uid"] for pod in told_of)
        assert len(told_of) > 50
    assert data_of(several)["error"] == shortened(data_of(several)["error"], LONGEST_ERROR)


def test_the_same_pods_are_told_whatever_order_they_were_refused_in() -> None:
    """Rule 9: one that is left out at times would never rest, nor be blocked for long."""
    said = "\N{PILE OF POO}" * 1024
    blocked = [
        Blocked({"namespace": "ns", "name": f"pod-{number:03}", "uid": str(number)}, "Error", said)
        for number in range(330)
    ]

    first, again = (_data(Batch(blocked=order), "1", "1")["blocked"] for order in (blocked, blocked[::-1]))

    assert first == again
    assert len(first) < len(blocked)


def test_what_is_left_is_looked_at_again_where_it_is_too_much_for_an_event() -> None:
    """X-6: a pod's finalizers are as long as its owner likes."""
    left = [pod("a", finalizers=[f"example.com/{'x' * 60}"] * 6000)]

    assert "left" not in Looked.at(maintenance(), is_closed=True, left=left).as_data()
    assert "left" in Looked.at(maintenance(), is_closed=True, left=[pod("a")]).as_data()


def test_batches_without_an_answer_answer_nothing() -> None:
    """Rule 8: nothing to say, and nothing more to see; with more to see it is looked again."""
    looking = LookingAtPods()

    assert looking.merged(HINT, [[], []], more=False) == []
    assert looking.merged(HINT, [[], []], more=True) is None
