"""The state of a component's certificates in a namespace, and functions that derive facts from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from kube.certificates import certificate_objects, key_pairs
from kube.certificates.ca_injection import get_trusted_bundle
from kube.certificates.certificate_objects import CA_ENTRY, CertificateSummary
from kube.certificates.components import Component
from kube.certificates.key_pairs import KeyPair
from kube.certificates.server_names import select_unusable_names
from kube.paths import Object

MAX_BUNDLE_CAS = 10
"""Number of CAs in a bundle from which a user's request for a new CA waits until an old CA expires."""


@dataclass(frozen=True)
class ComponentState:
    """The state of a component in a namespace, as it was read.

    Attributes:
        ca_secret: Secret with the CA, None if there is none.
        bundle_configmap: ConfigMap with the certificates that clients trust, None if there is none.
        server_secrets: Secrets with the certificates of the component's servers.
        missing_servers: Server Secrets that the ConfigMap lists and that do not exist.
        injection_targets: CA injection targets that request the bundle.
        are_targets_unknown: Whether the CA injection targets could not be listed.
        is_truncated: Whether the ConfigMap lists more missing Secrets than are recreated.
        unwritable: Kind and name of each object that the API server refuses to write.
        summaries: The ConfigMap's data about each Secret, by the Secret's name.
    """

    component: Component
    namespace: str
    ca_secret: Object | None = field(repr=False)  # contains keys
    bundle_configmap: Object | None
    server_secrets: tuple[Object, ...] = field(repr=False)
    missing_servers: tuple[CertificateSummary, ...] = ()
    injection_targets: tuple[Object, ...] = ()
    are_targets_unknown: bool = False
    is_truncated: bool = False
    unwritable: frozenset[tuple[str, str]] = frozenset()
    summaries: Mapping[str, CertificateSummary] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "summaries", certificate_objects.parse_summaries(self.bundle_configmap))

    @property
    def current_ca(self) -> KeyPair | None:
        """Return the CA that signs certificates now; None if it is missing, corrupt, or not a CA."""
        return _keep_if_signing_ca(certificate_objects.get_current_key_pair(self.ca_secret)) if self.ca_secret else None

    @property
    def next_ca(self) -> KeyPair | None:
        """Return the CA that will replace the signing CA, None if there is none."""
        return _keep_if_signing_ca(certificate_objects.get_next_key_pair(self.ca_secret)) if self.ca_secret else None

    def has_valid_ca(self, now: datetime) -> bool:
        """Return whether there is a signing CA whose certificate is valid now."""
        return self.current_ca is not None and key_pairs.is_valid(self.current_ca.certificate, now)

    @property
    def secrets(self) -> tuple[Object, ...]:
        """Return all Secrets of the component that exist."""
        return (*([self.ca_secret] if self.ca_secret else []), *self.server_secrets)


def get_kind_and_name(obj: Object) -> tuple[str, str]:
    """Return the kind and name, which identify an object within a state; an object without a kind is a Secret."""
    return str(obj.get("kind") or "Secret"), certificate_objects.get_name(obj)


def build_bundle(state: ComponentState, now: datetime) -> list[str]:
    """Return the certificates that clients must trust: the next CA, the signing CA, previous CAs and foreign CAs.

    Previous CAs are included until they expire. Foreign CAs are included if they signed a server's certificate and the
    server's Secret contains them. Previous CAs are read from the CA's Secret. If that Secret is lost, they are read
    from the ConfigMap, which more clients may write.
    """
    own_cas = [
        cert
        for pair in (state.next_ca, state.current_ca)
        if pair
        for cert in key_pairs.parse_certificates(pair.certificate)
    ]
    previous_cas = (
        key_pairs.parse_certificates(certificate_objects.decode_entry(state.ca_secret, CA_ENTRY))
        if state.ca_secret
        else []
    )
    foreign_cas = [signer for server in state.server_secrets for signer in _find_signers(server)]
    certificates = dict.fromkeys(
        [*own_cas, *(previous_cas or certificate_objects.parse_published_bundle(state.bundle_configmap)), *foreign_cas]
    )
    return [certificate for certificate in certificates if key_pairs.get_not_after(certificate) > now]


