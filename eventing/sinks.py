"""What Knative gives a sender beside the address of its sink: whose certificate to trust, and who the sender is.

A SinkBinding sets both on what it binds: `$K_CA_CERTS` with transport-encryption, a token with authentication-oidc.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path

CERTIFICATES = "K_CA_CERTS"
"""Authorities in PEM, beside those that the image trusts."""
FILE = "SINK_TOKEN"
"""Names the file with the token, where that is not the one that a SinkBinding mounts. It is renewed in place, and made
for the sink's audience and nobody else's."""
MOUNTED = "/oidc/token"


def trust() -> ssl.SSLContext:
    """The authorities that may speak for a sink. Raises `ssl.SSLError` for what is no certificate."""
    context = ssl.create_default_context()
    if certificates := os.environ.get(CERTIFICATES):
        context.load_verify_locations(cadata=certificates)
    return context


def identity() -> dict[str, str]:
    """The header that says who sends; none where nobody asks for it."""
    try:
        return {"authorization": f"Bearer {Path(os.environ.get(FILE) or MOUNTED).read_text().strip()}"}
    except OSError:
        return {}
