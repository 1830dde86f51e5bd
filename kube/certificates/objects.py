"""The objects that contain certificates: labelled Secrets, and the ConfigMap that publishes the CAs to trust.

The name of a Secret shows whether it belongs to the CA or to a server. Only Secrets contain private keys.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any

from kube.certificates import key_pairs
from kube.certificates.components import CLOCK_SKEW, COMPONENT_LABEL, Component
from kube.certificates.key_pairs import KeyPair
from kube.kubernetes_events import NORMAL_TYPE, WARNING_TYPE, EventNotice
from kube.paths import Object, encode_path_segment
from kube.times import format_time, parse_time_or_none

DNS_NAMES_ANNOTATION = "nodemaintenance.dev/dns-names"
"""Annotation on a server's Secret with the DNS names and IP addresses of the server, separated by commas.

Without the annotation, the names in the existing certificate are used.
"""
RENEW_ANNOTATION = "nodemaintenance.dev/renew"
"""Annotation that requests the renewal of a Secret, with the time of the request; the renewal removes it."""
PUBLISHED_ANNOTATION = "nodemaintenance.dev/published"
"""Annotation on the ConfigMap with the time at which each certificate was first published, by fingerprint."""
CA_INCLUSION_TIME_ANNOTATION = "nodemaintenance.dev/told"
"""Annotation on a server's Secret with the time since which its `ca.crt` has contained the signing CA.

The annotation is removed when this CA issues the server's first certificate.
"""
CERT_MANAGER_ANNOTATION = "cert-manager.io/certificate-name"
"""Annotation on Secrets that cert-manager renews; two controllers would replace each other's certificates forever."""
CERTIFICATE_ENTRY, PRIVATE_KEY_ENTRY, CA_ENTRY = "tls.crt", "tls.key", "ca.crt"
"""Entries in a Secret: the key pair in use, and the CA certificates that clients trust."""
NEXT_CERTIFICATE_ENTRY, NEXT_PRIVATE_KEY_ENTRY = "next.crt", "next.key"
"""Entries in a CA's Secret: the key pair that will sign once clients have had time to read its certificate."""
OPAQUE_TYPE, TLS_TYPE = "Opaque", "kubernetes.io/tls"
"""The supported Secret types."""
RESERVED_TYPE_PATTERN = re.compile(r"(bootstrap\.)?kubernetes\.io/")
"""Kubernetes' own Secret types, all of which except `TLS_TYPE` require entries that our Secrets do not have."""
OBJECT_NAME_PATTERN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
MAX_OBJECT_NAME_CHARACTERS = 253
"""Valid names for a Secret (RFC 1123 subdomain), and their maximum length."""
BUNDLE_ENTRY, STATUS_ENTRY = "ca-bundle.crt", "status.json"
"""Entries in the ConfigMap: the certificates that clients trust, and the public data about each Secret."""
UNKNOWN_COMPONENT_REASON, NO_NAMES_REASON = "UnknownCertificateComponent", "CertificateWithoutNames"
CERT_MANAGER_REASON, NOT_RENEWED_REASON = "CertificateOfCertManager", "CertificateNotRenewed"
RENEWED_REASON = "RenewedCertificate"
"""Reasons of Kubernetes Events."""
MAX_BUNDLE_CAS = 10
"""Number of CAs in a bundle from which a user's request for a new CA waits until an old CA expires."""


