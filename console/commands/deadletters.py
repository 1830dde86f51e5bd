"""`kubectl maintenance deadletters` lists dead letters; `kubectl maintenance redrive` delivers or discards them.

Each dead letter is delivered only to the function that did not accept it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import click

from console.operations.dead_letter_redrive import (
    RedriveItem,
    RedriveResult,
    build_dead_letter_fields,
    build_redrive_items,
    discard_dead_letters,
    find_broker_url,
    list_dead_letters_to_redrive,
    redrive_dead_letters,
)
from console.operations.descriptions import format_age
from console.operations.errors import NoResult
from console.terminal.journal import (
    CLUSTER,
    journal_option,
    open_journal,
    open_readable_journal,
    readable_journal_option,
    repeat_journal_options,
)
from console.terminal.options import (
    NonEmptyText,
    broker_option,
    cluster_options,
    functions_option,
    namespace_option,
    output_option,
)
from console.terminal.output import confirm, escape, print_note, show_described_rows, show_json
from eventing.events import shorten_type
from eventing.journal.entries import Entry, Query
from eventing.replay.redrive import awaits_redrive, find_failed_function
from kube.text_limits import format_count

if TYPE_CHECKING:
    from eventing.journal.store import Journal
    from kube.client.sync_client import SyncClient

COLUMNS = ("EVENT", "AGE", "CODE", "FUNCTION")


@click.command
@click.option("--all", "include_redriven", is_flag=True, help="Also list dead letters that were redriven or discarded.")
@readable_journal_option
@namespace_option
@output_option
@cluster_options
def deadletters(include_redriven: bool, journal: str, namespace: str, output: str) -> None:
    """List dead letters, each with the event, the function that did not accept it, and the reason.

    The line below each dead letter names the event's type and node, and the reason.

    \b
    Example:
      kubectl maintenance deadletters
      kubectl maintenance deadletters --all -o json
    """
    with open_readable_journal(journal, namespace) as opened_journal:
        dead_letters = [
            build_dead_letter_fields(entry)
            for entry in opened_journal.iter_entries(Query(dead_letters_only=True))
            if include_redriven or awaits_redrive(entry)
        ]
    show_json({"deadLetters": dead_letters}, output)
    if output == "table":
        now = datetime.now(timezone.utc)
        rows = [(_build_row(fields, now), _describe(fields, now)) for fields in dead_letters]
        show_described_rows(COLUMNS, rows, "No dead letters found.")
        if any(fields["open"] for fields in dead_letters):
            click.echo(escape(_format_redrive_hint(journal)), err=True)


def _format_redrive_hint(journal: str) -> str:
    """Return how to deliver or close a dead letter in this journal; `redrive` cannot read the cluster's journal."""
    if journal == CLUSTER:
        return "To deliver one again or to close it: open the page Dead letters of the console"
    command = f"kubectl maintenance redrive EVENT{repeat_journal_options()}"
    return f"To deliver one again: {command}; to close it: add --discard"


def _build_row(fields: dict[str, Any], now: datetime) -> tuple[str, ...]:
    function = fields["function"] or fields["destination"]
    return (fields["event"], format_age(fields["arrived"], now), str(fields["code"]), function)


def _describe(fields: dict[str, Any], now: datetime) -> str:
    """Return the event's type and node, the reason, and whether the dead letter was discarded or redriven."""
    node = f" of {fields['node']}" if fields["node"] else ""
    reason = " ".join(fields["reason"].split()) or "no reason reported"
    return f"{shorten_type(fields['type'])}{node}: {reason}{_format_discard_or_redrive_note(fields, now)}"


def _format_discard_or_redrive_note(fields: dict[str, Any], now: datetime) -> str:
    """Return a note that the dead letter was discarded or redriven, "" if it is still open."""
    if discarded := fields["discarded"]:
        return f" (discarded by {discarded['by']} {format_age(discarded['at'], now)} ago)"
    return "" if fields["open"] else " (redriven)"


