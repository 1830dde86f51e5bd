"""Fuzz test for `label-cpu`, which rejects or ignores invalid event data and never responds with 500 (X-1)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eventing import events
from eventing.http_binding import encode_binary
from functions.app import FUNCTIONS
from tests.functions.cpu_labels.conftest import HASWELL_CAPABILITIES, CpuLabelScenario, build_reference_event
from tests.functions.test_corrupted_events import JSON_VALUES, build_post_function, iterate_value_paths, replace_value
from tests.proofs import proves

pytestmark = pytest.mark.slow

MAX_EXAMPLES = 10
ROUND_REFERENCE = events.ObjectReference("v1", "cpu-labels", "a-round", kind="Round")


@proves("X-1")
@pytest.mark.parametrize(
    "event_type", [consumed for consumed in FUNCTIONS["label-cpu"].consumes if consumed != events.TICK]
)
def test_corrupt_event_data_does_not_crash_label_cpu(scenario: CpuLabelScenario, event_type: str) -> None:
    """X-1: `label-cpu` never crashes if a field of the event data has an arbitrary JSON value."""
    scenario.replace_capabilities({scenario.workload.take_node(): HASWELL_CAPABILITIES})
    valid_event = (
        events.build_event(event_type, "test", ROUND_REFERENCE, data={"after": "a"})
        if event_type == events.LABELS_DUE
        else build_reference_event(event_type=event_type)
    )
    post = build_post_function(scenario.functions, "label-cpu", valid_event, event_type)
    data = json.loads(encode_binary(valid_event).body)

    @settings(max_examples=MAX_EXAMPLES, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(list(iterate_value_paths(data))), JSON_VALUES)
    def post_corrupt_field(path: tuple[Any, ...], value: Any) -> None:
        status, text = post(replace_value(data, path, value))
        assert status in (200, 204, 400, 503), (path, value, text)
        assert "Traceback" not in text

    post_corrupt_field()
