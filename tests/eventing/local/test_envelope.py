"""Test that the local delivery stores events in binary mode, even those received in structured mode."""

from __future__ import annotations

import json

import pytest

from eventing.local import envelope

EVENT = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "datacontenttype": "application/json"}


@pytest.mark.parametrize(
    "media_type",
    [
        "application/cloudevents+json",
        "Application/CloudEvents+JSON",
        "application/cloudevents+json; charset=utf-8",
        "APPLICATION/CLOUDEVENTS+JSON;charset=UTF-8",
    ],
)
def test_structured_event_is_unpacked_for_any_media_type_spelling(media_type: str) -> None:
    """X-4: a structured event is converted to binary mode for any spelling of its case-insensitive media type.

    Otherwise, a subscriber would receive the whole event as the data of a binary event.
    """
    body = json.dumps({**EVENT, "data": {"a": 1}}).encode()

    parsed = envelope.parse_envelope({"Content-Type": media_type}, body)

    assert (parsed.headers["content-type"], json.loads(parsed.body)) == ("application/json", {"a": 1})
    assert (parsed.get_attribute("id"), parsed.get_attribute("type")) == ("1", "t")
