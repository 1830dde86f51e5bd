"""`kubectl maintenance certificates`: lists certificates with validity and next renewal, and requests renewals."""

from __future__ import annotations

import click

from console.operations.certificates import list_certificates, request_renewal
from console.terminal.connection import run_with_api
from console.terminal.options import cluster_options, output_option, text_option
from console.terminal.output import print_note, show_json, show_table

COLUMNS = {
    "COMPONENT": "component",
    "NAMESPACE": "namespace",
    "SECRET": "secret",
    "SERIAL": "serial",
    "NOT BEFORE": "begins",
    "NOT AFTER": "ends",
    "NEXT RENEWAL": "renewal",
}
"""Map from a table column to the field of the JSON output that it shows."""


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
