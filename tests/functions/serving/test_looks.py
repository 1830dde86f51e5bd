"""One look at a time: what is absorbed, what is looked at again, and that no hint is lost between (design rule 8)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import cast

import pytest
from cloudevents.core.base import BaseCloudEvent

from eventing import events, marks
from eventing.events import Reference
from eventing.wire import BadEvent
from functions.app import FUNCTIONS
from functions.data import data_of
from functions.failures import Failed, Retry
from functions.hints import Looking, Replies
from functions.maintenance import guard, resync
from functions.maintenance.batches import LookingAtPods
from functions.maintenance.subject import failed
from functions.serving import looks
from functions.serving.function import Function, invoke
from functions.serving.looks import Looks
from kube.door.sync_client import Cluster
from tests.functions.hints import node_updated, tick

PATIENCE = 30.0
NONE = cast("Cluster", None)
"""These steps ask no cluster."""
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
    """A step whose every look waits for the test, which says what comes of it."""

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
        """What is awaited is there: a look, or an answer without one."""
        self._began.release()

    def to_second_look(self, outcome: Callable[[BaseCloudEvent], Replies]) -> Future[Replies]:
        """A hint is looked at, and during that look another one comes; returns the answer to the first."""
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
    """Give a step that the test holds in its hand."""
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
    """The events of `status`, `record` and `restore` carry facts; `begin`, `cordon` and `taint` act once."""
    looking = {name for name, function in FUNCTIONS.items() if function.looks}
    opted = {"resync-runs", "migrate", "protect", "label-cpu"}
    assert looking == {"evict", "guard", "resync", "renew-certificates", *opted}


def test_hints_during_a_look_make_one_more(gated: Gated) -> None:
    """Three hints: answered at once, and looked after together, in a state as new as the newest of each kind."""
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
    """A third look would keep the answer waiting: the answer asks for it."""
    answer = gated.to_second_look(lambda event: evicted(event, "a"))
    assert gated.post(hint(2)).result(PATIENCE) == []

    gated.end_look(lambda event: evicted(event, "b"))

    assert more(answer.result(PATIENCE))
    assert len(gated.seen) == 2
    again = gated.post(hint(3))  # the subject is free
    gated.await_look()
    gated.end_look(evicted)
    assert not more(again.result(PATIENCE))


def test_an_event_that_is_delivered_again_amid_its_look_is_not_absorbed(gated: Gated) -> None:
    """Who delivers it again does not get the first answer, which may hold the next step; later it does."""
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
    """Whether a look follows; in: what comes of it."""
    before, answer = len(gated.seen), gated.post(event)
    answer.add_done_callback(gated.wake)
    gated.await_look()  # or the answer
    if len(gated.seen) == before:
        assert answer.result(PATIENCE) == []
        return False
    gated.end_look(outcome)
    gated.await_look()  # the answer
    return True


def test_a_hint_that_the_last_look_has_seen_makes_no_other(gated: Gated) -> None:
    """A broker that keeps order brings it behind the look; what is newer, or about another object, is looked at."""
    assert is_looked_at(gated, gone(1, "12"))

    assert not is_looked_at(gated, gone(2, "9"))
    assert not is_looked_at(gated, gone(3, "12"))
    assert is_looked_at(gated, gone(4, "9", OTHER), lambda event: evicted(event, of=OTHER))
    assert is_looked_at(gated, gone(5, "13"))
    assert not is_looked_at(gated, gone(6, "13"))


def test_an_event_that_comes_again_is_looked_at_again(gated: Gated) -> None:
    """Its answer was lost, and with it what the look has seen."""
    assert is_looked_at(gated, gone(1, "12"))
    assert is_looked_at(gated, gone(1, "12"))


def test_what_says_more_than_which_pods_there_are_is_always_looked_at(gated: Gated) -> None:
    """Of the budgets the look has seen nothing; a batch that asks for the next one is no state."""
    assert is_looked_at(gated, gone(1, "12"))

    assert is_looked_at(gated, hint(2, podsVersion="9", budgetsVersion="9"))
    assert is_looked_at(gated, hint(2, podsVersion="9", budgetsVersion="9"))
    assert is_looked_at(gated, evicted(hint(3, podsVersion="9"))[0])


def with_budgets(version: str) -> Callable[[BaseCloudEvent], Replies]:
    """A look that has seen the budgets in that version."""
    return lambda event: [events.with_data(reply, {"budgetsVersion": version}) for reply in evicted(event, "a")]


def opened(number: int, pods: str, budgets: str) -> BaseCloudEvent:
    if not pods:
        return hint(number, budgetsVersion=budgets)
    return hint(number, podsVersion=pods, budgetsVersion=budgets)


def test_an_opening_that_the_last_look_has_seen_makes_no_other(gated: Gated) -> None:
    """It is often of the same moment as a `pods.gone`; newer in pods or budgets, it is looked at (rule 8)."""
    assert is_looked_at(gated, gone(1, "12"), with_budgets("30"))

    assert not is_looked_at(gated, opened(2, "12", "30"))
    assert not is_looked_at(gated, opened(3, "9", "28"))
    assert is_looked_at(gated, opened(4, "12", "31"), with_budgets("31"))
    assert is_looked_at(gated, opened(5, "13", "31"), with_budgets("31"))


def test_an_opening_that_is_told_again_is_looked_at(gated: Gated) -> None:
    """Rule 8: nobody has acted on it, whatever was seen; it names no pods."""
    assert is_looked_at(gated, gone(1, "12"), with_budgets("30"))

    assert is_looked_at(gated, opened(2, "", "30"), with_budgets("30"))


@pytest.mark.parametrize("outcome", [Retry("busy"), Failed("forbidden"), None], ids=["retry", "failed", "nothing"])
def test_a_look_that_has_seen_nothing_is_no_reason(gated: Gated, outcome: Exception | None) -> None:
    """It failed, or the maintenance was not active."""
    assert is_looked_at(gated, gone(1, "12"), raising(outcome) if outcome else lambda _: [])
    assert is_looked_at(gated, gone(2, "9"))


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have one look known."""
    monkeypatch.setattr(looks, "KEPT", 1)


