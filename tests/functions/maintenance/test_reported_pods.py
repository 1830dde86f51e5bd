"""Tests of parsing the blocked pods in an event: valid fields are kept, a malformed field is named."""

from __future__ import annotations

from typing import Any

import pytest
from cloudevents.core.v1.event import CloudEvent

from eventing import events
from eventing.http_binding import BadEvent
from functions.maintenance.reported_pods import blocked_of
from kube.maintenance.objects import MOST_PODS
from kube.paths import Object

BARE = {"namespace": "shop", "name": "web-1", "reason": "DisruptionBudget"}
WHOLE = {
    **BARE,
    **{"uid": "some-uid", "message": "", "budget": "web", "healthy": 5, "needed": 0, "allowsNone": False},
    "retryAfter": "2026-01-02T03:04:05Z",
}


def blocked(value: Any) -> list[Object] | None:
    attributes = {"id": "1", "source": "/test", "type": events.PODS_EVICTED, "datacontenttype": "application/json"}
    return blocked_of(CloudEvent(attributes, {"blocked": value}))


def test_what_the_status_has_a_place_for_is_taken() -> None:
    """NMO-9: fields that the status has are kept unchanged, and other fields are dropped."""
    assert blocked([BARE, {**WHOLE, "other": 1}]) == [BARE, WHOLE]


def test_none_named_is_not_the_same_as_none_blocked() -> None:
    """NMO-9: a missing list gives None, which keeps the status's list; an empty list clears it."""
    assert blocked(None) is None
    assert blocked([]) == []


@pytest.mark.parametrize("value", [{}, "web-1", 1])
def test_it_must_be_a_list(value: object) -> None:
    """X-6: a value that is not a list is rejected with the field's name."""
    with pytest.raises(BadEvent, match=r"^data\.blocked is no list"):
        blocked(value)


def test_each_must_be_an_object() -> None:
    """X-6: an entry that is not an object is rejected with the field's name."""
    with pytest.raises(BadEvent, match=r"^data\.blocked has what is no object"):
        blocked([BARE, "web-1"])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((field, value) for field in ("namespace", "name", "reason", "uid") for value in ("", None, 1)),
        *((field, value) for field in ("message", "budget") for value in (None, 1)),
        *((field, value) for field in ("healthy", "needed") for value in (-1, MOST_PODS, True, "1", None)),
        *(("allowsNone", value) for value in (0, "yes", None)),
        *(("retryAfter", value) for value in ("soon", "", None)),
    ],
)
def test_a_field_that_is_malformed_is_named(field: str, value: object) -> None:
    """X-6, NMO-9: a malformed field is rejected with its name, since the API server would reject the status."""
    with pytest.raises(BadEvent) as error:
        blocked([{**WHOLE, field: value}])

    assert str(error.value).startswith(f"{field} of a pod in data.blocked")


@pytest.mark.parametrize("field", BARE)
def test_a_field_that_no_refusal_is_without_is_named(field: str) -> None:
    """NMO-9: a missing required field is rejected with its name."""
    with pytest.raises(BadEvent) as error:
        blocked([{name: value for name, value in BARE.items() if name != field}])

    assert str(error.value).startswith(f"{field} of a pod in data.blocked")
