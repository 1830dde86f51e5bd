"""Property tests that functions reject or ignore events with corrupted data, and never answer 500 (X-1)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given, settings
from hypothesis import strategies as st

from eventing import events
from eventing.http_binding import encode_binary
from functions.app import FUNCTIONS
from kube.paths import Object
from tests.functions.conftest import Functions, delete_maintenances
from tests.functions.event_builders import (
    build_added_event,
    build_node_updated_event,
    build_product_event,
    build_tick,
    build_updated_event,
)
from tests.proofs import proves
from tests.sources import OPT_IN_STEPS
from tests.workload import Workload

pytestmark = pytest.mark.slow

LONE_SURROGATE = "\ud800"
LEAF_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(
        ["", "0", "9" * 5000, "x" * 5000, LONE_SURROGATE, "a/../b", "a\nb", "\0", "-", "yesterday", "%2F", "..", ","]
    ),
)
JSON_VALUES = st.recursive(
    LEAF_VALUES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
BLOCKED_POD = {
    "namespace": "ns",
    "name": "a",
    "uid": "u",
    "reason": "Error",
    "message": "m",
    "budget": "",
    "healthy": 1,
}
MAX_EXAMPLES = 40
"""Number of examples per function and consumed event type."""
CASES = [
    (function.name, event_type)
    for function in FUNCTIONS.values()
    for event_type in function.consumes
    if event_type != events.TICK and function.name not in OPT_IN_STEPS
]
"""Pairs of a function's name and an event type that the function consumes.

The functions of optional components are excluded; tests/functions/mutex tests the functions of upgrade runs.
"""


def iterate_value_paths(value: Any, parent_path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value in the data, beginning with `()`, the path of the data itself."""
    yield parent_path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from iterate_value_paths(child, (*parent_path, key))


def replace_value(data: Object, path: tuple[Any, ...], value: Any) -> Any:
    """Return the data with the value at `path` replaced."""
    if not path:
        return value
    copied = deepcopy(data)
    *parent_keys, last_key = path
    parent: Any = copied
    for key in parent_keys:
        parent = parent[key]
    parent[last_key] = value
    return copied


def build_valid_event(workload: Workload, functions: Functions, step: str, event_type: str) -> CloudEvent:
    """Build a valid event of this type about a maintenance in progress."""
    maintenance = workload.create_maintenance(node := workload.take_node())
    functions.run_until_tainted(maintenance)
    functions.invoke("status", build_product_event(events.PODS_EVICTED, maintenance))
    if step == "guard":
        return build_node_updated_event(workload.read_node(node))
    if event_type == events.RESOURCE_ADDED:
        return build_added_event(workload.read_maintenance(maintenance))
    if event_type == events.RESOURCE_UPDATED:
        return build_updated_event(workload.read_maintenance(maintenance))
    data = {"podsVersion": "1", "budgetsVersion": "1", "error": "e", "step": "cordon", "again": True}
    extra_data = {"totalpods": 1, "evictionPods": 1, "evicted": [BLOCKED_POD], "blocked": [BLOCKED_POD], "node": node}
    return build_product_event(event_type, maintenance, data={**data, **extra_data})


@proves("X-1")
@pytest.mark.parametrize(("step", "event_type"), CASES, ids=lambda value: value.removeprefix("dev.nodemaintenance."))
def test_corrupted_data_does_not_cause_500(
    functions: Functions, workload: Workload, step: str, event_type: str
) -> None:
    """X-1: a function answers 200, 204, 400 or 503, but never 500, to an event with a wrong value in any field."""
    original_event = build_valid_event(workload, functions, step, event_type)
    post = build_post_function(functions, step, original_event, event_type)
    data = json.loads(encode_binary(original_event).body)

    @settings(max_examples=MAX_EXAMPLES)
    @given(st.sampled_from(list(iterate_value_paths(data))), JSON_VALUES)
    def check_response_to_replaced_value(path: tuple[Any, ...], value: Any) -> None:
        status, text = post(replace_value(data, path, value))
        assert status in (200, 204, 400, 503), (path, value, text)
        assert "Traceback" not in text

    assert post(data)[0] in (200, 204)
    check_response_to_replaced_value()
    delete_maintenances(workload.client)


def build_post_function(
    functions: Functions, step: str, valid_event: CloudEvent, event_type: str
) -> Callable[[Any], tuple[int, str]]:
    """Return a function that posts any data with the headers of a valid event, and returns status code and body."""
    headers = {**encode_binary(valid_event).headers, "ce-type": event_type}

    def post(data: Any) -> tuple[int, str]:
        response = functions.clients[step].post(f"/{step}", data=json.dumps(data), headers=headers)
        return response.status_code, response.text

    return post


def test_malformed_blocked_pod_is_rejected(functions: Functions, workload: Workload) -> None:
    """X-1: `status` rejects a blocked pod with a malformed field and names the field."""
    maintenance = workload.create_maintenance(workload.take_node())
    functions.run_until_tainted(maintenance)
    for name, value in (("retryAfter", "soon"), ("healthy", "many"), ("reason", None), ("message", {}), ("budget", 7)):
        event = build_product_event(events.PODS_EVICTED, maintenance, data={"blocked": [{**BLOCKED_POD, name: value}]})
        response = functions.post("status", event)
        assert (response.status_code, name in response.text) == (400, True), response.text
    assert functions.post("resync", build_tick()).status_code in (200, 204, 503)
