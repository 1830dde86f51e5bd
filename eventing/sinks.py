"""TLS and authentication settings that Knative gives a sender besides the sink's URL: trusted CAs and a token.

A SinkBinding sets both in the workload: `$K_CA_CERTS` with transport-encryption, a token with authentication-oidc.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path

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
