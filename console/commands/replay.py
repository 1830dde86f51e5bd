"""`kubectl maintenance replay`: replays recorded events, and compares the new responses with the recorded ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import click

from console.operations.errors import NoResult
from console.operations.replay_report import DIFFERS, FAILS, UNRECORDED, ReplayResult, format_summary, replay_to_json
from console.operations.replay_runner import Target, TargetOptions, TargetResolver, replay_calls
from console.terminal.errors import confirm, open_client
from console.terminal.event_selection import EventSelection, select_entries, selection_options
from console.terminal.journal import journal_option, open_journal
from console.terminal.options import cluster_options, is_set_on_command_line, output_option, pick_fields, target_options
from console.terminal.output import print_note, show, show_json
from console.terminal.replay_display import render_missing_objects, render_replay
from eventing.journal.entries import Entry
from eventing.replay.function_client import FunctionResponse, create_replay_id, replay_event
from eventing.replay.object_changes import ObjectChanges, find_objects, read_changes
from kube.client.sync_client import SyncClient
from kube.text_limits import format_count

Call = tuple[Entry, Target]


@dataclass(frozen=True)
class ReplayOptions:
    """The options that apply to every call of one replay."""

    replay_id: str
    dry_run: bool
    in_process: bool
    in_debugger: bool


@click.command
@selection_options
@target_options
@click.option(
    "--dry-run",
    type=click.Choice(["none", "server"]),
    default="none",
    show_default=True,
    help="With server, the API server validates every write and stores none.",
)
@click.option("--pdb", "debug", is_flag=True, help="Stop in pdb at the function's first line; requires --in-process.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation of a replay without --dry-run=server.")
@journal_option
@output_option
@cluster_options
def replay(dry_run: str, debug: bool, yes: bool, journal: str, output: str, **values: Any) -> None:
    """Replay recorded events, and compare each function's new response with the recorded one.

    The responses do not go to the broker, so a replay triggers no further functions. The exit status is 1 if a response
    differs in a way that later changes of the cluster do not explain. The exit status is 2 if no response can be
    compared, or if a function fails now.

    \b
    Example:
      kubectl maintenance replay --maintenance node-1 --dry-run=server
      kubectl maintenance replay --maintenance node-1 --from node.tainted --until node.drained --dry-run=server
      kubectl maintenance replay --run example --dry-run=server
      kubectl maintenance replay --id ID --function evict --in-process --pdb --dry-run=server
    """
    selection = EventSelection(**pick_fields(EventSelection, values))
    destination = TargetOptions(**pick_fields(TargetOptions, values))
    if debug and not destination.in_process:
        raise click.UsageError("--pdb stops only in a function that runs in this process: add --in-process")
    _check_function_location(destination)
    options = ReplayOptions(create_replay_id(), dry_run == "server", destination.in_process, debug)
    with open_journal(journal) as opened_journal:
        entries = select_entries(opened_journal, selection)
    with open_client() as client:
        targets = TargetResolver(destination, client)
        calls = [(entry, target) for entry in entries for target in targets.resolve(entry.event)]
        if not calls:
            raise NoResult("no Trigger delivers these events to a function: name a function with --function")
        if not (options.dry_run or yes):
            _confirm_writes(calls)
        changes = client.run(read_changes(client.api, find_objects(entries)))
        results = _replay_calls(calls, changes, options, client, output)
    _report_and_exit(results, len(calls) - len(results), changes, options, output)


def _check_function_location(options: TargetOptions) -> None:
    """Raise `UsageError` if more than one option specifies where functions run.

    $FUNCTIONS does not count, because it is set for all commands; the options override it.
    """
    is_set = {
        "--in-process": options.in_process,
        "--url": bool(options.url),
        "--functions": is_set_on_command_line("functions_url"),
    }
    set_options = [option for option, value in is_set.items() if value]
    if len(set_options) > 1:
        raise click.UsageError(f"{' and '.join(set_options)}: each specifies where functions run, omit all but one")


def _confirm_writes(calls: Sequence[Call]) -> None:
    names = ", ".join(dict.fromkeys(target.function for _, target in calls))
    question = f"Make {format_count(len(calls), 'call')} to {names} without a dry run? Their writes will take effect"
    confirm(question, "use --yes, or --dry-run=server, which writes nothing")


def _replay_calls(
    calls: Sequence[Call], changes: ObjectChanges, options: ReplayOptions, client: SyncClient, output: str
) -> list[ReplayResult]:
    """Replay the calls in recorded order, and show each result as it arrives."""
    if output == "table":
        _show_missing_objects(changes)
    results = []
    for result in replay_calls(calls, partial(_call_function, options=options, client=client), changes):
        results.append(result)
        if output == "table":
            show(render_replay(result))
    return results


def _show_missing_objects(changes: ObjectChanges) -> None:
    if gone := changes.describe_missing_objects():
        show(render_missing_objects(gone))


def _call_function(entry: Entry, target: Target, options: ReplayOptions, client: SyncClient) -> FunctionResponse:
    if options.in_process:
        from console.operations.in_process import run_in_process  # slow import of all functions and Flask

        return run_in_process(
            entry,
            target.function,
            client,
            replay_id=options.replay_id,
            dry_run=options.dry_run,
            debug=options.in_debugger,
        )
    return replay_event(entry, target.function, target.url, replay_id=options.replay_id, dry_run=options.dry_run)


def _report_and_exit(
    replay_results: Sequence[ReplayResult],
    skipped_calls: int,
    changes: ObjectChanges,
    options: ReplayOptions,
    output: str,
) -> None:
    """Print the summary and, unless the replay succeeded, raise the exception that sets the exit status.

    `skipped_calls` is the number of calls that were not made because an endpoint is not one of our functions.
    """
    print_note(format_summary(replay_results, dry_run=options.dry_run), output)
    if output == "json":
        show_json(
            replay_to_json(
                options.replay_id,
                dry_run=options.dry_run,
                gone=changes.describe_missing_objects(),
                results=replay_results,
            )
        )
    if skipped_calls:
        skipped = f"the replay skips the remaining {format_count(skipped_calls, 'call')}"
        remedy = "name the address of the functions with --functions or --url, and replay again"
        raise NoResult(f"{replay_results[-1].response.error}; {skipped}: {remedy}")
    results = {result.result for result in replay_results}
    if DIFFERS in results:
        raise click.exceptions.Exit(1)
    if FAILS in results:
        failed = next(result.response for result in replay_results if result.result == FAILS)
        remedy = "see its log, or name the address of the functions with --functions, and replay again"
        raise NoResult(f"function {failed.function} fails now with {failed.status} {failed.error}: {remedy}")
    if results == {UNRECORDED}:
        raise NoResult("the journal has no recorded responses of these functions, so nothing could be compared")
