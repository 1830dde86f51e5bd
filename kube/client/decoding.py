"""Decodes responses of the API server: whole bodies, watch streams line by line, and warning headers.

It uses msgspec: Python's own decoder took half of the functions' CPU time for pod lists in a large drain.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import msgspec

from kube.client.lazy_aiohttp import aiohttp

WARNING = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')
"""One warning in a `Warning` header (RFC 7234, 5.5): code, agent, quoted text."""
ANY: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_heard: ContextVar[list[str] | None] = ContextVar("warnings", default=None)


@contextmanager
def hearing() -> Iterator[list[str]]:
    """Collect the API server's distinct warnings about the requests of this block."""
    heard: list[str] = []
    token = _heard.set(heard)
    try:
        yield heard
    finally:
        _heard.reset(token)


def hear(headers: Iterable[str]) -> None:
    """Add the warnings in these headers to the list of the enclosing `hearing` block, if there is one."""
    heard = _heard.get()
    if heard is None:
        return
    for header in headers:
        texts = (re.sub(r"\\(.)", r"\1", text) for text in WARNING.findall(header))
        heard += [text for text in dict.fromkeys(texts) if text not in heard]


@contextmanager
def dropped(response: aiohttp.ClientResponse) -> Iterator[None]:
    """Close the response at the end of the block, and abort its connection if it is still in use.

    A TLS shutdown could outlive a short command.
    """
    try:
        yield
    finally:
        if response.connection and response.connection.transport:
            response.connection.transport.abort()
        response.close()


async def lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield lines of any length.

    The line reader of aiohttp rejects lines longer than its buffer, and a Node object can be longer.
    """
    rest = b""
    async for chunk in response.content.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line


def decoded(raw: bytes, decoder: msgspec.json.Decoder[Any] = ANY) -> dict[str, Any]:
    """Decode a response to a dict; the text of any other response becomes its `message`, as in a `Status`.

    A typed decoder omits the fields that its type does not have. If the response does not match the type, all of its
    fields are decoded.
    """
    try:
        answer = decoder.decode(raw or b"{}")
    except msgspec.ValidationError:
        return decoded(raw)
    except msgspec.DecodeError:
        return {"message": raw.decode(errors="replace")[:500]}
    return answer if isinstance(answer, dict) else {"message": str(answer)}
