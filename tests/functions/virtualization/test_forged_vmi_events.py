"""Fuzz test for `migrate` and `protect` with invalid event data (X-1).

The steps reject or ignore such events, and never respond with 500.
"""

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
from kube.virtualization.vmis import VMI_KIND
from tests.functions.conftest import Functions
from tests.functions.event_builders import build_product_event, build_resource_event
from tests.functions.test_corrupted_events import JSON_VALUES, build_post_function, iterate_value_paths, replace_value
from tests.functions.virtualization.conftest import VmiScenario
from tests.kubevirt import NOT_MIGRATABLE, build_vmi
from tests.proofs import proves
from tests.sources import list_steps

pytestmark = pytest.mark.slow

STEP_AND_EVENT_TYPE_CASES = [
    (step, event_type)
    for step in sorted(list_steps("virtualization"))
    for event_type in FUNCTIONS[step].consumes
    if event_type != events.TICK
]
MAX_EXAMPLES = 25


def build_valid_event(vmi_scenario: VmiScenario, functions: Functions, event_type: str) -> CloudEvent:
    """Build a valid event of this type: `node.tainted` is about a maintenance, any other event about a VMI."""
    if event_type == events.NODE_TAINTED:
        maintenance = vmi_scenario.workload.create_maintenance(vmi_scenario.workload.take_node())
        functions.run_until_tainted(maintenance)
        return build_product_event(event_type, maintenance, data={"again": True})
    reference = {"apiVersion": "kubevirt.io/v1", "kind": VMI_KIND, "name": "stuck", "namespace": "default"}
    return build_resource_event(event_type, {**reference, "metadata": {"name": "stuck"}}, VMI_KIND)


@proves("X-1")
@pytest.mark.parametrize(
    ("step", "event_type"), STEP_AND_EVENT_TYPE_CASES, ids=lambda value: value.removeprefix("dev.nodemaintenance.")
)
def test_corrupt_event_data_causes_no_crash_or_migration(
    vmi_scenario: VmiScenario, functions: Functions, step: str, event_type: str
) -> None:
    """X-1: An arbitrary JSON value in a field of the event data causes neither a crash nor a migration."""
    vmi_scenario.create_vmi(build_vmi("stuck", vmi_scenario.node, migratable=NOT_MIGRATABLE))
    valid_event = build_valid_event(vmi_scenario, functions, event_type)
    post = build_post_function(functions, step, valid_event, event_type)
    data = json.loads(encode_binary(valid_event).body)

    @settings(max_examples=MAX_EXAMPLES, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(list(iterate_value_paths(data))), JSON_VALUES)
    def post_corrupt_field(path: tuple[Any, ...], value: Any) -> None:
        status, text = post(replace_value(data, path, value))
        assert status in (200, 204, 400, 503), (path, value, text)
        assert "Traceback" not in text

    assert post(data)[0] in (200, 204)
    post_corrupt_field()
    assert vmi_scenario.map_migrations_to_vmis() == {}
