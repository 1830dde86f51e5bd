"""Tests of the eviction limits: evictions per second, fairness between nodes, and unanswered evictions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from itertools import pairwise
from typing import Any

import pytest

from kube.evictions.limiters import (
    MAX_CONCURRENCY,
    MIN_CONCURRENCY,
    SLOW_RANGE_SECONDS,
    START_INTERVAL_SECONDS,
    ConcurrencyLimiter,
    MedianLatency,
    RateLimiter,
    StartPacer,
    compute_delay,
    parse_evictions_per_second,
)

MIN_INTERVAL_SECONDS, MAX_INTERVAL_SECONDS = START_INTERVAL_SECONDS


def run_in_loop(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in a new event loop, and return its result."""
    return asyncio.run(coroutine)


async def _get_grant_order(rate_limiter: RateLimiter, *nodes: str) -> list[str]:
    """Request one token per node at the same time, and return the nodes in the order in which they get it."""
    order: list[str] = []

    async def acquire_token(node: str) -> None:
        assert await rate_limiter.acquire(node, time.monotonic() + 10)
        order.append(node)

    await asyncio.gather(*map(acquire_token, nodes))
    return order


def test_tokens_within_one_seconds_limit_are_granted_immediately() -> None:
    """Check that tokens are granted immediately while any are available."""

    async def measure_seconds() -> float:
        rate_limiter, start_time = RateLimiter(50), asyncio.get_running_loop().time()
        await _get_grant_order(rate_limiter, *["a"] * 50)
        return asyncio.get_running_loop().time() - start_time

    assert run_in_loop(measure_seconds()) < 0.5


def test_rate_does_not_exceed_the_limit() -> None:
    """Check that forty tokens beyond the first hundred take at least 0.4 s, at a hundred per second."""

    async def measure_seconds() -> float:
        rate_limiter, start_time = RateLimiter(100), asyncio.get_running_loop().time()
        await _get_grant_order(rate_limiter, *["a"] * 140)
        return asyncio.get_running_loop().time() - start_time

    assert run_in_loop(measure_seconds()) >= 0.39


def test_rate_limiter_serves_nodes_in_rotation() -> None:
    """Check that nodes with few pods do not wait for the twenty pods of another node."""

    async def get_grant_order_after_backoff() -> list[str]:
        rate_limiter = RateLimiter(50)
        rate_limiter.back_off(1.0)  # All tasks wait before the first token is granted.
        return await _get_grant_order(rate_limiter, *["big"] * 20, "small", "small")

    order = run_in_loop(get_grant_order_after_backoff())
    assert order.index("small") <= 2
    assert [index for index, node in enumerate(order) if node == "small"][1] <= 4
    assert order.count("big") == 20


def test_timed_out_task_spends_no_token() -> None:
    """Check that a task that has timed out spends no token."""

    async def acquire_two_tokens() -> tuple[bool, bool]:
        rate_limiter = RateLimiter(10)
        await _get_grant_order(rate_limiter, *["a"] * 10)
        is_first_granted, is_second_granted = await asyncio.gather(
            rate_limiter.acquire("a", time.monotonic() + 0.01), rate_limiter.acquire("b", time.monotonic() + 5)
        )
        return is_first_granted, is_second_granted

    assert run_in_loop(acquire_two_tokens()) == (False, True)


def test_timed_out_tasks_cost_their_node_no_turn() -> None:
    """Check that a node keeps its turns in the rotation after many of its tasks have timed out."""

    async def get_order() -> list[str]:
        rate_limiter = RateLimiter(100)
        rate_limiter.back_off(0.2)
        timed_out = (rate_limiter.acquire("a", time.monotonic() + 0.01) for _ in range(10))
        assert not any(await asyncio.gather(*timed_out))
        return await _get_grant_order(rate_limiter, "b", "b", "b", "a")

    assert run_in_loop(get_order()) == ["b", "a", "b", "b"]


def test_busy_api_server_gets_no_evictions_during_backoff() -> None:
    """Check that no token is granted during the backoff that the API server requested."""

    async def measure_seconds() -> float:
        rate_limiter, loop = RateLimiter(100), asyncio.get_running_loop()
        await _get_grant_order(rate_limiter, "a")
        start_time = loop.time()
        rate_limiter.back_off(0.3)
        await _get_grant_order(rate_limiter, "a", "b")
        return loop.time() - start_time

    assert run_in_loop(measure_seconds()) >= 0.29


@pytest.mark.parametrize("value", ["0", "-1", "fast", "nan", "inf"])
def test_invalid_rate_is_reported_with_the_remedy(value: str) -> None:
    with pytest.raises(ValueError, match=f"EVICTIONS_PER_SECOND={value} is not a number of at least 1: .*default 100"):
        parse_evictions_per_second({"EVICTIONS_PER_SECOND": value})


