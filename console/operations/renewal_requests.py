"""Lists certificates from the ConfigMaps that the renewal function publishes, and requests their renewal.

The module reads no keys, so listing certificates requires access to ConfigMaps but not to Secrets.
"""

from __future__ import annotations

from datetime import datetime, timezone
from http import HTTPStatus

from console.operations.errors import Refusal
from kube.certificates import objects
from kube.certificates.components import COMPONENT_LABEL, COMPONENTS
from kube.client.api import Api
from kube.client.api_errors import NotFound
from kube.client.paging import list_all
from kube.paths import Object
from kube.times import format_time

CONFIG_MAPS_PATH = "/api/v1/configmaps"


async def list_certificates(api: Api) -> list[Object]:
    """Return one entry per Secret that contains a certificate, sorted by component, namespace and Secret name.

    An entry also contains the certificate's names, kind, serial number, validity period and next renewal.
    """
    config_maps = (await list_all(api, CONFIG_MAPS_PATH, label_selector=COMPONENT_LABEL)).items
    entries = [entry for config_map in config_maps for entry in _build_certificate_entries(config_map)]
    return sorted(entries, key=lambda entry: (entry["component"], entry["namespace"], entry["secret"]))


def _build_certificate_entries(config_map: Object) -> list[Object]:
    component = COMPONENTS.get(objects.get_component_name(config_map) or "")
    if component is None or objects.get_name(config_map) != component.bundle_configmap_name:
        return []
    location = {"component": component.name, "namespace": config_map["metadata"]["namespace"]}
    summaries = objects.parse_summaries(config_map).values()
    return [{**location, **summary.as_data()} for summary in summaries]


async def request_renewal(api: Api, secret_name: str) -> Object:
    """Request renewal of the certificate in a Secret, given as `NAME` or `NAMESPACE/NAME`, and return its entry.

    Raises `Refusal` if no Secret or several Secrets match, or if the Secret no longer exists.
    """
    entries = [
        entry for entry in await list_certificates(api) if secret_name in (entry["secret"], _format_secret_name(entry))
    ]
    if not entries:
        raise Refusal(
            HTTPStatus.NOT_FOUND, f'certificate "{secret_name}" not found', "see kubectl maintenance certificates"
        )
    if len(entries) > 1:
        names = ", ".join(map(_format_secret_name, entries))
        message = f'several certificates have the name "{secret_name}"'
        raise Refusal(HTTPStatus.CONFLICT, message, f"name one of {names}")
    (entry,) = entries
    patch = {"metadata": {"annotations": {objects.RENEW_ANNOTATION: format_time(datetime.now(timezone.utc))}}}
    try:
        await api.patch(objects.build_secrets_path(entry["namespace"], entry["secret"]), patch)
    except NotFound:
        message = f'Secret "{_format_secret_name(entry)}" not found'
        remedy = "the certificate renewal recreates the Secret"
        raise Refusal(HTTPStatus.NOT_FOUND, message, remedy) from None
    return entry


def _format_secret_name(entry: Object) -> str:
    return f"{entry['namespace']}/{entry['secret']}"
