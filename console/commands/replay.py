"""`kubectl maintenance replay`: posts recorded events again, and compares the new answers with the recorded ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import click

from console.operations.replay_report import DIFFERS, FAILS, UNRECORDED, Replayed, as_json, summary
from console.operations.errors import NoResult
from console.operations.replay_runner import Target, Targets, Wanted, one_by_one
from console.terminal.replay_display import lost_lines, replay_lines
from console.terminal.errors import confirm, door
from console.terminal.options import cluster_options, is_given, output_option, picked, target_options
from console.terminal.journal import journal_option, opened
from console.terminal.output import note, show, show_json
from console.terminal.event_selection import Chosen, selected, selection_options
from eventing.journal.entries import Entry
from eventing.replay.function_client import Answer, new_replay_id
from eventing.replay.function_client import replay as posted
from eventing.replay.object_changes import Changes, objects_in, read_changes
from kube.client.sync_client import Cluster
from kube.text_limits import counted

Call = tuple[Entry, Target]


@dataclass(frozen=True)
class How:
    """The options that apply to every call of one replay."""

    replay_id: str
    dry_run: bool
    in_process: bool
    debug: bool


@click.command
@selection_options
@target_options
@click.option(
    "--dry-run",
    type=click.Choice(["none", "server"]),
    default="none",
    show_default=True,
    help="With server, the API server checks every write and keeps none.",
)
@click.option("--pdb", "debug", is_flag=True, help="Stop at the function's first line; with --in-process.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before real writes.")
@journal_option
@output_option
@cluster_options
def replay(dry_run: str, debug: bool, yes: bool, journal: str, output: str, **values: Any) -> None:
    """Replay recorded events, and show what each function answered then and what it answers now.

    The answers do not go to the broker, so a replay triggers no further functions. The exit status is 1 if an answer
    differs in a way that later changes of the cluster do not explain. It is 2 if no answer can be compared, or if a
    function fails now.

    \b
    Example:
      kubectl maintenance replay --maintenance node-1 --dry-run=server
      kubectl maintenance replay --maintenance node-1 --from node.tainted --until node.drained --dry-run=server
      kubectl maintenance replay --run example --dry-run=server
      kubectl maintenance replay --id ID --function evict --in-process --pdb --dry-run=server
    """
    wanted, chosen = Wanted(**picked(Wanted, values)), Chosen(**picked(Chosen, values))
    if debug and not wanted.in_process:
        raise click.UsageError("--pdb stops in a function of this process: add --in-process")
    _check_places(wanted)
    how = How(new_replay_id(), dry_run == "server", wanted.in_process, debug)
    with opened(journal) as book:
        entries = selected(book, chosen)
    with door() as cluster:
        targets = Targets(wanted, cluster)
        calls = [(entry, target) for entry in entries for target in targets.of(entry.event)]
        if not calls:
            raise NoResult("no Trigger calls a function for these events: name one by --function")
        if not (how.dry_run or yes):
            _confirm(calls)
        changes = cluster.run(read_changes(cluster.api, objects_in(entries)))
        found = _replay(calls, changes, how, cluster, output)
    _end(found, len(calls) - len(found), changes, how, output)


def _check_places(wanted: Wanted) -> None:
    """Raise `UsageError` if more than one option specifies where functions run.

    $FUNCTIONS does not count, because it is set for all commands; the options override it.
    """
    given = {"--in-process": wanted.in_process, "--url": bool(wanted.url), "--functions": is_given("base")}
    places = [option for option, is_there in given.items() if is_there]
    if len(places) > 1:
        raise click.UsageError(f"{' and '.join(places)}: each says where functions run, leave out all but one")


def _confirm(calls: Sequence[Call]) -> None:
    names = ", ".join(dict.fromkeys(target.function for _, target in calls))
    question = f"Replay {counted(len(calls), 'time')} for real, to {names}? What is not as it should be will be written"
    confirm(question, "say --yes, or --dry-run=server, which writes nothing")


def _replay(calls: Sequence[Call], changes: Changes, how: How, cluster: Cluster, output: str) -> list[Replayed]:
    """Make the calls in the order of the recording, and show each result as it arrives."""
    if output == "table":
        _show_lost(changes)
    found = []
    for replayed in one_by_one(calls, partial(_answer, how=how, cluster=cluster), changes):
        found.append(replayed)
        if output == "table":
            show(replay_lines(replayed))
    return found


def _show_lost(changes: Changes) -> None:
    if lost := changes.lost():
        show(lost_lines(lost))


def _answer(entry: Entry, target: Target, how: How, cluster: Cluster) -> Answer:
    if how.in_process:
        from console.operations.in_process import run_here  # imports all functions and Flask

        return run_here(entry, target.function, cluster, run=how.replay_id, dry_run=how.dry_run, debug=how.debug)
    return posted(entry, target.function, target.url, replay_id=how.replay_id, dry_run=how.dry_run)


def _end(found: Sequence[Replayed], left: int, changes: Changes, how: How, output: str) -> None:
    """Print the summary and raise the exception for the exit status.

    `left` is the number of calls that were not made because an endpoint is not a function.
    """
    note(summary(found, dry_run=how.dry_run), output)
    if output == "json":
        show_json(as_json(how.replay_id, dry_run=how.dry_run, lost=changes.lost(), found=found))
    if left:
        remedy = "say by --functions or --url where functions are, and replay again"
        raise NoResult(f"{found[-1].now.error}, so the replay ends {counted(left, 'call')} early: {remedy}")
    results = {replayed.result for replayed in found}
    if DIFFERS in results:
        raise click.exceptions.Exit(1)
    if FAILS in results:
        now = next(replayed.now for replayed in found if replayed.result == FAILS)
        remedy = "see its log, or say by --functions where functions are, and replay again"
        raise NoResult(f"{now.function} fails now, {now.status} {now.error}: {remedy}")
    if results == {UNRECORDED}:
        raise NoResult("the journal does not know what these functions answered then: nothing could be compared")