@dataclass(frozen=True)
class CertificateSummary:
    """Public data of a Secret and its certificate, without any key material."""

    secret: str
    names: tuple[str, ...]
    kind: str
    serial: str = ""
    begins: str = ""
    ends: str = ""
    renewal: str = ""

    def as_data(self) -> dict[str, Any]:
        """Return the summary as an entry of `status.json`."""
        return {**vars(self), "names": list(self.names)}


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
        object.__setattr__(self, "summaries", parse_summaries(self.bundle_configmap))

    @property
    def current_ca(self) -> KeyPair | None:
        """Return the CA that signs certificates now; None if it is missing, corrupt, or not a CA."""
        pair = get_current_key_pair(self.ca_secret) if self.ca_secret else None
        return pair if pair and key_pairs.is_signing_ca(pair) else None

    @property
    def next_ca(self) -> KeyPair | None:
        """Return the CA that will replace the signing CA, None if there is none."""
        pair = _parse_pair(self.ca_secret, NEXT_CERTIFICATE_ENTRY, NEXT_PRIVATE_KEY_ENTRY) if self.ca_secret else None
        return pair if pair and key_pairs.is_signing_ca(pair) else None

    @property
    def secrets(self) -> tuple[Object, ...]:
        """Return all Secrets of the component that exist."""
        return (*([self.ca_secret] if self.ca_secret else []), *self.server_secrets)

    def build_bundle(self, now: datetime) -> list[str]:
        """Return the certificates that clients must trust: the next CA, the signing CA, previous CAs and foreign CAs.

        Previous CAs are included until they expire. Foreign CAs are included if they signed a server's certificate and
        the server's Secret contains them. Previous CAs are read from the CA's Secret. If that Secret is lost, they are
        read from the ConfigMap, which more clients may write.
        """
        own_text = "".join(pair.certificate for pair in (self.next_ca, self.current_ca) if pair)
        previous_text = decode_entry(self.ca_secret, CA_ENTRY) if self.ca_secret else ""
        previous_cas = key_pairs.parse_certificates(previous_text) or parse_published_bundle(self.bundle_configmap)
        foreign_cas = [signer for server in self.server_secrets for signer in _find_signers(server)]
        certificates = dict.fromkeys([*key_pairs.parse_certificates(own_text), *previous_cas, *foreign_cas])
        return [certificate for certificate in certificates if key_pairs.get_not_after(certificate) > now]

    def is_bundle_full(self, now: datetime) -> bool:
        """Return whether the bundle contains so many CAs that a user's request for a new CA must wait."""
        return len(self.build_bundle(now)) >= MAX_BUNDLE_CAS

    def can_write(self, obj: Object) -> bool:
        """Return whether the API server has not refused to write the object."""
        return get_kind_and_name(obj) not in self.unwritable


def build_secrets_path(namespace: str, name: str = "") -> str:
    """Return the API path of the Secrets in a namespace, or of one Secret."""
    return _build_path("secrets", namespace, name)


def build_configmaps_path(namespace: str, name: str = "") -> str:
    """Return the API path of the ConfigMaps in a namespace, or of one ConfigMap."""
    return _build_path("configmaps", namespace, name)


def _build_path(resource: str, namespace: str, name: str) -> str:
    path = f"/api/v1/namespaces/{encode_path_segment(namespace)}/{resource}"
    return f"{path}/{encode_path_segment(name)}" if name else path


def get_component_name(obj: Object) -> str | None:
    """Return the value of the object's component label, or None."""
    value = (obj["metadata"].get("labels") or {}).get(COMPONENT_LABEL)
    return None if value is None else str(value)


def get_name(obj: Object) -> str:
    """Return the object's name."""
    return str(obj["metadata"]["name"])


def get_kind_and_name(obj: Object) -> tuple[str, str]:
    """Return the kind and name, which identify an object within a state; an object without a kind is a Secret."""
    return str(obj.get("kind") or "Secret"), get_name(obj)


def get_annotation(obj: Object, key: str) -> str:
    """Return the value of an annotation, "" if it is absent."""
    return str((obj["metadata"].get("annotations") or {}).get(key) or "")


def is_renewal_requested(secret: Object) -> bool:
    """Return whether a user requested the Secret's renewal."""
    return bool(get_annotation(secret, RENEW_ANNOTATION))


def decode_entry(secret: Object, entry: str) -> str:
    """Return an entry of a Secret as text, "" if it is missing or not text."""
    try:
        return base64.b64decode((secret.get("data") or {}).get(entry) or "", validate=True).decode()
    except ValueError:
        return ""


