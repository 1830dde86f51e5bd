"""Tests of the eviction limits: evictions per second, fairness between nodes, and unanswered evictions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from itertools import pairwise
from typing import Any

import pytest

from kube.client.eviction_limits import LEAST, MOST, OVERTAKEN, SLOW, Lane, Pace, Usual, Window, pause, per_second

SHORTEST, LONGEST = OVERTAKEN


def run(scenario: Coroutine[Any, Any, Any]) -> Any:
    """Run the scenario on its own event loop, and return its result."""
    return asyncio.run(scenario)


async def _order(pace: Pace, *nodes: str) -> list[str]:
    """Return the nodes in the order of their turns, which all tasks request at once."""
    order: list[str] = []

    async def one(node: str) -> None:
        assert await pace.turn(node, 10)
        order.append(node)

    await asyncio.gather(*map(one, nodes))
    return order


def test_what_is_within_a_second_goes_at_once() -> None:
    """Grant turns at once as long as tokens are left."""

    async def scenario() -> float:
        pace, started = Pace(50), asyncio.get_running_loop().time()
        await _order(pace, *["a"] * 50)
        return asyncio.get_running_loop().time() - started

    assert run(scenario()) < 0.5


def test_no_second_has_more() -> None:
    """Take at least 0.4 s for forty turns beyond the first hundred, at a hundred per second."""

    async def scenario() -> float:
        pace, started = Pace(100), asyncio.get_running_loop().time()
        await _order(pace, *["a"] * 140)
        return asyncio.get_running_loop().time() - started

    assert run(scenario()) >= 0.39


def test_nodes_take_turns() -> None:
    """Nodes with few pods do not wait for the twenty pods of another node."""

    async def scenario() -> list[str]:
        pace = Pace(50)
        pace.rest(1.0)  # all ask before the first one has its turn
        return await _order(pace, *["big"] * 20, "small", "small")

    order = run(scenario())
    assert order.index("small") <= 2
    assert [index for index, node in enumerate(order) if node == "small"][1] <= 4
    assert order.count("big") == 20


def test_a_turn_that_does_not_come_in_time_is_given_up() -> None:
    """Spend no token on a task whose time is up."""

    async def scenario() -> tuple[bool, bool]:
        pace = Pace(10)
        await _order(pace, *["a"] * 10)
        early, late = await asyncio.gather(pace.turn("a", 0.01), pace.turn("b", 5))
        return early, late

    assert run(scenario()) == (False, True)


def test_a_busy_server_is_left_in_peace() -> None:
    """Grant no turn during the backoff that the API server requested."""

    async def scenario() -> float:
        pace, loop = Pace(100), asyncio.get_running_loop()
        await _order(pace, "a")
        started = loop.time()
        pace.rest(0.3)
        await _order(pace, "a", "b")
        return loop.time() - started

    assert run(scenario()) >= 0.29


@pytest.mark.parametrize("words", ["0", "-1", "fast", "nan", "inf"])
def test_a_wrong_setting_is_named_with_the_remedy(words: str) -> None:
    with pytest.raises(ValueError, match=f"EVICTIONS_PER_SECOND={words} is no number of 1 or more; unset it for 100"):
        per_second({"EVICTIONS_PER_SECOND": words})


@pytest.mark.parametrize(("environment", "expected"), [({}, 100.0), ({"EVICTIONS_PER_SECOND": "20"}, 20.0)])
def test_the_setting(environment: dict[str, str], expected: float) -> None:
    assert per_second(environment) == expected


def usual(*seconds: float) -> Usual:
    """Return a `Usual` that has recorded these response times."""
    known = Usual()
    for each in seconds:
        known.add(each)
    return known


@pytest.mark.parametrize(
    ("usually", "unanswered", "seconds"),
    [
        pytest.param(0.0, 1, 0.12, id="one without an answer is overtaken"),
        pytest.param(0.02, 1, 0.12, id="not sooner where answers are quick"),
        pytest.param(0.3, 1, 0.45, id="later where all answers take their time"),
        pytest.param(0.0, 4, 0.12, id="so are four"),
        pytest.param(0.0, 5, 1.0, id="five sleep, and wake first"),
        pytest.param(0.4, 5, 1.0, id="five, where all are slow"),
        pytest.param(0.0, 7, 4.0, id="seven: no collision any more"),
    ],
)
def test_the_more_have_no_answer_the_longer_the_next_one_waits(usually: float, unanswered: int, seconds: float) -> None:
    """Design rule 9: the delay grows with the unanswered evictions, because each new one may conflict with them."""
    assert pause(0.12, usually, unanswered) == pytest.approx(seconds)


def test_what_is_usual_is_told_by_those_that_did_not_sleep() -> None:
    """Compute the median without the responses that include the API server's sleep, even if those are the majority."""
    assert usual(0.1, 0.7, 0.12, 0.9, 1.4, 0.8, 0.11, 0.6).seconds() == 0.11
    assert usual(*[0.4] * 16, *[0.1] * 16).seconds() == 0.1
    assert usual(3.0, 0.6).seconds() == 0.0


async def _starts(count: int, answer: float, usually: Usual | None = None) -> list[float]:
    """Return the start times of `count` evictions, each of which is answered after `answer` seconds."""
    lane, starts, tasks = Lane(usually or Usual()), [], []
    for _ in range(count):
        assert await lane.turn(time.monotonic() + 10)
        starts.append(time.monotonic())
        tasks.append(asyncio.create_task(asyncio.sleep(answer)))
        lane.put(tasks[-1])
    for task in tasks:
        task.cancel()
    return starts


