"""The objects that hold certificates: labelled Secrets, and the ConfigMap that publishes what clients trust. Pure.

A Secret is an authority's by its name, else a server's. Keys are in Secrets alone.
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

from kube.certificates import issuing
from kube.certificates.components import BACKDATED, LABEL, Component, moment_or_none, renewal
from kube.certificates.issuing import Pair
from kube.certificates.server_names import usable
from kube.paths import Object, segment
from kube.times import timestamp

NAMES = "nodemaintenance.dev/dns-names"
"""Annotation of a server's Secret: the names it is reached by, with commas between. Without it those of the certificate
that is there are taken."""
RENEW = "nodemaintenance.dev/renew"
"""Annotation of a Secret that is to be renewed now, with the moment of asking; gone once that is done."""
PUBLISHED = "nodemaintenance.dev/published"
"""Annotation of the ConfigMap: since when each certificate in it is published, by fingerprint."""
TOLD = "nodemaintenance.dev/told"
"""Annotation of a server's Secret: since when whoever reads its `ca.crt` knows the authority that signs; gone with the
first certificate of that one."""
CERT_MANAGER = "cert-manager.io/certificate-name"
"""Annotation of a Secret that cert-manager writes: two of us would take turns for ever."""
CERTIFICATE, KEY, TRUSTED = "tls.crt", "tls.key", "ca.crt"
"""Entries of a Secret: the pair in use and, beside a server's, what its clients trust."""
NEXT_CERTIFICATE, NEXT_KEY = "next.crt", "next.key"
"""Entries of an authority's Secret: the pair that will sign once clients have had the time to read of it."""
OPAQUE, TLS, RESERVED = "Opaque", "kubernetes.io/tls", re.compile(r"(bootstrap\.)?kubernetes\.io/")
"""Types of Secrets: without demands, with those of ours; of others of Kubernetes it wants entries that we have not."""
OBJECT_NAME, LONGEST_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"), 253
"""What a Secret can be called (RFC 1123, subdomain)."""
BUNDLE, STATUS = "ca-bundle.crt", "status.json"
"""Entries of the ConfigMap: what clients trust, and what a person may know of each Secret."""


@dataclass(frozen=True)
class Held:
    """What a person may know of a certificate. No key, and nothing that a key can be found by."""

    secret: str
    names: tuple[str, ...]
    kind: str
    serial: str = ""
    begins: str = ""
    ends: str = ""
    renewal: str = ""

    def as_data(self) -> dict[str, Any]:
        """The form in `status.json`."""
        return {**vars(self), "names": list(self.names)}


def secrets_path(namespace: str, name: str = "") -> str:
    """Path of the Secrets of a namespace, or of one."""
    return _path("secrets", namespace, name)


def publications_path(namespace: str, name: str = "") -> str:
    """Path of its ConfigMaps, or of one."""
    return _path("configmaps", namespace, name)


def _path(resource: str, namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{segment(namespace)}/{resource}" + (f"/{segment(name)}" if name else "")


def component_of(item: Object) -> str | None:
    """The value of its label, None without one."""
    value = (item["metadata"].get("labels") or {}).get(LABEL)
    return None if value is None else str(value)


def name_of(item: Object) -> str:
    """Its name."""
    return str(item["metadata"]["name"])


def annotation(item: Object, key: str) -> str:
    """One annotation, "" where it is absent."""
    return str((item["metadata"].get("annotations") or {}).get(key) or "")


def is_asked_for(secret: Object) -> bool:
    """Whether somebody wants it renewed now."""
    return bool(annotation(secret, RENEW))


def text(secret: Object, entry: str) -> str:
    """One entry of a Secret as text, "" where there is none or what is there is none."""
    try:
        return base64.b64decode((secret.get("data") or {}).get(entry) or "", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return ""


def encoded(entries: Mapping[str, str]) -> dict[str, str]:
    """Texts as a Secret's `data`."""
    return {entry: base64.b64encode(value.encode()).decode() for entry, value in entries.items()}


def current(secret: Object) -> Pair | None:
    """The pair in use; None where it is missing or corrupt."""
    return issuing.pair(text(secret, CERTIFICATE), text(secret, KEY))


def upcoming(authority: Object) -> Pair | None:
    """The pair that will sign; None where there is none."""
    return issuing.pair(text(authority, NEXT_CERTIFICATE), text(authority, NEXT_KEY))


def names_of(secret: Object, remembered: Mapping[str, Held]) -> tuple[str, ...]:
    """The names that a server is reached by: as annotated, as in its certificate, or as it was known; () for none."""
    known = remembered.get(name_of(secret))
    shown = issuing.names(text(secret, CERTIFICATE))
    return usable(annotated_names(secret)) or usable(shown) or (known.names if known else ())


def annotated_names(secret: Object) -> list[str]:
    """The names that its annotation has, as they were written."""
    return annotation(secret, NAMES).split(",")


def bundle_of(publication: Object | None) -> list[str]:
    """The certificates that are published."""
    return issuing.certificates(str(((publication or {}).get("data") or {}).get(BUNDLE) or ""))


def published(publication: Object | None, now: datetime) -> dict[str, datetime]:
    """Fingerprint → since when it is published. What is still to come was written by a wrong clock, or by hand."""
    found = _object(annotation(publication, PUBLISHED)) if publication else {}
    moments = {str(key): moment_or_none(value) for key, value in found.items()}
    return {key: moment for key, moment in moments.items() if moment and moment <= now + BACKDATED}


def told(server: Object, now: datetime) -> datetime | None:
    """Since when whoever reads a server's Secret knows the authority that signs; None for long since."""
    since = moment_or_none(annotation(server, TOLD))
    return since if since and since <= now + BACKDATED else None


def remembered(publication: Object | None) -> Mapping[str, Held]:
    """What the ConfigMap knows of Secrets, by name: enough to make one again that is gone."""
    return _remembered(str(((publication or {}).get("data") or {}).get(STATUS) or ""))


@lru_cache(maxsize=8)  # it is asked for with each write, and somebody may have written a mebibyte
def _remembered(text: str) -> Mapping[str, Held]:
    found = _object(text)
    return {name: _held(name, item) for name, item in found.items() if isinstance(item, dict) and _is_name(name)}


def held(secret: Object, known: Mapping[str, Held], component: Component) -> Held:
    """What there is to know of a Secret now."""
    pair = current(secret)
    kind = str(secret.get("type") or OPAQUE)
    if pair is None:
        return Held(name_of(secret), names_of(secret, known), kind)
    read = pair.parsed
    begins, ends = read.not_valid_before_utc, read.not_valid_after_utc
    due = renewal(begins, ends, component)
    dates = (timestamp(moment) for moment in (begins, ends, due))
    return Held(name_of(secret), names_of(secret, known), kind, issuing.serial(read), *dates)


def publication_data(bundle: Iterable[str], known: Iterable[Held]) -> dict[str, str]:
    """`data` of the ConfigMap."""
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
