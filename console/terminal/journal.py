"""Opens the journal for a command, and selects recorded events by id, maintenance or upgrade run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click

from console.operations.descriptions import suggest_similar
from console.operations.errors import NoResult
from console.operations.finished_drains import DRAIN_EVENT_TYPES, find_finished_drains
from console.operations.missing_libraries import explain_missing_module
from console.operations.recorded_drains import RecordedDrain
from console.terminal.completion import complete_maintenances
from console.terminal.options import NonEmptyText, combine_options, is_set_on_command_line, text_option
from console.terminal.output import escape
from eventing.events import SOURCE_PREFIX, shorten_type
from eventing.journal.entries import SHORT_ID_CHARACTERS, Entry, Query, strip_data
from kube.mutex.objects import RUN_KIND
from kube.text_limits import format_first_names

if TYPE_CHECKING:
    from eventing.journal.store import Journal
    from eventing.journal.wire import JournalReader

DEFAULT_FILE = "journal.db"
CLUSTER = "cluster"
"""Value of --journal that selects the cluster's journal, which is read through the console."""
MAX_DRAIN_EVENTS = 400
"""Maximum number of events to read for the estimate of a drain's duration, enough for 200 recorded drains."""
MAX_SHOWN_UIDS = 5
"""Maximum number of uids or ids in the message about an ambiguous name or short id."""


def _get_journal_location(default: str) -> str:
    return os.environ.get("DATABASE_URL") or os.environ.get("JOURNAL") or default


journal_option = click.option(
    "--journal",
    default=lambda: _get_journal_location(DEFAULT_FILE),
    show_default=f"$DATABASE_URL, $JOURNAL, {DEFAULT_FILE}",
    help="The journal: a file, or postgresql://USER@HOST/DATABASE.",
)
readable_journal_option = click.option(
    "--journal",
    default=lambda: _get_journal_location(DEFAULT_FILE if Path(DEFAULT_FILE).is_file() else CLUSTER),
    show_default=f"$DATABASE_URL, $JOURNAL, {DEFAULT_FILE} if it exists, {CLUSTER}",
    help=f"The journal: a file, postgresql://USER@HOST/DATABASE, or {CLUSTER} to ask the console in the cluster.",
)
"""The option `--journal` of commands that only read the journal with `open_readable_journal`."""


class JournalUnavailable(NoResult):
    """Raised if the journal cannot be read now, but a retry may succeed."""


@contextmanager
def open_journal(journal_url: str, *, create: bool = False) -> Iterator[Journal]:
    """Open and yield the journal, which must exist unless `create` is true.

    Raises `NoResult` if the journal cannot be opened, or if an access to it in the `with` block fails.
    """
    file = journal_url.removeprefix("sqlite:///")
    if not (create or "://" in file or Path(file).is_file()):
        raise NoResult(f"journal {file} not found: name it with --journal or $JOURNAL")
    with explain_missing_module():
        from eventing.journal.store import Journal, JournalError, UnstorableData  # This import takes about 150 ms.
    try:
        with closing(Journal(journal_url, create=create)) as journal:
            yield journal
    except (JournalError, UnstorableData) as error:
        raise NoResult(str(error)) from None


@contextmanager
def open_readable_journal(journal_url: str, namespace: str) -> Iterator[JournalReader]:
    """Open and yield the journal; if `journal_url` is `CLUSTER`, use the journal API of the console in `namespace`.

    Raises `NoResult` if the journal cannot be opened, or if an access to it in the `with` block fails.
    """
    if journal_url != CLUSTER:
        with open_journal(journal_url) as journal:
            yield journal
        return
    from console.terminal.cluster_journal import ClusterJournal  # These imports are slow, because of the API client.
    from console.terminal.connection import open_client

    with open_client() as client:
        yield ClusterJournal(client, namespace)


