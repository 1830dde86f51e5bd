"""`kubectl maintenance certificates`: lists certificates with validity and next renewal, and requests renewals."""

from __future__ import annotations

import click
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from console.operations import renewal_requests
from console.terminal.connection import run_with_api
from console.terminal.escaping import escape
from console.terminal.options import cluster_options, output_option
from console.terminal.output import print_note, show, show_json
from console.terminal.param_types import NonEmptyText
from kube.paths import Object

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
@click.option(
    "--renew",
    "secret_name",
    type=NonEmptyText(),
    metavar="NAME",
    default="",
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
        entry = run_with_api(lambda api: renewal_requests.request_renewal(api, secret_name))
        print_note(f"secret/{entry['secret']} in namespace {entry['namespace']} will be renewed within seconds", output)
        if output == "json":
            show_json(entry)
        return
    entries = run_with_api(renewal_requests.list_certificates)
    if output == "json":
        show_json({"certificates": entries})
    else:
        show(build_table(entries))


def build_table(entries: list[Object]) -> RenderableType:
    """Build a table with one row per Secret."""
    if not entries:
        return Text("No certificates found.")
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for column in COLUMNS:
        table.add_column(column, overflow="fold")
    for entry in entries:
        table.add_row(*(escape(str(entry[field] or "-")) for field in COLUMNS.values()))
    return table
