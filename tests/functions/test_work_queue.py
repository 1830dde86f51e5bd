"""Tests for the work queue, which runs one pass per node at a time and coalesces hints (design rule 8)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import cast

import pytest
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.v1.event import CloudEvent

from eventing import events, extensions
from eventing.events import ObjectReference
from functions import work_queue
from functions.app import FUNCTIONS
from functions.event_data import require_data
from functions.failures import Busy, Failed, Retry
from functions.maintenance.event_objects import build_step_failed
from functions.maintenance.eviction_reports import PodHintPolicy
from functions.serving.function_runner import FunctionRunner
from functions.steps import Function, Step
from functions.work_queue import HintPolicy, Replies
from kube.client.deadline import set_deadline
from kube.client.sync_client import SyncClient
from tests.functions.event_builders import build_node_updated_event, build_tick

TIMEOUT_SECONDS = 30.0
NO_CLIENT = cast("SyncClient", None)
"""Placeholder for the API client; the steps in these tests send no API requests."""
FIRST_MAINTENANCE = ObjectReference("nodemaintenance.medik8s.io/v1beta1", "first", "uid-1")
OTHER_MAINTENANCE = ObjectReference("nodemaintenance.medik8s.io/v1beta1", "other", "uid-2")


def build_hint(number: int = 0, maintenance: ObjectReference = FIRST_MAINTENANCE, **data: str) -> BaseCloudEvent:
    return events.build_event(events.BUDGET_OPENED, "test", maintenance, "node-1", seed=f"{number}{data}", data=data)


def build_node_hint(version: int) -> BaseCloudEvent:
    return build_node_updated_event({"metadata": {"name": "node-1", "resourceVersion": str(version)}})


def build_evicted_reply(event: BaseCloudEvent, *pods: str, maintenance: ObjectReference = FIRST_MAINTENANCE) -> Replies:
    data = {"evicted": [{"uid": pod} for pod in pods], "podsVersion": require_data(event).get("podsVersion") or "1"}
    return [events.build_event(events.PODS_EVICTED, "evict", maintenance, "node-1", cause=event, data=data)]


def build_runner(step: Step, policy: HintPolicy | None = None) -> FunctionRunner:
    return FunctionRunner(
        Function("evict", step, (), (), on_failure=build_step_failed, coalescing=policy or PodHintPolicy())
    )


class ControlledStep:
    """A step, each of whose passes waits until the test sets the pass's outcome."""

    def __init__(self, policy: HintPolicy | None = None) -> None:
        self.runner = build_runner(self._step, policy)
        self.events_seen: list[BaseCloudEvent] = []
        self._began = threading.Semaphore(0)
        self._outcomes: list[Future[Callable[[BaseCloudEvent], Replies]]] = []
        self._threads = ThreadPoolExecutor(8)

    def _step(self, event: BaseCloudEvent, _client: SyncClient) -> Replies:
        outcome: Future[Callable[[BaseCloudEvent], Replies]] = Future()
        self.events_seen.append(event)
        self._outcomes.append(outcome)
        self._began.release()
        return outcome.result(TIMEOUT_SECONDS)(event)

    def post(self, event: BaseCloudEvent) -> Future[Replies]:
        return self._threads.submit(self.runner.invoke, event, NO_CLIENT)

    def post_and_wait_for_pass(self, event: BaseCloudEvent) -> Future[Replies]:
        """Post an event, wait until its pass has begun, and return the future of its response."""
        answer = self.post(event)
        self.wait_for_pass()
        return answer

    def post_with_deadline(self, event: BaseCloudEvent, seconds: float) -> Future[Replies]:
        def invoke_with_deadline() -> Replies:
            with set_deadline(seconds):
                return self.runner.invoke(event, NO_CLIENT)

        return self._threads.submit(invoke_with_deadline)

    def post_and_wait_until_queued(self, event: BaseCloudEvent) -> Future[Replies]:
        """Post an event during a pass, wait until the event is queued, and return the future of its response."""
        answer = self.post_with_deadline(event, TIMEOUT_SECONDS)
        queue = self.runner._work_queue
        assert queue is not None
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not any(event in hints for hints in list(queue._waiting.values())):
            assert time.monotonic() < deadline, "the event is not in the queue"
            time.sleep(0.001)
        return answer

    def wait_for_pass(self) -> None:
        assert self._began.acquire(timeout=TIMEOUT_SECONDS)

    def release_wait_for_pass(self, _reply: Future[Replies]) -> None:
        """Make `wait_for_pass` return when a response arrives without a pass."""
        self._began.release()

    def finish_pass(self, outcome: Callable[[BaseCloudEvent], Replies], number: int = -1) -> None:
        self._outcomes[number].set_result(outcome)