def repeat_journal_options() -> str:
    """Return the options of the command line that select the journal, for a suggested command; "" if there are none."""
    params, options = click.get_current_context().params, ""
    if is_set_on_command_line("journal"):
        location = params["journal"]
        if location != CLUSTER:
            from eventing.journal.database import redact_password  # This slow import is done for an opened journal.

            location = redact_password(location)
        options = f" --journal {quote(location)}"
    return f"{options} -n {quote(params['namespace'])}" if is_set_on_command_line("namespace") else options


def read_recorded_drains(journal_url: str) -> list[RecordedDrain]:
    """Return the latest finished drains in the journal.

    If the journal cannot be read, the function raises `NoResult` if the user has set --journal, and otherwise returns
    an empty list.
    """
    query = Query(types=DRAIN_EVENT_TYPES, limit=MAX_DRAIN_EVENTS, keep_newest=True)
    try:
        with open_journal(journal_url) as journal:
            return find_finished_drains(map(strip_data, journal.iter_entries(query)))
    except NoResult:
        if is_set_on_command_line("journal"):
            raise
        return []


@dataclass(frozen=True)
class EventSelection:
    """The command-line options that select events: by id, or by maintenance or upgrade run, between two event types."""

    ids: tuple[str, ...] = ()
    maintenance: str = ""
    run: str = ""
    first_type: str = ""
    last_type: str = ""


selection_options = combine_options(
    click.option(
        "--id",
        "ids",
        type=NonEmptyText(),
        multiple=True,
        help="The event with this id, or with its first 8 characters; repeatable.",
    ),
    text_option(
        "--maintenance",
        completer=complete_maintenances,
        help="All events of the NodeMaintenance with this uid, or the newest with this name.",
    ),
    text_option("--run", help="All events of the MutexRunConfig with this uid, or the newest with this name."),
    text_option(
        "--from",
        "first_type",
        metavar="TYPE",
        help="Start at the first selected event of this type, such as node.cordoned.",
    ),
    text_option("--until", "last_type", metavar="TYPE", help="Stop after the next event of this type."),
)
"""Decorator that adds the command-line options for the fields of `EventSelection`."""


def reject_maintenance_with_run(maintenance: str, run: str) -> None:
    """Raise `UsageError` if the user has set both --maintenance and --run."""
    if run and maintenance:
        raise click.UsageError("--run names a MutexRunConfig, --maintenance a NodeMaintenance: omit one of them")


def find_run_uid(journal: JournalReader, name_or_uid: str) -> str:
    """Return the uid of the newest MutexRunConfig with this name or uid (see `_find_newest_uid`).

    Raises `NoResult` if the journal contains no event about such a MutexRunConfig.
    """
    entries = [
        strip_data(entry)
        for entry in journal.iter_entries(Query(maintenance=name_or_uid))
        if entry.kind == RUN_KIND and entry.maintenance
    ]
    if not entries:
        message = f'MutexRunConfig "{name_or_uid}" not found in the journal, by name or uid'
        raise NoResult(f"{message}: see kubectl maintenance mutex status")
    return _find_newest_uid(entries, name_or_uid)


def select_entries(journal: JournalReader, selection: EventSelection) -> list[Entry]:
    """Return the selected entries in order of arrival, each event once.

    Raises a `NoResult` that names the events or the object that the journal does not contain.
    """
    reject_maintenance_with_run(selection.maintenance, selection.run)
    ids, maintenance = selection.ids, find_run_uid(journal, selection.run) if selection.run else selection.maintenance
    if not ids and not maintenance:
        raise click.UsageError(
            "no events selected: name their ids with --id, or their object with --maintenance or --run"
        )
    ids = tuple(_expand_short_id(journal, event_id) for event_id in ids)
    entries = _deduplicate_events(journal.select(Query(ids=ids, maintenance=maintenance)))
    if maintenance:  # Omit events of other clients that contain the object's name without its uid.
        entries = [entry for entry in entries if entry.maintenance]
    missing = set(ids) - {entry.event.get_id() for entry in entries}
    if missing or not entries:
        missing_object = f"event {', '.join(sorted(missing))}" if missing else f'NodeMaintenance "{maintenance}"'
        raise NoResult(f"{missing_object} not found in the journal: see kubectl maintenance events")
    if maintenance:
        newest = _find_newest_uid(entries, maintenance)
        entries = [entry for entry in entries if entry.maintenance == newest]
    return _slice_by_types(entries, selection.first_type, selection.last_type)