@click.command
@click.argument("ids", type=NonEmptyText(), nargs=-1, metavar="[ID]...")
@click.option("--all", "all_open", is_flag=True, help="All open dead letters: neither redriven nor discarded.")
@click.option(
    "--discard",
    is_flag=True,
    help="Deliver nothing: mark the dead letters as discarded by you. The journal keeps the events.",
)
@functions_option
@broker_option
@namespace_option
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@journal_option
@output_option
@cluster_options
def redrive(
    ids: tuple[str, ...],
    all_open: bool,
    discard: bool,
    functions_url: str,
    broker: str,
    namespace: str,
    yes: bool,
    journal: str,
    output: str,
) -> None:
    """Deliver dead letters again, each only to the function that did not accept it; responses go to the broker.

    The function's address comes from --functions or from its Trigger, never from the dead letter. The exit status is 1
    if a delivery fails again. If the Broker requires authentication, $SINK_TOKEN names the file with the token.

    With --discard, a dead letter that can never be delivered is no longer open, and the journal names you.

    \b
    Example:
      kubectl maintenance redrive ID
      kubectl maintenance redrive --all --yes
      kubectl maintenance redrive ID --discard
    """
    if bool(ids) == all_open:
        raise click.UsageError("name the ids of dead letters, or use --all")
    from console.terminal.connection import open_client  # This slow import is not needed to list dead letters.

    with open_journal(journal) as opened_journal, open_client() as client:
        dead_letters = list_dead_letters_to_redrive(opened_journal, ids)
        if missing := sorted(set(ids) - {entry.event.get_id() for entry in dead_letters}):
            message = f"open dead letter {', '.join(missing)} not found"
            raise NoResult(f"{message}: see kubectl maintenance deadletters --all")
        if discard:
            _confirm_and_discard(dead_letters, opened_journal, client, output, is_confirmed=yes)
            return
        broker_url = broker or find_broker_url(client, namespace)
        items = build_redrive_items(dead_letters, functions_url, namespace, client)
        if not yes and items:
            _confirm_redrive(items, output)
        results = []
        for result in redrive_dead_letters(items, broker_url, opened_journal):
            results.append(result)
            print_note(f"{_format_dead_letter(result.item.dead_letter)}  {_format_redrive_outcome(result)}", output)
    print_note(f"{sum(not result.failed for result in results)} of {len(results)} redriven", output)
    show_json({"redriven": [_build_result_fields(result) for result in results]}, output)
    rejected = [result for result in results if result.attempt and result.attempt.status == HTTPStatus.BAD_REQUEST]
    if rejected:
        print_note("The function rejects such an event each time: to close its dead letter, use --discard", output)
    if any(result.failed for result in results):
        raise click.exceptions.Exit(1)


def _confirm_and_discard(
    dead_letters: Sequence[Entry], journal: Journal, client: SyncClient, output: str, *, is_confirmed: bool
) -> None:
    """Ask for confirmation unless `is_confirmed`, then discard the dead letters and print them.

    The journal records the API client's user as the one who discarded them.
    """
    from kube.client.access_reviews import whoami  # This slow import is not needed to list dead letters.

    user = client.run(whoami(client.api))
    if dead_letters and not is_confirmed:
        for entry in dead_letters:
            print_note(_format_dead_letter(entry), output)
        confirm(f"Discard {format_count(len(dead_letters), 'dead letter')}?", "use --yes")
    discarded = discard_dead_letters(dead_letters, user, journal)
    print_note(f"{format_count(len(discarded), 'dead letter')} discarded by {user}", output)
    show_json({"discarded": list(map(build_dead_letter_fields, discarded))}, output)


def _confirm_redrive(items: Sequence[RedriveItem], output: str) -> None:
    for item in items:
        print_note(
            f"{_format_dead_letter(item.dead_letter)}{'' if item.problem else f' at {item.function_url}'}", output
        )
    confirm(f"Redrive {format_count(len(items), 'dead letter')}?", "use --yes")


def _build_result_fields(result: RedriveResult) -> dict[str, Any]:
    outcome = (
        result.attempt.as_data() if result.attempt else {"note" if result.is_already_done else "error": result.problem}
    )
    return {
        **build_dead_letter_fields(result.item.dead_letter),
        "open": result.failed,
        "url": result.item.function_url,
        "now": outcome,
    }


def _format_dead_letter(dead_letter: Entry) -> str:
    """Return the dead letter's event id, event type and failed function as one line."""
    event, function = dead_letter.event, find_failed_function(dead_letter) or "unknown function"
    return f"{event.get_id()}  {shorten_type(event.get_type())}  ─▶ {function}"


def _format_redrive_outcome(result: RedriveResult) -> str:
    """Return the outcome of a redrive as text: the response events, the failure, or why no attempt was made."""
    attempt = result.attempt
    if attempt is None:
        return result.problem if result.is_already_done else f"failed: {result.problem}"
    replies = ", ".join(shorten_type(str(reply["type"])) for reply in attempt.replies) or "no event"
    return f"failed: {attempt.status} {attempt.error}" if attempt.failed else f"responded with {replies}"