def list_publishable_fingerprints(state: ComponentState, now: datetime) -> list[str]:
    """Return the fingerprints of the certificates that count as published once they are in the ConfigMap.

    These are all certificates in the bundle, except the next CA while its waiting period may not start.
    """
    waiting = (
        state.next_ca.certificate if state.next_ca and not _may_start_propagation(state, state.next_ca, now) else ""
    )
    return [
        key_pairs.compute_fingerprint(certificate) for certificate in build_bundle(state, now) if certificate != waiting
    ]


def is_next_ca_blocked(state: ComponentState, now: datetime) -> bool:
    """Return whether there is a next CA that must not sign yet.

    This is the case if a client that trusts our certificates cannot receive the next CA, or if the clients are unknown.
    """
    return state.next_ca is not None and (state.are_targets_unknown or _has_stale_client(state, state.next_ca, now))


def is_bundle_full(state: ComponentState, now: datetime) -> bool:
    """Return whether the bundle contains so many CAs that a user's request for a new CA must wait."""
    return len(build_bundle(state, now)) >= MAX_BUNDLE_CAS


def find_secrets_without_dns_names(state: ComponentState) -> set[str]:
    """Return the names of the Secrets whose server has no known DNS name, so that no certificate can be issued."""
    return {
        certificate_objects.get_name(server)
        for server in state.server_secrets
        if not certificate_objects.find_server_names(server, state.summaries)
    }


def find_invalid_names(state: ComponentState) -> dict[str, tuple[str, ...]]:
    """Return the invalid server names in each Secret's annotation, by the Secret's name."""
    names_by_secret = {
        certificate_objects.get_name(server): select_unusable_names(certificate_objects.get_annotated_names(server))
        for server in state.server_secrets
    }
    return {name: names for name, names in names_by_secret.items() if names}


def _may_start_propagation(state: ComponentState, next_ca: KeyPair, now: datetime) -> bool:
    """Return whether the waiting period of the next CA may start or continue, because every client can receive the CA.

    If the clients are unknown, a waiting period that has started continues. Otherwise, slow list requests would restart
    the period again and again.
    """
    if _has_stale_client(state, next_ca, now):
        return False
    return not state.are_targets_unknown or key_pairs.compute_fingerprint(
        next_ca.certificate
    ) in certificate_objects.parse_published_times(state.bundle_configmap, now)


def _has_stale_client(state: ComponentState, next_ca: KeyPair, now: datetime) -> bool:
    """Return whether a known client trusts a server with a valid certificate but cannot receive the next CA."""
    client_bundles = [
        key_pairs.parse_certificates(get_trusted_bundle(target))
        for target in state.injection_targets
        if get_kind_and_name(target) in state.unwritable
    ]
    unwritable_servers = [server for server in state.server_secrets if get_kind_and_name(server) in state.unwritable]
    client_bundles += [
        key_pairs.parse_certificates(certificate_objects.decode_entry(server, CA_ENTRY))
        for server in unwritable_servers
    ]
    served_pairs = [
        certificate_objects.get_current_key_pair(server)
        for server in state.server_secrets
        if server not in unwritable_servers
    ]
    working = [pair.certificate for pair in served_pairs if pair and key_pairs.is_valid(pair.certificate, now)]
    return any(
        next_ca.certificate not in bundle
        and any(key_pairs.is_signed_by(certificate, ca) for certificate in working for ca in bundle)
        for bundle in client_bundles
    )


def _keep_if_signing_ca(pair: KeyPair | None) -> KeyPair | None:
    return pair if pair and key_pairs.is_signing_ca(pair) else None


def _find_signers(server_secret: Object) -> Iterator[str]:
    """Yield the certificates in a server's Secret that signed the server's certificate, which may be self-signed."""
    current_pair = certificate_objects.get_current_key_pair(server_secret)
    if current_pair:
        for candidate in key_pairs.parse_certificates(
            current_pair.certificate + certificate_objects.decode_entry(server_secret, CA_ENTRY)
        ):
            if key_pairs.is_signed_by(key_pairs.parse_certificates(current_pair.certificate)[0], candidate):
                yield candidate
