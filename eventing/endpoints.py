"""Parses URLs and listen addresses, and reads the CA certificates and the token for requests to a sink.

A SinkBinding sets the certificates and the token in the workload: `$K_CA_CERTS` if the Knative feature
transport-encryption is enabled, and the token if authentication-oidc is enabled.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from urllib.parse import urlsplit

CA_CERTS_VARIABLE = "K_CA_CERTS"
"""Environment variable with CA certificates in PEM format, in addition to those in the image."""
TOKEN_FILE_VARIABLE = "SINK_TOKEN"  # noqa: S105 - the name of a variable, not a token
"""Environment variable with the path of the token file, if the file is not where a SinkBinding mounts it.

The file's token is replaced before it expires, and is valid only for the sink's audience.
"""
DEFAULT_TOKEN_FILE = "/oidc/token"  # noqa: S105 - a file name, not a token


def create_ssl_context() -> ssl.SSLContext:
    """Create a TLS context that trusts the sink's CAs. Raises `ssl.SSLError` for an invalid certificate."""
    context = ssl.create_default_context()
    if certificates := os.environ.get(CA_CERTS_VARIABLE):
        context.load_verify_locations(cadata=certificates)
    return context


def build_auth_header() -> dict[str, str]:
    """Return the header that authenticates the sender to the sink, {} if no token file exists."""
    try:
        token = Path(os.environ.get(TOKEN_FILE_VARIABLE) or DEFAULT_TOKEN_FILE).read_text().strip()
    except OSError:
        return {}
    return {"authorization": f"Bearer {token}"}


def is_url(text: str) -> bool:
    """Return whether `text` is an HTTP or HTTPS URL with a host."""
    try:
        url = urlsplit(text)
    except ValueError:
        return False
    return url.scheme in ("http", "https") and bool(url.hostname)


def join_url(base: str, path: str) -> str:
    """Return the URL of `path`, such as a function's name, below the URL `base`."""
    return f"{base.rstrip('/')}/{path.lstrip('/')}"


def parse_host_port(text: str) -> tuple[str, int]:
    """Parse a listen address HOST:PORT. Raises `ValueError` for any other form."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{text!r} is not HOST:PORT")
    return host, int(port)