@pytest.mark.usefixtures("forgetful")
def test_the_memory_of_looks_is_bounded(gated: Gated) -> None:
    """The oldest is forgotten, which costs a look."""
    assert is_looked_at(gated, gone(1, "12"))
    assert is_looked_at(gated, gone(2, "12", OTHER), lambda event: evicted(event, of=OTHER))

    assert not is_looked_at(gated, gone(3, "12", OTHER))
    assert is_looked_at(gated, gone(4, "12"))


@pytest.mark.parametrize("error", [Retry("busy"), Failed("forbidden")], ids=["retry", "failed"])
def test_a_second_look_that_fails_loses_nothing(gated: Gated, error: Exception) -> None:
    """What the first one evicted is told, and that there is more to see."""
    answer = gated.to_second_look(lambda event: evicted(event, "a"))

    gated.end_look(raising(error))

    (reply,) = answer.result(PATIENCE)
    assert reply.get_type() == events.PODS_EVICTED
    assert uids(reply) == ["a"]
    assert more([reply])


def test_a_first_look_that_fails_is_made_again_by_redelivery(gated: Gated) -> None:
    """Its own event comes again, and the look at that one is newer than what was absorbed."""
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
    """`Failed` is answered and not redelivered, so that the hint must be looked after."""
    answer = gated.to_second_look(raising(Failed("forbidden")))
    gated.end_look(lambda event: evicted(event, "a"))

    (reply,) = answer.result(PATIENCE)
    assert (reply.get_type(), uids(reply)) == (events.PODS_EVICTED, ["a"])


def test_an_answer_that_cannot_ask_for_more_is_looked_for_again(gated: Gated) -> None:
    """Twice nothing to do, as the maintenance had not begun; the hint that says that it has comes during the second."""
    answer = gated.post(hint())
    for number in (1, 2):
        gated.await_look()
        gated.post(hint(number)).result(PATIENCE)
        gated.end_look(lambda _event: [])
    gated.await_look()
    gated.end_look(lambda event: evicted(event, "a"))

    assert uids(answer.result(PATIENCE)[0]) == ["a"]


def test_what_rests_since_the_first_look_is_told_with_the_second(gated: Gated) -> None:
    """The second look did not ask about the pod that a policy has refused; what a budget blocks, it knows better."""
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
    """Evicted, drained, and no answer to the look for one more hint: the first answer is told, and asks for a look."""
    answer = gated.to_second_look(lambda event: evicted(event, "a"))
    gated.post(hint(2)).result(PATIENCE)
    gated.end_look(lambda event: [events.event(events.NODE_DRAINED, "evict", FIRST, "node-1", cause=event)])
    gated.await_look()
    gated.end_look(raising(Retry("busy")))

    (reply,) = answer.result(PATIENCE)
    assert (uids(reply), more([reply])) == (["a"], True)


@pytest.mark.parametrize("error", [Retry("no time"), BadEvent("a hint that nobody can read")])
def test_what_a_look_found_is_told_though_the_next_one_fails(error: Exception) -> None:
    """`guard` has written that it closed the node: made again, its look would find nothing to say (rule 11)."""
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
    """It is old by then: the one that comes again says what is."""
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
    """Rule 11: a look that cannot say that there is more ends all the same, and the hint behind it comes once more."""
    gated = Gated(guard.LOOKING)
    hints = [node_hint(number) for number in range(looks.MOST_LOOKS + 1)]
    answer = gated.post(hints[0])
    for number in range(1, looks.MOST_LOOKS):
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
    """Hints come out of order: an older one, where all was well, must not hide that the cordon is gone."""
    nodes = [node_updated({"metadata": {"name": "node-1", "resourceVersion": version}}) for version in ("8", "11", "9")]

    assert guard.LOOKING.newest(nodes) is nodes[1]
    assert resync.LOOKING.newest([tick(), last := tick()]) is last


def test_drained_in_the_second_look_names_what_the_first_evicted(gated: Gated) -> None:
    answer = gated.to_second_look(lambda event: evicted(event, "a"))
    gated.end_look(lambda event: [events.event(events.NODE_DRAINED, "evict", FIRST, "node-1", cause=event)])

    (reply,) = answer.result(PATIENCE)
    assert (reply.get_type(), uids(reply)) == (events.NODE_DRAINED, ["a"])


def test_looks_at_one_node_follow_each_other(gated: Gated) -> None:
    """Another maintenance's hint is not absorbed, and waits for its turn."""
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
    """Who replays wants this event's own answer; and what happens waits for no replay."""
    happening = gated.post(hint())
    gated.await_look()
    replay = gated.post(marks.marked(hint(1), "replay-1", dry_run=dry_run))
    gated.await_look()
    gated.end_look(lambda event: evicted(event, "replayed"))
    assert uids(replay.result(PATIENCE)[0]) == ["replayed"]

    gated._outcomes[0].set_result(lambda event: evicted(event, "happened"))

    assert uids(happening.result(PATIENCE)[0]) == ["happened"]
    assert len(gated.seen) == 2


def test_no_hint_is_lost_however_they_come() -> None:
    """Eight threads, a thousand hints: a look began after each of them, or an answer says that there is more."""
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