@pytest.fixture
def controlled_step() -> ControlledStep:
    """Return a step whose passes the test controls."""
    return ControlledStep()


def build_failing_outcome(error: Exception) -> Callable[[BaseCloudEvent], Replies]:
    def outcome(_event: BaseCloudEvent) -> Replies:
        raise error

    return outcome


def list_evicted_uids(reply: BaseCloudEvent) -> list[str]:
    return [pod["uid"] for pod in require_data(reply)["evicted"]]


def test_only_functions_that_consume_hints_coalesce() -> None:
    """Check that a function coalesces its events only if they are hints.

    `status`, `record` and `restore` consume events whose data they need. `begin`, `cordon` and `taint` perform one
    action per event.
    """
    coalescing = {name for name, function in FUNCTIONS.items() if function.coalescing}
    opt_in_functions = {"resync-runs", "migrate", "protect", "label-cpu", "publish-conditions", "notify-owners"}
    assert coalescing == {"evict", "guard", "resync", "renew-certificates", *opt_in_functions}


def test_hints_during_pass_cause_one_additional_pass(controlled_step: ControlledStep) -> None:
    """Check that the last hint that arrives during a pass starts the next pass, which also handles all earlier hints.

    The earlier hints are acknowledged. The event of the next pass is the last hint, with the newest resourceVersion
    that the hints contain for each kind of object.
    """
    first = controlled_step.post_and_wait_for_pass(build_hint())
    replaced = [
        controlled_step.post_and_wait_until_queued(build_hint(1, podsVersion="9", budgetsVersion="30")),
        controlled_step.post_and_wait_until_queued(build_hint(2, podsVersion="12", budgetsVersion="8")),
    ]
    last = controlled_step.post_and_wait_until_queued(build_hint(3))
    assert [reply.result(TIMEOUT_SECONDS) for reply in replaced] == [[], []]

    controlled_step.finish_pass(lambda event: build_evicted_reply(event, "a", "b"))
    controlled_step.wait_for_pass()
    controlled_step.finish_pass(lambda event: build_evicted_reply(event, "c"))

    (first_reply,), (last_reply,) = first.result(TIMEOUT_SECONDS), last.result(TIMEOUT_SECONDS)
    assert (list_evicted_uids(first_reply), list_evicted_uids(last_reply)) == (["a", "b"], ["c"])
    second_event = controlled_step.events_seen[1]
    data = require_data(second_event)
    assert second_event.get_id() == build_hint(3).get_id()
    assert (data["podsVersion"], data["budgetsVersion"]) == ("12", "30")
    assert len(controlled_step.events_seen) == 2


def test_queued_node_tainted_event_is_not_replaced(controlled_step: ControlledStep) -> None:
    """Check that later hints do not replace a queued `node.tainted`; only that makes `evict` report a drifted node."""
    tainted = events.build_event(events.NODE_TAINTED, "taint", FIRST_MAINTENANCE, "node-1")
    first = controlled_step.post_and_wait_for_pass(build_hint())
    waiting = controlled_step.post_and_wait_until_queued(tainted)

    assert controlled_step.post(build_pods_gone_event(1, "12")).result(TIMEOUT_SECONDS) == []
    controlled_step.finish_pass(build_evicted_reply)
    controlled_step.wait_for_pass()
    controlled_step.finish_pass(build_evicted_reply)

    assert first.result(TIMEOUT_SECONDS)
    assert waiting.result(TIMEOUT_SECONDS)
    second_event = controlled_step.events_seen[1]
    assert (second_event.get_type(), require_data(second_event)["podsVersion"]) == (events.NODE_TAINTED, "12")


