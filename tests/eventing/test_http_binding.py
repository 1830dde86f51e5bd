"""Tests of the CloudEvents HTTP binding: round trips in both content modes, and `BadEvent` for any other input."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given
from hypothesis import strategies as st

from eventing import events
from eventing.http_binding import BODY_LIMIT, BadEvent, TooLarge, WrongContentType, binary, received, structured

HEADERS = {
    "ce-specversion": "1.0",
    "ce-id": "1",
    "ce-source": "/test",
    "ce-type": "t",
    "content-type": "application/json",
}
ENVELOPE = {"specversion": "1.0", "id": "1", "source": "/test", "type": "t"}
STRUCTURED = {"content-type": "application/cloudevents+json"}
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(max_size=8),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.text(max_size=5), values, max_size=4)


@given(objects, st.sampled_from([binary, structured]))
def test_an_event_comes_back_as_it_was(data: dict[str, Any], write: Any) -> None:
    """X-1: An event with any JSON object is decoded unchanged in both content modes."""
    reference = events.Reference("nodemaintenance.medik8s.io/v1beta1", "nm", "uid")
    sent = events.event(events.PODS_GONE, "test", reference, "node-1", seed="s", data=data)

    message = write(sent)
    back = received(message.headers, message.body)

    assert back.get_data() == sent.get_data()
    assert (back.get_id(), back.get_type(), back.get_source()) == (sent.get_id(), sent.get_type(), sent.get_source())
    assert back.get_extension("node") == "node-1"
    assert back.get_time() == sent.get_time()


header_values = st.text(st.characters(codec="latin-1", exclude_characters="\r\n"), max_size=12)
some_headers = st.dictionaries(
    st.sampled_from([*HEADERS, "ce-time", "ce-subject", "ce-datacontenttype", "ce-x", "ce-Bad Name", "ce-", "host"]),
    header_values | st.sampled_from([*HEADERS.values(), *STRUCTURED.values(), "application/json; charset=utf-7"]),
)


@given(some_headers, st.binary(max_size=40) | values.map(lambda value: json.dumps(value).encode()))
def test_anything_else_is_a_bad_event(headers: dict[str, str], body: bytes) -> None:
    """X-1: Arbitrary headers and bytes give an event with its required attributes, or a `BadEvent`."""
    with contextlib.suppress(BadEvent):
        event = received(headers, body)
        assert event.get_id()
        assert event.get_type()


@given(st.dictionaries(st.sampled_from([*ENVELOPE, "time", "data", "data_base64", "datacontenttype", "x"]), values))
def test_any_envelope_is_an_event_or_a_bad_event(envelope: dict[str, Any]) -> None:
    """X-1: A structured event with attributes of any type raises nothing but `BadEvent`."""
    with contextlib.suppress(BadEvent):
        assert received(STRUCTURED, json.dumps({**ENVELOPE, **envelope}).encode()).get_id()


@pytest.mark.parametrize("missing", ENVELOPE)
def test_what_is_required_is_not_made_up(missing: str) -> None:
    """X-2: A missing required attribute is named in both modes; a generated id would make each retry another event."""
    headers = {name: value for name, value in HEADERS.items() if name != f"ce-{missing}"}
    envelope = {name: value for name, value in ENVELOPE.items() if name != missing}

    with pytest.raises(BadEvent, match=f"{missing} missing"):
        received(headers, b"{}")
    with pytest.raises(BadEvent, match=f"{missing} missing"):
        received(STRUCTURED, json.dumps(envelope).encode())


@pytest.mark.parametrize(
    ("headers", "body", "kind"),
    [
        pytest.param(HEADERS, b"x" * (BODY_LIMIT + 1), TooLarge, id="too large"),
        pytest.param({**HEADERS, "content-type": "text/plain"}, b"{}", WrongContentType, id="plain text"),
        pytest.param({"content-type": "application/json"}, b"{}", WrongContentType, id="no event"),
        pytest.param({"content-type": "application/cloudevents-batch+json"}, b"[]", WrongContentType, id="batch"),
        pytest.param(HEADERS, b"[" * 100_000, BadEvent, id="nested without end"),
        pytest.param(STRUCTURED, b"[" * 100_000, BadEvent, id="structured, nested without end"),
        pytest.param({**HEADERS, "ce-specversion": "2.0"}, b"{}", BadEvent, id="another version"),
        pytest.param({**HEADERS, "ce-time": "9999-12-31T24:00:00Z"}, b"{}", BadEvent, id="beyond all time"),
        pytest.param(STRUCTURED, json.dumps({**ENVELOPE, "\ud800": 1}).encode(), BadEvent, id="half a character"),
        pytest.param(HEADERS, b"[" * 101 + b"]" * 101, BadEvent, id="nested deeper than any object"),
        pytest.param(STRUCTURED, json.dumps({**ENVELOPE, "kind": {}}).encode(), BadEvent, id="an object of a value"),
        pytest.param(STRUCTURED, json.dumps({**ENVELOPE, "kind": ["x"]}).encode(), BadEvent, id="a list of a value"),
    ],
)
def test_each_fault_has_its_error(headers: dict[str, str], body: bytes, kind: type[BadEvent]) -> None:
    """X-1: Each fault raises the error for its status: 413 if too large, 415 for a wrong content type, else 400."""
    with pytest.raises(kind) as caught:
        received(headers, body)

    assert type(caught.value) is kind
    assert str(caught.value).encode(), "it can be answered"


def test_data_may_be_as_deep_as_any_object() -> None:
    """Check that data may be nested as deeply as any Kubernetes object; only levels count, not the number of values."""
    assert received(HEADERS, b"[" * 100 + b"]" * 100).get_data()
    assert received(HEADERS, json.dumps([[{}] * 5] * 500).encode()).get_data()


def test_header_names_are_read_in_any_case() -> None:
    """X-1: HTTP header names are case-insensitive, and a content type may have parameters."""
    shouted = {name.upper(): value for name, value in HEADERS.items()}

    assert received({**shouted, "CONTENT-TYPE": "Application/JSON; charset=utf-8"}, b'{"a": 1}').get_data() == {"a": 1}


def test_an_event_without_data_is_one() -> None:
    """X-1: An event without data is valid, since data is optional in CloudEvents."""
    assert received({k: v for k, v in HEADERS.items() if k != "content-type"}, b"").get_data() is None


def test_the_reply_says_its_content_type() -> None:
    """X-1: A reply has a content type; otherwise Flask would send text/html, which the next step could not parse."""
    reference = events.Reference("nodemaintenance.medik8s.io/v1beta1", "nm", "uid")
    message = binary(events.event(events.NODE_TAINTED, "taint", reference, "node-1"))

    assert message.headers["content-type"] == "application/json"
    assert isinstance(structured(CloudEvent(dict(ENVELOPE), {})).body, bytes)
