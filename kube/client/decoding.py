"""Decodes API server responses: whole bodies, watch streams line by line, and warning headers.

The module uses msgspec, because Python's `json` took half of the functions' CPU time for the pod lists of a large
drain.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import aiohttp
import msgspec

WARNING_PATTERN = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')
"""One warning in a `Warning` header (RFC 7234, section 5.5): its code, its agent and its quoted text."""
ANY_DECODER: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_collected_warnings: ContextVar[list[str] | None] = ContextVar("warnings", default=None)


@contextmanager
def collect_warnings() -> Iterator[list[str]]:
    """Collect the distinct warnings in the API server's responses to the requests in this block."""
    collected: list[str] = []
    token = _collected_warnings.set(collected)
    try:
        yield collected
    finally:
        _collected_warnings.reset(token)


def record_warnings(headers: Iterable[str]) -> None:
    """Add the warnings in these `Warning` headers to the enclosing `collect_warnings` block, if there is one."""
    collected = _collected_warnings.get()
    if collected is None:
        return
    for header in headers:
        texts = (re.sub(r"\\(.)", r"\1", text) for text in WARNING_PATTERN.findall(header))
        collected += [text for text in dict.fromkeys(texts) if text not in collected]


@contextmanager
def abort_on_exit(response: aiohttp.ClientResponse) -> Iterator[None]:
    """Close the response at the end of the block, and abort its connection if it is still in use.

    A graceful TLS shutdown could take longer than a short-lived command.
    """
    try:
        yield
    finally:
        if response.connection and response.connection.transport:
            response.connection.transport.abort()
        response.close()


async def iterate_lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield the lines of a response, regardless of their length.

    aiohttp's line reader rejects lines longer than its buffer, and a Node object can be longer.
    """
    partial_line = b""
    async for chunk in response.content.iter_any():
        *complete_lines, partial_line = (partial_line + chunk).split(b"\n")
        for line in complete_lines:
            yield line


def decode_response(raw: bytes, decoder: msgspec.json.Decoder[Any] = ANY_DECODER) -> dict[str, Any]:
    """Decode a JSON object; return any other content as the `message` of a dict, as in a `Status` object.

    A typed decoder omits the fields that its type does not have. If the response does not match the type, the function
    decodes it without the type.
    """
    try:
        decoded = decoder.decode(raw or b"{}")
    except msgspec.ValidationError:
        return decode_response(raw)
    except msgspec.DecodeError:
        return {"message": raw.decode(errors="replace")[:500]}
    return decoded if isinstance(decoded, dict) else {"message": str(decoded)}
