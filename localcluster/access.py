"""API server credentials: certificates, static tokens, kubeconfig files, and the key that signs ServiceAccount tokens.

The API server could generate its own certificates, but only with RSA keys. Generating them delays its startup by tenths
of a second, and each TLS handshake then takes fifteen times as long. So this module issues ECDSA certificates.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

import yaml

from localcluster.errors import LocalClusterError

NAMESPACE = "node-maintenance"
MANIFESTS_DIR = Path(__file__).parents[1] / "manifests"
RIGHTS_FILES = ("base/rbac/*.yaml", "components/*/rights/*.yaml")
"""Patterns of the RBAC manifests; each file has the name of its ServiceAccount, except for `NO_ACCOUNT_FILES`."""
NO_ACCOUNT_FILES = ("kustomization", "namespace")
SHARED_ACCOUNT = "functions"
"""The ServiceAccount of a process that serves all functions."""
ADMIN = "admin"
UNPRIVILEGED = "unprivileged"
KWOK = "kwok"
CONTROLLER_MANAGER = "system:kube-controller-manager"
SCHEDULER = "system:kube-scheduler"

AUTHENTICATED = "system:authenticated"
SYSTEM_MASTERS = "system:masters"
P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # FIPS 186-4, D.1.2.3
VALIDITY_DAYS = 365
SERVING_NAMES = ("kubernetes.default.svc", "kubernetes.default", "kubernetes", "localhost", "127.0.0.1", "10.0.0.1")
"""The API server's names and addresses. The last one is its Service's cluster IP, the first of `SERVICE_CIDR`."""


def ensure_event_signing_key(directory: Path) -> str:
    """Return the key with which the product on this cluster signs events; create it on first use."""
    file = directory / "signing.key"
    if not file.exists():
        write_secret(file, secrets.token_urlsafe(32))
    return file.read_text()


def make_username(account: str) -> str:
    """Return the user name of a ServiceAccount in the product's namespace."""
    return f"system:serviceaccount:{NAMESPACE}:{account}"


def list_service_accounts() -> list[str]:
    """Return the names of the product's ServiceAccounts, including those of the optional components."""
    names = {file.stem for pattern in RIGHTS_FILES for file in MANIFESTS_DIR.glob(pattern)}
    return sorted(names.difference(NO_ACCOUNT_FILES) | {SHARED_ACCOUNT})


def list_users() -> dict[str, tuple[str, ...]]:
    """Return the groups of each user for whom the token file contains a token, by user name."""
    account_groups = ("system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}", AUTHENTICATED)
    return {
        ADMIN: (SYSTEM_MASTERS, AUTHENTICATED),
        KWOK: (SYSTEM_MASTERS, AUTHENTICATED),  # A separate user identifies kwok's writes in the audit log.
        CONTROLLER_MANAGER: (AUTHENTICATED,),
        SCHEDULER: (AUTHENTICATED,),
        UNPRIVILEGED: (AUTHENTICATED,),
        **{make_username(name): account_groups for name in list_service_accounts()},
    }


class TokenFile:
    """The static token file of kube-apiserver, with one random token per user."""

    def __init__(self, file: Path, groups: Mapping[str, tuple[str, ...]]) -> None:
        self.file = file
        self._tokens = {user: secrets.token_urlsafe(24) for user in groups}
        lines = (f'{self._tokens[user]},{user},{user},"{",".join(groups[user])}"\n' for user in groups)
        write_secret(file, "".join(lines))

    def get_token(self, user: str) -> str:
        """Return a user's token."""
        if user not in self._tokens:
            raise LocalClusterError(f'user "{user}" has no token: use one of {", ".join(sorted(self._tokens))}')
        return self._tokens[user]


def write_kubeconfig(file: Path, url: str, certificate: str, user: str, token: str, tls_server_name: str = "") -> None:
    """Write a self-contained kubeconfig that verifies the server's certificate.

    `tls_server_name`, if given, replaces the host in `url` as the name that the certificate must match.
    """
    cluster = {"server": url, "certificate-authority-data": base64.b64encode(certificate.encode()).decode()}
    if tls_server_name:
        cluster["tls-server-name"] = tls_server_name
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "local",
        "clusters": [{"name": "local", "cluster": cluster}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": "local", "context": {"cluster": "local", "user": user}}],
    }
    write_secret(file, yaml.safe_dump(content, sort_keys=False))


def write_proxied_kubeconfig(proxy_url: str, kubeconfig: Path, api_url: str, file: Path) -> Path:
    """Write to `file` a copy of a kubeconfig with `proxy_url` instead of the API server's URL; return `file`."""
    write_secret(file, kubeconfig.read_text().replace(api_url, proxy_url))
    return file


def write_service_account_key(file: Path) -> None:
    """Write a new P-256 private key as PEM; the API server signs ServiceAccount tokens with it.

    The DER structure (RFC 5915) contains version 1, the 32 octets of the scalar and the curve's name. The structure may
    omit the public key, so this function needs no cryptography package.
    """
    scalar = (secrets.randbelow(P256_ORDER - 1) + 1).to_bytes(32, "big")
    der = bytes.fromhex("30310201010420") + scalar + bytes.fromhex("a00a06082a8648ce3d030107")
    text = base64.encodebytes(der).decode()
    write_secret(file, f"-----BEGIN EC PRIVATE KEY-----\n{text}-----END EC PRIVATE KEY-----\n")


def write_secret(file: Path, text: str) -> None:
    """Write a file with mode 0600, and replace an existing file atomically."""
    temporary = file.with_name(file.name + ".new")
    temporary.touch(mode=0o600)
    temporary.write_text(text)
    temporary.replace(file)


def write_certificate(component_name: str, server_names: Sequence[str], certificate_file: Path, key_file: Path) -> str:
    """Issue a serving certificate, write the certificate and its key as PEM files, and return the CA certificate."""
    from kube.certificates import key_pairs  # slow import, not needed if no cluster is started
    from kube.certificates.components import Component

    now, component = datetime.now(timezone.utc), Component(component_name, timedelta(days=VALIDITY_DAYS))
    ca = key_pairs.create_ca(component, now)
    pair = key_pairs.issue_serving_certificate(ca, server_names, component, now)
    write_secret(key_file, pair.key)
    certificate_file.write_text(pair.certificate)
    return ca.certificate


def write_serving_certificate(certificate_file: Path, key_file: Path) -> None:
    """Write the API server's certificate file: the serving certificate, followed by its CA."""
    ca_certificate = write_certificate("kubernetes", SERVING_NAMES, certificate_file, key_file)
    with certificate_file.open("a") as file:
        file.write(ca_certificate)
