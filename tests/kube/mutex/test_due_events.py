"""Tests that the table of an upgrade run's stages is complete, and that docs/mutex.md describes each of its rows."""

from __future__ import annotations

import re

import pytest

from eventing import events
from eventing.events import expand_type
from kube.mutex.due_events import STAGES, DueEvent
from kube.mutex.run_record import Stage
from tests.sources import ROOT

PAGE = (ROOT / "docs/mutex.md").read_text()
STATES_OUTSIDE_STAGES = {"Invalid", "Waiting", "Failed", "Finished"}
"""Values of `status.step` while no upgrade run is active, or while the run is halted."""


def read_state_rows() -> list[list[str]]:
    """Return the cells of each row in the table of a run's states in docs/mutex.md."""
    table = PAGE.partition("| state, `step` |")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def list_documented_states(row: list[str]) -> list[str]:
    """Return the values of `status.step` that a row of the documented table describes."""
    return [state for state in re.findall(r"`(\w+)`", row[0]) if state[0].isupper()]


def test_every_stage_of_active_run_has_due_event() -> None:
    """Check that each stage of an active run has an event that continues the run (design rule 11)."""
    assert set(Stage) - set(STAGES) == {Stage.IDLE, Stage.FAILED}


@pytest.mark.parametrize("due_event", DueEvent)
def test_due_event_is_event_type_of_product(due_event: DueEvent) -> None:
    """Check that each due event of a stage is an event type of the product."""
    assert expand_type(due_event.value) in events.TYPE_DESCRIPTIONS


@pytest.mark.parametrize("stage", STAGES)
def test_documented_states_name_event_that_tick_emits(stage: Stage) -> None:
    """Check that each documented state names the event that a tick emits in place of a lost event."""
    rows = [row for row in read_state_rows() if stage.value in list_documented_states(row)]

    assert rows
    for state, _detected_by, _next_event, emitted in rows:
        assert f"`{STAGES[stage].due_event.value}`" in emitted, state


def test_mutex_page_documents_only_existing_states() -> None:
    """Check that docs/mutex.md documents only the stages of a run and the states without an active run."""
    documented = {state for row in read_state_rows() for state in list_documented_states(row)}

    assert documented == {stage.value for stage in STAGES} | STATES_OUTSIDE_STAGES
