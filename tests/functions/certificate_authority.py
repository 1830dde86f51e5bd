"""Certificate authority (CA) for TLS servers in tests: creates its CA certificate and issues serving certificates."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from pathlib import Path

from kube.certificates import key_pairs
from kube.certificates.components import Component
from localcluster.access import write_secret

PERIOD = timedelta(days=183)
"""Renewal period; a serving certificate is valid for two periods."""


class Authority:
    """A CA certificate that clients trust, and its key, which is kept in memory only."""

    def __init__(self, name: str) -> None:
        self._component = Component(name, PERIOD)
        self._pair = key_pairs.new_authority(self._component, datetime.now(timezone.utc))

    @property
    def certificate(self) -> str:
        """Return the CA certificate, which clients trust, as PEM."""
        return self._pair.certificate

    def write_certificate(self, folder: Path, names: Iterable[str]) -> None:
        """Write `tls.crt` and `tls.key` for a server with these names or addresses, replacing existing files."""
        made = key_pairs.new_serving(self._pair, names, self._component, datetime.now(timezone.utc))
        folder.mkdir(parents=True, exist_ok=True)
        write_secret(folder / "tls.key", made.key)
        write_secret(folder / "tls.crt", made.certificate)
