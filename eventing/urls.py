"""Addresses, as manifests and command lines write them."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import click


def is_url(text: str) -> bool:
    """Whether `text` is an address that a request can be sent to."""
    try:
        url = urlsplit(text)
    except ValueError:
        return False
    return url.scheme in ("http", "https") and bool(url.hostname)


def below(base: str, path: str) -> str:
    """The address of `path`, such as a function's name, below the URL `base`."""
    return f"{base.rstrip('/')}/{path.lstrip('/')}"


def host_and_port(text: str) -> tuple[str, int]:
    """The parts of HOST:PORT, where to listen. Raises `ValueError` for what is not of that form."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{text!r} is not HOST:PORT")
    return host, int(port)


class Url(click.ParamType[str]):
    """An address on the command line; "" says nothing, which will do unless it is `needed`."""

    name = "URL"

    def __init__(self, *, needed: bool = False) -> None:
        self._needed = needed

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Give it as it is; a usage error when nothing can be sent there."""
        if (value or self._needed) and not is_url(value):
            self.fail(f"{value!r} is not a URL such as http://127.0.0.1:8080", param, ctx)
        return str(value)
