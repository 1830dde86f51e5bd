"""The certificates of a cluster's servers, each signed by an authority whose key nobody keeps.

What the API server would make for itself has RSA keys: finding two takes some tenths of a second of its start, and to
sign for a connection takes fifteen times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

from localcluster import access

DAYS = 365
SERVED_AT = ("kubernetes.default.svc", "kubernetes.default", "kubernetes", "localhost", "127.0.0.1", "10.0.0.1")
"""The names and addresses of an API server; the last one is that of its Service, the first of `SERVICE_CIDR`."""


def write(name: str, names: Sequence[str], certificate: Path, key: Path) -> str:
    """Issue a certificate for these names, write it and its key, and give that of the authority, all in PEM."""
    from kube.certificates import issuing  # slow to import, and most commands start no cluster
    from kube.certificates.components import Component

    now, whose = datetime.now(timezone.utc), Component(name, timedelta(days=DAYS))
    authority = issuing.new_authority(whose, now)
    pair = issuing.new_serving(authority, names, whose, now)
    access.write_secret(key, pair.key)
    certificate.write_text(pair.certificate)
    return authority.certificate


def write_serving(certificate: Path, key: Path) -> None:
    """Write what the API server shows: its certificate and the authority's, as it writes them itself."""
    authority = write("kubernetes", SERVED_AT, certificate, key)
    with certificate.open("a") as file:
        file.write(authority)