@pytest.mark.parametrize(("environment", "expected"), [({}, 100.0), ({"EVICTIONS_PER_SECOND": "20"}, 20.0)])
def test_rate_is_read_from_the_environment(environment: dict[str, str], expected: float) -> None:
    assert parse_evictions_per_second(environment) == expected


def make_latency(*seconds: float) -> MedianLatency:
    """Return a `MedianLatency` that has recorded these response times."""
    latency = MedianLatency()
    for response_seconds in seconds:
        latency.record(response_seconds)
    return latency


@pytest.mark.parametrize(
    ("median_seconds", "unanswered_count", "expected_seconds"),
    [
        pytest.param(0.0, 1, 0.12, id="one unanswered eviction"),
        pytest.param(0.02, 1, 0.12, id="one unanswered eviction, quick responses"),
        pytest.param(0.3, 1, 0.45, id="one unanswered eviction, slow responses"),
        pytest.param(0.0, 4, 0.12, id="four unanswered evictions"),
        pytest.param(0.0, 5, 1.0, id="five unanswered evictions"),
        pytest.param(0.4, 5, 1.0, id="five unanswered evictions, slow responses"),
        pytest.param(0.0, 7, 4.0, id="seven unanswered"),
    ],
)
def test_delay_grows_with_unanswered_evictions(
    median_seconds: float, unanswered_count: int, expected_seconds: float
) -> None:
    """Design rule 9: the delay grows with the unanswered evictions, with each of which a new one may conflict."""
    assert compute_delay(0.12, median_seconds, unanswered_count) == pytest.approx(expected_seconds)


def test_median_latency_ignores_responses_delayed_by_conflicts() -> None:
    """Check that responses are ignored if the API server slept after a conflict, even if they are the majority."""
    assert make_latency(0.1, 0.7, 0.12, 0.9, 1.4, 0.8, 0.11, 0.6).compute_median() == 0.11
    assert make_latency(*[0.4] * 16, *[0.1] * 16).compute_median() == 0.1
    assert make_latency(3.0, 0.6).compute_median() == 0.0


async def _measure_start_times(
    count: int, response_seconds: float, latency: MedianLatency | None = None
) -> list[float]:
    """Return the start times of `count` evictions, each of which gets its response after `response_seconds`."""
    pacer, start_times, tasks = StartPacer(latency or MedianLatency()), [], []
    for _ in range(count):
        assert await pacer.wait_turn(time.monotonic() + 10)
        start_times.append(time.monotonic())
        tasks.append(asyncio.create_task(asyncio.sleep(response_seconds)))
        pacer.track(tasks[-1])
    for task in tasks:
        task.cancel()
    return start_times


def _compute_intervals(start_times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(start_times)]


def test_response_lets_the_next_eviction_start_immediately() -> None:
    """Check that each eviction starts right after the previous response if the responses are quick."""
    assert (
        sum(_compute_intervals(run_in_loop(_measure_start_times(6, response_seconds=0.01)))) < 5 * MIN_INTERVAL_SECONDS
    )


def test_sixth_eviction_waits_for_five_unanswered_evictions() -> None:
    """Check that five unanswered evictions start quickly, and the sixth after the API server's sleep on a conflict."""
    *short_intervals, last_interval = _compute_intervals(run_in_loop(_measure_start_times(6, response_seconds=60)))

    assert len(short_intervals) == 4
    assert all(MIN_INTERVAL_SECONDS <= seconds < 1 for seconds in short_intervals)
    assert last_interval >= 1


def test_slow_responses_delay_the_next_eviction() -> None:
    """Check that the next eviction waits for the usual response time: on a slow server, late responses are normal."""
    intervals = _compute_intervals(
        run_in_loop(_measure_start_times(4, response_seconds=0.25, latency=make_latency(*[0.25] * 16)))
    )

    assert all(seconds >= 0.24 for seconds in intervals)


def test_wait_turn_returns_false_after_the_deadline() -> None:
    """Check that the wait returns False after the deadline, while an eviction is still unanswered."""

    async def wait_until_deadline() -> tuple[bool, bool]:
        pacer, unanswered_task = StartPacer(MedianLatency()), asyncio.create_task(asyncio.sleep(60))
        pacer.track(unanswered_task)
        has_turn = await pacer.wait_turn(time.monotonic() + MIN_INTERVAL_SECONDS / 2)
        has_unanswered = pacer.has_unanswered
        unanswered_task.cancel()
        return has_turn, has_unanswered

    assert run_in_loop(wait_until_deadline()) == (False, True)


