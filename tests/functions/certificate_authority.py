"""Certificate authority (CA) for TLS servers in tests: creates its CA certificate and issues serving certificates."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from pathlib import Path

from kube.certificates import key_pairs
from kube.certificates.components import Component
from localcluster.access import write_secret

RENEWAL_PERIOD = timedelta(days=183)
"""Renewal period; a serving certificate is valid for two periods."""


class CertificateAuthority:
    """A CA certificate that clients trust, and its key, which is kept in memory only."""

    def __init__(self, name: str) -> None:
        self._component = Component(name, RENEWAL_PERIOD)
        self._pair = key_pairs.create_ca(self._component, datetime.now(timezone.utc))

    @property
    def ca_certificate(self) -> str:
        """Return the CA certificate, which clients trust, as PEM."""
        return self._pair.certificate

    def write_serving_certificate(self, folder: Path, names: Iterable[str]) -> None:
        """Write `tls.crt` and `tls.key` for a server with these DNS names or IP addresses, replacing existing files."""
        pair = key_pairs.issue_serving_certificate(self._pair, names, self._component, datetime.now(timezone.utc))
        folder.mkdir(parents=True, exist_ok=True)
        write_secret(folder / "tls.key", pair.key)
        write_secret(folder / "tls.crt", pair.certificate)
