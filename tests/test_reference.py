"""Tests that docs/reference.md matches the code from which it is generated."""

from __future__ import annotations

from eventing import events
from eventing.event_types import shorten_type
from functions.app import FUNCTIONS
from tests.proofs import proves
from tests.reference import PAGE, render_page


def test_reference_page_is_up_to_date() -> None:
    """Check that docs/reference.md is up to date; `make reference` updates it."""
    assert PAGE.read_text() == render_page()


@proves("X-4")
def test_every_event_type_has_an_emitter_on_reference_page() -> None:
    """Check that the page names an emitter of every event type, so that no type is declared and never emitted."""
    rows = [line.split(" | ") for line in render_page().splitlines()]
    emitters = {cells[0]: cells[2] for cells in rows if len(cells) == 4}

    assert all(emitters[f"| `{shorten_type(event_type)}`"] for event_type in events.TYPE_DESCRIPTIONS)


def test_every_event_type_that_a_function_consumes_is_on_reference_page() -> None:
    page = render_page()

    for function in FUNCTIONS.values():
        for event_type in function.consumes:
            assert f"\n| `{shorten_type(event_type)}` | " in page
