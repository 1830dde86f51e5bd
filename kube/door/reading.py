"""Decodes answers of the API server: whole ones, and watches line by line."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from kube.door.http import aiohttp


@contextmanager
def dropped(response: aiohttp.ClientResponse) -> Iterator[None]:
    """Drop the connection at the end if it is not done with: a TLS farewell would outlive a short command."""
    try:
        yield
    finally:
        if response.connection and response.connection.transport:
            response.connection.transport.abort()
        response.close()


async def lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Lines of any length (aiohttp's own reader refuses those over its buffer; a Node object can be larger)."""
    rest = b""
    async for chunk in response.content.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line


def decoded(raw: bytes) -> dict[str, Any]:
    """An answer as an object; what is none becomes its `message`, as in a `Status`."""
    try:
        answer = json.loads(raw or b"{}")
    except ValueError:
        return {"message": raw.decode(errors="replace")[:500]}
    return answer if isinstance(answer, dict) else {"message": str(answer)}
