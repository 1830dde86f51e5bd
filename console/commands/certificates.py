"""`kubectl maintenance certificates`: lists certificates with validity and next renewal, and requests renewals.

The certificates come from the ConfigMaps that the renewal function publishes. The command reads no keys, so it requires
access to ConfigMaps but not to read Secrets.
"""

from __future__ import annotations

from datetime import datetime, timezone
from http import HTTPStatus

import click

from console.operations.errors import Refusal
from console.terminal.connection import run_with_api
from console.terminal.options import cluster_options, output_option, text_option
from console.terminal.output import print_note, show_json, show_table
from kube.certificates import objects
from kube.certificates.components import COMPONENT_LABEL, COMPONENTS
from kube.client.api import Api
from kube.client.api_errors import NotFound
from kube.client.paging import list_all
from kube.paths import Object
from kube.times import format_time

COLUMNS = {
    "COMPONENT": "component",
    "NAMESPACE": "namespace",
    "SECRET": "secret",
    "SERIAL": "serial",
    "NOT BEFORE": "begins",
    "NOT AFTER": "ends",
    "NEXT RENEWAL": "renewal",
}
"""Table column → field of the JSON output."""


@click.command
@text_option(
    "--renew",
    "secret_name",
    metavar="NAME",
    help="Renew the certificate in this Secret now; NAMESPACE/NAME if several Secrets have the name.",
)
@output_option
@cluster_options
def certificates(secret_name: str, output: str) -> None:
    """List certificates, with serial, dates and next renewal; or renew one now.

    \b
    Example:
      kubectl maintenance certificates
      kubectl maintenance certificates --renew validate
    """
    if secret_name:
        entry = run_with_api(lambda api: request_renewal(api, secret_name))
        print_note(f"secret/{entry['secret']} in namespace {entry['namespace']} will be renewed within seconds", output)
        show_json(entry, output)
        return
    entries = run_with_api(list_certificates)
    show_json({"certificates": entries}, output)
    if output == "table":
        rows = ([str(entry[field] or "-") for field in COLUMNS.values()] for entry in entries)
        show_table(COLUMNS, rows, "No certificates found.")


async def list_certificates(api: Api) -> list[Object]:
    """Return one entry per Secret that contains a certificate, sorted by component, namespace and Secret name.

    An entry also contains the certificate's names, kind, serial number, validity period and next renewal.
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


async def request_renewal(api: Api, secret_name: str) -> Object:
    """Request renewal of the certificate in a Secret, given as `NAME` or `NAMESPACE/NAME`, and return its entry.

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
