"""Decodes answers of the API server: whole ones, watches line by line, and the warnings that come with them.

By msgspec: with Python's own decoder, lists of pods took half of the processor time of the functions in a large drain.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import msgspec

from kube.door.lean_aiohttp import aiohttp

WARNING = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')
"""One warning in a header `Warning` (RFC 7234, 5.5): code, agent, quoted text."""
ANY: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_heard: ContextVar[list[str] | None] = ContextVar("warnings", default=None)


@contextmanager
def hearing() -> Iterator[list[str]]:
    """The warnings that the API server gives with its answers to the requests of this block, each once."""
    heard: list[str] = []
    token = _heard.set(heard)
    try:
        yield heard
    finally:
        _heard.reset(token)


def hear(headers: Iterable[str]) -> None:
    """Hand on what these headers warn of, to whoever listens."""
    heard = _heard.get()
    if heard is None:
        return
    for header in headers:
        texts = (re.sub(r"\\(.)", r"\1", text) for text in WARNING.findall(header))
        heard += [text for text in dict.fromkeys(texts) if text not in heard]


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


def decoded(raw: bytes, decoder: msgspec.json.Decoder[Any] = ANY) -> dict[str, Any]:
    """An answer as an object; what is none becomes its `message`, as in a `Status`.

    A decoder of a type leaves out the fields that this does not have; what is not of the type is decoded as a whole.
    """
    try:
        answer = decoder.decode(raw or b"{}")
    except msgspec.ValidationError:
        return decoded(raw)
    except msgspec.DecodeError:
        return {"message": raw.decode(errors="replace")[:500]}
    return answer if isinstance(answer, dict) else {"message": str(answer)}
