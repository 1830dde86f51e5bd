"""The objects that hold certificates: labelled Secrets, and the ConfigMap that publishes what clients trust.

The name of a Secret shows whether it belongs to the CA or to a server. Only Secrets contain private keys.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from kube.certificates import key_pairs
from kube.certificates.components import BACKDATED, LABEL, Component, moment_or_none, renewal
from kube.certificates.key_pairs import Pair
from kube.certificates.server_names import usable
from kube.paths import Object, segment
from kube.times import timestamp

NAMES = "nodemaintenance.dev/dns-names"
"""Annotation of a server's Secret: the names of the server, separated by commas.

Without it, the names in the existing certificate are used.
"""
RENEW = "nodemaintenance.dev/renew"
"""Annotation that requests the renewal of a Secret, with the time of the request; the renewal removes it."""
PUBLISHED = "nodemaintenance.dev/published"
"""Annotation of the ConfigMap: since when each of its certificates is published, by fingerprint."""
TOLD = "nodemaintenance.dev/told"
"""Annotation of a server's Secret: since when its `ca.crt` contains the signing CA.

It is removed when this CA issues the server's first certificate.
"""
CERT_MANAGER = "cert-manager.io/certificate-name"
"""Annotation of a Secret that cert-manager writes; two controllers would replace each other's certificates forever."""
CERTIFICATE, KEY, TRUSTED = "tls.crt", "tls.key", "ca.crt"
"""Entries of a Secret: the pair in use, and the CA certificates that clients trust."""
NEXT_CERTIFICATE, NEXT_KEY = "next.crt", "next.key"
"""Entries of a CA's Secret: the pair that signs once clients have had the time to read its certificate."""
OPAQUE, TLS, RESERVED = "Opaque", "kubernetes.io/tls", re.compile(r"(bootstrap\.)?kubernetes\.io/")
"""Types of Secrets: `OPAQUE` and `TLS` are supported.

`RESERVED` matches the types of Kubernetes, of which all but `TLS` require entries that our Secrets do not have.
"""
OBJECT_NAME, LONGEST_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"), 253
"""Valid names for a Secret (RFC 1123 subdomain)."""
BUNDLE, STATUS = "ca-bundle.crt", "status.json"
"""Entries of the ConfigMap: the certificates that clients trust, and the public data of each Secret."""


@dataclass(frozen=True)
class Held:
    """Public data of a certificate, without any key material."""

    secret: str
    names: tuple[str, ...]
    kind: str
    serial: str = ""
    begins: str = ""
    ends: str = ""
    renewal: str = ""

    def as_data(self) -> dict[str, Any]:
        """Return the entry for `status.json`."""
        return {**vars(self), "names": list(self.names)}


def secrets_path(namespace: str, name: str = "") -> str:
    """Return the API path of the Secrets of a namespace, or of one Secret."""
    return _path("secrets", namespace, name)


def publications_path(namespace: str, name: str = "") -> str:
    """Return the API path of the ConfigMaps of a namespace, or of one ConfigMap."""
    return _path("configmaps", namespace, name)


