"""Property tests: functions reject or ignore events with corrupted data and never answer 500 (X-1)."""

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
from eventing.http_binding import binary
from functions.app import FUNCTIONS
from kube.paths import Object
from tests.functions.conftest import Functions, forget
from tests.functions.event_builders import added, node_updated, said, tick, updated
from tests.proofs import proves
from tests.sources import OPT_IN
from tests.workload import Workload

pytestmark = pytest.mark.slow

HALF_A_CHARACTER = "\ud800"
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(
        ["", "0", "9" * 5000, "x" * 5000, HALF_A_CHARACTER, "a/../b", "a\nb", "\0", "-", "yesterday", "%2F", "..", ","]
    ),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
BLOCKED = {"namespace": "ns", "name": "a", "uid": "u", "reason": "Error", "message": "m", "budget": "", "healthy": 1}
EXAMPLES = 40
"""Number of examples per function and consumed event type."""
CASES = [
    (function.name, kind)
    for function in FUNCTIONS.values()
    for kind in function.consumes
    if kind != events.TICK and function.name not in OPT_IN
]
"""Functions of optional components are excluded; tests/functions/mutex tests those of upgrade runs."""


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path to each value in the data; the first path is that of the data itself."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield from places(item, (*path, key))


def spoiled(data: Object, path: tuple[Any, ...], value: Any) -> Any:
    """Return the data with the value at `path` replaced."""
    if not path:
        return value
    whole = deepcopy(data)
    *above, last = path
    where: Any = whole
    for key in above:
        where = where[key]
    where[last] = value
    return whole


def sample(work: Workload, functions: Functions, step: str, kind: str) -> CloudEvent:
    """Build a valid event of this type about a maintenance in progress."""
    item = work.maintenance(node := work.node())
    functions.prepare(item)
    functions.answer("status", said(events.PODS_EVICTED, item))
    if step == "guard":
        return node_updated(work.read_node(node))
    if kind == events.RESOURCE_ADDED:
        return added(work.again(item))
    if kind == events.RESOURCE_UPDATED:
        return updated(work.again(item))
    data = {"podsVersion": "1", "budgetsVersion": "1", "error": "e", "step": "cordon", "again": True}
    more = {"totalpods": 1, "evictionPods": 1, "evicted": [BLOCKED], "blocked": [BLOCKED], "node": node}
    return said(kind, item, data={**data, **more})


@proves("X-1")
@pytest.mark.parametrize(("step", "kind"), CASES, ids=lambda value: value.removeprefix("dev.nodemaintenance."))
def test_spoiled_data_is_no_crash(functions: Functions, work: Workload, step: str, kind: str) -> None:
    """X-1: a function answers 200, 204, 400 or 503 to an event with a wrong value in any field, and never 500."""
    honest = sample(work, functions, step, kind)
    post = poster(functions, step, honest, kind)
    data = json.loads(binary(honest).body)

    @settings(max_examples=EXAMPLES)
    @given(st.sampled_from(list(places(data))), VALUES)
    def check(path: tuple[Any, ...], value: Any) -> None:
        status, text = post(spoiled(data, path, value))
        assert status in (200, 204, 400, 503), (path, value, text)
        assert "Traceback" not in text

    assert post(data)[0] in (200, 204)
    check()
    forget(work.admin)


def poster(functions: Functions, step: str, honest: CloudEvent, kind: str) -> Callable[[Any], tuple[int, str]]:
    """Return a function that posts data with the headers of a valid event."""
    headers = {**binary(honest).headers, "ce-type": kind}

    def post(data: Any) -> tuple[int, str]:
        response = functions.clients[step].post(f"/{step}", data=json.dumps(data), headers=headers)
        return response.status_code, response.text

    return post


def test_a_forged_refusal_is_no_status(functions: Functions, work: Workload) -> None:
    """X-1: `status` rejects a blocked pod with a malformed field and names the field."""
    item = work.maintenance(work.node())
    functions.prepare(item)
    for name, value in (("retryAfter", "soon"), ("healthy", "many"), ("reason", None), ("message", {}), ("budget", 7)):
        event = said(events.PODS_EVICTED, item, data={"blocked": [{**BLOCKED, name: value}]})
        response = functions.post("status", event)
        assert (response.status_code, name in response.text) == (400, True), response.text
    assert functions.post("resync", tick()).status_code in (200, 204, 503)
