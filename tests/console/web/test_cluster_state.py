"""Tests for the rate at which the console publishes changes."""

from __future__ import annotations

import asyncio

from console.web.cluster_state import DelayedCall

LONG_SECONDS = 3600.0


def test_requests_within_interval_share_one_call() -> None:
    """Check that the first request causes a call at once, and that all later ones cause one call after the interval."""

    async def request_calls() -> list[float]:
        loop = asyncio.get_running_loop()
        calls: list[float] = []
        call = DelayedCall(lambda: calls.append(loop.time()), 0.05)
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


def test_outstanding_call_is_made_when_watches_end() -> None:
    """Check that a call that waits for the end of its interval is made when the watches end, and only once."""

    async def close_early() -> int:
        calls: list[str] = []
        call = DelayedCall(lambda: calls.append("call"), LONG_SECONDS)
        call.request()
        while not calls:
            await asyncio.sleep(0)
        call.request()
        call.close()
        call.close()
        return len(calls)

    assert asyncio.run(close_early()) == 2
