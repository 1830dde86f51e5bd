"""Decodes and encodes CloudEvents as HTTP messages in binary and structured mode, for all senders and receivers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings.http import HTTPMessage, from_http_event, to_binary_event, to_structured_event
from cloudevents.core.exceptions import BaseCloudEventException

MAX_BODY_BYTES = 2 * 1024 * 1024
"""Maximum size of an event's body, in bytes; the API server stores no object over 1.5 MiB."""
STRUCTURED_CONTENT_TYPE = "application/cloudevents+json"
MAX_DATA_DEPTH = 100
"""Maximum nesting depth of an event's data.

Kubernetes objects have fewer than 30 levels. Python's recursive JSON encoder fails at about 900 levels.
"""
REQUIRED_ATTRIBUTES = ("specversion", "id", "source", "type")
"""Attributes that CloudEvents 1.0 requires."""
JSON_CONTENT_TYPES = ("application/json", "text/json")
BATCH_CONTENT_TYPE = "application/cloudevents-batch+json"
INVALID_CHARACTERS = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
"""Matches the control characters, surrogates and noncharacters that CloudEvents 1.0 forbids in attributes.

A line break would end a header, and PostgreSQL rejects NUL in a text. A surrogate cannot be encoded, and an escape
sequence would control the terminal that displays it.
"""

SURROGATE_ESCAPE = b"\\ud"
"""The start of an escaped surrogate in JSON, in lower case."""


class BadEvent(ValueError):
    """Error for a request that is not a valid CloudEvent; its message may be sent to the sender."""

    status = 400

    def __init__(self, message: str) -> None:
        # The message may quote an unpaired surrogate, which cannot be encoded.
        super().__init__(message.encode(errors="backslashreplace").decode())


class EventTooLarge(BadEvent):
    """Error for a body that is larger than the limit."""

    status = 413


class UnsupportedMediaType(BadEvent):
    """Error for a content type that is neither a CloudEvent's nor JSON."""

    status = 415


def decode_event(
    headers: Mapping[str, str], body: bytes, *, any_data: bool = False, max_bytes: int = MAX_BODY_BYTES
) -> BaseCloudEvent:
    """Decode the CloudEvent 1.0 in an HTTP message. Raises `BadEvent`, which names the missing or malformed part.

    With `any_data`, all kinds of data are accepted; otherwise, the data must be a JSON object or list.
    """
    if len(body) > max_bytes:
        raise EventTooLarge(f"body of {len(body)} bytes is too large: the limit is {max_bytes} bytes")
    lowered = {name.lower(): value for name, value in headers.items()}
    content_type = parse_media_type(lowered.get("content-type", ""))
    binary = any(name.startswith("ce-") for name in lowered)
    _check_content_type(content_type, binary=binary, any_data=any_data or not body)
    if content_type:
        lowered["content-type"] = content_type  # the CloudEvents SDK compares content types case-sensitively
    try:
        _check_required_attributes(lowered if binary else json.loads(body), "ce-" if binary else "")
        event = from_http_event(HTTPMessage(lowered, body))
    except BaseCloudEventException as error:
        raise BadEvent(f"not a CloudEvent 1.0: {_format_reasons(error)}") from None
    except BadEvent:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise BadEvent(f"not a CloudEvent 1.0: {error}") from None
    if event.get_specversion() != "1.0":
        raise BadEvent(f"specversion {event.get_specversion()!r} is not supported: send 1.0")
    _check_attributes_and_data(event, body)
    if body and not any_data and not isinstance(event.get_data(), (dict, list, type(None))):
        raise BadEvent("data is not valid JSON")
    return event


def parse_media_type(content_type: str) -> str:
    """Return the media type in a content type, in lower case and without parameters (RFC 9110, section 8.3.1)."""
    return content_type.split(";")[0].strip().lower()


def decode_event_or_none(headers: Mapping[str, str], body: bytes | None) -> BaseCloudEvent | None:
    """Decode the CloudEvent in a request, with any kind of data; return None if the request contains none."""
    try:
        return None if body is None else decode_event(headers, body, any_data=True)
    except BadEvent:
        return None


