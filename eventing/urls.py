"""Addresses, as manifests and command lines write them."""

from __future__ import annotations

from urllib.parse import urlsplit


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
