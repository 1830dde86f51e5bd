"""Fuzz test of the mutex's steps with invalid event data: they reject or ignore it, and never respond 500 (X-1)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cloudevents.core.v1.event import CloudEvent
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eventing import events
from eventing.http_binding import binary
from functions.app import FUNCTIONS
from kube.mutex.objects import RULE, RUN, TARGET
from tests.functions.event_builders import resource
from tests.functions.mutex.conftest import Upgrade
from tests.functions.test_corrupted_events import VALUES, places, poster, spoiled
from tests.proofs import proves
from tests.sources import steps_of

pytestmark = pytest.mark.slow

WHOLE = (events.RESOURCE_ADDED, events.RESOURCE_UPDATED, events.RESOURCE_DELETED)
REFERENCES = (events.REFERENCE_UPDATED, events.REFERENCE_DELETED)
CASES = [(name, kind) for name in sorted(steps_of("mutex")) for kind in FUNCTIONS[name].consumes if kind != events.TICK]
KINDS = {"check-rule": RULE, "check-target": TARGET}
EXAMPLES = 25


def sample(upgrade: Upgrade, step: str, kind: str) -> CloudEvent:
    """Build a valid event of this type for the step."""
    of = KINDS.get(step, RUN)
    item = upgrade.again({RULE: upgrade.rule, TARGET: upgrade.target, RUN: upgrade.run}[of])
    if kind in WHOLE:
        return resource(kind, item, of)
    if kind in REFERENCES:
        return resource(kind, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}, "name": "a"}, "Node")
    return upgrade.said(kind, item=item)


@proves("X-1")
@pytest.mark.parametrize(("step", "kind"), CASES, ids=lambda value: value.removeprefix("dev.nodemaintenance."))
def test_spoiled_data_is_no_crash(upgrade: Upgrade, step: str, kind: str) -> None:
    """X-1: A step never crashes on event data in which any field has a value of another type."""
    upgrade.start()
    honest = sample(upgrade, step, kind)
    post = poster(upgrade.functions, step, honest, kind)
    data = json.loads(binary(honest).body)

    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(list(places(data))), VALUES)
    def check(path: tuple[Any, ...], value: Any) -> None:
        status, text = post(spoiled(data, path, value))
        assert status in (200, 204, 400, 503), (path, value, text)
        assert "Traceback" not in text

    check()