def test_hint_with_older_node_does_not_replace_hint_with_newer_node() -> None:
    """Check that a hint with an older Node does not replace a queued hint with a newer Node.

    Hints may arrive out of order, and an older hint may contain the node's state before it was uncordoned.
    """
    step = ControlledStep(FUNCTIONS["guard"].coalescing)
    first = step.post_and_wait_for_pass(build_node_hint(1))
    waiting = step.post_and_wait_until_queued(build_node_hint(11))

    assert step.post(build_node_hint(9)).result(TIMEOUT_SECONDS) == []
    step.finish_pass(lambda _event: [])
    step.wait_for_pass()
    step.finish_pass(build_evicted_reply)

    assert first.result(TIMEOUT_SECONDS) == []
    assert waiting.result(TIMEOUT_SECONDS)
    assert require_data(step.events_seen[1])["metadata"]["resourceVersion"] == "11"


def test_hints_without_object_do_not_stop_later_passes() -> None:
    """X-1: hints whose data contains no object, which any client may post, do not stop later passes."""
    step = ControlledStep(FUNCTIONS["resync"].coalescing)
    attributes = build_tick().get_attributes()
    malformed = [CloudEvent({**attributes, "id": f"malformed-{number}"}, "text") for number in range(3)]
    first = step.post_and_wait_for_pass(build_tick())
    replies = [step.post_and_wait_until_queued(event) for event in malformed]

    step.finish_pass(lambda _event: [])
    step.wait_for_pass()
    step.finish_pass(lambda _event: [])

    assert [reply.result(TIMEOUT_SECONDS) for reply in (first, *replies)] == [[], [], [], []]
    assert does_event_cause_pass(step, build_tick())


def test_hint_that_arrives_after_its_deadline_does_not_stop_later_passes(controlled_step: ControlledStep) -> None:
    """X-6: a hint whose deadline has passed is rejected, and later hints for the same key cause passes."""
    first = controlled_step.post_and_wait_for_pass(build_hint())
    with pytest.raises(Busy, match="the deadline is too close for a pass"):
        controlled_step.post_with_deadline(build_hint(1), 0.0).result(TIMEOUT_SECONDS)
    controlled_step.finish_pass(build_evicted_reply)

    assert first.result(TIMEOUT_SECONDS)
    assert does_event_cause_pass(controlled_step, build_hint(1))


def test_hint_about_state_read_by_pass_in_progress_causes_no_pass(controlled_step: ControlledStep) -> None:
    """Design rule 8: a hint that arrives during a pass is acknowledged if the pass has read the reported state."""
    first = controlled_step.post_and_wait_for_pass(build_pods_gone_event(1, "12"))
    waiting = controlled_step.post_and_wait_until_queued(build_pods_gone_event(2, "11"))

    controlled_step.finish_pass(build_evicted_reply)

    assert first.result(TIMEOUT_SECONDS)
    assert waiting.result(TIMEOUT_SECONDS) == []
    assert len(controlled_step.events_seen) == 1


@pytest.mark.parametrize("error", [Retry("no answer"), Failed("forbidden")], ids=["retry", "failed"])
def test_queued_hint_causes_pass_after_failed_pass(controlled_step: ControlledStep, error: Exception) -> None:
    first = controlled_step.post_and_wait_for_pass(build_hint())
    waiting = controlled_step.post_and_wait_until_queued(build_hint(1))

    controlled_step.finish_pass(build_failing_outcome(error))
    controlled_step.wait_for_pass()
    controlled_step.finish_pass(lambda event: build_evicted_reply(event, "a"))

    assert list_evicted_uids(waiting.result(TIMEOUT_SECONDS)[0]) == ["a"]
    assert first.exception(TIMEOUT_SECONDS) is (error if isinstance(error, Retry) else None)


