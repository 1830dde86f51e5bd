"""`kubectl maintenance replay`: posts recorded events to functions again, and compares the responses."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from console.operations.errors import NoResult
from console.operations.replay import (
    DIFFERS,
    EXPLAINED,
    FAILS,
    SAME,
    UNRECORDED,
    DifferenceGroup,
    ReplayOptions,
    ReplayResult,
    call_function,
    format_summary,
    replay_calls,
    replay_to_json,
)
from console.operations.replay_targets import Target, TargetOptions, TargetResolver
from console.terminal.connection import open_client
from console.terminal.journal import (
    EventSelection,
    open_readable_journal,
    readable_journal_option,
    select_entries,
    selection_options,
)
from console.terminal.options import (
    Url,
    cluster_options,
    combine_options,
    functions_option,
    is_set_on_command_line,
    namespace_option,
    output_option,
    pick_fields,
)
from console.terminal.output import confirm, escape, print_note, show, show_json
from eventing.events import shorten_type
from eventing.journal.entries import Entry
from eventing.replay.function_client import FunctionResponse, create_replay_id
from eventing.replay.object_changes import find_recorded_objects, read_changes
from kube.client.sync_client import SyncClient
from kube.text_limits import format_count

RESULT_STYLES = {SAME: "green", EXPLAINED: "cyan", DIFFERS: "bold red", FAILS: "red", UNRECORDED: "yellow"}
NO_VALUE, NO_EVENT = "nothing", "no event"

target_options = combine_options(
    click.option(
        "--function",
        "functions",
        multiple=True,
        help="Function to replay to; repeatable.  [default: all whose Trigger selects the event]",
    ),
    click.option("--url", type=Url(), default="", help="Address of a single function to replay to."),
    functions_option,
    click.option(
        "--manifests",
        multiple=True,
        type=click.Path(exists=True, path_type=Path),
        envvar="TRIGGERS",
        help="File or directory with Triggers; repeatable.  "
        "[env: TRIGGERS; default: the cluster's Triggers, then the shipped Triggers]",
    ),
    namespace_option,
    click.option("--in-process", is_flag=True, help="Run the function in this process, with your own rights."),
)
"""Decorator that adds the command-line options for the fields of `TargetOptions`."""


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
@readable_journal_option
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
    options = ReplayOptions(create_replay_id(), dry_run == "server", debug)
    with open_readable_journal(journal, destination.namespace) as opened_journal:
        entries = select_entries(opened_journal, selection)
    with open_client() as client:
        calls = _list_calls(entries, destination, client)
        if not (options.dry_run or yes):
            _confirm_writes(calls)
        changes = client.run(read_changes(client.api, find_recorded_objects(entries)))
        gone, results = changes.describe_missing_objects(), []
        if gone and output == "table":
            show(render_missing_objects(gone))
        for result in replay_calls(calls, partial(call_function, client=client, options=options), changes):
            results.append(result)
            if output == "table":
                show(render_replay(result))
    print_note(format_summary(results, dry_run=options.dry_run), output)
    show_json(replay_to_json(options, gone, results), output)
    _raise_if_responses_differ(results, len(calls) - len(results))


def _check_function_location(options: TargetOptions) -> None:
    """Raise `UsageError` if more than one command-line option specifies where the functions run.

    The environment variable FUNCTIONS may also be set, because the options override it.
    """
    is_set = {
        "--in-process": options.in_process,
        "--url": bool(options.url),
        "--functions": is_set_on_command_line("functions_url"),
    }
    set_options = [option for option, value in is_set.items() if value]
    if len(set_options) > 1:
        raise click.UsageError(f"{' and '.join(set_options)}: each specifies where functions run, omit all but one")


def _list_calls(entries: Sequence[Entry], destination: TargetOptions, client: SyncClient) -> list[tuple[Entry, Target]]:
    """Return the calls to make: pairs of an event and a target function, in the events' recorded order.

    Raises `NoResult` if no Trigger delivers the events to a function.
    """
    targets = TargetResolver(destination, client)
    calls = [(entry, target) for entry in entries for target in targets.resolve(entry.event)]
    if not calls:
        raise NoResult("no Trigger delivers these events to a function: name a function with --function")
    return calls


def _confirm_writes(calls: Sequence[tuple[Entry, Target]]) -> None:
    names = ", ".join(dict.fromkeys(target.function for _, target in calls))
    question = f"Make {format_count(len(calls), 'call')} to {names} without a dry run? Their writes will take effect"
    confirm(question, "use --yes, or --dry-run=server, which writes nothing")


def _raise_if_responses_differ(replay_results: Sequence[ReplayResult], skipped_calls: int) -> None:
    """Raise the exception that determines the exit status, unless no response has an unexplained difference.

    `skipped_calls` is the number of calls that were not made, because no function responded to a call.
    """
    if skipped_calls:
        skipped = f"the replay skips the remaining {format_count(skipped_calls, 'call')}"
        remedy = "start the functions, or name their address with --functions or --url, and replay again"
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


def render_replay(replayed: ReplayResult) -> Text:
    """Format a line for the event and the function, and one or more lines for each group of differences.

    The line has the durations of the recorded and the new attempt, as far as they are known.
    """
    event, function = replayed.entry.event, replayed.response.function
    call = f"{shorten_type(event.get_type()):25} ─▶ {function:8}"
    outcome = f"{_format_response(replayed.response):28}  {_format_durations(replayed):24}"
    lines = Text.assemble(
        (f"{replayed.result:12}", RESULT_STYLES[replayed.result]),
        escape(f"  {call} {outcome}  {event.get_id()}"),
    )
    for group in replayed.group_differences():
        lines.append_text(_render_differences(group))
    return lines


def _render_differences(group: DifferenceGroup) -> Text:
    label, then, now = escape(group.label), _format_value(group.first.then), _format_value(group.first.now)
    if group.first.explained:
        values = f": {then} → {now}" if group.pod_count == 1 else ""
        return Text(f"\n    {label}{values}: ", "dim").append(escape(group.first.explained))
    return Text.assemble(f"\n    {label}", (f"\n      - {then}", "red"), (f"\n      + {now}", "green"))


def _format_value(value: Any) -> str:
    if value is None:
        return NO_VALUE
    return escape(shorten_type(value)) if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _format_response(response: FunctionResponse) -> str:
    if response.status >= 400:
        return f"{response.status} {response.error}"
    return ", ".join(shorten_type(reply["type"]) for reply in response.replies) or NO_EVENT


def _format_durations(replayed: ReplayResult) -> str:
    recorded_seconds = replayed.recorded.seconds if replayed.recorded else None
    durations = {"then": recorded_seconds, "now": replayed.response.seconds}
    return ", ".join(f"{seconds * 1000:.0f} ms {name}" for name, seconds in durations.items() if seconds is not None)


def render_missing_objects(sentences: Iterable[str]) -> Text:
    """Build one line for each sentence about an object that no longer exists."""
    return Text("\n".join(map(escape, sentences)), "dim")
