"""Formats replay results for the terminal: a line for each response, followed by its differences. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from rich.text import Text

from console.operations.replay_report import DIFFERS, EXPLAINED, FAILS, SAME, UNRECORDED, ReplayResult
from console.terminal.escaping import escape
from eventing.events import shorten_type
from eventing.replay.function_client import FunctionResponse
from eventing.replay.response_diff import Difference

RESULT_STYLES = {SAME: "green", EXPLAINED: "cyan", DIFFERS: "bold red", FAILS: "red", UNRECORDED: "yellow"}
NO_VALUE, NO_EVENT = "nothing", "no event"


def render_replay(replayed: ReplayResult) -> Text:
    """Format a line for the event and the function, and one or more lines for each difference."""
    event, function = replayed.entry.event, replayed.response.function
    summary = f"{shorten_type(event.get_type()):25} ─▶ {function:8} {_format_response(replayed.response):28}"
    lines = Text.assemble(
        (f"{replayed.result:12}", RESULT_STYLES[replayed.result]), escape(f"  {summary}  {event.get_id()}")
    )
    for difference in replayed.differences:
        lines.append_text(_render_difference(difference))
    return lines


def _render_difference(difference: Difference) -> Text:
    field, then, now = escape(difference.field), _format_value(difference.then), _format_value(difference.now)
    if difference.explained:
        return Text(f"\n    {field}: {then} → {now}: ", "dim").append(escape(difference.explained))
    return Text.assemble(f"\n    {field}", (f"\n      - {then}", "red"), (f"\n      + {now}", "green"))


def _format_value(value: Any) -> str:
    if value is None:
        return NO_VALUE
    return escape(shorten_type(value)) if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _format_response(response: FunctionResponse) -> str:
    if response.status >= 400:
        return f"{response.status} {response.error}"
    return ", ".join(shorten_type(reply["type"]) for reply in response.replies) or NO_EVENT


def render_missing_objects(sentences: Iterable[str]) -> Text:
    """Format one line for each object that no longer exists."""
    return Text("\n".join(map(escape, sentences)), "dim")
