"""`kubectl maintenance redrive`: delivers dead letters again, each to the function that did not accept it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from console.operations.dead_letter_redrive import (
    RedriveItem,
    RedriveResult,
    build_dead_letter_fields,
    build_redrive_items,
    find_broker_url,
    list_dead_letters_to_redrive,
    redrive_all,
)
from console.operations.errors import NoResult
from console.terminal.errors import confirm, open_client
from console.terminal.journal import journal_option, open_journal
from console.terminal.options import broker_option, cluster_options, functions_option, namespace_option, output_option
from console.terminal.output import print_note, show_json
from console.terminal.param_types import NonEmptyText
from eventing.events import shorten_type
from eventing.journal.entries import Entry
from eventing.replay.redrive import find_failed_function
from kube.text_limits import format_count


@click.command
@click.argument("ids", type=NonEmptyText(), nargs=-1, metavar="[ID]...")
@click.option("--all", "all_open", is_flag=True, help="Redrive all dead letters that have not been redriven.")
@functions_option("functions_url", "the subscriber addresses in the Triggers")
@broker_option
@namespace_option
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@journal_option
@output_option
@cluster_options
def redrive(
    ids: tuple[str, ...],
    all_open: bool,
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

    \b
    Example:
      kubectl maintenance redrive ID
      kubectl maintenance redrive --all --yes
    """
    if bool(ids) == all_open:
        raise click.UsageError("name the ids of dead letters, or use --all")
    with open_journal(journal) as opened_journal, open_client() as client:
        dead_letters = list_dead_letters_to_redrive(opened_journal, ids)
        _check_ids(dead_letters, ids)
        broker_url = broker or find_broker_url(client, namespace)
        items = build_redrive_items(dead_letters, functions_url, namespace, client)
        if not yes and items:
            for item in items:
                print_note(f"{_format_target(item)}{'' if item.problem else f' at {item.function_url}'}", output)
            confirm(f"Redrive {format_count(len(dead_letters), 'dead letter')}?", "use --yes")
        results = []
        for result in redrive_all(items, broker_url, opened_journal):
            results.append(result)
            print_note(f"{_format_target(result.item)}  {_format_outcome(result)}", output)
    print_note(f"{sum(not result.failed for result in results)} of {len(results)} redriven", output)
    if output == "json":
        show_json({"redriven": [_build_fields(result) for result in results]})
    if any(result.failed for result in results):
        raise click.exceptions.Exit(1)


def _build_fields(result: RedriveResult) -> dict[str, Any]:
    outcome = (
        result.attempt.as_data() if result.attempt else {"note" if result.is_already_done else "error": result.problem}
    )
    return {
        **build_dead_letter_fields(result.item.dead_letter),
        "open": result.failed,
        "url": result.item.function_url,
        "now": outcome,
    }


def _format_target(item: RedriveItem) -> str:
    """Format the dead letter and its function as one line."""
    event = item.dead_letter.event
    function = find_failed_function(item.dead_letter) or "unknown function"
    return f"{event.get_id()}  {shorten_type(event.get_type())}  ─▶ {function}"


def _check_ids(dead_letters: Sequence[Entry], ids: tuple[str, ...]) -> None:
    missing = sorted(set(ids) - {entry.event.get_id() for entry in dead_letters})
    if missing:
        raise NoResult(f"open dead letter {', '.join(missing)} not found: see kubectl maintenance deadletters --all")


def _format_outcome(result: RedriveResult) -> str:
    """Describe the outcome of a redrive in words."""
    attempt = result.attempt
    if attempt is None:
        return result.problem if result.is_already_done else f"failed: {result.problem}"
    replies = ", ".join(shorten_type(str(reply["type"])) for reply in attempt.replies) or "no event"
    return f"failed: {attempt.status} {attempt.error}" if attempt.failed else f"responded with {replies}"
