"""Replays recorded events for the commands and the web console, and compares the new responses with the recorded ones.

A function runs at its address or, for `kubectl maintenance replay --in-process`, in this process.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from cloudevents.core.base import BaseCloudEvent

from console.operations.errors import NoResult
from console.operations.missing_libraries import explain_missing_module
from console.operations.replay_targets import KNOWN_FUNCTIONS, Target, TargetOptions, TargetResolver
from eventing import extensions
from eventing.http_binding import BATCH_CONTENT_TYPE
from eventing.journal.entries import Attempt, Entry
from eventing.replay.function_client import (
    FunctionResponse,
    NoResponse,
    create_replay_id,
    find_recorded_attempt,
    parse_response,
    replay_event,
)
from eventing.replay.object_changes import ObjectChanges, find_recorded_objects, parse_evicted_pods, read_changes
from eventing.replay.redrive import NO_RESPONSE_STATUS
from eventing.replay.response_diff import Difference, compare_responses
from kube.client.api import Api
from kube.client.deadline import set_deadline
from kube.client.sync_client import SyncClient
from kube.paths import DEFAULT_NAMESPACE
from kube.text_limits import format_count

if TYPE_CHECKING:
    from functions.steps import Function

POD_KEY_PATTERN = re.compile(r"\[[^]]*\]")
"""Matches the pod's name in the name of a field, such as `data.blocked[default/a].reason`."""
SAME, EXPLAINED, DIFFERS, FAILS, UNRECORDED = "same", "explained", "differs", "fails", "not recorded"


class DifferenceGroup(NamedTuple):
    """The differences of `pod_count` pods in the same field with the same explanation; `first` is one of them.

    `label` is the name of the field. A difference without an explanation has its own group.
    """

    label: str
    first: Difference
    pod_count: int


@dataclass(frozen=True)
class ReplayResult:
    """One event replayed to one function: the recorded response (None if unknown), the new one, and the differences."""

    entry: Entry
    recorded: Attempt | None
    response: FunctionResponse
    differences: Sequence[Difference]

    @property
    def result(self) -> str:
        """Return `SAME`, `EXPLAINED`, `DIFFERS`, `FAILS` or `UNRECORDED`.

        A new response that is a failure never counts as `SAME`, even if the recorded response is also a failure.
        """
        if any(not difference.explained for difference in self.differences):
            return DIFFERS
        if self.response.status >= 500:
            return FAILS
        if self.recorded is None:
            return UNRECORDED
        return EXPLAINED if self.differences else SAME

    def group_differences(self) -> list[DifferenceGroup]:
        """Return the differences for a display, so that one cause takes one line, however many pods it concerns."""
        groups: dict[tuple[str, str] | int, list[Difference]] = {}
        for number, difference in enumerate(self.differences):
            field = POD_KEY_PATTERN.sub("", difference.field)
            is_shared = field != difference.field and difference.explained
            groups.setdefault((field, difference.explained) if is_shared else number, []).append(difference)
        return [_build_difference_group(differences) for differences in groups.values()]


def _build_difference_group(differences: Sequence[Difference]) -> DifferenceGroup:
    first, count = differences[0], len(differences)
    field = POD_KEY_PATTERN.sub("", first.field)
    return DifferenceGroup(f"{field}, each of {count} pods" if count > 1 else first.field, first, count)


@dataclass(frozen=True)
class ReplayOptions:
    """The options that apply to every call of one replay; `in_debugger` applies only to functions in this process."""

    replay_id: str
    dry_run: bool
    in_debugger: bool = False


@dataclass(frozen=True)
class DryRunResult:
    """The result of a dry run: each function's response, and a sentence for each object that no longer exists."""

    results: tuple[ReplayResult, ...]
    gone: tuple[str, ...]


def replay_calls(
    calls: Iterable[tuple[Entry, Target]],
    call_function: Callable[[Entry, Target], FunctionResponse],
    changes: ObjectChanges,
) -> Iterator[ReplayResult]:
    """Replay the calls in order, and yield each result; `changes` describes how the recorded objects have changed.

    If no function responds to a call, the replay yields a failed result with the reason. It skips the remaining calls,
    because the user would wait for the timeout of each.
    """
    for entry, target in calls:
        try:
            response = call_function(entry, target)
        except NoResponse as error:
            yield _build_failed_result(entry, target.function, error)
            return
        recorded = find_recorded_attempt(entry, response.function)
        differences = compare_responses(recorded, response, changes) if recorded else []
        yield ReplayResult(entry, recorded, response, differences)


def _build_failed_result(entry: Entry, function: str, error: NoResponse) -> ReplayResult:
    response = FunctionResponse(function, NO_RESPONSE_STATUS, None, error=str(error))
    return ReplayResult(entry, find_recorded_attempt(entry, function), response, [])


