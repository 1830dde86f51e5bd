"""How then and now look side by side: lines for a person, an object for a program. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.text import Text

from eventing.journal.entries import Attempt, Entry
from eventing.replay.again import Answer
from eventing.replay.differences import Difference
from kube.words import counted

SAME, EXPLAINED, DIFFERS, UNRECORDED = "same", "explained", "differs", "not recorded"
STYLES = {SAME: "green", EXPLAINED: "cyan", DIFFERS: "bold red", UNRECORDED: "yellow"}
PREFIXES = ("dev.nodemaintenance.", "dev.knative.")
NOTHING = "nothing"


@dataclass(frozen=True)
class Replayed:
    """One event, one function: what it answered then (None: nobody knows), what now, and how they differ."""

    entry: Entry
    then: Attempt | None
    now: Answer
    differences: Sequence[Difference]

    @property
    def result(self) -> str:
        """One of the four words."""
        if self.then is None:
            return UNRECORDED
        if any(not difference.explained for difference in self.differences):
            return DIFFERS
        return EXPLAINED if self.differences else SAME


def short(kind: str) -> str:
    """An event's type without what all have in common."""
    for prefix in PREFIXES:
        kind = kind.removeprefix(prefix)
    return kind


def text(replayed: Replayed) -> Text:
    """A line for the event and function, and one or more for each difference."""
    event, function = replayed.entry.event, replayed.now.function
    said = Text.assemble(
        (f"{replayed.result:12}", STYLES[replayed.result]),
        f"  {short(event.get_type()):25} ─▶ {function:8} {_answered(replayed.now):28}  {event.get_id()}",
    )
    for difference in replayed.differences:
        said.append_text(_of_difference(difference))
    return said


def _of_difference(difference: Difference) -> Text:
    if difference.explained:
        return Text(f"\n    {difference.field}: {_value(difference.then)} → {_value(difference.now)}: ", "dim").append(
            difference.explained
        )
    then = (f"\n      - {_value(difference.then)}", "red")
    now = (f"\n      + {_value(difference.now)}", "green")
    return Text.assemble(f"\n    {difference.field}", then, now)


def _value(value: Any) -> str:
    if value is None:
        return NOTHING
    return short(value) if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _answered(answer: Answer) -> str:
    if answer.status >= 400:
        return f"{answer.status} {answer.error}"
    return ", ".join(short(reply["type"]) for reply in answer.replies) or NOTHING


def summary(found: Sequence[Replayed]) -> str:
    """How many answers came out how."""
    counts = Counter(replayed.result for replayed in found)
    events = len({id(replayed.entry) for replayed in found})
    told = [
        f"{counts[SAME]} the same",
        f"{counts[EXPLAINED]} explained by what changed since" if counts[EXPLAINED] else "",
        f"{counts[UNRECORDED]} with nothing recorded to compare" if counts[UNRECORDED] else "",
        f"{counts[DIFFERS]} different",
    ]
    return f"{counted(events, 'event')}, {counted(len(found), 'answer')}: {', '.join(filter(None, told))}"


def gone(lost: Iterable[str]) -> Text:
    """What is no longer there, one sentence a line."""
    return Text("\n".join(lost), "dim")


def as_json(run: str, *, dry_run: bool, lost: Sequence[str], found: Sequence[Replayed]) -> dict[str, Any]:
    """The whole replay as one object."""
    counts = Counter(replayed.result for replayed in found)
    return {
        "replay": run,
        "dryRun": dry_run,
        "lost": list(lost),
        "results": dict(counts),
        "answers": [_row(replayed) for replayed in found],
    }


def _row(replayed: Replayed) -> dict[str, Any]:
    event, then, now = replayed.entry.event, replayed.then, replayed.now
    return {
        "event": event.get_id(),
        "type": event.get_type(),
        "function": now.function,
        "result": replayed.result,
        "then": {"status": then.status, "replies": list(then.replies), "error": then.error} if then else None,
        "now": {"status": now.status, "replies": list(now.replies), "error": now.error},
        "differences": [
            {name: value for name, value in asdict(difference).items() if name not in ("event", "function")}
            for difference in replayed.differences
        ],
    }