def _path(resource: str, namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{segment(namespace)}/{resource}" + (f"/{segment(name)}" if name else "")


def component_of(item: Object) -> str | None:
    """Return the value of the object's component label, or None."""
    value = (item["metadata"].get("labels") or {}).get(LABEL)
    return None if value is None else str(value)


def name_of(item: Object) -> str:
    """Return the object's name."""
    return str(item["metadata"]["name"])


def annotation(item: Object, key: str) -> str:
    """Return the value of an annotation, "" if it is absent."""
    return str((item["metadata"].get("annotations") or {}).get(key) or "")


def is_asked_for(secret: Object) -> bool:
    """Return whether a user requested the Secret's renewal."""
    return bool(annotation(secret, RENEW))


def text(secret: Object, entry: str) -> str:
    """Return an entry of a Secret as text, "" if it is missing or not text."""
    try:
        return base64.b64decode((secret.get("data") or {}).get(entry) or "", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return ""


def encoded(entries: Mapping[str, str]) -> dict[str, str]:
    """Encode texts for a Secret's `data`."""
    return {entry: base64.b64encode(value.encode()).decode() for entry, value in entries.items()}


def current(secret: Object) -> Pair | None:
    """Return the pair in use, or None if it is missing or corrupt."""
    return key_pairs.pair(text(secret, CERTIFICATE), text(secret, KEY))


def upcoming(authority: Object) -> Pair | None:
    """Return the pair that will sign next, or None."""
    return key_pairs.pair(text(authority, NEXT_CERTIFICATE), text(authority, NEXT_KEY))


def names_of(secret: Object, remembered: Mapping[str, Held]) -> tuple[str, ...]:
    """Return the names of the server: from the annotation, its certificate or the ConfigMap, in this order, or ()."""
    known = remembered.get(name_of(secret))
    shown = key_pairs.names(text(secret, CERTIFICATE))
    return usable(annotated_names(secret)) or usable(shown) or (known.names if known else ())


def annotated_names(secret: Object) -> list[str]:
    """Return the names in the Secret's annotation, not normalized."""
    return annotation(secret, NAMES).split(",")


def bundle_of(publication: Object | None) -> list[str]:
    """Return the published certificates."""
    return key_pairs.certificates(str(((publication or {}).get("data") or {}).get(BUNDLE) or ""))


def published(publication: Object | None, now: datetime) -> dict[str, datetime]:
    """Return since when each certificate is published, by fingerprint.

    A time in the future comes from a wrong clock or a manual edit, and is ignored.
    """
    found = _object(annotation(publication, PUBLISHED)) if publication else {}
    moments = {str(key): moment_or_none(value) for key, value in found.items()}
    return {key: moment for key, moment in moments.items() if moment and moment <= now + BACKDATED}


def told(server: Object, now: datetime) -> datetime | None:
    """Return since when the server's `ca.crt` contains the signing CA; None if no valid time is recorded."""
    since = moment_or_none(annotation(server, TOLD))
    return since if since and since <= now + BACKDATED else None


def remembered(publication: Object | None) -> Mapping[str, Held]:
    """Return the ConfigMap's data about each Secret, by name; it suffices to recreate a deleted Secret."""
    return _remembered(str(((publication or {}).get("data") or {}).get(STATUS) or ""))


@lru_cache(maxsize=8)  # each write needs the result, and the text may be up to 1 MiB long
def _remembered(text: str) -> Mapping[str, Held]:
    found = _object(text)
    return {name: _held(name, item) for name, item in found.items() if isinstance(item, dict) and _is_name(name)}


def held(secret: Object, known: Mapping[str, Held], component: Component) -> Held:
    """Return the current public data of a Secret."""
    pair = current(secret)
    kind = str(secret.get("type") or OPAQUE)
    if pair is None:
        return Held(name_of(secret), names_of(secret, known), kind)
    read = pair.parsed
    begins, ends = read.not_valid_before_utc, read.not_valid_after_utc
    due = renewal(begins, ends, component)
    dates = (timestamp(moment) for moment in (begins, ends, due))
    return Held(name_of(secret), names_of(secret, known), kind, key_pairs.serial(read), *dates)


def publication_data(bundle: Iterable[str], known: Iterable[Held]) -> dict[str, str]:
    """Build `data` of the ConfigMap."""
    status = {item.secret: item.as_data() for item in known}
    return {BUNDLE: "".join(bundle), STATUS: json.dumps(status, indent=1, sort_keys=True) + "\n"}


def _is_name(name: str) -> bool:
    return len(name) <= LONGEST_NAME and bool(OBJECT_NAME.fullmatch(name))


def _held(name: str, item: Mapping[str, Any]) -> Held:
    listed = item.get("names")
    names = usable(each for each in listed if isinstance(each, str)) if isinstance(listed, list) else ()
    rest = (str(item.get(field) or "") for field in ("serial", "begins", "ends", "renewal"))
    kind = str(item.get("kind") or OPAQUE)
    return Held(name, names, OPAQUE if RESERVED.match(kind) and kind != TLS else kind, *rest)


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
