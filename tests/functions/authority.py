"""An authority for servers of this machine: its certificate, and those that it gives them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from pathlib import Path

from kube.certificates import issuing
from kube.certificates.components import Component
from localcluster.access import write_secret

PERIOD = timedelta(days=183)
"""A server's certificate lives for two."""


class Authority:
    """A key that is in memory alone, and the certificate that clients trust."""

    def __init__(self, name: str) -> None:
        self._component = Component(name, PERIOD)
        self._pair = issuing.new_authority(self._component, datetime.now(timezone.utc))

    @property
    def certificate(self) -> str:
        """What clients trust, in PEM."""
        return self._pair.certificate

    def write_certificate(self, folder: Path, names: Iterable[str]) -> None:
        """Write `tls.crt` and `tls.key` for a server of these names or addresses, in the place of what is there."""
        made = issuing.new_serving(self._pair, names, self._component, datetime.now(timezone.utc))
        folder.mkdir(parents=True, exist_ok=True)
        write_secret(folder / "tls.key", made.key)
        write_secret(folder / "tls.crt", made.certificate)