def encode_entries(entries: Mapping[str, str]) -> dict[str, str]:
    """Encode the values in base64, as in a Secret's `data`."""
    return {entry: base64.b64encode(value.encode()).decode() for entry, value in entries.items()}


def get_current_key_pair(secret: Object) -> KeyPair | None:
    """Return the certificate and key that the Secret contains, or None if they are missing or corrupt."""
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
        key_pairs.select_usable_names(get_annotated_names(secret))
        or key_pairs.select_usable_names(served_names)
        or (summary.names if summary else ())
    )


def get_annotated_names(secret: Object) -> list[str]:
    """Return the names in the Secret's annotation, not normalized."""
    return get_annotation(secret, DNS_NAMES_ANNOTATION).split(",")


def parse_published_bundle(configmap: Object | None) -> list[str]:
    """Return the certificates that the ConfigMap publishes."""
    return key_pairs.parse_certificates(_get_configmap_entry(configmap, BUNDLE_ENTRY))


def parse_published_times(configmap: Object | None, now: datetime) -> dict[str, datetime]:
    """Return the time at which each certificate was first published, by the certificate's fingerprint."""
    found = _parse_json_object(get_annotation(configmap, PUBLISHED_ANNOTATION)) if configmap else {}
    times = {str(key): _parse_past_time(value, now) for key, value in found.items()}
    return {key: moment for key, moment in times.items() if moment}


def parse_ca_inclusion_time(server_secret: Object, now: datetime) -> datetime | None:
    """Return the time since which the server's `ca.crt` has contained the signing CA, None if it is not recorded."""
    return _parse_past_time(get_annotation(server_secret, CA_INCLUSION_TIME_ANNOTATION), now)


def _parse_past_time(text: object, now: datetime) -> datetime | None:
    """Parse a time; a time in the future comes from a wrong clock or a manual edit, and is ignored."""
    moment = parse_time_or_none(text)
    return moment if moment and moment <= now + CLOCK_SKEW else None


def parse_summaries(configmap: Object | None) -> Mapping[str, CertificateSummary]:
    """Return the ConfigMap's summary of each Secret by name, which suffices to recreate a deleted Secret."""
    return _parse_summaries_text(_get_configmap_entry(configmap, STATUS_ENTRY))


@lru_cache(maxsize=8)  # each write needs the result, and the text may be up to 1 MiB long
def _parse_summaries_text(text: str) -> Mapping[str, CertificateSummary]:
    return {
        name: _parse_summary(name, fields)
        for name, fields in _parse_json_object(text).items()
        if isinstance(fields, dict) and OBJECT_NAME_PATTERN.fullmatch(name) and len(name) <= MAX_OBJECT_NAME_CHARACTERS
    }


def _parse_summary(secret_name: str, fields: Mapping[str, Any]) -> CertificateSummary:
    listed = fields.get("names")
    names = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    kind = str(fields.get("kind") or OPAQUE_TYPE)
    if RESERVED_TYPE_PATTERN.match(kind) and kind != TLS_TYPE:
        kind = OPAQUE_TYPE
    rest = (str(fields.get(field) or "") for field in ("serial", "begins", "ends", "renewal"))
    return CertificateSummary(secret_name, key_pairs.select_usable_names(names), kind, *rest)


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


def _get_configmap_entry(configmap: Object | None, entry: str) -> str:
    return str(((configmap or {}).get("data") or {}).get(entry) or "")


def _parse_json_object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def build_notice(namespace: str, target: tuple[str, str], reason: str, message: str) -> EventNotice:
    """Build the notice of an Event about a Secret or ConfigMap; `target` is its kind and name."""
    kind, name = target
    regarding = {"apiVersion": "v1", "kind": kind, "name": name, "namespace": namespace}
    return EventNotice(regarding, reason, message, NORMAL_TYPE if reason == RENEWED_REASON else WARNING_TYPE)
