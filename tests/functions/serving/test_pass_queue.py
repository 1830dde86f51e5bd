"""Tests of the pass queue: one pass at a time, coalesced hints, and no lost hint (design rule 8)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import cast

import pytest
from cloudevents.core.base import BaseCloudEvent

from eventing import events, replay_extensions
from eventing.events import Reference
from eventing.http_binding import BadEvent
from functions.app import FUNCTIONS
from functions.event_data import data_of
from functions.failures import Failed, Retry
from functions.pass_strategies import Looking, Replies
from functions.maintenance import guard, resync
from functions.maintenance.eviction_reports import LookingAtPods
from functions.maintenance.event_objects import failed
from functions.serving import pass_queue
from functions.serving.function import Function, invoke
from functions.serving.pass_queue import Looks
from kube.client.sync_client import Cluster
from tests.functions.event_builders import node_updated, tick

PATIENCE = 30.0
NONE = cast("Cluster", None)
"""Placeholder client; the steps in these tests send no API requests."""
FIRST = Reference("nodemaintenance.medik8s.io/v1beta1", "first", "uid-1")
OTHER = Reference("nodemaintenance.medik8s.io/v1beta1", "other", "uid-2")


def hint(number: int = 0, of: Reference = FIRST, **data: str) -> BaseCloudEvent:
    return events.event(events.BUDGET_OPENED, "test", of, "node-1", seed=f"{number}{data}", data=data)


def node_hint(version: int) -> BaseCloudEvent:
    return node_updated({"metadata": {"name": "node-1", "resourceVersion": str(version)}})


def evicted(event: BaseCloudEvent, *pods: str, of: Reference = FIRST) -> Replies:
    data = {"evicted": [{"uid": pod} for pod in pods], "podsVersion": data_of(event).get("podsVersion") or "1"}
    return [events.event(events.PODS_EVICTED, "evict", of, "node-1", cause=event, data=data)]


class Gated:
    """A step whose passes each wait until the test sets their outcome."""

    def __init__(self, looking: Looking | None = None) -> None:
        rule = Looks(looking or LookingAtPods())
        self.function = Function("evict", self._step, (), (), fail=failed, looks=rule)
        self.seen: list[BaseCloudEvent] = []
        self._began = threading.Semaphore(0)
        self._outcomes: list[Future[Callable[[BaseCloudEvent], Replies]]] = []
        self._threads = ThreadPoolExecutor(8)

    def _step(self, event: BaseCloudEvent, _cluster: Cluster) -> Replies:
        outcome: Future[Callable[[BaseCloudEvent], Replies]] = Future()
        self.seen.append(event)
        self._outcomes.append(outcome)
        self._began.release()
        return outcome.result(PATIENCE)(event)

    def post(self, event: BaseCloudEvent) -> Future[Replies]:
        return self._threads.submit(invoke, self.function, event, NONE)

    def await_look(self) -> None:
        assert self._began.acquire(timeout=PATIENCE)

    def wake(self, _answer: Future[Replies]) -> None:
        """Release a waiting `await_look` when a response arrives without a pass."""
        self._began.release()

    def to_second_look(self, outcome: Callable[[BaseCloudEvent], Replies]) -> Future[Replies]:
        """Post a hint, and a second one during its pass, and wait until the second pass starts.

        Returns the response to the first hint.
        """
        answer = self.post(hint())
        self.await_look()
        self.post(hint(1)).result(PATIENCE)
        self.end_look(outcome)
        self.await_look()
        return answer

    def end_look(self, outcome: Callable[[BaseCloudEvent], Replies], number: int = -1) -> None:
        self._outcomes[number].set_result(outcome)


@pytest.fixture
def gated() -> Gated:
    """Return a step whose passes the test controls."""
    return Gated()


def raising(error: Exception) -> Callable[[BaseCloudEvent], Replies]:
    def outcome(_event: BaseCloudEvent) -> Replies:
        raise error

    return outcome


def uids(reply: BaseCloudEvent) -> list[str]:
    return [pod["uid"] for pod in data_of(reply)["evicted"]]


def more(replies: Replies) -> bool:
    return bool(replies[0].get_extension("more"))


def test_only_functions_that_look_absorb() -> None:
    """Check that a function coalesces its events only if they are mere hints.

    Events of `status`, `record` and `restore` carry facts, and `begin`, `cordon` and `taint` act once.
    """
    looking = {name for name, function in FUNCTIONS.items() if function.looks}
    opted = {"resync-runs", "migrate", "protect", "label-cpu"}
    assert looking == {"evict", "guard", "resync", "renew-certificates", *opted}


def test_hints_during_a_look_make_one_more(gated: Gated) -> None:
    """Check that hints during a pass are answered at once and lead to a single further pass.

    That pass gets the newest version of each kind that the hints contain.
    """
    answer = gated.post(hint())
    gated.await_look()
    absorbed = [
        gated.post(hint(1, podsVersion="9", budgetsVersion="30")),
        gated.post(hint(2, podsVersion="12", budgetsVersion="8")),
        gated.post(hint(3)),
    ]
    assert [reply.result(PATIENCE) for reply in absorbed] == [[], [], []]

    gated.end_look(lambda event: evicted(event, "a", "b"))
    gated.await_look()
    gated.end_look(lambda event: evicted(event, "c"))

    (reply,) = answer.result(PATIENCE)
    assert uids(reply) == ["a", "b", "c"]
    assert not more([reply])
    assert reply.get_extension("cause") == gated.seen[0].get_id()
    seen = data_of(gated.seen[1])
    assert (seen["podsVersion"], seen["budgetsVersion"]) == ("12", "30")
    assert len(gated.seen) == 2


def test_a_hint_during_the_second_look_is_told_by_the_answer(gated: Gated) -> None:
    """Check that the reply requests a further pass for a hint during the second pass.

    A third pass would delay the reply.
    """
    answer = gated.to_second_look(lambda event: evicted(event, "a"))
    assert gated.post(hint(2)).result(PATIENCE) == []

    gated.end_look(lambda event: evicted(event, "b"))

    assert more(answer.result(PATIENCE))
    assert len(gated.seen) == 2
    again = gated.post(hint(3))  # the key is free again
    gated.await_look()
    gated.end_look(evicted)
    assert not more(again.result(PATIENCE))


def test_an_event_that_is_delivered_again_amid_its_look_is_not_absorbed(gated: Gated) -> None:
    """Check that an event redelivered during its own pass raises `Retry`.

    The redelivered event does not receive the first reply, which may contain the next step. After the end of the pass,
    it causes another one.
    """
    event = hint()
    answer = gated.post(event)
    gated.await_look()

    with pytest.raises(Retry, match="its own look is under way"):
        gated.post(event).result(PATIENCE)

    gated.end_look(lambda event: evicted(event, "a"))
    assert uids(answer.result(PATIENCE)[0]) == ["a"]
    assert is_looked_at(gated, event)


def gone(number: int, version: str, of: Reference = FIRST) -> BaseCloudEvent:
    return events.event(events.PODS_GONE, "test", of, "node-1", seed=str(number), data={"podsVersion": version})


def is_looked_at(gated: Gated, event: BaseCloudEvent, outcome: Callable[[BaseCloudEvent], Replies] = evicted) -> bool:
    """Return whether the event causes a pass; `outcome` is the outcome of that pass."""
    before, answer = len(gated.seen), gated.post(event)
    answer.add_done_callback(gated.wake)
    gated.await_look()  # also released by a response
    if len(gated.seen) == before:
        assert answer.result(PATIENCE) == []
        return False
    gated.end_look(outcome)
    gated.await_look()  # released by the response
    return True


def test_a_hint_that_the_last_look_has_seen_makes_no_other(gated: Gated) -> None:
    """Check that a hint about a state that the last pass has seen causes no pass.

    A broker that keeps order delivers such hints after the pass. A newer hint, or one about another object, causes a
    pass.
    """
    assert is_looked_at(gated, gone(1, "12"))

    assert not is_looked_at(gated, gone(2, "9"))
    assert not is_looked_at(gated, gone(3, "12"))
    assert is_looked_at(gated, gone(4, "9", OTHER), lambda event: evicted(event, of=OTHER))
    assert is_looked_at(gated, gone(5, "13"))
    assert not is_looked_at(gated, gone(6, "13"))


def test_an_event_that_comes_again_is_looked_at_again(gated: Gated) -> None:
    """Check that a redelivered event causes another pass, because its reply was lost with what the pass found."""
    assert is_looked_at(gated, gone(1, "12"))
    assert is_looked_at(gated, gone(1, "12"))


def test_what_says_more_than_which_pods_there_are_is_always_looked_at(gated: Gated) -> None:
    """Check that a hint with a version that the last pass did not read causes a pass.

    That pass read no budgets. A batch event that requests the next batch always causes a pass.
    """
    assert is_looked_at(gated, gone(1, "12"))

    assert is_looked_at(gated, hint(2, podsVersion="9", budgetsVersion="9"))
    assert is_looked_at(gated, hint(2, podsVersion="9", budgetsVersion="9"))
    assert is_looked_at(gated, evicted(hint(3, podsVersion="9"))[0])


def with_budgets(version: str) -> Callable[[BaseCloudEvent], Replies]:
    """Return the outcome of a pass that has seen the budgets in this version."""
    return lambda event: [events.with_data(reply, {"budgetsVersion": version}) for reply in evicted(event, "a")]


def opened(number: int, pods: str, budgets: str) -> BaseCloudEvent:
    if not pods:
        return hint(number, budgetsVersion=budgets)
    return hint(number, podsVersion=pods, budgetsVersion=budgets)


def test_an_opening_that_the_last_look_has_seen_makes_no_other(gated: Gated) -> None:
    """Rule 8: A `budget.opened` whose pods and budgets the last pass has seen causes no pass; a newer one does.

    It is often emitted at the same moment as a `pods.gone`.
    """
    assert is_looked_at(gated, gone(1, "12"), with_budgets("30"))

    assert not is_looked_at(gated, opened(2, "12", "30"))
    assert not is_looked_at(gated, opened(3, "9", "28"))
    assert is_looked_at(gated, opened(4, "12", "31"), with_budgets("31"))
    assert is_looked_at(gated, opened(5, "13", "31"), with_budgets("31"))


def test_an_opening_that_is_told_again_is_looked_at(gated: Gated) -> None:
    """Rule 8: A repeated `budget.opened`, which has no version of pods, always causes a pass.

    It is repeated only because no pass has acted on it, whatever the last pass has seen.
    """
    assert is_looked_at(gated, gone(1, "12"), with_budgets("30"))

    assert is_looked_at(gated, opened(2, "", "30"), with_budgets("30"))


@pytest.mark.parametrize("outcome", [Retry("busy"), Failed("forbidden"), None], ids=["retry", "failed", "nothing"])
def test_a_look_that_has_seen_nothing_is_no_reason(gated: Gated, outcome: Exception | None) -> None:
    """Check that a failed pass, or one without replies, does not count as having seen a state.

    A pass has no replies if the maintenance is not active.
    """
    assert is_looked_at(gated, gone(1, "12"), raising(outcome) if outcome else lambda _: [])
    assert is_looked_at(gated, gone(2, "9"))


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the number of remembered passes to one."""
    monkeypatch.setattr(pass_queue, "KEPT", 1)


