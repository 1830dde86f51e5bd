"""`kubectl maintenance history [NODE...]`: shows one line for each past or running maintenance in the journal."""

from __future__ import annotations

from datetime import datetime, timezone

import click

from console.operations.maintenance_history import HISTORY_EVENT_TYPES, RecordedMaintenance, read_history
from console.terminal.completion import complete_nodes
from console.terminal.journal import open_readable_journal, readable_journal_option
from console.terminal.options import NodeName, TimeOrAge, cluster_options, namespace_option, output_option
from console.terminal.output import escape, show_json, show_table
from eventing.journal.entries import Query
from kube.times import format_seconds

COLUMNS = ("NAME", "NODE", "REQUESTED BY", f"STARTED ({datetime.now().astimezone():%Z})", "TOOK", "OUTCOME")
"""Headings of the table; its times are in the local time zone."""


@click.command
@click.argument("nodes", type=NodeName(), nargs=-1, metavar="[NODE]...", shell_complete=complete_nodes)
@click.option(
    "--since",
    type=TimeOrAge(),
    help="Only maintenances with an event since this time, or within this age such as 10m, 2h or 1d.",
)
@readable_journal_option
@namespace_option
@output_option
@cluster_options
def history(nodes: tuple[str, ...], since: datetime | None, journal: str, namespace: str, output: str) -> None:
    """Show past and running maintenances, the newest first: who requested each, how long it took, and its outcome.

    The command reads the journal, so it also shows maintenances and nodes that no longer exist. TOOK is the time from
    the creation of the maintenance to the end of its drain.

    \b
    Example:
      kubectl maintenance history
      kubectl maintenance history node-1 --since 30d
      kubectl maintenance history --journal cluster -o json
    """
    query = Query(types=HISTORY_EVENT_TYPES, since=since, node=nodes[0] if len(nodes) == 1 else "")
    with open_readable_journal(journal, namespace) as opened_journal:
        recorded = read_history(opened_journal.iter_entries(query))
        shown = [maintenance for maintenance in recorded if not nodes or maintenance.node in nodes]
        unknown = [node for node in nodes if not opened_journal.select(Query(node=node, limit=1))]
    now = datetime.now(timezone.utc)
    show_json({"maintenances": [maintenance.as_data(now) for maintenance in shown]}, output)
    if output == "table":
        show_table(COLUMNS, (_build_row(maintenance, now) for maintenance in shown), "No maintenances found.")
    for node in unknown:
        click.echo(escape(f'Node "{node}" not found in the journal: see kubectl get nodes.'), err=True)


def _build_row(maintenance: RecordedMaintenance, now: datetime) -> tuple[str, ...]:
    return (
        maintenance.name,
        maintenance.node,
        maintenance.origin.requester,
        f"{maintenance.started.astimezone():%Y-%m-%d %H:%M:%S}",
        format_seconds(maintenance.compute_seconds(now)),
        maintenance.outcome,
    )
