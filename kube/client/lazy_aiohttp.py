"""Imports `aiohttp` without reading the system's certificates, which would take a sixth of a function's startup time.

At import, aiohttp creates two default SSL contexts, for example for connections to an https sink. Connections to the
API server use a different context. With this module, the default contexts read the certificates only on first use.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

LOAD_METHODS = ("load_default_certs", "set_default_verify_paths")


class LazySSLContext(ssl.SSLContext):
    """SSL context that reads the system's certificates on first use, and is an ordinary context from then on."""

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """Start a TLS connection for asyncio."""
        return LazySSLContext._load(self).wrap_bio(*args, **options)

    def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:
        """Start a TLS connection on a socket."""
        return LazySSLContext._load(self).wrap_socket(*args, **options)

    def get_ca_certs(self, *args: Any, **options: Any) -> Any:
        """Return the trusted CA certificates."""
        return LazySSLContext._load(self).get_ca_certs(*args, **options)

    def cert_store_stats(self) -> dict[str, int]:
        """Return the number of trusted certificates."""
        return LazySSLContext._load(self).cert_store_stats()

    def _load(self) -> ssl.SSLContext:
        ssl.SSLContext.load_default_certs(self)
        self.__class__ = ssl.SSLContext  # type: ignore[assignment]  # an ordinary context from now on
        return self


@contextmanager
def defer_certificate_loading() -> Iterator[None]:
    """Make SSL contexts that are created in this block read the system's certificates on first use."""
    readers = {name: vars(ssl.SSLContext).get(name) for name in LOAD_METHODS}
    for name in LOAD_METHODS:
        setattr(ssl.SSLContext, name, _defer_loading)
    try:
        yield
    finally:
        for name, reader in readers.items():
            if reader:
                setattr(ssl.SSLContext, name, reader)
            else:
                delattr(ssl.SSLContext, name)  # the inherited method applies again


def _defer_loading(context: ssl.SSLContext, _purpose: ssl.Purpose = ssl.Purpose.SERVER_AUTH) -> None:
    context.__class__ = LazySSLContext


with defer_certificate_loading():
    import aiohttp

__all__ = ["aiohttp"]