@pytest.mark.usefixtures("forgetful")
def test_the_memory_of_looks_is_bounded(gated: Gated) -> None:
    """Check that the queue forgets the oldest pass beyond the limit, which only costs another pass."""
    assert is_looked_at(gated, gone(1, "12"))
    assert is_looked_at(gated, gone(2, "12", OTHER), lambda event: evicted(event, of=OTHER))

    assert not is_looked_at(gated, gone(3, "12", OTHER))
    assert is_looked_at(gated, gone(4, "12"))


@pytest.mark.parametrize("error", [Retry("busy"), Failed("forbidden")], ids=["retry", "failed"])
def test_a_second_look_that_fails_loses_nothing(gated: Gated, error: Exception) -> None:
    """Check that the reply contains the first pass's evictions and requests another pass if the second pass fails."""
    answer = gated.to_second_look(lambda event: evicted(event, "a"))

    gated.end_look(raising(error))

    (reply,) = answer.result(PATIENCE)
    assert reply.get_type() == events.PODS_EVICTED
    assert uids(reply) == ["a"]
    assert more([reply])


def test_a_first_look_that_fails_is_made_again_by_redelivery(gated: Gated) -> None:
    """Check that the redelivered event repeats a failed first pass, which also covers the coalesced hints."""
    answer = gated.post(hint())
    gated.await_look()
    gated.post(hint(1)).result(PATIENCE)
    gated.end_look(raising(Retry("no answer")))
    with pytest.raises(Retry, match="no answer"):
        answer.result(PATIENCE)

    again = gated.post(hint())
    gated.await_look()
    gated.end_look(lambda event: evicted(event, "a"))

    assert uids(again.result(PATIENCE)[0]) == ["a"]


