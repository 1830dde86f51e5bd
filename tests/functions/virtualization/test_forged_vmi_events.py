"""Fuzz test of `migrate` and `protect` with invalid event data (X-1).

The steps reject or ignore such events, and never respond 500.
"""

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
from kube.virtualization.vmis import INSTANCE
from tests.functions.conftest import Functions
from tests.functions.event_builders import resource, said
from tests.functions.test_corrupted_events import VALUES, places, poster, spoiled
from tests.functions.virtualization.conftest import Machines
from tests.kubevirt import UNABLE, vmi
from tests.proofs import proves
from tests.sources import steps_of

pytestmark = pytest.mark.slow

CASES = [
    (name, kind)
    for name in sorted(steps_of("virtualization"))
    for kind in FUNCTIONS[name].consumes
    if kind != events.TICK
]
EXAMPLES = 25


def sample(machines: Machines, functions: Functions, kind: str) -> CloudEvent:
    """Build a valid event of this type; a `node.tainted` is about a maintenance, any other about a VMI."""
    if kind == events.NODE_TAINTED:
        item = machines.work.maintenance(machines.work.node())
        functions.prepare(item)
        return said(kind, item, data={"again": True})
    reference = {"apiVersion": "kubevirt.io/v1", "kind": INSTANCE, "name": "stuck", "namespace": "default"}
    return resource(kind, {**reference, "metadata": {"name": "stuck"}}, INSTANCE)


@proves("X-1")
@pytest.mark.parametrize(("step", "kind"), CASES, ids=lambda value: value.removeprefix("dev.nodemaintenance."))
def test_spoiled_data_is_no_crash(machines: Machines, functions: Functions, step: str, kind: str) -> None:
    """X-1: A field of any other type in the event data causes neither a crash nor a migration."""
    machines.create(vmi("stuck", machines.node, able=UNABLE))
    honest = sample(machines, functions, kind)
    post = poster(functions, step, honest, kind)
    data = json.loads(binary(honest).body)

    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(list(places(data))), VALUES)
    def check(path: tuple[Any, ...], value: Any) -> None:
        status, text = post(spoiled(data, path, value))
        assert status in (200, 204, 400, 503), (path, value, text)
        assert "Traceback" not in text

    assert post(data)[0] in (200, 204)
    check()
    assert machines.migrations() == {}
