"""Generates the table of a maintenance's states in docs/states.md from the table that `resync` uses.

`python -m tests.states_table` updates the page.
"""

from __future__ import annotations

from eventing.events import shorten_type
from functions.maintenance.due_events import STATES, State
from tests.sources import ROOT

PAGE = ROOT / "docs" / "states.md"
HEADING, TABLE_HEAD = "\n## NodeMaintenance\n", "| state | next event | `resync` emits |\n|---|---|---|\n"


def render_row(state: State) -> str:
    """Return the table row of a state."""
    due_event = f"`{shorten_type(state.due_event)}`" if state.due_event else "none"
    return f"| {state.name} | {state.next_event} | {due_event}{state.note} |\n"


def update_page(page: str) -> str:
    """Return the page with an updated table in its section about NodeMaintenances."""
    head, _, rest = page.partition(HEADING)
    introduction, _, after_head = rest.partition(TABLE_HEAD)
    _, _, tail = after_head.partition("\n## ")
    return f"{head}{HEADING}{introduction}{TABLE_HEAD}{''.join(map(render_row, STATES))}\n## {tail}"


if __name__ == "__main__":
    PAGE.write_text(update_page(PAGE.read_text()))
