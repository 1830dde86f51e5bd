"""The state of a component's certificates: the objects as they were read, and the certificates and keys in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from kube.certificates import key_pairs
from kube.certificates.components import Component
from kube.certificates.key_pairs import KeyPair
from kube.certificates.objects import (
    BUNDLE_ENTRY,
    CA_ENTRY,
    CERTIFICATE_ENTRY,
    MAX_BUNDLE_CAS,
    NEXT_CERTIFICATE_ENTRY,
    NEXT_PRIVATE_KEY_ENTRY,
    OPAQUE_TYPE,
    PRIVATE_KEY_ENTRY,
    CertificateSummary,
    decode_entry,
    get_annotated_names,
    get_configmap_entry,
    get_kind_and_name,
    get_name,
    parse_summaries,
)
from kube.certificates.server_names import select_usable_names
from kube.paths import Object
from kube.times import format_time


@dataclass(frozen=True)
class ComponentState:
    """The state of a component's certificates in a namespace, as it was read.

    Attributes:
        ca_secret: Secret that contains the CA, None if it does not exist.
        bundle_configmap: ConfigMap with the CA certificates that clients trust, None if it does not exist.
        server_secrets: Secrets that contain the serving certificates of the component's servers.
        missing_servers: Server Secrets that the ConfigMap lists but that do not exist.
        injection_targets: CA injection targets that request the component's CA bundle.
        are_targets_unknown: Whether the CA injection targets could not be listed.
        is_truncated: Whether the ConfigMap lists more missing Secrets than may be recreated.
        unwritable: Kind and name of each object that the API server does not allow to write.
        summaries: The ConfigMap's data about each Secret, by Secret name.
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
        object.__setattr__(self, "summaries", parse_summaries(self.bundle_configmap))

    @property
    def current_ca(self) -> KeyPair | None:
        """Return the CA that signs certificates now; None if it is missing, corrupt, or not a CA certificate."""
        pair = get_current_key_pair(self.ca_secret) if self.ca_secret else None
        return pair if pair and key_pairs.is_signing_ca(pair) else None

    @property
    def next_ca(self) -> KeyPair | None:
        """Return the CA that will replace the signing CA; None if there is none."""
        pair = _parse_pair(self.ca_secret, NEXT_CERTIFICATE_ENTRY, NEXT_PRIVATE_KEY_ENTRY) if self.ca_secret else None
        return pair if pair and key_pairs.is_signing_ca(pair) else None

    @property
    def secrets(self) -> tuple[Object, ...]:
        """Return all existing Secrets of the component."""
        return (*([self.ca_secret] if self.ca_secret else []), *self.server_secrets)

    def build_bundle(self, now: datetime) -> list[str]:
        """Return the CA certificates that clients must trust: of the next, signing, previous and foreign CAs.

        Previous CAs are included until they expire. Foreign CAs are included if they signed a server's certificate and
        the server's Secret contains them. Previous CAs are read from the CA's Secret. If that Secret is lost, they are
        read from the ConfigMap, to which more clients have write access.
        """
        own_text = "".join(pair.certificate for pair in (self.next_ca, self.current_ca) if pair)
        previous_text = decode_entry(self.ca_secret, CA_ENTRY) if self.ca_secret else ""
        previous_cas = key_pairs.parse_certificates(previous_text) or parse_published_bundle(self.bundle_configmap)
        foreign_cas = [signer for server in self.server_secrets for signer in _find_signers(server)]
        certificates = dict.fromkeys([*key_pairs.parse_certificates(own_text), *previous_cas, *foreign_cas])
        return [certificate for certificate in certificates if key_pairs.get_not_after(certificate) > now]

    def has_too_many_cas(self, now: datetime) -> bool:
        """Return whether the CA bundle contains so many CAs that a user's request for a new CA must wait."""
        return len(self.build_bundle(now)) >= MAX_BUNDLE_CAS

    def can_write(self, obj: Object) -> bool:
        """Return whether the object may be written, because the API server has not refused a write of it."""
        return get_kind_and_name(obj) not in self.unwritable


def get_current_key_pair(secret: Object) -> KeyPair | None:
    """Return the certificate and key in the Secret, None if they are missing or corrupt."""
    return _parse_pair(secret, CERTIFICATE_ENTRY, PRIVATE_KEY_ENTRY)


def _parse_pair(secret: Object, certificate_entry: str, key_entry: str) -> KeyPair | None:
    return key_pairs.parse_key_pair(decode_entry(secret, certificate_entry), decode_entry(secret, key_entry))


def _find_signers(server_secret: Object) -> list[str]:
    """Return the certificates in a server's Secret that signed the server's certificate, which may be self-signed."""
    pair = get_current_key_pair(server_secret)
    served = key_pairs.parse_certificates(pair.certificate) if pair else []
    candidates = [*served, *key_pairs.parse_certificates(decode_entry(server_secret, CA_ENTRY))] if served else []
    return [candidate for candidate in candidates if key_pairs.is_signed_by(served[0], candidate)]


def find_server_names(secret: Object, summaries: Mapping[str, CertificateSummary]) -> tuple[str, ...]:
    """Return the server's names from the annotation, else from its certificate, else from the ConfigMap, else ()."""
    summary = summaries.get(get_name(secret))
    served_names = key_pairs.get_subject_alt_names(decode_entry(secret, CERTIFICATE_ENTRY))
    return (
        select_usable_names(get_annotated_names(secret))
        or select_usable_names(served_names)
        or (summary.names if summary else ())
    )


def parse_published_bundle(configmap: Object | None) -> list[str]:
    """Return the CA certificates that the ConfigMap publishes."""
    return key_pairs.parse_certificates(get_configmap_entry(configmap, BUNDLE_ENTRY))


def build_summary(
    secret: Object, summaries: Mapping[str, CertificateSummary], component: Component
) -> CertificateSummary:
    """Build the summary of a Secret's current certificate."""
    pair, names = get_current_key_pair(secret), find_server_names(secret, summaries)
    kind = str(secret.get("type") or OPAQUE_TYPE)
    if pair is None:
        return CertificateSummary(get_name(secret), names, kind)
    certificate = pair.parsed_certificate
    due = key_pairs.compute_renewal_time(certificate, component)
    dates = map(format_time, (certificate.not_valid_before_utc, certificate.not_valid_after_utc, due))
    return CertificateSummary(get_name(secret), names, kind, key_pairs.format_serial(certificate), *dates)
