"""Lists the certificates that the component `certificates` renews, and requests renewals.

The data comes from ConfigMaps in which the function `renew-certificates` publishes it. They contain no private keys, so
listing certificates requires access to ConfigMaps but not to Secrets.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from enum import Enum
from http import HTTPStatus
from typing import Any

from console.operations.errors import Refusal
from kube.certificates import objects
from kube.certificates.components import COMPONENT_LABEL, COMPONENTS
from kube.client.api import Api
from kube.client.api_errors import NotFound
from kube.client.paging import list_all
from kube.paths import Object
from kube.times import format_time, parse_time_or_none

RENEWAL_GRACE_PERIOD = timedelta(minutes=30)
"""Time after which a due renewal is overdue.

It is longer than the pause before a new CA issues certificates, which is ten minutes by default.
"""


class CertificateState(Enum):
    """State of a certificate; the values are the texts that the web console shows."""

    VALID = "valid"
    RENEWAL_DUE = "renewal due"
    OVERDUE = "renewal overdue"
    EXPIRED = "expired"
    NOT_ISSUED = "not issued"


async def list_certificates(api: Api) -> list[Object]:
    """Return one entry per certificate Secret, sorted by component, namespace and Secret name.

    An entry also contains the certificate's DNS names, kind, serial number, validity period and next renewal.
    """
    config_maps = (await list_all(api, "/api/v1/configmaps", label_selector=COMPONENT_LABEL)).items
    entries = [entry for config_map in config_maps for entry in _build_certificate_entries(config_map)]
    return sorted(entries, key=lambda entry: (entry["component"], entry["namespace"], entry["secret"]))


def _build_certificate_entries(config_map: Object) -> list[Object]:
    component = COMPONENTS.get(objects.get_component_name(config_map) or "")
    if component is None or objects.get_name(config_map) != component.bundle_configmap_name:
        return []
    location = {"component": component.name, "namespace": config_map["metadata"]["namespace"]}
    summaries = objects.parse_summaries(config_map).values()
    return [{**location, **summary.as_data()} for summary in summaries]


def compute_certificate_state(entry: Mapping[str, Any], now: datetime) -> CertificateState:
    """Return the state of a listed certificate at the time `now`.

    A certificate without a valid end date counts as not issued, because the function `renew-certificates` issues a new
    one in this case.
    """
    ends, renewal = parse_time_or_none(entry["ends"]), parse_time_or_none(entry["renewal"])
    if ends is None:
        return CertificateState.NOT_ISSUED
    if now >= ends:
        return CertificateState.EXPIRED
    if renewal is None or now < renewal:
        return CertificateState.VALID
    return CertificateState.RENEWAL_DUE if now < renewal + RENEWAL_GRACE_PERIOD else CertificateState.OVERDUE


def is_ca_certificate(entry: Mapping[str, Any]) -> bool:
    """Return whether a listed certificate is the CA certificate of its component, not a server certificate."""
    return bool(entry["secret"] == COMPONENTS[entry["component"]].ca_secret_name)


async def request_renewal(api: Api, secret_name: str) -> Object:
    """Request the renewal of the certificate in the Secret `NAME` or `NAMESPACE/NAME`, and return its entry.

    Raises `Refusal` if no Secret or several Secrets match, or if the Secret no longer exists.
    """
    entries = [
        entry for entry in await list_certificates(api) if secret_name in (entry["secret"], _format_secret_name(entry))
    ]
    if not entries:
        message = f'certificate "{secret_name}" not found'
        raise Refusal(HTTPStatus.NOT_FOUND, message, "see kubectl maintenance certificates")
    if len(entries) > 1:
        names = ", ".join(map(_format_secret_name, entries))
        message = f'several certificates have the name "{secret_name}"'
        raise Refusal(HTTPStatus.CONFLICT, message, f"name one of {names}")
    (entry,) = entries
    annotations = {objects.RENEW_ANNOTATION: format_time(datetime.now(timezone.utc))}
    try:
        path = objects.build_secrets_path(entry["namespace"], entry["secret"])
        await api.patch(path, {"metadata": {"annotations": annotations}})
    except NotFound:
        message = f'Secret "{_format_secret_name(entry)}" not found'
        remedy = "the certificate renewal recreates the Secret"
        raise Refusal(HTTPStatus.NOT_FOUND, message, remedy) from None
    return entry


def _format_secret_name(entry: Object) -> str:
    return f"{entry['namespace']}/{entry['secret']}"
