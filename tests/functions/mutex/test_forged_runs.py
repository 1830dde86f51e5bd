"""Fuzz test for the steps of the upgrade mutex, which never respond with 500 to invalid event data (X-1)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cloudevents.core.v1.event import CloudEvent
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eventing import events
from eventing.http_binding import encode_binary
from functions.app import FUNCTIONS
from kube.mutex.objects import RULE_KIND, RUN_KIND, TARGET_KIND
from tests.functions.event_builders import build_resource_event
from tests.functions.mutex.conftest import UpgradeScenario
from tests.functions.test_corrupted_events import JSON_VALUES, build_post_function, iterate_value_paths, replace_value
from tests.proofs import proves
from tests.sources import list_steps

pytestmark = pytest.mark.slow

RESOURCE_EVENT_TYPES = (events.RESOURCE_ADDED, events.RESOURCE_UPDATED, events.RESOURCE_DELETED)
REFERENCE_EVENT_TYPES = (events.REFERENCE_UPDATED, events.REFERENCE_DELETED)
STEP_AND_EVENT_TYPE_CASES = [
    (step, event_type)
    for step in sorted(list_steps("mutex"))
    for event_type in FUNCTIONS[step].consumes
    if event_type != events.TICK
]
KIND_BY_STEP = {"check-rule": RULE_KIND, "check-target": TARGET_KIND}
MAX_EXAMPLES = 25


def build_valid_event(upgrade: UpgradeScenario, step: str, event_type: str) -> CloudEvent:
    """Build a valid event of this type for the step."""
    object_kind = KIND_BY_STEP.get(step, RUN_KIND)
    mutex_object = upgrade.read_object(
        {RULE_KIND: upgrade.rule, TARGET_KIND: upgrade.target, RUN_KIND: upgrade.run_config}[object_kind]
    )
    if event_type in RESOURCE_EVENT_TYPES:
        return build_resource_event(event_type, mutex_object, object_kind)
    if event_type in REFERENCE_EVENT_TYPES:
        return build_resource_event(
            event_type, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}, "name": "a"}, "Node"
        )
    return upgrade.build_event(event_type, mutex_object=mutex_object)


@proves("X-1")
@pytest.mark.parametrize(
    ("step", "event_type"), STEP_AND_EVENT_TYPE_CASES, ids=lambda value: value.removeprefix("dev.nodemaintenance.")
)
def test_corrupt_event_data_crashes_no_mutex_step(upgrade: UpgradeScenario, step: str, event_type: str) -> None:
    """X-1: A step never crashes if a field of the event data has an arbitrary JSON value."""
    upgrade.advance_to_jobs()
    valid_event = build_valid_event(upgrade, step, event_type)
    post = build_post_function(upgrade.functions, step, valid_event, event_type)
    data = json.loads(encode_binary(valid_event).body)

    @settings(max_examples=MAX_EXAMPLES, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(list(iterate_value_paths(data))), JSON_VALUES)
    def post_corrupt_field(path: tuple[Any, ...], value: Any) -> None:
        status, text = post(replace_value(data, path, value))
        assert status in (200, 204, 400, 503), (path, value, text)
        assert "Traceback" not in text

    post_corrupt_field()
