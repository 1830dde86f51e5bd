"""Tests for parsing the blocked pods in an event's data."""

from __future__ import annotations

from typing import Any

import pytest
from cloudevents.core.v1.event import CloudEvent

from eventing import events
from eventing.http_binding import BadEvent
from functions.maintenance.eviction_reports import parse_blocked_pods
from kube.maintenance.objects import MAX_POD_COUNT
from kube.paths import Object

MINIMAL_POD = {"namespace": "shop", "name": "web-1", "reason": "DisruptionBudget"}
COMPLETE_POD = {
    **MINIMAL_POD,
    **{"uid": "some-uid", "message": "", "budget": "web", "healthy": 5, "needed": 0, "allowsNone": False},
    "retryAfter": "2026-01-02T03:04:05Z",
}


def parse_blocked_field(value: Any) -> list[Object] | None:
    attributes = {"id": "1", "source": "/test", "type": events.PODS_EVICTED, "datacontenttype": "application/json"}
    return parse_blocked_pods(CloudEvent(attributes, {"blocked": value}))


def test_parsed_blocked_pod_contains_only_known_fields() -> None:
    """NMO-9: known fields of a blocked pod are kept unchanged, and unknown fields are dropped."""
    assert parse_blocked_field([MINIMAL_POD, {**COMPLETE_POD, "other": 1}]) == [MINIMAL_POD, COMPLETE_POD]


def test_missing_list_of_blocked_pods_is_parsed_as_none() -> None:
    """NMO-9: a missing `data.blocked` is parsed as None, which keeps the list in the status; [] clears that list."""
    assert parse_blocked_field(None) is None
    assert parse_blocked_field([]) == []


@pytest.mark.parametrize("value", [{}, "web-1", 1])
def test_blocked_field_must_be_list(value: object) -> None:
    """X-6: `data.blocked` is rejected if it is not a list; the error names the field."""
    with pytest.raises(BadEvent, match=r"^data\.blocked is not a list"):
        parse_blocked_field(value)


def test_blocked_pod_must_be_object() -> None:
    """X-6: an entry of `data.blocked` that is not an object is rejected; the error names the field."""
    with pytest.raises(BadEvent, match=r"^data\.blocked contains an item that is not an object"):
        parse_blocked_field([MINIMAL_POD, "web-1"])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((field, value) for field in ("namespace", "name", "reason", "uid") for value in ("", None, 1)),
        *((field, value) for field in ("message", "budget") for value in (None, 1)),
        *((field, value) for field in ("healthy", "needed") for value in (-1, MAX_POD_COUNT, True, "1", None)),
        *(("allowsNone", value) for value in (0, "yes", None)),
        *(("retryAfter", value) for value in ("soon", "", None)),
    ],
)
def test_error_names_malformed_field_of_blocked_pod(field: str, value: object) -> None:
    """X-6, NMO-9: the error names a blocked pod's malformed field, which the API server would reject in the status."""
    with pytest.raises(BadEvent) as error:
        parse_blocked_field([{**COMPLETE_POD, field: value}])

    assert str(error.value).startswith(f"{field} of a pod in data.blocked")


@pytest.mark.parametrize("field", MINIMAL_POD)
def test_error_names_missing_field_of_blocked_pod(field: str) -> None:
    """NMO-9: the error names a required field that a blocked pod lacks."""
    with pytest.raises(BadEvent) as error:
        parse_blocked_field([{name: value for name, value in MINIMAL_POD.items() if name != field}])

    assert str(error.value).startswith(f"{field} of a pod in data.blocked")
