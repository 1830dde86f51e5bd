"""Tests for the eviction limits: evictions per second, fairness between nodes, and evictions in flight."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Coroutine
from itertools import pairwise
from typing import Any

import pytest

from kube.evictions.limiters import (
    MAX_UNANSWERED,
    START_INTERVAL_SECONDS,
    ConcurrencyLimiter,
    EvictionLimiter,
    RateLimiter,
    StartPacer,
    parse_evictions_per_second,
)

MIN_INTERVAL_SECONDS, _ = START_INTERVAL_SECONDS


def run_in_loop(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in a new event loop, and return its result."""
    return asyncio.run(coroutine)


async def _get_grant_order(rate_limiter: RateLimiter, *nodes: str) -> list[str]:
    """Request one token per node at the same time, and return the nodes in the order in which they get their tokens."""
    order: list[str] = []

    async def acquire_token(node: str) -> None:
        assert await rate_limiter.acquire(node, time.monotonic() + 10)
        order.append(node)

    await asyncio.gather(*map(acquire_token, nodes))
    return order


def test_tokens_within_limit_of_one_second_are_granted_immediately() -> None:
    """Check that the rate limiter grants tokens immediately while any are available."""

    async def measure_seconds() -> float:
        rate_limiter, start_time = RateLimiter(50), asyncio.get_running_loop().time()
        await _get_grant_order(rate_limiter, *["a"] * 50)
        return asyncio.get_running_loop().time() - start_time

    assert run_in_loop(measure_seconds()) < 0.5


def test_eviction_rate_does_not_exceed_limit() -> None:
    """Check that at a hundred tokens per second, forty tokens after the first hundred take at least 0.4 s."""

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


def test_timed_out_task_uses_no_token() -> None:
    """Check that a task whose wait for a token timed out uses no token."""

    async def acquire_two_tokens() -> tuple[bool, bool]:
        rate_limiter = RateLimiter(10)
        await _get_grant_order(rate_limiter, *["a"] * 10)
        is_first_granted, is_second_granted = await asyncio.gather(
            rate_limiter.acquire("a", time.monotonic() + 0.01), rate_limiter.acquire("b", time.monotonic() + 5)
        )
        return is_first_granted, is_second_granted

    assert run_in_loop(acquire_two_tokens()) == (False, True)


def test_node_keeps_position_in_rotation_after_timed_out_tasks() -> None:
    """Check that a node keeps its position in the rotation after many of its tasks have timed out."""

    async def get_order() -> list[str]:
        rate_limiter = RateLimiter(100)
        rate_limiter.back_off(0.2)
        timed_out = (rate_limiter.acquire("a", time.monotonic() + 0.01) for _ in range(10))
        assert not any(await asyncio.gather(*timed_out))
        return await _get_grant_order(rate_limiter, "b", "b", "b", "a")

    assert run_in_loop(get_order()) == ["b", "a", "b", "b"]


def test_rate_limiter_grants_no_token_during_backoff() -> None:
    """Check that the rate limiter grants no token during the backoff that the API server requested."""

    async def measure_seconds() -> float:
        rate_limiter, loop = RateLimiter(100), asyncio.get_running_loop()
        await _get_grant_order(rate_limiter, "a")
        start_time = loop.time()
        rate_limiter.back_off(0.3)
        await _get_grant_order(rate_limiter, "a", "b")
        return loop.time() - start_time

    assert run_in_loop(measure_seconds()) >= 0.29


@pytest.mark.parametrize("value", ["0", "-1", "fast", "nan", "inf"])
def test_invalid_eviction_rate_is_reported_with_remedy(value: str) -> None:
    with pytest.raises(ValueError, match=f"EVICTIONS_PER_SECOND={value} is not a number of at least 1: .*default 100"):
        parse_evictions_per_second({"EVICTIONS_PER_SECOND": value})


@pytest.mark.parametrize(("environment", "expected"), [({}, 100.0), ({"EVICTIONS_PER_SECOND": "20"}, 20.0)])
def test_eviction_rate_is_read_from_environment(environment: dict[str, str], expected: float) -> None:
    assert parse_evictions_per_second(environment) == expected


async def _measure_start_times(count: int, response_seconds: float) -> list[float]:
    """Return the start times of `count` evictions that each get a response after `response_seconds`."""
    pacer, start_times, tasks = StartPacer(), [], []
    for _ in range(count):
        assert await pacer.wait_until_start_allowed(time.monotonic() + 10)
        start_times.append(time.monotonic())
        tasks.append(asyncio.create_task(asyncio.sleep(response_seconds)))
        pacer.track(tasks[-1])
    for task in tasks:
        task.cancel()
    return start_times


def _compute_intervals(start_times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(start_times)]


def test_next_eviction_starts_immediately_after_response() -> None:
    """Check that each eviction starts immediately after the previous response if responses are fast."""
    assert (
        sum(_compute_intervals(run_in_loop(_measure_start_times(6, response_seconds=0.01)))) < 5 * MIN_INTERVAL_SECONDS
    )