def _apart(starts: list[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(starts)]


def test_an_answer_lets_the_next_one_start_at_once() -> None:
    """Start evictions one after another without a delay if the responses are quick."""
    assert sum(_apart(run(_starts(6, answer=0.01)))) < 5 * SHORTEST


def test_who_sleeps_is_overtaken_but_not_by_a_crowd() -> None:
    """Start five unanswered evictions quickly, and the sixth only after these had time to wake up."""
    *soon, last = _apart(run(_starts(6, answer=60)))

    assert len(soon) == 4
    assert all(SHORTEST <= seconds < 1 for seconds in soon)
    assert last >= 1


def test_where_all_are_slow_one_is_not_overtaken_before_its_time() -> None:
    """Delay the next eviction by the usual response time: on a slow server, an unanswered one is hardly sleeping."""
    apart = _apart(run(_starts(4, answer=0.25, usually=usual(*[0.25] * 16))))

    assert all(seconds >= 0.24 for seconds in apart)


def test_a_turn_that_does_not_come_in_time_is_none() -> None:
    """Return False at the deadline; the queue still has an unanswered eviction."""

    async def scenario() -> tuple[bool, bool]:
        lane, sleeper = Lane(Usual()), asyncio.create_task(asyncio.sleep(60))
        lane.put(sleeper)
        had = await lane.turn(time.monotonic() + SHORTEST / 2)
        held = lane.is_held
        sleeper.cancel()
        return had, held

    assert run(scenario()) == (False, True)


def test_two_nodes_share_the_lane_of_a_budget() -> None:
    """Start the evictions of two nodes under one budget one after another, like those of one node."""

    async def scenario() -> list[float]:
        lane, starts, tasks = Lane(Usual()), [], []

        async def queue() -> None:
            for _ in range(2):
                assert await lane.turn(time.monotonic() + 10)
                starts.append(time.monotonic())
                tasks.append(asyncio.create_task(asyncio.sleep(0.05)))
                lane.put(tasks[-1])

        await asyncio.gather(queue(), queue())
        return starts

    assert all(seconds >= 0.04 for seconds in _apart(run(scenario())))


def test_slow_answers_narrow_the_window_and_quick_ones_widen_it_again() -> None:
    """Keep the limit between a minimum for small API servers and the number of connections for evictions."""
    window = Window()
    for _ in range(MOST):
        window.learn(SLOW[0])
    assert window.size == LEAST

    for _ in range(4 * MOST):
        window.learn(0.1)
    assert window.size == MOST


def test_an_answer_that_waited_for_a_webhook_says_nothing_of_the_server() -> None:
    window = Window()

    window.learn(SLOW[1])

    assert window.size == MOST


async def _two_in_a_window_of_one(first: asyncio.Future[None]) -> list[bool]:
    window = Window()
    window.size = 1
    assert await window.turn("a", time.monotonic() + 1)
    window.put(asyncio.ensure_future(_until(first)))
    late = await window.turn("a", time.monotonic() + 0.05)
    waiting = asyncio.create_task(window.turn("a", time.monotonic() + 5))
    await asyncio.sleep(0)
    first.set_result(None)
    return [late, await waiting]


async def _until(done: asyncio.Future[None]) -> None:
    await done


def test_who_finds_no_place_in_time_takes_none() -> None:
    """Give a freed slot to the task that still waits, not to the one whose time was up."""

    async def scenario() -> list[bool]:
        return await _two_in_a_window_of_one(asyncio.get_running_loop().create_future())

    assert run(scenario()) == [False, True]


def test_a_place_that_comes_as_time_runs_out_is_not_lost() -> None:
    """Keep a slot that is granted at the timeout; since Python 3.12, `asyncio.wait_for` would drop it."""

    async def scenario() -> tuple[bool, bool]:
        window = Window()
        window.size = 1
        assert await window.turn("a", time.monotonic() + 1)
        asyncio.get_running_loop().call_later(0.01, window.leave)
        waiting = asyncio.create_task(window.turn("b", time.monotonic() + 0.02))
        await asyncio.sleep(0)
        time.sleep(0.05)  # slot and timeout are both due in the next loop iteration
        had = await waiting
        if had:
            window.leave()
        return had, await window.turn("c", time.monotonic() + 1)

    assert run(scenario()) == (True, True)


async def _order_in_a_window_of_one(*nodes: str) -> list[str]:
    window, order = Window(), []
    window.size = 1

    async def pass_through(node: str) -> None:
        assert await window.turn(node, time.monotonic() + 10)
        order.append(node)
        window.leave()

    assert await window.turn("first", time.monotonic() + 10)
    waiting = [asyncio.create_task(pass_through(node)) for node in nodes]
    await asyncio.sleep(0)
    window.leave()
    await asyncio.gather(*waiting)
    return order


def test_nodes_take_turns_at_the_window() -> None:
    """P7: a hundred pods of one node do not delay another node's only pod until their pass ends."""
    assert run(_order_in_a_window_of_one("a", "a", "a", "b", "c", "a", "b")) == ["a", "b", "c", "a", "b", "a", "a"]