def _expand_short_id(journal: JournalReader, event_id: str) -> str:
    """Return the id of the event whose id starts with `event_id`, which the table of events shows.

    An id of another length, an unknown id, and an id that equals `event_id` are returned unchanged. Raises a `NoResult`
    that names the ids if several events match.
    """
    if len(event_id) != SHORT_ID_CHARACTERS:
        return event_id
    ids = sorted({str(entry.event.get_id()) for entry in journal.iter_entries(Query(short_id=event_id))})
    if event_id in ids or not ids:
        return event_id
    if len(ids) > 1:
        names = format_first_names(ids, MAX_SHOWN_UIDS)
        raise NoResult(f"several events have an id that starts with {event_id}: name one of {names}")
    return ids[0]


def _find_newest_uid(entries: Sequence[Entry], name_or_uid: str) -> str:
    """Return `name_or_uid` if it is the uid of an object, or else the uid of the newest object with this name.

    Any client can emit an event with an arbitrary uid, even one that equals another object's name. Objects about which
    a function of this product has emitted an event therefore take precedence. If the entries concern several objects,
    the function prints the selected uid on stderr, unless a function's event confirms that `name_or_uid` is a uid.
    """
    uids = list(dict.fromkeys(entry.maintenance for entry in entries))  # In the order of the objects' first events.
    uids_from_our_functions = {
        entry.maintenance for entry in entries if entry.event.get_source().startswith(SOURCE_PREFIX)
    }
    candidates = [uid for uid in uids if uid in uids_from_our_functions or not uids_from_our_functions]
    newest = name_or_uid if name_or_uid in candidates else candidates[-1]
    others = [uid for uid in reversed(uids) if uid != newest]
    if others and name_or_uid not in uids_from_our_functions:
        note = f'Several objects match "{name_or_uid}": using the uid {newest}. To use another object, name its uid: '
        click.echo(escape(f"{note}{format_first_names(others, MAX_SHOWN_UIDS)}."), err=True)
    return newest


def _deduplicate_events(entries: Sequence[Entry]) -> list[Entry]:
    """Omit each dead letter whose event is also recorded as a regular entry."""
    recorded = {(entry.event.get_source(), entry.event.get_id()) for entry in entries if entry.dead_letter is None}
    return [
        entry
        for entry in entries
        if entry.dead_letter is None or (entry.event.get_source(), entry.event.get_id()) not in recorded
    ]


def _slice_by_types(entries: Sequence[Entry], first_type: str, last_type: str) -> list[Entry]:
    """Return the entries from the first event of `first_type` to the next event of `last_type`; "" means no limit.

    Because `resync` may emit events of a type repeatedly, the range ends with the first event of `last_type` at or
    after the start.
    """
    start = _find_positions_of_type(entries, first_type, "--from")[0] if first_type else 0
    if not last_type:
        return list(entries[start:])
    end = next((end for end in _find_positions_of_type(entries, last_type, "--until") if end >= start), None)
    if end is None:
        raise NoResult(f"every event of --until {last_type} is before the first event of --from {first_type}")
    return list(entries[start : end + 1])


def _find_positions_of_type(entries: Sequence[Entry], type_or_suffix: str, option: str) -> list[int]:
    types = [entry.event.get_type() for entry in entries]
    positions = [
        position
        for position, event_type in enumerate(types)
        if event_type == type_or_suffix or event_type.endswith(f".{type_or_suffix}")
    ]
    if not positions:
        known_types = ", ".join(dict.fromkeys(types))
        remedy = suggest_similar(type_or_suffix, map(shorten_type, types), f"name one of {known_types}")
        raise NoResult(f"{option} {type_or_suffix}: no event has this type: {remedy}")
    return positions
