"""The import of `aiohttp`, which would read the system's certificates twice, a sixth of the time a function starts in.

It makes two contexts for connections that bring none of their own, such as to a sink under https. Ours to the API
server do; so these read the certificates when they are first used.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

READERS = ("load_default_certs", "set_default_verify_paths")


class LateContext(ssl.SSLContext):
    """A context that reads the system's certificates before its first handshake, and then is one like any other."""

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """Begin a connection of asyncio's."""
        return LateContext._read(self).wrap_bio(*args, **options)

    def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:
        """Begin a connection on a socket."""
        return LateContext._read(self).wrap_socket(*args, **options)

    def get_ca_certs(self, *args: Any, **options: Any) -> Any:
        """Tell what is trusted."""
        return LateContext._read(self).get_ca_certs(*args, **options)

    def cert_store_stats(self) -> dict[str, int]:
        """Tell how much is trusted."""
        return LateContext._read(self).cert_store_stats()

    def _read(self) -> ssl.SSLContext:
        ssl.SSLContext.load_default_certs(self)
        self.__class__ = ssl.SSLContext  # type: ignore[assignment]  # nothing is late about it any more
        return self


@contextmanager
def reading_late() -> Iterator[None]:
    """Contexts that would read the system's certificates in this block do it at their first use."""
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
                delattr(ssl.SSLContext, name)  # the one it inherits


def _put_off(context: ssl.SSLContext, _purpose: ssl.Purpose = ssl.Purpose.SERVER_AUTH) -> None:
    context.__class__ = LateContext


with reading_late():
    import aiohttp

__all__ = ["aiohttp"]
