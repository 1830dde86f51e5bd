"""Reads and writes CloudEvents as HTTP messages, in binary and structured mode, for all senders and receivers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings.http import HTTPMessage, from_http_event, to_binary_event, to_structured_event
from cloudevents.core.exceptions import BaseCloudEventException

BODY_LIMIT = 2 * 1024 * 1024
"""Maximum bytes of a body. The API server stores no object over 1.5 MiB, so no legitimate event is larger."""
STRUCTURED = "application/cloudevents+json"
DEEPEST = 100
"""Maximum nesting of data.

Kubernetes objects have fewer than thirty levels. Python's JSON encoder is recursive and fails at about nine hundred.
"""
REQUIRED = ("specversion", "id", "source", "type")
"""Attributes that CloudEvents 1.0 requires ("required attributes")."""
JSON = ("application/json", "text/json")
BATCH = "application/cloudevents-batch+json"
NO_TEXT = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
"""Control characters, surrogates and noncharacters, which CloudEvents 1.0 forbids in attributes ("type system").

A line break would end a header, and PostgreSQL rejects NUL in a text. A surrogate cannot be encoded, and an escape
sequence would control the terminal that displays it.
"""

SURROGATE = b"\\ud"
"""Start of an escaped surrogate in JSON."""


class BadEvent(ValueError):
    """The request is not a valid CloudEvent; the message names the problem and may be sent to the sender."""

    status = 400

    def __init__(self, text: str) -> None:
        super().__init__(text.encode(errors="backslashreplace").decode())  # the text may quote an unpaired surrogate


class TooLarge(BadEvent):
    """The body is larger than the limit."""

    status = 413


class WrongContentType(BadEvent):
    """The content type is neither a CloudEvent's nor JSON."""

    status = 415


def received(
    headers: Mapping[str, str], body: bytes, *, any_data: bool = False, limit: int = BODY_LIMIT
) -> BaseCloudEvent:
    """Parse the CloudEvent 1.0 in a request or reply. Raises `BadEvent` with what is missing or malformed.

    With `any_data` the data may be anything; otherwise it must be a JSON object or list.
    """
    if len(body) > limit:
        raise TooLarge(f"the body has {len(body)} bytes; at most {limit} are taken")
    lowered = {name.lower(): value for name, value in headers.items()}
    content_type = media_type(lowered.get("content-type", ""))
    binary = any(name.startswith("ce-") for name in lowered)
    _check_content_type(content_type, binary=binary, any_data=any_data or not body)
    if content_type:
        lowered["content-type"] = content_type  # the library compares it case-sensitively
    try:
        _check_required(lowered if binary else json.loads(body), "ce-" if binary else "")
        event = from_http_event(HTTPMessage(lowered, body))
    except BaseCloudEventException as error:
        raise BadEvent(f"not a CloudEvent 1.0: {_reasons(error)}") from None
    except BadEvent:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise BadEvent(f"not a CloudEvent 1.0: {error}") from None
    if event.get_specversion() != "1.0":
        raise BadEvent(f"specversion is {event.get_specversion()!r}; send 1.0")
    _check_values(event, body)
    if body and not any_data and not isinstance(event.get_data(), (dict, list, type(None))):
        raise BadEvent("data is not valid JSON")
    return event


def media_type(content_type: str) -> str:
    """Return the media type of a content type in lower case (RFC 9110, 8.3.1), without parameters."""
    return content_type.split(";")[0].strip().lower()


def received_or_none(headers: Mapping[str, str], body: bytes | None) -> BaseCloudEvent | None:
    """Return the CloudEvent in a request, whatever its data, or None if the request has none."""
    try:
        return None if body is None else received(headers, body, any_data=True)
    except BadEvent:
        return None


def _check_content_type(content_type: str, *, binary: bool, any_data: bool) -> None:
    if content_type == BATCH:
        raise WrongContentType("batches are not taken: send one event a request")
    if binary:
        if (
            not any_data
            and content_type not in ("application/json", "text/json")
            and not content_type.endswith("+json")
        ):
            raise WrongContentType(f"content type is {content_type or 'missing'!r}; send application/json")
    elif content_type != STRUCTURED:
        raise WrongContentType(f"no ce- headers and content type {content_type or 'missing'!r}: not a CloudEvent")


def _check_required(attributes: object, prefix: str) -> None:
    """Raise `BadEvent` if a required attribute is missing.

    The library would generate a missing id or specversion, so that each retry would be a different event.
    """
    if not isinstance(attributes, Mapping):
        raise BadEvent("not a CloudEvent 1.0: the body is no JSON object")
    missing = [name for name in REQUIRED if f"{prefix}{name}" not in attributes]
    if missing:
        raise BadEvent(f"not a CloudEvent 1.0: {', '.join(missing)} missing")


def _check_values(event: BaseCloudEvent, body: bytes) -> None:
    """Raise `BadEvent` for attributes or data that cannot be processed further.

    An attribute may have a type or characters that CloudEvents does not allow. Data may be nested too deeply, or
    contain unpaired surrogates, which JSON can express but no encoding can represent.
    """
    for name, value in event.get_attributes().items():
        if isinstance(value, (dict, list)):
            raise BadEvent(f"attribute {name!a} is an object or a list; send a text, a number or a boolean")
        if NO_TEXT.search(name) or (isinstance(value, str) and NO_TEXT.search(value)):
            raise BadEvent(f"attribute {name!a} has characters that are no text")
    kind = event.get_datacontenttype() or ""
    if not (kind.isascii() and kind.isprintable()):  # the only attribute that becomes a header without encoding
        raise BadEvent(f"datacontenttype {kind!a} is no media type")
    if body.count(b"[") + body.count(b"{") > DEEPEST and _is_deep(event.get_data()):
        raise BadEvent(f"data is nested more than {DEEPEST} deep")
    if SURROGATE in body.lower():
        try:
            json.dumps(event.get_data(), ensure_ascii=False, default=str).encode()
        except UnicodeEncodeError:
            raise BadEvent("data has a surrogate without its other half") from None


def _is_deep(data: object) -> bool:
    """Return whether data is nested deeper than `DEEPEST`; a recursive check could itself exceed the stack."""
    level: list[Any] = [[data]]
    for _ in range(DEEPEST + 1):
        inner = chain.from_iterable(each.values() if isinstance(each, dict) else each for each in level)
        level = [each for each in inner if isinstance(each, (dict, list))]
    return bool(level)


def _reasons(error: BaseCloudEventException) -> str:
    """Return all reasons in one line for the sender; the library groups them by attribute."""
    gathered = getattr(error, "errors", None)
    if not gathered:
        return str(error)
    return "; ".join(str(reason) for reasons in gathered.values() for reason in reasons)


def binary(event: BaseCloudEvent) -> HTTPMessage:
    """Return the event's headers and body in binary mode."""
    return to_binary_event(event)


def structured(event: BaseCloudEvent) -> HTTPMessage:
    """Return the event's headers and body in structured mode."""
    return to_structured_event(event)


def batch(events: Iterable[BaseCloudEvent]) -> HTTPMessage:
    """Return several events, or none, as headers and body of one message (CloudEvents JSON batch format)."""
    body = b"[" + b",".join(structured(event).body for event in events) + b"]"
    return HTTPMessage({"content-type": BATCH}, body)
