"""`kubectl maintenance events`: shows recorded events by node, maintenance, type and time; exports and imports them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from shutil import copyfileobj
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from console.operations.errors import NoResult
from console.terminal.options import is_given, picked
from console.terminal.journal import journal_option, opened
from console.terminal.output import show_json_list
from console.terminal.event_selection import refuse_both, run_option, uid_of_run
from console.terminal.timeline import as_json, table_lines, tree_lines
from console.terminal.param_types import Limit, Moment, Name
from eventing.event_types import KNOWN, short, whole
from eventing.journal.entries import Entry, Query
from eventing.journal.batching import bare
from eventing.journal.transfer import BrokenLine, exported, imported
from eventing.journal.tree import trees_of, unknown_causes
from kube.text_limits import counted

if TYPE_CHECKING:
    from eventing.journal.store import Journal

LIMIT = 2000
"""Default maximum number of events; the format jsonl has no default limit."""
BESIDE_IMPORT = ("file", "journal")
"""The only parameters that are valid with --import."""


@dataclass(frozen=True)
class Filters:
    """The filters that the command line sets; an empty value does not filter."""

    node: str = ""
    maintenance: str = ""
    kinds: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    failed: bool = False
    limit: int | None = None

    def query(self, output: str) -> Query:
        """Build the journal query for this output format."""
        limit = self.limit if self.limit is not None else 0 if output == "jsonl" else LIMIT
        types = tuple(whole(kind) for kind in self.kinds)
        return Query(
            self.node, self.maintenance, types, self.since, self.until, self.failed, limit=limit, newest=bool(limit)
        )


@click.command
@click.option("--node", type=Name(), default="", help="Of this node.")
@click.option("--maintenance", type=Name(), default="", help="Of the NodeMaintenance with this name or uid.")
@run_option("Of the MutexRunConfig with this uid, or the newest of this name.")
@click.option("--type", "kinds", multiple=True, help="Of this type, such as pods.evicted; repeatable.")
@click.option("--since", type=Moment(), help="Arrived since then: 10m, 2h or 1d ago, or a time.")
@click.option("--until", type=Moment(), help="Arrived before then.")
@click.option(
    "--failed", is_flag=True, help="That a function failed on, whose type is a failure, or that could not be delivered."
)
@click.option(
    "--limit",
    type=Limit(),
    help=f"At most so many, the newest; 0 for all.  [default: {LIMIT}; 0 for jsonl]",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "tree", "json", "jsonl"]),
    default="table",
    show_default=True,
    help="tree: cause and effect. json: all that is known. jsonl: as CloudEvents, one a line, for --import.",
)
@click.option("--import", "file", type=click.File("rb"), help="Add what -o jsonl exported to the journal; - is stdin.")
@journal_option
def events(output: str, file: BinaryIO | None, journal: str, run: str, **values: Any) -> None:
    """Show recorded events: the tree of a maintenance shows which step was slow, failed, or is missing.

    \b
    Example:
      kubectl maintenance events --maintenance node-1 -o tree
      kubectl maintenance events --run example -o tree
      kubectl maintenance events --failed --since 1d
      kubectl maintenance events --maintenance node-1 -o jsonl > node-1.jsonl
      kubectl maintenance events --journal copy.db --import node-1.jsonl
    """
    refuse_both(values["maintenance"], run)
    _refuse_no_time(values["since"], values["until"])
    if file is not None:
        _refuse_beside_import()
    with opened(journal, create=file is not None) as book:
        if file is not None:
            _import(book, file)
        else:
            chosen = Filters(**picked(Filters, values))
            _show(book, (replace(chosen, maintenance=uid_of_run(book, run)) if run else chosen).query(output), output)


def _refuse_no_time(since: datetime | None, until: datetime | None) -> None:
    """Raise `UsageError` if `until` is not after `since`, because no event could match."""
    if since and until and until <= since:
        raise click.UsageError("--until is not after --since, and nothing arrived between: exchange or correct them")


def _refuse_beside_import() -> None:
    """Raise `UsageError` if --import is combined with a filter or output option, which would have no effect."""
    named = {str(param.name): max(param.opts, key=len) for param in click.get_current_context().command.params}
    others = [option for name, option in named.items() if name not in BESIDE_IMPORT and is_given(name)]
    if others:
        raise click.UsageError(f"--import adds to the journal, and shows nothing: leave out {', '.join(others)}")


def _show(book: Journal, query: Query, output: str) -> None:
    if output == "jsonl":
        count = 0
        for line in exported(book, query):
            count += 1
            click.echo(line, nl=False)
        _warn_unknown(book, query, count)
        return
    arrivals: list[datetime] = []
    _print(book, _noted(book.each(query), arrivals), output)
    _warn_unknown(book, query, len(arrivals))
    if query.limit and len(arrivals) == query.limit and book.select(replace(query, until=arrivals[0], limit=1)):
        click.echo(f"There are older ones: these are the newest {query.limit}; see --limit and --until.", err=True)


def _noted(entries: Iterable[Entry], arrivals: list[datetime]) -> Iterator[Entry]:
    """Yield the entries unchanged, and append each arrival time to `arrivals`."""
    for entry in entries:
        arrivals.append(entry.arrived)
        yield entry


def _print(book: Journal, entries: Iterable[Entry], output: str) -> None:
    """Print the entries, keeping only the printed fields: the data of all events may not fit into memory."""
    now = datetime.now(timezone.utc)
    if output == "json":
        show_json_list(as_json(entry, now) for entry in entries)
    elif output == "tree" and (found := list(map(bare, entries))):
        ids = unknown_causes(found)
        causes = map(bare, book.each(Query(ids=ids))) if ids else ()
        click.echo("\n".join(tree_lines(trees_of(found, causes, now))))
    else:
        click.echo("\n".join(table_lines(entries, now)))


def _warn_unknown(book: Journal, query: Query, count: int) -> None:
    """Warn, if no event was found, about filters that match nothing in the journal, such as a misspelled name."""
    if count:
        return
    if query.node and not book.select(Query(node=query.node, limit=1)):
        click.echo(f"The journal has no event of a node {query.node}: see kubectl get nodes.", err=True)
    if query.maintenance and not book.select(Query(maintenance=query.maintenance, limit=1)):
        message = f"The journal has no event of a NodeMaintenance {query.maintenance}, by name or uid"
        click.echo(f"{message}: see kubectl maintenance status.", err=True)
    if strange := [kind for kind in query.types if kind not in KNOWN]:
        click.echo(f"No event is of type {', '.join(strange)}; ours are {', '.join(map(short, KNOWN))}.", err=True)


def _import(book: Journal, file: BinaryIO) -> None:
    """Import the file into the journal.

    The import reads the file twice. The function therefore copies it first, because a pipe can be read only once.
    """
    with TemporaryFile() as copy:
        copyfileobj(file, copy)
        copy.seek(0)
        try:
            count = imported(book, copy)
        except BrokenLine as error:
            raise NoResult(f"{file.name}: {error}") from None
    click.echo(counted(count, "new event"))
