"""What Knative gives a sender in addition to the sink's address: trusted CAs, and a token that identifies it.

A SinkBinding sets both in the workload: `$K_CA_CERTS` with transport-encryption, a token with authentication-oidc.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path

CERTIFICATES = "K_CA_CERTS"
"""Variable with CA certificates in PEM, in addition to those that the image trusts."""
FILE = "SINK_TOKEN"
"""Variable with the path of the token file, if it is not the path that a SinkBinding mounts.

The token is renewed in place, and is valid only for the sink's audience.
"""
MOUNTED = "/oidc/token"


def trust() -> ssl.SSLContext:
    """Return a TLS context that trusts the sink's CAs. Raises `ssl.SSLError` for an invalid certificate."""
    context = ssl.create_default_context()
    if certificates := os.environ.get(CERTIFICATES):
        context.load_verify_locations(cadata=certificates)
    return context


def identity() -> dict[str, str]:
    """Return the header that authenticates the sender, {} if it has no token."""
    try:
        return {"authorization": f"Bearer {Path(os.environ.get(FILE) or MOUNTED).read_text().strip()}"}
    except OSError:
        return {}
