"""Formats replay results for the terminal: a line for each answer, followed by its differences. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from rich.text import Text

from console.operations.replay_report import DIFFERS, EXPLAINED, FAILS, SAME, UNRECORDED, Replayed
from console.terminal.escaping import escaped
from eventing.event_types import short
from eventing.replay.function_client import Answer
from eventing.replay.response_diff import Difference

STYLES = {SAME: "green", EXPLAINED: "cyan", DIFFERS: "bold red", FAILS: "red", UNRECORDED: "yellow"}
NOTHING = "nothing"


def replay_lines(replayed: Replayed) -> Text:
    """Format a line for the event and the function, and one or more lines for each difference."""
    event, function = replayed.entry.event, replayed.now.function
    lines = Text.assemble(
        (f"{replayed.result:12}", STYLES[replayed.result]),
        escaped(f"  {short(event.get_type()):25} ─▶ {function:8} {_answered(replayed.now):28}  {event.get_id()}"),
    )
    for difference in replayed.differences:
        lines.append_text(_of_difference(difference))
    return lines


def _of_difference(difference: Difference) -> Text:
    field, then, now = escaped(difference.field), _value(difference.then), _value(difference.now)
    if difference.explained:
        return Text(f"\n    {field}: {then} → {now}: ", "dim").append(escaped(difference.explained))
    return Text.assemble(f"\n    {field}", (f"\n      - {then}", "red"), (f"\n      + {now}", "green"))


def _value(value: Any) -> str:
    if value is None:
        return NOTHING
    return escaped(short(value)) if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _answered(answer: Answer) -> str:
    if answer.status >= 400:
        return f"{answer.status} {answer.error}"
    return ", ".join(short(reply["type"]) for reply in answer.replies) or NOTHING


def lost_lines(lost: Iterable[str]) -> Text:
    """Format one line for each object that no longer exists."""
    return Text("\n".join(map(escaped, lost)), "dim")
