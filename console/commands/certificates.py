"""`kubectl maintenance certificates`: lists certificates with validity and next renewal, and requests renewals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

import click

from console.operations.certificates import list_certificates, request_renewal
from console.operations.descriptions import format_age
from console.terminal.connection import run_with_api
from console.terminal.options import cluster_options, text_option
from console.terminal.output import print_note, show_json, show_table
from kube.times import parse_time_or_none

COLUMNS = ("NAMESPACE", "SECRET", "EXPIRES", "RENEWAL")
WIDE_COLUMNS = {
    "COMPONENT": "component",
    "NAMESPACE": "namespace",
    "SECRET": "secret",
    "SERIAL": "serial",
    "NOT BEFORE": "begins",
    "NOT AFTER": "ends",
    "NEXT RENEWAL": "renewal",
}
"""Map from a column of the wide table to the field of the JSON output that it shows."""
NO_CERTIFICATES = "No certificates found."


@click.command
@text_option(
    "--renew",
    "secret_name",
    metavar="NAME",
    help="Renew the certificate in this Secret now; NAMESPACE/NAME if several Secrets have the name.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "wide", "json"]),
    default="table",
    show_default=True,
    help="Output format: table, wide for more columns and exact times, or json for one JSON object.",
)
@cluster_options
def certificates(secret_name: str, output: str) -> None:
    """List certificates, with expiry and next renewal; or renew one now.

    \b
    Example:
      kubectl maintenance certificates
      kubectl maintenance certificates -o wide
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
        show_table(COLUMNS, _build_rows(entries, datetime.now(timezone.utc)), NO_CERTIFICATES)
    elif output == "wide":
        rows = ([str(entry[field] or "-") for field in WIDE_COLUMNS.values()] for entry in entries)
        show_table(WIDE_COLUMNS, rows, NO_CERTIFICATES)


def _build_rows(entries: Iterable[Mapping[str, Any]], now: datetime) -> Iterator[list[str]]:
    """Yield the cells of each certificate; its times are relative, so that a row fits into 80 columns."""
    for entry in entries:
        times = [format_relative_time(entry[field], now) for field in ("ends", "renewal")]
        yield [entry["namespace"], entry["secret"], *times]


def format_relative_time(text: str, now: datetime) -> str:
    """Return the time relative to `now`, such as `in 30d` or `5m ago`; "-" for a missing or invalid time."""
    time = parse_time_or_none(text)
    if time is None:
        return "-"
    return f"in {format_age(now.isoformat(), time)}" if time > now else f"{format_age(text, now)} ago"