def test_nodes_share_the_queue_of_a_budget() -> None:
    """Check that the evictions of two nodes under one budget start sequentially, like the evictions of one node."""

    async def measure_start_times_of_two_nodes() -> list[float]:
        pacer, start_times, tasks = StartPacer(MedianLatency()), [], []

        async def start_two_evictions() -> None:
            for _ in range(2):
                assert await pacer.wait_turn(time.monotonic() + 10)
                start_times.append(time.monotonic())
                tasks.append(asyncio.create_task(asyncio.sleep(0.05)))
                pacer.track(tasks[-1])

        await asyncio.gather(start_two_evictions(), start_two_evictions())
        return start_times

    assert all(seconds >= 0.04 for seconds in _compute_intervals(run_in_loop(measure_start_times_of_two_nodes())))


def test_concurrency_limit_adapts_to_response_times() -> None:
    """Check that the limit stays between a minimum, for small API servers, and the number of eviction connections."""
    limiter = ConcurrencyLimiter()
    for _ in range(MAX_CONCURRENCY):
        limiter.record_latency(SLOW_RANGE_SECONDS[0])
    assert limiter.limit == MIN_CONCURRENCY

    for _ in range(4 * MAX_CONCURRENCY):
        limiter.record_latency(0.1)
    assert limiter.limit == MAX_CONCURRENCY


def test_webhook_delay_does_not_change_the_concurrency_limit() -> None:
    limiter = ConcurrencyLimiter()

    limiter.record_latency(SLOW_RANGE_SECONDS[1])

    assert limiter.limit == MAX_CONCURRENCY


async def _acquire_slots_with_limit_of_one(first_response: asyncio.Future[None]) -> list[bool]:
    limiter = ConcurrencyLimiter()
    limiter.limit = 1
    assert await limiter.acquire("a", time.monotonic() + 1)
    limiter.track(asyncio.ensure_future(_await_future(first_response)))
    is_acquired_in_time = await limiter.acquire("a", time.monotonic() + 0.05)
    waiting_task = asyncio.create_task(limiter.acquire("a", time.monotonic() + 5))
    await asyncio.sleep(0)
    first_response.set_result(None)
    return [is_acquired_in_time, await waiting_task]


async def _await_future(future: asyncio.Future[None]) -> None:
    await future


def test_timed_out_task_takes_no_slot() -> None:
    """Check that a freed slot goes to the task that still waits, not to the task that has timed out."""

    async def acquire_slots() -> list[bool]:
        return await _acquire_slots_with_limit_of_one(asyncio.get_running_loop().create_future())

    assert run_in_loop(acquire_slots()) == [False, True]


def test_slot_granted_at_the_timeout_is_not_lost() -> None:
    """Check that a slot granted at the timeout is kept; since Python 3.12, `asyncio.wait_for` would drop it."""

    async def acquire_slot_at_timeout() -> tuple[bool, bool]:
        limiter = ConcurrencyLimiter()
        limiter.limit = 1
        assert await limiter.acquire("a", time.monotonic() + 1)
        asyncio.get_running_loop().call_later(0.01, limiter.release)
        waiting_task = asyncio.create_task(limiter.acquire("b", time.monotonic() + 0.02))
        await asyncio.sleep(0)
        time.sleep(0.05)  # Slot and timeout are both due in the next loop iteration.
        is_acquired = await waiting_task
        if is_acquired:
            limiter.release()
        return is_acquired, await limiter.acquire("c", time.monotonic() + 1)

    assert run_in_loop(acquire_slot_at_timeout()) == (True, True)


async def _get_slot_order_with_limit_of_one(*nodes: str) -> list[str]:
    limiter, order = ConcurrencyLimiter(), []
    limiter.limit = 1

    async def acquire_and_release(node: str) -> None:
        assert await limiter.acquire(node, time.monotonic() + 10)
        order.append(node)
        limiter.release()

    assert await limiter.acquire("first", time.monotonic() + 10)
    waiting_tasks = [asyncio.create_task(acquire_and_release(node)) for node in nodes]
    await asyncio.sleep(0)
    limiter.release()
    await asyncio.gather(*waiting_tasks)
    return order


def test_concurrency_limiter_serves_nodes_in_rotation() -> None:
    """Check that a node with one pod does not wait until all pods of other nodes are evicted."""
    assert run_in_loop(_get_slot_order_with_limit_of_one("a", "a", "a", "b", "c", "a", "b")) == [
        "a",
        "b",
        "c",
        "a",
        "b",
        "a",
        "a",
    ]
