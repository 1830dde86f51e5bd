"""Concurrent requests, none of which outlives the call that started them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any


async def gather_all(*awaitables: Awaitable[Any]) -> list[Any]:
    """Await several calls concurrently, and return their results in order.

    The function raises the first error only after all calls have ended. `asyncio.gather` would raise it immediately and
    let the other calls, possibly writes, run without an awaiting caller. If the event loop then ended, their
    connections would leak.
    """
    results = await asyncio.gather(*awaitables, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