def test_a_first_look_that_can_never_work_is_followed_by_the_one_for_the_hint(gated: Gated) -> None:
    """Check that a coalesced hint gets its pass although the first pass ends with `Failed`.

    `Failed` leads to a reply, so the broker does not redeliver the event.
    """
    answer = gated.to_second_look(raising(Failed("forbidden")))
    gated.end_look(lambda event: evicted(event, "a"))

    (reply,) = answer.result(PATIENCE)
    assert (reply.get_type(), uids(reply)) == (events.PODS_EVICTED, ["a"])


def test_an_answer_that_cannot_ask_for_more_is_looked_for_again(gated: Gated) -> None:
    """Check that a third pass runs for a hint during the second pass, if the reply cannot request another pass.

    Here the first two passes have no replies, because the maintenance has not begun. The hint reports that it has
    begun.
    """
    answer = gated.post(hint())
    for number in (1, 2):
        gated.await_look()
        gated.post(hint(number)).result(PATIENCE)
        gated.end_look(lambda _event: [])
    gated.await_look()
    gated.end_look(lambda event: evicted(event, "a"))

    assert uids(answer.result(PATIENCE)[0]) == ["a"]


def test_what_rests_since_the_first_look_is_told_with_the_second(gated: Gated) -> None:
    """Check that the reply keeps a pod that the first pass put in backoff because a policy rejected its eviction.

    The second pass did not try that pod. For pods blocked by a budget, the second pass has newer results.
    """
    resting = {"uid": "a", "reason": "Error", "message": "a policy says no", "retryAfter": "2026-01-02T03:04:05Z"}
    blocked = {"uid": "b", "reason": "DisruptionBudget", "message": "budget"}
    answer = gated.post(hint())
    gated.await_look()
    gated.post(hint(1)).result(PATIENCE)
    data = {"blocked": [resting, blocked], "error": "two reasons"}
    gated.end_look(lambda event: [events.event(events.PODS_EVICTED, "evict", FIRST, "n", cause=event, data=data)])
    gated.await_look()
    gated.end_look(lambda event: evicted(event, "b"))

    (reply,) = answer.result(PATIENCE)
    assert data_of(reply)["blocked"] == [resting]
    assert data_of(reply)["error"] == "a policy says no"


