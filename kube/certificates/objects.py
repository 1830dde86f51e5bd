"""The objects that contain certificates: labelled Secrets, and the ConfigMap that publishes the CA certificates.

The name of a Secret determines whether it belongs to the CA or to a server. Only Secrets contain private keys.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from kube.certificates.components import CLOCK_SKEW, COMPONENT_LABEL
from kube.certificates.server_names import select_usable_names
from kube.kubernetes_events import NORMAL_TYPE, WARNING_TYPE, KubernetesEvent
from kube.paths import Object, encode_path_segment
from kube.times import parse_time_or_none

DNS_NAMES_ANNOTATION = "nodemaintenance.dev/dns-names"
"""Annotation on a server's Secret with a comma-separated list of the server's DNS names and IP addresses.

Without the annotation, the new certificate gets the names in the existing certificate.
"""
RENEW_ANNOTATION = "nodemaintenance.dev/renew"
"""Annotation that requests the renewal of a Secret's certificate; its value is the request time. Renewal removes it."""
PUBLISHED_ANNOTATION = "nodemaintenance.dev/published"
"""Annotation on the ConfigMap with the time when each certificate was first published, by fingerprint."""
CA_INCLUSION_TIME_ANNOTATION = "nodemaintenance.dev/told"
"""Annotation on a server's Secret with the time when the signing CA was added to its `ca.crt`.

The annotation is removed when this CA issues its first certificate for the server.
"""
CERT_MANAGER_ANNOTATION = "cert-manager.io/certificate-name"
"""Annotation on Secrets that cert-manager renews; this project must not renew them, or both would do so forever."""
CERTIFICATE_ENTRY, PRIVATE_KEY_ENTRY, CA_ENTRY = "tls.crt", "tls.key", "ca.crt"
"""Entries in a Secret: the certificate and key in use, and the CA certificates that clients trust."""
NEXT_CERTIFICATE_ENTRY, NEXT_PRIVATE_KEY_ENTRY = "next.crt", "next.key"
"""Entries in a CA's Secret: the next CA, which signs after clients have had time to read its certificate."""
OPAQUE_TYPE, TLS_TYPE = "Opaque", "kubernetes.io/tls"
"""The supported Secret types."""
RESERVED_TYPE_PATTERN = re.compile(r"(bootstrap\.)?kubernetes\.io/")
"""Matches Kubernetes' own Secret types; all except `TLS_TYPE` require entries that this project's Secrets lack."""
OBJECT_NAME_PATTERN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
MAX_OBJECT_NAME_CHARACTERS = 253
"""Matches valid names of a Secret (RFC 1123 subdomain), and the maximum length of a name, in characters."""
BUNDLE_ENTRY, STATUS_ENTRY = "ca-bundle.crt", "status.json"
"""Entries in the ConfigMap: the CA certificates that clients trust, and the public data about each Secret."""
UNKNOWN_COMPONENT_REASON, NO_NAMES_REASON = "UnknownCertificateComponent", "CertificateWithoutNames"
CERT_MANAGER_REASON, NOT_RENEWED_REASON = "CertificateOfCertManager", "CertificateNotRenewed"
RENEWED_REASON = "RenewedCertificate"
"""Reasons of the Kubernetes Events about certificates."""
MAX_BUNDLE_CAS = 10
"""Number of CAs in a bundle above which a user's request for a new CA waits until an old CA expires."""


@dataclass(frozen=True)
class CertificateSummary:
    """Public data about a Secret and its certificate, without any key material."""

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
    """Return the value of the object's component label, None if it has no such label."""
    value = (obj["metadata"].get("labels") or {}).get(COMPONENT_LABEL)
    return None if value is None else str(value)


def get_name(obj: Object) -> str:
    """Return the object's name."""
    return str(obj["metadata"]["name"])


def get_kind_and_name(obj: Object) -> tuple[str, str]:
    """Return the object's kind and name, which identify it within a state; an object without a kind is a Secret."""
    return str(obj.get("kind") or "Secret"), get_name(obj)


def get_annotation(obj: Object, key: str) -> str:
    """Return the value of an annotation, "" if the object does not have it."""
    return str((obj["metadata"].get("annotations") or {}).get(key) or "")


def is_renewal_requested(secret: Object) -> bool:
    """Return whether a user has requested the renewal of the Secret's certificate."""
    return bool(get_annotation(secret, RENEW_ANNOTATION))


def decode_entry(secret: Object, entry: str) -> str:
    """Return a decoded entry of a Secret, "" if it is missing or not text."""
    try:
        return base64.b64decode((secret.get("data") or {}).get(entry) or "", validate=True).decode()
    except ValueError:
        return ""


def encode_entries(entries: Mapping[str, str]) -> dict[str, str]:
    """Encode each value in base64, as in a Secret's `data`."""
    return {entry: base64.b64encode(value.encode()).decode() for entry, value in entries.items()}


def get_annotated_names(secret: Object) -> list[str]:
    """Return the DNS names and IP addresses in the Secret's annotation, without normalizing them."""
    return get_annotation(secret, DNS_NAMES_ANNOTATION).split(",")


def parse_published_times(configmap: Object | None, now: datetime) -> dict[str, datetime]:
    """Return the time when each certificate was first published, by fingerprint."""
    found = _parse_json_object(get_annotation(configmap, PUBLISHED_ANNOTATION)) if configmap else {}
    times = {str(key): _parse_past_time(value, now) for key, value in found.items()}
    return {key: moment for key, moment in times.items() if moment}


def parse_ca_inclusion_time(server_secret: Object, now: datetime) -> datetime | None:
    """Return the time when the signing CA was added to the server's `ca.crt`; None if the time is not recorded."""
    return _parse_past_time(get_annotation(server_secret, CA_INCLUSION_TIME_ANNOTATION), now)


def _parse_past_time(text: object, now: datetime) -> datetime | None:
    """Parse a time; ignore a time in the future, which comes from a wrong clock or a manual edit."""
    moment = parse_time_or_none(text)
    return moment if moment and moment <= now + CLOCK_SKEW else None


def parse_summaries(configmap: Object | None) -> Mapping[str, CertificateSummary]:
    """Return the ConfigMap's summary of each Secret by name; it suffices to recreate a deleted Secret."""
    return _parse_summaries_text(get_configmap_entry(configmap, STATUS_ENTRY))


@lru_cache(maxsize=8)  # every planned write needs the result, and the text may have up to 1 MiB
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
    return CertificateSummary(secret_name, select_usable_names(names), kind, *rest)


def get_configmap_entry(configmap: Object | None, entry: str) -> str:
    """Return the value of a ConfigMap's entry, "" if it is missing."""
    return str(((configmap or {}).get("data") or {}).get(entry) or "")


def _parse_json_object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def build_certificate_event(namespace: str, target: tuple[str, str], reason: str, message: str) -> KubernetesEvent:
    """Build the content of an Event about a Secret or ConfigMap; `target` is the object's kind and name."""
    kind, name = target
    regarding = {"apiVersion": "v1", "kind": kind, "name": name, "namespace": namespace}
    return KubernetesEvent(regarding, reason, message, NORMAL_TYPE if reason == RENEWED_REASON else WARNING_TYPE)
