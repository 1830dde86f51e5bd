"""Tests for the rate limit of published changes, and for results that several pages share."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

from console.web.cluster_state import ClusterState, RateLimitedCall

LONG_SECONDS = 3600.0


def test_requests_within_interval_share_one_call() -> None:
    """Check that the first request causes a call immediately, and all later ones cause one call after the interval."""

    async def request_calls() -> list[float]:
        loop = asyncio.get_running_loop()
        calls: list[float] = []
        call = RateLimitedCall(lambda: calls.append(loop.time()), 0.05)
        call.request()
        while not calls:
            await asyncio.sleep(0)
        for _ in range(10):
            call.request()
        while len(calls) < 2:
            await asyncio.sleep(0.01)
        call.close()
        return calls

    calls = asyncio.run(request_calls())

    assert len(calls) == 2
    assert calls[1] - calls[0] >= 0.05


def test_pending_call_is_made_when_watches_end() -> None:
    """Check that a pending call is made once when the watches end, without waiting for the end of its interval."""

    async def close_early() -> int:
        calls: list[str] = []
        call = RateLimitedCall(lambda: calls.append("call"), LONG_SECONDS)
        call.request()
        while not calls:
            await asyncio.sleep(0)
        call.request()
        call.close()
        call.close()
        return len(calls)

    assert asyncio.run(close_early()) == 2


def test_result_for_state_is_built_once_for_all_threads() -> None:
    """Check that concurrent threads share one result per key, and that a newer state gets new results."""
    state, barrier, calls = ClusterState(), Barrier(4), list[str]()

    def build() -> int:
        calls.append("call")
        return len(calls)

    def share_with_others(_: int) -> int:
        barrier.wait()
        return state.share("key", build)

    with ThreadPoolExecutor(4) as executor:
        results = list(executor.map(share_with_others, range(4)))

    assert results == [1, 1, 1, 1]
    assert (state.share("other key", build), replace(state, version=1).share("key", build)) == (2, 3)
