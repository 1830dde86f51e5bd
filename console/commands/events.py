"""`kubectl maintenance events`: shows, exports and imports recorded events, filtered by node, type and time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from shutil import copyfileobj
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

import click

from console.operations.descriptions import suggest_similar
from console.operations.errors import NoResult
from console.terminal.completion import complete_maintenances, complete_nodes
from console.terminal.event_follower import EventFollower
from console.terminal.journal import (
    CLUSTER,
    DEFAULT_FILE,
    JournalUnavailable,
    find_run_uid,
    open_journal,
    open_readable_journal,
    readable_journal_option,
    reject_maintenance_with_run,
    repeat_journal_options,
)
from console.terminal.options import (
    Limit,
    TimeOrAge,
    cluster_options,
    is_set_on_command_line,
    namespace_option,
    text_option,
)
from console.terminal.output import show_json_list
from console.terminal.timeline import entry_to_json, format_origins, format_table, format_trees, is_idle_tick
from eventing.events import KNOWN_TYPES, expand_type, shorten_type
from eventing.journal.entries import Entry, Query, get_object_identity, strip_data
from eventing.journal.origins import Origin, read_origin
from eventing.journal.transfer import InvalidLine, export_lines, import_file
from eventing.journal.tree import build_trees, find_missing_cause_ids
from kube.backoff import ExponentialBackoff
from kube.text_limits import format_count

if TYPE_CHECKING:
    from eventing.journal.wire import JournalReader

FOLLOW_SECONDS = 1.0
"""Seconds between two reads of the journal with --follow."""
MAX_RETRY_SECONDS = 30.0
"""Maximum of the exponential backoff with --follow, in seconds, while the journal is unavailable."""
DEFAULT_LIMIT = 2000
"""Default value of --limit, except for the jsonl format, which has no limit by default."""
IMPORT_PARAMETERS = ("file", "journal")
"""The only parameters that are valid with --import."""


@click.command
@text_option("--node", completer=complete_nodes, help="Only events of this node.")
@text_option(
    "--maintenance",
    completer=complete_maintenances,
    help="Only events of the NodeMaintenance with this name or uid.",
)
@text_option("--run", help="Only events of the MutexRunConfig with this uid, or the newest with this name.")
@click.option(
    "--type", "event_types", multiple=True, help="Only events of this type, such as pods.evicted; repeatable."
)
@click.option(
    "--since", type=TimeOrAge(), help="Only events since this time, or within this age such as 10m, 2h or 1d."
)
@click.option("--until", type=TimeOrAge(), help="Only events that arrived before this time or age.")
@click.option(
    "--failed",
    is_flag=True,
    help="Only events that report a failure, that a function failed to process even in its last attempt, or that "
    "could not be delivered; without dead letters that were redriven or discarded.",
)
@click.option(
    "--limit",
    type=Limit(),
    help=f"Show only this number of events, the newest; 0 shows all.  [default: {DEFAULT_LIMIT}; 0 for jsonl]",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "tree", "json", "jsonl"]),
    default="table",
    show_default=True,
    help="tree: cause and effect. json: all recorded data. jsonl: one CloudEvent per line, for --import.",
)
@click.option("-f", "--follow", is_flag=True, help="Then show each event as it arrives, until Ctrl-C.")
@click.option("--ticks", is_flag=True, help="Also show ticks that changed nothing in the table.")
@click.option("--import", "file", type=click.File("rb"), help="Import this output of -o jsonl; - means stdin.")
@readable_journal_option
@namespace_option
@cluster_options
def events(
    output: str,
    file: BinaryIO | None,
    journal: str,
    run: str,
    event_types: tuple[str, ...],
    limit: int | None,
    follow: bool,
    ticks: bool,
    namespace: str,
    **filters: Any,
) -> None:
    """Show recorded events: the tree of a maintenance shows which step was slow, failed, or is missing.

    With --maintenance, and in the tree, the first lines name who started and ended the maintenance, and the reason.

    The table omits ticks that changed nothing, of which there are several per minute; the tree shows how many there
    were. The table shows the maintenance in parentheses if its name differs from the node's. With --follow, an event
    whose attempts are recorded later has a second row.

    \b
    Example:
      kubectl maintenance events --maintenance node-1 -o tree
      kubectl maintenance events --run example -o tree
      kubectl maintenance events --failed --since 1d
      kubectl maintenance events --node node-1 --since 10m --follow
      kubectl maintenance events --maintenance node-1 -o jsonl > node-1.jsonl
      kubectl maintenance events --journal cluster --since 1h
      kubectl maintenance events --journal copy.db --import node-1.jsonl
    """
    reject_maintenance_with_run(filters["maintenance"], run)
    _check_period(filters["since"], filters["until"])
    if file is not None:
        _check_import_options(journal)
    if follow and (output != "table" or filters["until"]):
        raise click.UsageError("--follow shows a table without an end: omit -o and --until")
    if file is not None:
        _import_events(file, journal)
        return
    with open_readable_journal(journal, namespace) as opened_journal:
        if run:
            filters["maintenance"] = find_run_uid(opened_journal, run)
        if limit is None:
            limit = 0 if output == "jsonl" else DEFAULT_LIMIT
        query = Query(types=tuple(map(expand_type, event_types)), limit=limit, keep_newest=bool(limit), **filters)
        shows_ticks = ticks or bool(event_types)
        if follow:
            _follow_events(EventFollower(opened_journal, query, shows_ticks))
        _show_events(opened_journal, query, output, shows_ticks=shows_ticks)


def _follow_events(follower: EventFollower) -> NoReturn:
    """Print events until Ctrl-C; if the journal becomes unavailable, retry with an exponential backoff.

    Raises `JournalUnavailable` if the first read fails, because the journal may not exist.
    """
    _print_lines(follower)
    backoff: ExponentialBackoff | None = None
    while True:
        time.sleep(backoff.get_next_delay(MAX_RETRY_SECONDS) if backoff else FOLLOW_SECONDS)
        try:
            _print_lines(follower)
        except JournalUnavailable as error:
            if backoff is None:
                click.echo(f"{error.message}; trying again until Ctrl-C.", err=True)
                backoff = ExponentialBackoff(FOLLOW_SECONDS)
        else:
            backoff = None


def _print_lines(follower: EventFollower) -> None:
    for line in follower.read_lines():
        click.echo(line)


def _check_period(since: datetime | None, until: datetime | None) -> None:
    """Raise `UsageError` if `until` is not after `since`, because no event could match both filters."""
    if since and until and until <= since:
        raise click.UsageError("--until is not after --since, so no event can match: correct or swap them")


def _check_import_options(journal: str) -> None:
    """Raise `UsageError` if --import is combined with --journal=cluster, or with an option that has no effect."""
    if journal == CLUSTER and is_set_on_command_line("journal"):
        raise click.UsageError("the cluster's journal accepts no import: name a file or a database with --journal")
    long_options = {str(param.name): max(param.opts, key=len) for param in click.get_current_context().command.params}
    ineffective_options = [
        option
        for name, option in long_options.items()
        if name not in IMPORT_PARAMETERS and is_set_on_command_line(name)
    ]
    if ineffective_options:
        raise click.UsageError(
            f"--import only adds events to the journal, and shows none: omit {', '.join(ineffective_options)}"
        )


def _show_events(journal: JournalReader, query: Query, output: str, *, shows_ticks: bool) -> None:
    if output == "jsonl":
        count = 0
        for line in export_lines(journal, query):
            count += 1
            click.echo(line, nl=False)
        _warn_unknown_filters(journal, query, count)
        return
    arrivals: list[datetime] = []
    entries, hidden = _collect_arrivals(journal.iter_entries(query), arrivals), list[str]()
    is_complete = shows_ticks or output != "table"
    shown_entries = entries if is_complete else _omit_idle_ticks(entries, hidden)
    _print_entries(journal, shown_entries, output, shows_origins=bool(query.maintenance))
    if hidden:
        verb = "is" if len(hidden) == 1 else "are"
        click.echo(f"{format_count(len(hidden), 'tick')} that changed nothing {verb} not shown: see --ticks.", err=True)
    _warn_unknown_filters(journal, query, len(arrivals))
    if query.limit and len(arrivals) == query.limit and journal.select(replace(query, until=arrivals[0], limit=1)):
        click.echo(f"Only the newest {query.limit} events are shown: see --limit and --until.", err=True)


def _collect_arrivals(entries: Iterable[Entry], arrivals: list[datetime]) -> Iterator[Entry]:
    """Yield the entries unchanged, and append each arrival time to `arrivals`."""
    for entry in entries:
        arrivals.append(entry.arrived)
        yield entry


def _omit_idle_ticks(entries: Iterable[Entry], hidden_ids: list[str]) -> Iterator[Entry]:
    """Yield the entries except idle ticks (which changed nothing), and append the ids of those to `hidden_ids`."""
    now = datetime.now(timezone.utc)
    for entry in entries:
        if is_idle_tick(entry, now):
            hidden_ids.append(entry.event.get_id())
        else:
            yield entry


def _print_entries(
    journal: JournalReader, entries: Iterable[Entry], output: str, *, shows_origins: bool = False
) -> None:
    """Print the entries; keep only their printed fields, because the data of all events may not fit in memory.

    If `shows_origins` is true, lines above the table show which users started and ended each maintenance. The table
    then omits the maintenance's name. The tree always contains these lines.
    """
    now = datetime.now(timezone.utc)
    if output == "json":
        show_json_list(entry_to_json(entry, now) for entry in entries)
    elif output == "tree" and (stripped := list(map(strip_data, entries))):
        ids = find_missing_cause_ids(stripped)
        causes = map(strip_data, journal.iter_entries(Query(ids=ids))) if ids else ()
        click.echo("\n".join(format_trees(build_trees(stripped, causes, now), repeat_journal_options())))
    else:
        origins: dict[tuple[str, str], Origin] = {}
        table = list(format_table(_collect_origins(entries, origins), now, shows_names=not shows_origins))
        click.echo("\n".join([*(format_origins(origins) if shows_origins else ()), *table]))


def _collect_origins(entries: Iterable[Entry], origins: dict[tuple[str, str], Origin]) -> Iterator[Entry]:
    """Yield the entries unchanged, and store in `origins`, by uid and name, who started and ended each maintenance."""
    for entry in entries:
        if entry.kind == "NodeMaintenance":
            identity = get_object_identity(entry.event)
            origins[identity] = read_origin(origins.get(identity, Origin()), entry.event)
        yield entry


def _warn_unknown_filters(journal: JournalReader, query: Query, count: int) -> None:
    """Warn about each filter that matches no event in the journal, such as a misspelled name, if `count` is 0.

    `count` is the number of events that match all filters of the query.
    """
    if count:
        return
    if not journal.select(Query(limit=1)):
        click.echo("The journal contains no events yet.", err=True)
        return
    if query.node and not journal.select(Query(node=query.node, limit=1)):
        click.echo(f'Node "{query.node}" not found in the journal: see kubectl get nodes.', err=True)
    if query.maintenance and not journal.select(Query(maintenance=query.maintenance, limit=1)):
        message = f'No events of NodeMaintenance "{query.maintenance}", by name or uid, are recorded yet.'
        cause = "If it exists, no function has received its events, or the function record does not run"
        click.echo(f"{message} {cause}: see kubectl maintenance status.", err=True)
    known_types = list(map(shorten_type, KNOWN_TYPES))
    for event_type in query.types:
        if event_type not in KNOWN_TYPES:
            remedy = suggest_similar(
                shorten_type(event_type), known_types, f"the known types are {', '.join(known_types)}"
            )
            click.echo(f"Unknown event type {event_type}: {remedy}.", err=True)


def _import_events(file: BinaryIO, journal: str) -> None:
    """Import the events in `file` into the journal with this path or URL; create the journal if it does not exist.

    The import reads its input twice. A pipe can be read only once, so the function first copies the input to a
    temporary file.
    """
    with TemporaryFile() as copy:
        copyfileobj(file, copy)
        copy.seek(0)
        with open_journal(DEFAULT_FILE if journal == CLUSTER else journal, create=True) as opened_journal:
            try:
                count = import_file(opened_journal, copy)
            except InvalidLine as error:
                raise NoResult(f"{file.name}: {error}") from None
    click.echo(f"{format_count(count, 'new event')} imported")
