"""HTTP endpoints in manifests, on command lines and in the environment: URLs, listen addresses, CAs and a token.

A SinkBinding sets CAs and a token in the workload: `$K_CA_CERTS` with transport-encryption, a token with
authentication-oidc.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from urllib.parse import urlsplit

CA_CERTS_VARIABLE = "K_CA_CERTS"
"""Environment variable with CA certificates in PEM, in addition to those that the image trusts."""
TOKEN_FILE_VARIABLE = "SINK_TOKEN"  # noqa: S105 - the name of a variable, not a token
"""Environment variable with the path of the token file, if it differs from the one that a SinkBinding mounts.

The token is renewed in place, and is valid only for the sink's audience.
"""
DEFAULT_TOKEN_FILE = "/oidc/token"  # noqa: S105 - a file name, not a token


def create_ssl_context() -> ssl.SSLContext:
    """Return a TLS context that trusts the sink's CAs. Raises `ssl.SSLError` for an invalid certificate."""
    context = ssl.create_default_context()
    if certificates := os.environ.get(CA_CERTS_VARIABLE):
        context.load_verify_locations(cadata=certificates)
    return context


def build_auth_header() -> dict[str, str]:
    """Return the header that authenticates the sender, {} if no token file exists."""
    try:
        token = Path(os.environ.get(TOKEN_FILE_VARIABLE) or DEFAULT_TOKEN_FILE).read_text().strip()
    except OSError:
        return {}
    return {"authorization": f"Bearer {token}"}


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
