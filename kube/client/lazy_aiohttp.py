"""Imports `aiohttp` without its two reads of the system's certificates, a sixth of a function's startup time.

At import, aiohttp creates two SSL contexts for connections without their own, for example to an https sink. Connections
to the API server have their own context. These two therefore read the certificates only at their first use.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

READERS = ("load_default_certs", "set_default_verify_paths")


class LateContext(ssl.SSLContext):
    """An SSL context that reads the system's certificates before its first use, and is an ordinary one afterwards."""

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """Start a TLS connection of asyncio."""
        return LateContext._read(self).wrap_bio(*args, **options)

    def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:
        """Start a TLS connection on a socket."""
        return LateContext._read(self).wrap_socket(*args, **options)

    def get_ca_certs(self, *args: Any, **options: Any) -> Any:
        """Return the trusted CA certificates."""
        return LateContext._read(self).get_ca_certs(*args, **options)

    def cert_store_stats(self) -> dict[str, int]:
        """Return the number of trusted certificates."""
        return LateContext._read(self).cert_store_stats()

    def _read(self) -> ssl.SSLContext:
        ssl.SSLContext.load_default_certs(self)
        self.__class__ = ssl.SSLContext  # type: ignore[assignment]  # an ordinary context from now on
        return self


@contextmanager
def reading_late() -> Iterator[None]:
    """Make SSL contexts created in this block read the system's certificates at their first use."""
    readers = {name: vars(ssl.SSLContext).get(name) for name in READERS}
    for name in READERS:
        setattr(ssl.SSLContext, name, _put_off)
    try:
        yield
    finally:
        for name, reader in readers.items():
            if reader:
                setattr(ssl.SSLContext, name, reader)
            else:
                delattr(ssl.SSLContext, name)  # restores the inherited method


def _put_off(context: ssl.SSLContext, _purpose: ssl.Purpose = ssl.Purpose.SERVER_AUTH) -> None:
    context.__class__ = LateContext


with reading_late():
    import aiohttp

__all__ = ["aiohttp"]