def test_a_third_look_that_fails_does_not_hide_what_was_evicted(gated: Gated) -> None:
    """Check that a failed third pass does not lose the evictions of the first one.

    The second pass found the node drained. The reply is that of the first pass, and requests another pass.
    """
    answer = gated.to_second_look(lambda event: evicted(event, "a"))
    gated.post(hint(2)).result(PATIENCE)
    gated.end_look(lambda event: [events.event(events.NODE_DRAINED, "evict", FIRST, "node-1", cause=event)])
    gated.await_look()
    gated.end_look(raising(Retry("busy")))

    (reply,) = answer.result(PATIENCE)
    assert (uids(reply), more([reply])) == (["a"], True)


@pytest.mark.parametrize("error", [Retry("no time"), BadEvent("a hint that nobody can read")])
def test_what_a_look_found_is_told_though_the_next_one_fails(error: Exception) -> None:
    """Rule 11: The changes of a pass are in the reply to the redelivered event if the next pass failed.

    `guard` changes the node, so a repeated pass would have nothing to report.
    """
    gated = Gated(guard.LOOKING)
    first, second = node_hint(1), node_hint(2)
    answer = gated.post(first)
    gated.await_look()
    gated.post(second).result(PATIENCE)
    gated.end_look(lambda event: evicted(event, "a"))
    gated.await_look()
    gated.end_look(raising(error))
    with pytest.raises(Retry):
        answer.result(PATIENCE)

    again = gated.post(first)
    gated.await_look()
    gated.end_look(lambda event: evicted(event, "b", of=OTHER))

    assert [uids(reply) for reply in again.result(PATIENCE)] == [["a"], ["b"]]


def test_that_a_node_was_drained_is_told_by_no_later_look(gated: Gated) -> None:
    """Check that a later pass does not report `node.drained` of an earlier pass whose request failed.

    That result may be outdated; the repeated pass reports the current state.
    """
    answer = gated.to_second_look(
        lambda event: [events.event(events.NODE_DRAINED, "evict", FIRST, "node-1", cause=event)]
    )
    gated.end_look(raising(Retry("busy")))
    with pytest.raises(Retry):
        answer.result(PATIENCE)

    again = gated.post(hint())
    gated.await_look()
    gated.end_look(lambda _event: [])

    assert again.result(PATIENCE) == []


