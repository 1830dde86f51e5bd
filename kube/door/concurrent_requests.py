"""Requests side by side, none of which outlives the call that made them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any


async def together(*calls: Awaitable[Any]) -> list[Any]:
    """The results of several calls made at once, in order; the first error is raised after all have ended.

    `asyncio.gather` would raise it at once and leave the others at work for nobody, a write among them as likely as
    a read; a loop that ends meanwhile leaks their connections.
    """
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
