"""`kubectl maintenance certificates`: lists certificates with validity and next renewal, and requests renewals."""

from __future__ import annotations

import click
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from console.operations import renewal_requests
from console.terminal.connection import with_api
from console.terminal.escaping import escaped
from console.terminal.options import cluster_options, output_option
from console.terminal.output import note, show, show_json
from console.terminal.param_types import Name
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
    "name",
    type=Name(),
    metavar="NAME",
    default="",
    help="Renew this one now; NAMESPACE/NAME where two have it.",
)
@output_option
@cluster_options
def certificates(name: str, output: str) -> None:
    """List certificates, with serial, dates and next renewal; or renew one now.

    \b
    Example:
      kubectl maintenance certificates
      kubectl maintenance certificates --renew validate
    """
    if name:
        asked = with_api(lambda api: renewal_requests.renew(api, name))
        note(f"secret/{asked['secret']} in {asked['namespace']} is renewed at the next look, within seconds", output)
        if output == "json":
            show_json(asked)
        return
    found = with_api(renewal_requests.certificates)
    if output == "json":
        show_json({"certificates": found})
    else:
        show(table(found))


def table(found: list[Object]) -> RenderableType:
    """Build a table with one row per Secret."""
    if not found:
        return Text("No certificates.")
    rows = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for column in COLUMNS:
        rows.add_column(column, overflow="fold")
    for entry in found:
        rows.add_row(*(escaped(str(entry[field] or "-")) for field in COLUMNS.values()))
    return rows