def _check_content_type(content_type: str, *, binary: bool, any_data: bool) -> None:
    if content_type == BATCH_CONTENT_TYPE:
        raise UnsupportedMediaType("batches are not supported: send one event per request")
    if binary:
        if (
            not any_data
            and content_type not in ("application/json", "text/json")
            and not content_type.endswith("+json")
        ):
            raise UnsupportedMediaType(
                f"content type {content_type!r} is not supported: send application/json"
                if content_type
                else "content type is missing: send application/json"
            )
    elif content_type != STRUCTURED_CONTENT_TYPE:
        raise UnsupportedMediaType(
            f"not a CloudEvent: no ce- headers, and content type {content_type!r} is not {STRUCTURED_CONTENT_TYPE}"
        )


def _check_required_attributes(attributes: object, prefix: str) -> None:
    """Raise `BadEvent` if a required attribute is missing.

    The CloudEvents SDK would generate a missing id or specversion, so that each retry would be a different event.
    """
    if not isinstance(attributes, Mapping):
        raise BadEvent("not a CloudEvent 1.0: the body is not a JSON object")
    missing = [name for name in REQUIRED_ATTRIBUTES if f"{prefix}{name}" not in attributes]
    if missing:
        raise BadEvent(f"not a CloudEvent 1.0: {', '.join(missing)} missing")


def _check_attributes_and_data(event: BaseCloudEvent, body: bytes) -> None:
    """Raise `BadEvent` for attributes or data that cannot be processed further.

    An attribute may have a type or characters that CloudEvents does not allow. Data may be nested too deeply, or
    contain unpaired surrogates, which JSON can express but UTF-8 cannot encode.
    """
    for name, value in event.get_attributes().items():
        if isinstance(value, (dict, list)):
            raise BadEvent(f"attribute {name!a} is an object or an array: send a string, a number or a boolean")
        if INVALID_CHARACTERS.search(name) or (isinstance(value, str) and INVALID_CHARACTERS.search(value)):
            raise BadEvent(f"attribute {name!a} contains control characters, surrogates or noncharacters")
    media_type = event.get_datacontenttype() or ""
    # Only `datacontenttype` becomes a header without encoding, so it must be printable ASCII.
    if not (media_type.isascii() and media_type.isprintable()):
        raise BadEvent(f"datacontenttype {media_type!a} is not a media type")
    if body.count(b"[") + body.count(b"{") > MAX_DATA_DEPTH and _is_too_deep(event.get_data()):
        raise BadEvent(f"data is nested more than {MAX_DATA_DEPTH} levels deep")
    if SURROGATE_ESCAPE in body.lower():
        try:
            json.dumps(event.get_data(), ensure_ascii=False, default=str).encode()
        except UnicodeEncodeError:
            raise BadEvent("data contains an unpaired surrogate") from None


def _is_too_deep(data: object) -> bool:
    """Return whether data is nested deeper than `MAX_DATA_DEPTH`; a recursive check could overflow the stack."""
    level: list[Any] = [[data]]
    for _ in range(MAX_DATA_DEPTH + 1):
        inner = chain.from_iterable(value.values() if isinstance(value, dict) else value for value in level)
        level = [value for value in inner if isinstance(value, (dict, list))]
    return bool(level)


def _format_reasons(error: BaseCloudEventException) -> str:
    """Join the SDK's reasons, which it groups by attribute, into one line for the sender."""
    reasons_by_attribute = getattr(error, "errors", None)
    if not reasons_by_attribute:
        return str(error)
    return "; ".join(str(reason) for reasons in reasons_by_attribute.values() for reason in reasons)


def encode_binary(event: BaseCloudEvent) -> HTTPMessage:
    """Encode the event as an HTTP message in binary mode."""
    return to_binary_event(event)


def encode_structured(event: BaseCloudEvent) -> HTTPMessage:
    """Encode the event as an HTTP message in structured mode."""
    return to_structured_event(event)


def encode_batch(events: Iterable[BaseCloudEvent]) -> HTTPMessage:
    """Encode events as one HTTP message in the CloudEvents JSON batch format."""
    body = b"[" + b",".join(encode_structured(event).body for event in events) + b"]"
    return HTTPMessage({"content-type": BATCH_CONTENT_TYPE}, body)
