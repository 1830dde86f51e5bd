"""URLs and addresses in manifests and on command lines."""

from __future__ import annotations

from urllib.parse import urlsplit


def is_url(text: str) -> bool:
    """Return whether `text` is a URL to which an HTTP request can be sent."""
    try:
        url = urlsplit(text)
    except ValueError:
        return False
    return url.scheme in ("http", "https") and bool(url.hostname)


def join_url(base: str, path: str) -> str:
    """Return the URL of `path`, such as a function's name, relative to the URL `base`."""
    return f"{base.rstrip('/')}/{path.lstrip('/')}"


def parse_host_port(text: str) -> tuple[str, int]:
    """Split a listen address HOST:PORT. Raises `ValueError` for any other form."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{text!r} is not HOST:PORT")
    return host, int(port)
