"""Tests of undecided evictions (no answer, conflict, busy server) and of merged replies (rules 8 and 9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from cloudevents.core.base import BaseCloudEvent

from eventing import events
from eventing.http_binding import binary, received
from functions.event_data import data_of
from functions.maintenance.eviction_reports import LookingAtPods
from functions.maintenance.evict import LAST, NO_TIME, _data, _more
from kube.budgets import Blocked
from kube.evictions import Batch
from kube.maintenance.status_patch import LONGEST_ERROR
from kube.maintenance.node_snapshot import Looked
from kube.paths import Object
from kube.text_limits import shortened
from tests.kube.samples import maintenance, pod

NOBODY = maintenance({})


def blocked(name: str, reason: str) -> Blocked:
    return Blocked({"namespace": "ns", "name": name, "uid": f"ns-{name}-uid"}, reason, "why")


def known(name: str, reason: str) -> Object:
    """Build a maintenance whose status reports this pod as blocked."""
    return maintenance({"blockedPods": [{"namespace": "ns", "name": name, "reason": reason}]})


@pytest.mark.parametrize("reason", ["NoAnswer", "Changing", "Busy"])
def test_with_progress_elsewhere_it_is_tried_again_at_once(reason: str) -> None:
    """Undecided evictions are not blocked and cause another pass if the batch evicted another pod."""
    batch = Batch(evicted=[{"uid": "x"}], blocked=[blocked("a", reason), blocked("b", "Error")])

    assert _more(batch, NOBODY)
    assert [item.reason for item in batch.blocked] == ["Error"]


@pytest.mark.parametrize("reason", ["NoAnswer", "Changing", "Busy"])
def test_without_progress_it_is_blocked(reason: str) -> None:
    """Undecided evictions are blocked if the batch evicted no pod."""
    batch = Batch(blocked=[blocked("a", reason)])

    assert not _more(batch, NOBODY)
    assert [item.reason for item in batch.blocked] == [reason]


def test_one_that_was_blocked_before_stays_so() -> None:
    """Pods that were blocked before stay blocked while others are evicted, so that their backoff grows."""
    batch = Batch(evicted=[{"uid": "x"}], blocked=[blocked("a", "NoAnswer")])

    assert not _more(batch, known("a", "NoAnswer"))
    assert [item.reason for item in batch.blocked] == ["NoAnswer"]


def test_whose_turn_did_not_come_goes_on_at_once_only_with_progress() -> None:
    """Deferred pods cause another pass only if the batch made progress; otherwise they are blocked as `NoTime`."""
    fast, slow = Batch(gone=[{"uid": "x"}], unsent=[pod("a")]), Batch(unsent=[pod("a")])

    assert _more(fast, NOBODY)
    assert not _more(slow, NOBODY)
    assert [(item.pod["name"], item.reason) for item in slow.blocked] == [("a", "NoTime")]


def test_the_pod_of_evict_itself_says_what_it_waits_for() -> None:
    """Check that evict's own pod is blocked with the message that evictions on other nodes are not answered yet."""
    batch = Batch(unsent=[pod("a"), pod("b")])

    assert not _more(batch, NOBODY, "b")
    assert [item.message for item in batch.blocked] == [NO_TIME, LAST]


def test_what_is_under_way_is_neither_blocked_nor_a_reason_for_haste() -> None:
    """Evictions in flight alone cause no further pass; deferred pods next to them do."""
    assert not _more(Batch(under_way=[{"uid": "x"}]), NOBODY)
    assert _more(Batch(under_way=[{"uid": "x"}], unsent=[pod("a")]), NOBODY)


OF = events.Reference("nodemaintenance.medik8s.io/v1beta1", "nm", "nm-uid")
HINT = events.event(events.BUDGET_OPENED, "test", OF, "node-1")


def told(*evicted: str, blocked: Sequence[Object] = (), error: str = "", more: bool = False) -> BaseCloudEvent:
    """Build the reply of one batch."""
    data: dict[str, Any] = {"evicted": [{"uid": uid} for uid in evicted], "blocked": list(blocked), "error": error}
    flags = ("more",) if more else ()
    return events.event(events.PODS_EVICTED, "evict", OF, "node-1", cause=HINT, data=data, flags=flags)


def refused(uid: str, message: str, **more: str) -> Object:
    return {"uid": uid, "message": message, **more}


def merged(*replies: BaseCloudEvent, more: bool = False) -> BaseCloudEvent:
    """Return the single reply that merges the replies of several batches."""
    answer = LookingAtPods().merged(HINT, [[reply] for reply in replies], more=more)
    assert answer is not None
    (reply,) = answer
    return reply


def test_several_batches_answer_as_one() -> None:
    """Rule 8: the merged reply has all evicted pods, all refusals that still hold, and each error once."""
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
    """Rule 9: of several outcomes of one pod, the merged reply has only the latest."""
    resting = [refused(uid, "too busy", retryAfter="2026-01-02T03:04:05Z") for uid in ("a", "b")]

    data = data_of(merged(told(blocked=resting), told("a", blocked=[refused("b", "forbidden")], error="forbidden")))

    assert (data["blocked"], data["error"]) == ([refused("b", "forbidden")], "forbidden")


def test_that_there_is_more_to_see_is_not_lost() -> None:
    """Rule 8: the merged reply asks for another pass if the last batch does, or if a later batch failed."""
    failure = events.event(events.MAINTENANCE_FAILED, "evict", OF, "node-1", cause=HINT, data={"error": "x"})

    flagged = [merged(told("a"), told("b", more=True)), merged(told("a"), told("b"), failure)]

    assert [reply.get_extension("more") for reply in flagged] == ["true", "true"]
    assert merged(told("a"), told("b")).get_extension("more") is None


def test_however_many_are_refused_and_at_whatever_length_an_event_can_say_it() -> None:
    """X-6: a reply with many long refusals stays within the size limit of an event and leaves out the rest."""
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
    """Rule 9: the event holds the same pods in any order of refusals, since an omitted pod loses its backoff."""
    said = "\N{PILE OF POO}" * 1024
    blocked = [
        Blocked({"namespace": "ns", "name": f"pod-{number:03}", "uid": str(number)}, "Error", said)
        for number in range(330)
    ]

    first, again = (_data(Batch(blocked=order), "1", "1")["blocked"] for order in (blocked, blocked[::-1]))

    assert first == again
    assert len(first) < len(blocked)


def test_what_is_left_is_looked_at_again_where_it_is_too_much_for_an_event() -> None:
    """X-6: the snapshot leaves out the remaining pods if their finalizers are too long for an event."""
    left = [pod("a", finalizers=[f"example.com/{'x' * 60}"] * 6000)]

    assert "left" not in Looked.at(maintenance(), is_closed=True, left=left).as_data()
    assert "left" in Looked.at(maintenance(), is_closed=True, left=[pod("a")]).as_data()


def test_batches_without_an_answer_answer_nothing() -> None:
    """Rule 8: empty replies merge into an empty reply, or into None if another pass must follow."""
    looking = LookingAtPods()

    assert looking.merged(HINT, [[], []], more=False) == []
    assert looking.merged(HINT, [[], []], more=True) is None