def test_sixth_eviction_of_pdb_waits_for_one_of_five_responses() -> None:
    """Design rule 9: five evictions of a PDB may be in flight; the sixth starts after the first response."""
    *short_intervals, last_interval = _compute_intervals(run_in_loop(_measure_start_times(6, response_seconds=2)))

    assert len(short_intervals) == 4
    assert all(MIN_INTERVAL_SECONDS <= seconds < 1 for seconds in short_intervals)
    assert sum(short_intervals) + last_interval >= 2


def test_wait_turn_returns_false_after_deadline() -> None:
    """Check that `wait_until_start_allowed` returns False after the deadline if too many evictions are in flight."""

    async def wait_until_deadline() -> tuple[bool, bool]:
        pacer = StartPacer()
        unanswered_tasks = [asyncio.create_task(asyncio.sleep(60)) for _ in range(MAX_UNANSWERED)]
        for task in unanswered_tasks:
            pacer.track(task)
        has_turn = await pacer.wait_until_start_allowed(time.monotonic() + 0.05)
        has_evictions_in_flight = pacer.has_evictions_in_flight
        for task in unanswered_tasks:
            task.cancel()
        return has_turn, has_evictions_in_flight

    assert run_in_loop(wait_until_deadline()) == (False, True)


def test_pacer_exists_while_eviction_is_in_flight() -> None:
    """Check that evictions of one PDB are spaced even if only their tasks refer to the PDB's pacer."""

    async def start_evictions() -> tuple[bool, bool, list[float]]:
        limiter = EvictionLimiter(is_dry_run=False)
        start_times: list[float] = []
        tasks: list[asyncio.Task[None]] = []
        for _ in range(2):
            await start_eviction(limiter, start_times, tasks)
        was_unanswered = limiter.has_evictions_in_flight("x/b")
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        gc.collect()
        return was_unanswered, limiter.has_evictions_in_flight("x/b"), _compute_intervals(start_times)

    async def start_eviction(
        limiter: EvictionLimiter, start_times: list[float], tasks: list[asyncio.Task[None]]
    ) -> None:
        pacer = await limiter.acquire("node-1", "x/b", time.monotonic() + 10)
        assert pacer is not None
        start_times.append(time.monotonic())
        tasks.append(asyncio.create_task(asyncio.sleep(60)))
        pacer.track(tasks[-1])

    was_unanswered, is_unanswered, (interval,) = run_in_loop(start_evictions())

    assert (was_unanswered, is_unanswered) == (True, False)
    assert interval >= MIN_INTERVAL_SECONDS


def test_nodes_share_eviction_queue_of_pdb() -> None:
    """Check that evictions of one PDB on two nodes start sequentially, like evictions on a single node."""

    async def measure_start_times_of_two_nodes() -> list[float]:
        pacer, start_times, tasks = StartPacer(), [], []

        async def start_two_evictions() -> None:
            for _ in range(2):
                assert await pacer.wait_until_start_allowed(time.monotonic() + 10)
                start_times.append(time.monotonic())
                tasks.append(asyncio.create_task(asyncio.sleep(0.05)))
                pacer.track(tasks[-1])

        await asyncio.gather(start_two_evictions(), start_two_evictions())
        return start_times

    assert all(seconds >= 0.04 for seconds in _compute_intervals(run_in_loop(measure_start_times_of_two_nodes())))


async def _acquire_slots_with_limit_of_one(first_response: asyncio.Future[None]) -> list[bool]:
    limiter = ConcurrencyLimiter(limit=1)
    assert await limiter.acquire("a", time.monotonic() + 1)
    limiter.track(asyncio.ensure_future(_await_future(first_response)))
    is_acquired_in_time = await limiter.acquire("a", time.monotonic() + 0.05)
    waiting_task = asyncio.create_task(limiter.acquire("a", time.monotonic() + 5))
    await asyncio.sleep(0)
    first_response.set_result(None)
    return [is_acquired_in_time, await waiting_task]


async def _await_future(future: asyncio.Future[None]) -> None:
    await future


def test_timed_out_task_takes_no_slot_of_concurrency_limiter() -> None:
    """Check that a released slot of the concurrency limiter goes to a waiting task, not to one that has timed out."""

    async def acquire_slots() -> list[bool]:
        return await _acquire_slots_with_limit_of_one(asyncio.get_running_loop().create_future())

    assert run_in_loop(acquire_slots()) == [False, True]


def test_slot_granted_at_timeout_is_not_lost() -> None:
    """Check that a slot that is granted at the timeout is kept, which `asyncio.wait_for` of Python 3.12 would lose."""

    async def acquire_slot_at_timeout() -> tuple[bool, bool]:
        limiter = ConcurrencyLimiter(limit=1)
        assert await limiter.acquire("a", time.monotonic() + 1)
        asyncio.get_running_loop().call_later(0.01, limiter.release)
        waiting_task = asyncio.create_task(limiter.acquire("b", time.monotonic() + 0.02))
        await asyncio.sleep(0)
        time.sleep(0.05)  # Slot and timeout are both due in the next iteration of the event loop.
        is_acquired = await waiting_task
        if is_acquired:
            limiter.release()
        return is_acquired, await limiter.acquire("c", time.monotonic() + 1)

    assert run_in_loop(acquire_slot_at_timeout()) == (True, True)


async def _get_slot_order_with_limit_of_one(*nodes: str) -> list[str]:
    limiter, order = ConcurrencyLimiter(limit=1), []

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