def test_hints_without_end_are_not_absorbed_for_ever() -> None:
    """Rule 11: A request makes a limited number of passes, and a hint during the last one raises `Retry`.

    The reply of these passes cannot request another pass. The broker redelivers the hint.
    """
    gated = Gated(guard.LOOKING)
    hints = [node_hint(number) for number in range(pass_queue.MOST_LOOKS + 1)]
    answer = gated.post(hints[0])
    for number in range(1, pass_queue.MOST_LOOKS):
        gated.await_look()
        gated.post(hints[number]).result(PATIENCE)
        gated.end_look(lambda _event: [])
    gated.await_look()

    with pytest.raises(Retry):
        gated.post(hints[-1]).result(PATIENCE)
    gated.end_look(lambda event: evicted(event, "a"))

    assert uids(answer.result(PATIENCE)[0]) == ["a"]
    again = gated.post(hints[-1])
    gated.await_look()
    gated.end_look(lambda event: evicted(event, "b"))
    assert uids(again.result(PATIENCE)[0]) == ["b"]


def test_of_several_nodes_the_newest_is_looked_at() -> None:
    """Check that the newest of several coalesced nodes is used.

    Hints arrive out of order, and an older one may show the node before it was uncordoned.
    """
    nodes = [node_updated({"metadata": {"name": "node-1", "resourceVersion": version}}) for version in ("8", "11", "9")]

    assert guard.LOOKING.newest(nodes) is nodes[1]
    assert resync.LOOKING.newest([tick(), last := tick()]) is last


def test_drained_in_the_second_look_names_what_the_first_evicted(gated: Gated) -> None:
    answer = gated.to_second_look(lambda event: evicted(event, "a"))
    gated.end_look(lambda event: [events.event(events.NODE_DRAINED, "evict", FIRST, "node-1", cause=event)])

    (reply,) = answer.result(PATIENCE)
    assert (reply.get_type(), uids(reply)) == (events.NODE_DRAINED, ["a"])


def test_looks_at_one_node_follow_each_other(gated: Gated) -> None:
    """Check that a hint of another maintenance for the same node is not coalesced and waits for the current pass."""
    first = gated.post(hint())
    gated.await_look()
    other = gated.post(hint(of=OTHER))
    absorbed = gated.post(hint(1))
    assert absorbed.result(PATIENCE) == []
    gated.end_look(evicted)
    gated.await_look()
    assert len(gated.seen) == 2
    gated.end_look(evicted)
    assert first.result(PATIENCE)

    gated.await_look()
    gated.end_look(lambda event: evicted(event, "theirs", of=OTHER))

    assert uids(other.result(PATIENCE)[0]) == ["theirs"]
    assert data_of(gated.seen[2])["maintenance"]["uid"] == OTHER.uid


@pytest.mark.parametrize("dry_run", [True, False], ids=["dry-run", "kept"])
def test_replays_neither_absorb_nor_are_absorbed(gated: Gated, dry_run: bool) -> None:
    """Check that a replay coalesces no hints and is not coalesced.

    The client that replays an event needs that event's own replies, and other events must not wait for a replay.
    """
    happening = gated.post(hint())
    gated.await_look()
    replay = gated.post(replay_extensions.marked(hint(1), "replay-1", dry_run=dry_run))
    gated.await_look()
    gated.end_look(lambda event: evicted(event, "replayed"))
    assert uids(replay.result(PATIENCE)[0]) == ["replayed"]

    gated._outcomes[0].set_result(lambda event: evicted(event, "happened"))

    assert uids(happening.result(PATIENCE)[0]) == ["happened"]
    assert len(gated.seen) == 2


def test_no_hint_is_lost_however_they_come() -> None:
    """Check with 1000 concurrent hints that a pass starts after each of them, or a reply requests another pass."""
    changes, looked = [0], [0]
    lock = threading.Lock()

    def step(event: BaseCloudEvent, _cluster: Cluster) -> Replies:
        with lock:
            looked[0] = changes[0]
        return evicted(event)

    function = Function("evict", step, (), (), fail=failed, looks=Looks(LookingAtPods()))

    def change(number: int) -> Replies:
        with lock:
            changes[0] += 1
        return invoke(function, hint(number), NONE)

    with ThreadPoolExecutor(8) as threads:
        for first in range(0, 1000, 8):
            answers = list(threads.map(change, range(first, first + 8)))
            assert looked[0] == changes[0] or any(more(replies) for replies in answers if replies)
