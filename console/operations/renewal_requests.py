"""Lists certificates and requests their renewal, from the ConfigMaps that the renewal function publishes.

The module reads no keys, so listing certificates requires access to ConfigMaps but not to Secrets.
"""

from __future__ import annotations

from datetime import datetime, timezone
from http import HTTPStatus

from console.operations.errors import Refusal
from kube.certificates import certificate_objects
from kube.certificates.components import COMPONENTS, LABEL
from kube.client.api import Api
from kube.client.api_errors import NotFound
from kube.client.paging import pages
from kube.paths import Object
from kube.times import timestamp

MAPS = "/api/v1/configmaps"


async def certificates(api: Api) -> list[Object]:
    """Return one entry per Secret, sorted by component, namespace and Secret name.

    An entry also has the names, kind, serial, begin, end and next renewal of the certificate.
    """
    maps = (await pages(api, MAPS, labels=LABEL)).items
    entries = [entry for item in maps for entry in _entries(item)]
    return sorted(entries, key=lambda entry: (entry["component"], entry["namespace"], entry["secret"]))


def _entries(publication: Object) -> list[Object]:
    component = COMPONENTS.get(certificate_objects.component_of(publication) or "")
    if component is None or certificate_objects.name_of(publication) != component.publication:
        return []
    where = {"component": component.name, "namespace": publication["metadata"]["namespace"]}
    return [{**where, **held.as_data()} for held in certificate_objects.remembered(publication).values()]


async def renew(api: Api, name: str) -> Object:
    """Request the renewal of a Secret, given as `NAME` or `NAMESPACE/NAME`, and return its entry.

    Raises `Refusal` if no Secret or several Secrets match, or if the Secret no longer exists.
    """
    found = [entry for entry in await certificates(api) if name in (entry["secret"], _full(entry))]
    if not found:
        raise Refusal(HTTPStatus.NOT_FOUND, f"there is no certificate {name}", "see kubectl maintenance certificates")
    if len(found) > 1:
        places = ", ".join(map(_full, found))
        raise Refusal(HTTPStatus.CONFLICT, f"there are several certificates {name}", f"name one of {places}")
    (entry,) = found
    asked = {"metadata": {"annotations": {certificate_objects.RENEW: timestamp(datetime.now(timezone.utc))}}}
    try:
        await api.patch(certificate_objects.secrets_path(entry["namespace"], entry["secret"]), asked)
    except NotFound:
        message, remedy = f"the Secret {_full(entry)} is gone", "it is made again by itself"
        raise Refusal(HTTPStatus.NOT_FOUND, message, remedy) from None
    return entry


def _full(entry: Object) -> str:
    return f"{entry['namespace']}/{entry['secret']}"
