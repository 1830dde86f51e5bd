"""Tests for the CloudEvents HTTP binding: round trips in both content modes, and `BadEvent` for any other input."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given
from hypothesis import strategies as st

from eventing import events
from eventing.http_binding import (
    MAX_BODY_BYTES,
    BadEvent,
    EventTooLarge,
    UnsupportedMediaType,
    decode_event,
    encode_binary,
    encode_structured,
)

HEADERS = {
    "ce-specversion": "1.0",
    "ce-id": "1",
    "ce-source": "/test",
    "ce-type": "t",
    "content-type": "application/json",
}
ENVELOPE = {"specversion": "1.0", "id": "1", "source": "/test", "type": "t"}
STRUCTURED = {"content-type": "application/cloudevents+json"}
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(max_size=8),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3),
    max_leaves=8,
)
json_objects = st.dictionaries(st.text(max_size=5), json_values, max_size=4)


@given(json_objects, st.sampled_from([encode_binary, encode_structured]))
def test_event_is_decoded_unchanged(data: dict[str, Any], encode: Any) -> None:
    """X-1: an event with any JSON object as data is decoded unchanged in both content modes."""
    reference = events.ObjectReference("nodemaintenance.medik8s.io/v1beta1", "nm", "uid")
    event = events.build_event(events.PODS_GONE, "test", reference, "node-1", seed="s", data=data)

    message = encode(event)
    decoded = decode_event(message.headers, message.body)

    assert decoded.get_data() == event.get_data()
    assert (decoded.get_id(), decoded.get_type(), decoded.get_source()) == (
        event.get_id(),
        event.get_type(),
        event.get_source(),
    )
    assert decoded.get_extension("node") == "node-1"
    assert decoded.get_time() == event.get_time()


header_values = st.text(st.characters(codec="latin-1", exclude_characters="\r\n"), max_size=12)
arbitrary_headers = st.dictionaries(
    st.sampled_from([*HEADERS, "ce-time", "ce-subject", "ce-datacontenttype", "ce-x", "ce-Bad Name", "ce-", "host"]),
    header_values | st.sampled_from([*HEADERS.values(), *STRUCTURED.values(), "application/json; charset=utf-7"]),
)


@given(arbitrary_headers, st.binary(max_size=40) | json_values.map(lambda value: json.dumps(value).encode()))
def test_arbitrary_request_is_decoded_or_raises_bad_event(headers: dict[str, str], body: bytes) -> None:
    """X-1: decoding arbitrary headers and bytes returns an event with its required attributes, or raises `BadEvent`."""
    with contextlib.suppress(BadEvent):
        event = decode_event(headers, body)
        assert event.get_id()
        assert event.get_type()


@given(
    st.dictionaries(st.sampled_from([*ENVELOPE, "time", "data", "data_base64", "datacontenttype", "x"]), json_values)
)
def test_arbitrary_envelope_is_decoded_or_raises_bad_event(envelope: dict[str, Any]) -> None:
    """X-1: decoding a structured event with attributes of any type raises no exception other than `BadEvent`."""
    with contextlib.suppress(BadEvent):
        assert decode_event(STRUCTURED, json.dumps({**ENVELOPE, **envelope}).encode()).get_id()


@pytest.mark.parametrize("missing", ENVELOPE)
def test_error_names_missing_required_attribute(missing: str) -> None:
    """X-2: the error names a missing required attribute; a generated id would make each retry a different event."""
    headers = {name: value for name, value in HEADERS.items() if name != f"ce-{missing}"}
    envelope = {name: value for name, value in ENVELOPE.items() if name != missing}

    with pytest.raises(BadEvent, match=f"{missing} missing"):
        decode_event(headers, b"{}")
    with pytest.raises(BadEvent, match=f"{missing} missing"):
        decode_event(STRUCTURED, json.dumps(envelope).encode())


@pytest.mark.parametrize(
    ("headers", "body", "error_class"),
    [
        pytest.param(HEADERS, b"x" * (MAX_BODY_BYTES + 1), EventTooLarge, id="too large"),
        pytest.param({**HEADERS, "content-type": "text/plain"}, b"{}", UnsupportedMediaType, id="plain text"),
        pytest.param({"content-type": "application/json"}, b"{}", UnsupportedMediaType, id="not an event"),
        pytest.param({"content-type": "application/cloudevents-batch+json"}, b"[]", UnsupportedMediaType, id="batch"),
        pytest.param(HEADERS, b"[" * 100_000, BadEvent, id="deeply nested"),
        pytest.param(STRUCTURED, b"[" * 100_000, BadEvent, id="structured, deeply nested"),
        pytest.param({**HEADERS, "ce-specversion": "2.0"}, b"{}", BadEvent, id="unsupported specversion"),
        pytest.param({**HEADERS, "ce-time": "9999-12-31T24:00:00Z"}, b"{}", BadEvent, id="time out of range"),
        pytest.param(STRUCTURED, json.dumps({**ENVELOPE, "\ud800": 1}).encode(), BadEvent, id="lone surrogate"),
        pytest.param(HEADERS, b"[" * 101 + b"]" * 101, BadEvent, id="nested deeper than any Kubernetes object"),
        pytest.param(
            STRUCTURED, json.dumps({**ENVELOPE, "kind": {}}).encode(), BadEvent, id="object as attribute value"
        ),
        pytest.param(
            STRUCTURED, json.dumps({**ENVELOPE, "kind": ["x"]}).encode(), BadEvent, id="list as attribute value"
        ),
    ],
)
def test_invalid_request_raises_matching_error_class(
    headers: dict[str, str], body: bytes, error_class: type[BadEvent]
) -> None:
    """X-1: an invalid request raises the error class for the HTTP status 413 (too large), 415 (media type) or 400."""
    with pytest.raises(error_class) as raised:
        decode_event(headers, body)

    assert type(raised.value) is error_class
    assert str(raised.value).encode(), "the message cannot be encoded for a response"


def test_deeply_nested_data_is_accepted() -> None:
    """Check that data may be nested as deeply as a Kubernetes object, with any number of values."""
    assert decode_event(HEADERS, b"[" * 100 + b"]" * 100).get_data()
    assert decode_event(HEADERS, json.dumps([[{}] * 5] * 500).encode()).get_data()


def test_header_names_are_case_insensitive() -> None:
    """X-1: HTTP header names are case-insensitive, and a content type may have parameters."""
    upper_case = {name.upper(): value for name, value in HEADERS.items()}

    assert decode_event({**upper_case, "CONTENT-TYPE": "Application/JSON; charset=utf-8"}, b'{"a": 1}').get_data() == {
        "a": 1
    }


def test_event_without_data_is_valid() -> None:
    """X-1: an event without data is valid, because data is optional in CloudEvents."""
    assert (
        decode_event({name: value for name, value in HEADERS.items() if name != "content-type"}, b"").get_data() is None
    )


def test_reply_has_content_type() -> None:
    """X-1: a reply has a content type; otherwise, Flask would send text/html, which the next function cannot parse."""
    reference = events.ObjectReference("nodemaintenance.medik8s.io/v1beta1", "nm", "uid")
    message = encode_binary(events.build_event(events.NODE_TAINTED, "taint", reference, "node-1"))

    assert message.headers["content-type"] == "application/json"
    assert isinstance(encode_structured(CloudEvent(dict(ENVELOPE), {})).body, bytes)
