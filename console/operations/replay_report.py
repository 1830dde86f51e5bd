"""Results of a replay: the recorded and new responses compared, a summary, and the JSON output. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from eventing.journal.entries import Attempt, Entry
from eventing.replay.function_client import FunctionResponse
from eventing.replay.object_changes import parse_evicted_pods
from eventing.replay.response_diff import Difference
from kube.text_limits import format_count

SAME, EXPLAINED, DIFFERS, FAILS, UNRECORDED = "same", "explained", "differs", "fails", "not recorded"


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


def format_summary(results: Sequence[ReplayResult], *, dry_run: bool) -> str:
    """Return the number of responses per result, and whether the functions' writes were stored."""
    counts = Counter(result.result for result in results)
    events = len({id(result.entry) for result in results})
    parts = [
        f"{counts[SAME]} the same",
        f"{counts[EXPLAINED]} explained by later changes" if counts[EXPLAINED] else "",
        f"{counts[UNRECORDED]} without a recorded response" if counts[UNRECORDED] else "",
        f"{counts[FAILS]} failed" if counts[FAILS] else "",
        f"{counts[DIFFERS]} different",
    ]
    totals = (
        f"{format_count(events, 'event')}, {format_count(len(results), 'response')}: {', '.join(filter(None, parts))}"
    )
    return f"{totals}; {_describe_writes(results, dry_run=dry_run)}"


def _describe_writes(results: Sequence[ReplayResult], *, dry_run: bool) -> str:
    """Describe whether the functions' writes were stored; the responses list only evictions, not other writes."""
    if dry_run:
        return "dry run: no writes were stored"
    replies = (reply for result in results for reply in result.response.replies)
    evicted = {pod["uid"] for reply in replies for pod in parse_evicted_pods(reply.get("data"))}
    return "all writes were stored" + (f", including {format_count(len(evicted), 'eviction')}" if evicted else "")


def replay_to_json(
    replay_id: str, *, dry_run: bool, gone: Sequence[str], results: Sequence[ReplayResult]
) -> dict[str, Any]:
    """Return the results of the whole replay as one JSON object."""
    counts = Counter(result.result for result in results)
    return {
        "replay": replay_id,
        "dryRun": dry_run,
        "lost": list(gone),
        "results": dict(counts),
        "answers": [_build_result_fields(result) for result in results],
    }


def _build_result_fields(result: ReplayResult) -> dict[str, Any]:
    event, recorded, response = result.entry.event, result.recorded, result.response
    return {
        "event": event.get_id(),
        "type": event.get_type(),
        "function": response.function,
        "result": result.result,
        "then": {"status": recorded.status, "replies": list(recorded.replies), "error": recorded.error}
        if recorded
        else None,
        "now": {"status": response.status, "replies": list(response.replies), "error": response.error},
        "differences": [
            {name: value for name, value in asdict(difference).items() if name not in ("event", "function")}
            for difference in result.differences
        ],
    }