def test_hint_without_time_for_pass_is_rejected(controlled_step: ControlledStep) -> None:
    """Design rule 3: a hint that is queued for too long raises `Busy`, so that the broker redelivers it."""
    first = controlled_step.post_and_wait_for_pass(build_hint())
    late = controlled_step.post_with_deadline(build_hint(1), work_queue.MIN_PASS_SECONDS * 1.1)

    with pytest.raises(Busy, match=r"another pass over node node-1|the deadline is too close"):
        late.result(TIMEOUT_SECONDS)

    controlled_step.finish_pass(build_evicted_reply)
    assert first.result(TIMEOUT_SECONDS)
    assert does_event_cause_pass(controlled_step, build_hint(1))


def test_duplicate_of_queued_event_is_rejected(controlled_step: ControlledStep) -> None:
    """X-2: an event that is delivered again while it is queued is not acknowledged before its pass."""
    first = controlled_step.post_and_wait_for_pass(build_hint())
    waiting = controlled_step.post_and_wait_until_queued(build_hint(1))

    with pytest.raises(Busy, match="the pass of this event is still in progress"):
        controlled_step.post(build_hint(1)).result(TIMEOUT_SECONDS)

    controlled_step.finish_pass(build_evicted_reply)
    controlled_step.wait_for_pass()
    controlled_step.finish_pass(build_evicted_reply)
    assert first.result(TIMEOUT_SECONDS)
    assert waiting.result(TIMEOUT_SECONDS)


def test_redelivery_during_pass_of_same_event_is_not_coalesced(controlled_step: ControlledStep) -> None:
    """Check that an event redelivered during its own pass raises `Retry`.

    A coalesced event gets an empty response. That response would acknowledge the redelivered event, although the reply
    of its pass may be lost. After the end of the pass, the redelivered event causes another pass.
    """
    event = build_hint()
    answer = controlled_step.post(event)
    controlled_step.wait_for_pass()

    with pytest.raises(Retry, match="the pass of this event is still in progress"):
        controlled_step.post(event).result(TIMEOUT_SECONDS)

    controlled_step.finish_pass(lambda event: build_evicted_reply(event, "a"))
    assert list_evicted_uids(answer.result(TIMEOUT_SECONDS)[0]) == ["a"]
    assert does_event_cause_pass(controlled_step, event)


def build_pods_gone_event(
    number: int, version: str, maintenance: ObjectReference = FIRST_MAINTENANCE
) -> BaseCloudEvent:
    return events.build_event(
        events.PODS_GONE, "test", maintenance, "node-1", seed=str(number), data={"podsVersion": version}
    )


def does_event_cause_pass(
    step: ControlledStep, event: BaseCloudEvent, outcome: Callable[[BaseCloudEvent], Replies] = build_evicted_reply
) -> bool:
    """Return whether the event causes a pass; `outcome` is the outcome of that pass."""
    before, answer = len(step.events_seen), step.post(event)
    answer.add_done_callback(step.release_wait_for_pass)
    step.wait_for_pass()  # This call also returns when a response arrives.
    if len(step.events_seen) == before:
        assert answer.result(TIMEOUT_SECONDS) == []
        return False
    step.finish_pass(outcome)
    step.wait_for_pass()  # This call returns when the response arrives.
    return True


def test_hint_about_state_read_by_last_pass_causes_no_pass(controlled_step: ControlledStep) -> None:
    """Check that a hint about a state that the last pass has already read causes no pass.

    An ordered broker delivers such hints after the pass. A newer hint, or a hint about another object, causes a pass.
    """
    assert does_event_cause_pass(controlled_step, build_pods_gone_event(1, "12"))

    assert not does_event_cause_pass(controlled_step, build_pods_gone_event(2, "9"))
    assert not does_event_cause_pass(controlled_step, build_pods_gone_event(3, "12"))
    assert does_event_cause_pass(
        controlled_step,
        build_pods_gone_event(4, "9", OTHER_MAINTENANCE),
        lambda event: build_evicted_reply(event, maintenance=OTHER_MAINTENANCE),
    )
    assert does_event_cause_pass(controlled_step, build_pods_gone_event(5, "13"))
    assert not does_event_cause_pass(controlled_step, build_pods_gone_event(6, "13"))