def replay_dry_run(entry: Entry, client: SyncClient, api: Api, functions_url: str) -> DryRunResult:
    """Replay the event, as a dry run, to every function whose Trigger filter matches; no writes are stored.

    In: the console's client, which reads the Triggers; the caller's client, which reads the current objects.
    `functions_url` is the functions' base URL, or "" to use the Triggers' addresses. Raises `NoResult` if no Trigger
    exists or has the required address.

    The calls run concurrently, so that several slow functions delay the browser no longer than one slow function.
    """
    targets = TargetResolver(TargetOptions(functions_url=functions_url, namespace=DEFAULT_NAMESPACE), client)
    changes = client.run(read_changes(api, find_recorded_objects([entry])))
    call = partial(call_function, client=client, options=ReplayOptions(create_replay_id(), dry_run=True))
    with ThreadPoolExecutor(len(KNOWN_FUNCTIONS)) as threads:
        results = threads.map(
            lambda target: next(replay_calls([(entry, target)], call, changes)), targets.resolve(entry.event)
        )
    return DryRunResult(tuple(results), tuple(changes.describe_missing_objects()))


def call_function(entry: Entry, target: Target, client: SyncClient, options: ReplayOptions) -> FunctionResponse:
    """Send a recorded event to the function, or run the function in this process, and return the response.

    In this process, the function has the user's own permissions. In the debugger, pdb stops at the function's first
    line, where `event` and `client` are available. Raises `NoResult` if the user quits pdb.
    """
    if target.url:
        return replay_event(entry, target.function, target.url, replay_id=options.replay_id, dry_run=options.dry_run)
    with explain_missing_module():
        from functions.app import FUNCTIONS  # slow import of all functions and Flask
        from functions.serving.attempts import OngoingAttempt, Publisher
        from functions.serving.function_runner import FunctionRunner
        from functions.serving.handler import handle_event

    function = FUNCTIONS[target.function]
    event = extensions.add_replay_extensions(entry.event, options.replay_id, dry_run=options.dry_run)
    with OngoingAttempt(function.name, event, Publisher("")) as attempt:
        runner = FunctionRunner(_wrap_in_debugger(function) if options.in_debugger else function)
        response = handle_event(runner, attempt, client, accept_header=BATCH_CONTENT_TYPE)
    headers = {name.lower(): value for name, value in response.headers.items()}
    return parse_response(function.name, response.status_code, headers, response.get_data(), attempt.duration_seconds)


def _wrap_in_debugger(function: Function) -> Function:
    """Return the function wrapped in pdb, which uses stderr because stdout is for the command's output."""
    from pdb import Pdb  # needed only to debug

    def run_step(event: BaseCloudEvent, client: SyncClient) -> list[BaseCloudEvent]:
        debugger = Pdb(stdout=sys.stderr, nosigint=True)
        with set_deadline(inf):  # no deadline while the user debugs
            replies: list[BaseCloudEvent] | None = debugger.runcall(function.step, event, client)
        if replies is None:  # `runcall` returns None after `quit`
            raise NoResult(f"replay stopped by pdb in function {function.name}: the remaining calls were not made")
        return replies

    return replace(function, step=run_step)


def format_summary(results: Sequence[ReplayResult], *, dry_run: bool) -> str:
    """Return the number of responses per result, and whether the functions' writes were stored.

    The responses list only evictions, not other writes.
    """
    counts = Counter(result.result for result in results)
    events = len({id(result.entry) for result in results})
    parts = [
        f"{counts[SAME]} the same",
        f"{counts[EXPLAINED]} explained by later changes" if counts[EXPLAINED] else "",
        f"{counts[UNRECORDED]} without a recorded response" if counts[UNRECORDED] else "",
        f"{counts[FAILS]} failed" if counts[FAILS] else "",
        f"{counts[DIFFERS]} different",
    ]
    replies = (reply for result in results for reply in result.response.replies)
    evicted = {pod["uid"] for reply in replies for pod in parse_evicted_pods(reply.get("data"))}
    evictions = f", including {format_count(len(evicted), 'eviction')}" if evicted else ""
    writes = "dry run: no writes were stored" if dry_run else f"all writes were stored{evictions}"
    totals = f"{format_count(events, 'event')}, {format_count(len(results), 'response')}"
    return f"{totals}: {', '.join(filter(None, parts))}; {writes}"


def replay_to_json(options: ReplayOptions, gone: Sequence[str], results: Sequence[ReplayResult]) -> dict[str, Any]:
    """Return the results of the whole replay as one JSON object."""
    return {
        "replay": options.replay_id,
        "dryRun": options.dry_run,
        "lost": list(gone),
        "results": dict(Counter(result.result for result in results)),
        "answers": [_build_result_fields(result) for result in results],
    }


def _build_result_fields(result: ReplayResult) -> dict[str, Any]:
    differences = [asdict(difference) for difference in result.differences]
    return {
        "event": result.entry.event.get_id(),
        "type": result.entry.event.get_type(),
        "function": result.response.function,
        "result": result.result,
        "then": _build_response_fields(result.recorded) if result.recorded else None,
        "now": _build_response_fields(result.response),
        "differences": [
            {name: value for name, value in fields.items() if name not in ("event", "function")}
            for fields in differences
        ],
    }


def _build_response_fields(response: Attempt | FunctionResponse) -> dict[str, Any]:
    return {
        "status": response.status,
        "seconds": response.seconds,
        "replies": list(response.replies),
        "error": response.error,
    }
