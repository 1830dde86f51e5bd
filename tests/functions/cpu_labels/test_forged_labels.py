"""Fuzz test of `label-cpu` with invalid event data: it rejects or ignores the event, and never responds 500 (X-1)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eventing import events
from eventing.http_binding import binary
from functions.cpu_labels import label_cpu
from tests.functions.cpu_labels.conftest import HASWELL, Labelling, reference
from tests.functions.test_corrupted_events import VALUES, places, poster, spoiled
from tests.proofs import proves

pytestmark = pytest.mark.slow

EXAMPLES = 10
ROUND = events.Reference("v1", "cpu-labels", "a-round", kind="Round")


@proves("X-1")
@pytest.mark.parametrize("kind", [kind for kind in label_cpu.CONSUMES if kind != events.TICK])
def test_spoiled_data_is_no_crash(labelling: Labelling, kind: str) -> None:
    """X-1: `label-cpu` never crashes on event data in which any field has a value of another type."""
    labelling.offer({labelling.work.node(): HASWELL})
    due = kind == events.LABELS_DUE
    honest = events.event(kind, "test", ROUND, data={"after": "a"}) if due else reference(how=kind)
    post = poster(labelling.functions, "label-cpu", honest, kind)
    data = json.loads(binary(honest).body)

    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(list(places(data))), VALUES)
    def check(path: tuple[Any, ...], value: Any) -> None:
        status, text = post(spoiled(data, path, value))
        assert status in (200, 204, 400, 503), (path, value, text)
        assert "Traceback" not in text

    check()