def test_redelivered_event_causes_another_pass(controlled_step: ControlledStep) -> None:
    """Check that a redelivered event causes another pass, because the reply with the first pass's results was lost."""
    assert does_event_cause_pass(controlled_step, build_pods_gone_event(1, "12"))
    assert does_event_cause_pass(controlled_step, build_pods_gone_event(1, "12"))


def test_hint_about_object_kind_that_last_pass_did_not_read_causes_pass(controlled_step: ControlledStep) -> None:
    """Check that a hint causes a pass if the last pass did not read the kind of object in the hint.

    The last pass in this test read no PodDisruptionBudgets. An event that requests another batch always causes a pass.
    """
    assert does_event_cause_pass(controlled_step, build_pods_gone_event(1, "12"))

    assert does_event_cause_pass(controlled_step, build_hint(2, podsVersion="9", budgetsVersion="9"))
    assert does_event_cause_pass(controlled_step, build_hint(2, podsVersion="9", budgetsVersion="9"))
    assert does_event_cause_pass(controlled_step, build_evicted_reply(build_hint(3, podsVersion="9"))[0])


def build_outcome_with_budgets(version: str) -> Callable[[BaseCloudEvent], Replies]:
    """Return the outcome of a pass that has read the PDBs at this resourceVersion."""
    return lambda event: [
        events.copy_with_added_data(reply, {"budgetsVersion": version}) for reply in build_evicted_reply(event, "a")
    ]


def build_budget_opened_event(number: int, pods_version: str, budgets_version: str) -> BaseCloudEvent:
    if not pods_version:
        return build_hint(number, budgetsVersion=budgets_version)
    return build_hint(number, podsVersion=pods_version, budgetsVersion=budgets_version)


def test_budget_opened_about_state_read_by_last_pass_causes_no_pass(controlled_step: ControlledStep) -> None:
    """Design rule 8: A `budget.opened` event causes no pass if the last pass has read the same pods and PDBs.

    PodSource often emits `budget.opened` at the same time as `pods.gone`. A newer `budget.opened` causes a pass.
    """
    assert does_event_cause_pass(controlled_step, build_pods_gone_event(1, "12"), build_outcome_with_budgets("30"))

    assert not does_event_cause_pass(controlled_step, build_budget_opened_event(2, "12", "30"))
    assert not does_event_cause_pass(controlled_step, build_budget_opened_event(3, "9", "28"))
    assert does_event_cause_pass(
        controlled_step, build_budget_opened_event(4, "12", "31"), build_outcome_with_budgets("31")
    )
    assert does_event_cause_pass(
        controlled_step, build_budget_opened_event(5, "13", "31"), build_outcome_with_budgets("31")
    )


def test_repeated_budget_opened_causes_pass(controlled_step: ControlledStep) -> None:
    """Design rule 8: A repeated `budget.opened` event, which contains no resourceVersion of pods, always causes a pass.

    PodSource repeats the event only if no pass has acted on the first one.
    """
    assert does_event_cause_pass(controlled_step, build_pods_gone_event(1, "12"), build_outcome_with_budgets("30"))

    assert does_event_cause_pass(
        controlled_step, build_budget_opened_event(2, "", "30"), build_outcome_with_budgets("30")
    )


@pytest.mark.parametrize("outcome", [Retry("busy"), Failed("forbidden"), None], ids=["retry", "failed", "nothing"])
def test_hint_causes_pass_after_pass_that_failed_or_emitted_nothing(
    controlled_step: ControlledStep, outcome: Exception | None
) -> None:
    """Check that a hint always causes a pass if the last pass failed or emitted no reply.

    A pass emits no reply if the maintenance is not active.
    """
    assert does_event_cause_pass(
        controlled_step, build_pods_gone_event(1, "12"), build_failing_outcome(outcome) if outcome else lambda _: []
    )
    assert does_event_cause_pass(controlled_step, build_pods_gone_event(2, "9"))


