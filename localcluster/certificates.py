"""The certificates of a cluster's servers, each signed by a CA whose private key is not stored.

The API server can generate its own certificates, but with RSA keys. Generating two such keys adds tenths of a second to
its startup, and each TLS handshake then takes fifteen times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

from localcluster import access

VALIDITY_DAYS = 365
SERVING_NAMES = ("kubernetes.default.svc", "kubernetes.default", "kubernetes", "localhost", "127.0.0.1", "10.0.0.1")
"""The API server's names and addresses; the last is its Service's cluster IP, the first address of `SERVICE_CIDR`."""


def write_certificate(component_name: str, server_names: Sequence[str], certificate: Path, key: Path) -> str:
    """Issue a certificate for these server names, write it and its key, and return the CA certificate, all as PEM."""
    from kube.certificates import key_pairs  # slow import, not needed if no cluster is started
    from kube.certificates.components import Component

    now, component = datetime.now(timezone.utc), Component(component_name, timedelta(days=VALIDITY_DAYS))
    ca = key_pairs.create_ca(component, now)
    pair = key_pairs.issue_serving_certificate(ca, server_names, component, now)
    access.write_secret(key, pair.key)
    certificate.write_text(pair.certificate)
    return ca.certificate


def write_serving_certificate(certificate: Path, key: Path) -> None:
    """Write the API server's certificate file: the serving certificate, followed by its CA."""
    ca_certificate = write_certificate("kubernetes", SERVING_NAMES, certificate, key)
    with certificate.open("a") as file:
        file.write(ca_certificate)