@pytest.fixture
def cache_of_one_completed_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the work queue's cache of completed passes to one pass."""
    monkeypatch.setattr(work_queue, "MAX_REMEMBERED_KEYS", 1)


@pytest.mark.usefixtures("cache_of_one_completed_pass")
def test_cache_of_completed_passes_is_limited(controlled_step: ControlledStep) -> None:
    """Check that the queue drops the oldest completed pass beyond the limit, which only causes an additional pass."""
    assert does_event_cause_pass(controlled_step, build_pods_gone_event(1, "12"))
    assert does_event_cause_pass(
        controlled_step,
        build_pods_gone_event(2, "12", OTHER_MAINTENANCE),
        lambda event: build_evicted_reply(event, maintenance=OTHER_MAINTENANCE),
    )

    assert not does_event_cause_pass(controlled_step, build_pods_gone_event(3, "12", OTHER_MAINTENANCE))
    assert does_event_cause_pass(controlled_step, build_pods_gone_event(4, "12"))


def test_passes_for_one_node_run_one_after_another(controlled_step: ControlledStep) -> None:
    """Check that a hint about another maintenance of the node is not coalesced, but waits for the current pass."""
    first = controlled_step.post_and_wait_for_pass(build_hint())
    other = controlled_step.post_and_wait_until_queued(build_hint(maintenance=OTHER_MAINTENANCE))

    controlled_step.finish_pass(build_evicted_reply)
    controlled_step.wait_for_pass()
    controlled_step.finish_pass(lambda event: build_evicted_reply(event, "theirs", maintenance=OTHER_MAINTENANCE))

    assert first.result(TIMEOUT_SECONDS)
    assert list_evicted_uids(other.result(TIMEOUT_SECONDS)[0]) == ["theirs"]
    assert require_data(controlled_step.events_seen[1])["maintenance"]["uid"] == OTHER_MAINTENANCE.uid


@pytest.mark.parametrize("dry_run", [True, False], ids=["dry-run", "without-dry-run"])
def test_replay_neither_coalesces_nor_is_coalesced(controlled_step: ControlledStep, dry_run: bool) -> None:
    """Check that a replay coalesces no hints and is not coalesced.

    The client that replays an event needs that event's own replies, and other events must not wait for a replay.
    """
    running_reply = controlled_step.post(build_hint())
    controlled_step.wait_for_pass()
    replay = controlled_step.post(extensions.add_replay_extensions(build_hint(1), "replay-1", dry_run=dry_run))
    controlled_step.wait_for_pass()
    controlled_step.finish_pass(lambda event: build_evicted_reply(event, "replayed"))
    assert list_evicted_uids(replay.result(TIMEOUT_SECONDS)[0]) == ["replayed"]

    controlled_step._outcomes[0].set_result(lambda event: build_evicted_reply(event, "happened"))

    assert list_evicted_uids(running_reply.result(TIMEOUT_SECONDS)[0]) == ["happened"]
    assert len(controlled_step.events_seen) == 2


def test_no_concurrent_hint_is_lost() -> None:
    """Check that a pass of the step begins after each of 1000 concurrent events."""
    changes, passes_seen = [0], [0]
    lock = threading.Lock()

    def step(event: BaseCloudEvent, _client: SyncClient) -> Replies:
        with lock:
            passes_seen[0] = changes[0]
        return build_evicted_reply(event)

    runner = build_runner(step)

    def post_change(number: int) -> Replies:
        with lock:
            changes[0] += 1
        return runner.invoke(build_hint(number), NO_CLIENT)

    with ThreadPoolExecutor(8) as threads:
        for first in range(0, 1000, 8):
            list(threads.map(post_change, range(first, first + 8)))
            assert passes_seen[0] == changes[0]
