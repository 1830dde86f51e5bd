"""Reads and writes CloudEvents as HTTP messages, in binary and structured mode, for all that send or accept them."""

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
"""Bytes. The API server stores no object over 1.5 MiB, so no honest event is larger."""
STRUCTURED = "application/cloudevents+json"
DEEPEST = 100
"""Levels of data. No object of Kubernetes has thirty; Python's JSON, which recurses, writes some nine hundred."""
REQUIRED = ("specversion", "id", "source", "type")
"""CloudEvents 1.0, "required attributes"."""
JSON = ("application/json", "text/json")
BATCH = "application/cloudevents-batch+json"
NO_TEXT = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
"""What an attribute must not hold: control characters, surrogates, noncharacters (CloudEvents 1.0, "type system").

A line break would end a header, NUL a text of PostgreSQL, a surrogate what encodes it, an escape the screen it is on.
"""

SURROGATE = b"\\ud"
"""What the escape of one begins with in JSON."""


class BadEvent(ValueError):
    """The request is no CloudEvent we can read; the message names what is wrong and is fit for the sender."""

    status = 400

    def __init__(self, text: str) -> None:
        super().__init__(text.encode(errors="backslashreplace").decode())  # it may quote half a character


class TooLarge(BadEvent):
    """The body is over `BODY_LIMIT`."""

    status = 413


class WrongContentType(BadEvent):
    """The content type is neither a CloudEvent's nor JSON."""

    status = 415


def received(
    headers: Mapping[str, str], body: bytes, *, any_data: bool = False, limit: int = BODY_LIMIT
) -> BaseCloudEvent:
    """The CloudEvent 1.0 in a request or reply. Raises a `BadEvent` that names what is missing or malformed.

    With `any_data` its data may be anything; otherwise it is an object or a list in JSON.
    """
    if len(body) > limit:
        raise TooLarge(f"the body has {len(body)} bytes; at most {limit} are taken")
    lowered = {name.lower(): value for name, value in headers.items()}
    content_type = media_type(lowered.get("content-type", ""))
    binary = any(name.startswith("ce-") for name in lowered)
    _check_content_type(content_type, binary=binary, any_data=any_data or not body)
    if content_type:
        lowered["content-type"] = content_type  # the library's test has a case
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
    """The media type in this header, which has no case (RFC 9110, 8.3.1), without its parameters."""
    return content_type.split(";")[0].strip().lower()


def received_or_none(headers: Mapping[str, str], body: bytes | None) -> BaseCloudEvent | None:
    """The CloudEvent in a request, with whatever data; None when there is none."""
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
    """The library makes up an id and a specversion where they are missing; a retry would be another event each time."""
    if not isinstance(attributes, Mapping):
        raise BadEvent("not a CloudEvent 1.0: the body is no JSON object")
    missing = [name for name in REQUIRED if f"{prefix}{name}" not in attributes]
    if missing:
        raise BadEvent(f"not a CloudEvent 1.0: {', '.join(missing)} missing")


def _check_values(event: BaseCloudEvent, body: bytes) -> None:
    """Raises `BadEvent` for an attribute of a type, or with characters, that CloudEvents' has not, and for half a
    character in JSON, which it can name and nobody can write."""
    for name, value in event.get_attributes().items():
        if isinstance(value, (dict, list)):
            raise BadEvent(f"attribute {name!a} is an object or a list; send a text, a number or a boolean")
        if NO_TEXT.search(name) or (isinstance(value, str) and NO_TEXT.search(value)):
            raise BadEvent(f"attribute {name!a} has characters that are no text")
    kind = event.get_datacontenttype() or ""
    if not (kind.isascii() and kind.isprintable()):  # the one attribute that is a header as it stands
        raise BadEvent(f"datacontenttype {kind!a} is no media type")
    if body.count(b"[") + body.count(b"{") > DEEPEST and _is_deep(event.get_data()):
        raise BadEvent(f"data is nested more than {DEEPEST} deep")
    if SURROGATE in body.lower():
        try:
            json.dumps(event.get_data(), ensure_ascii=False, default=str).encode()
        except UnicodeEncodeError:
            raise BadEvent("data has a surrogate without its other half") from None


def _is_deep(data: object) -> bool:
    """Whether it is nested deeper than `DEEPEST`; level by level, since what recurses is what it must be kept from."""
    level: list[Any] = [[data]]
    for _ in range(DEEPEST + 1):
        inner = chain.from_iterable(each.values() if isinstance(each, dict) else each for each in level)
        level = [each for each in inner if isinstance(each, (dict, list))]
    return bool(level)


def _reasons(error: BaseCloudEventException) -> str:
    """The library gathers all reasons per attribute; a sender reads them in one line."""
    gathered = getattr(error, "errors", None)
    if not gathered:
        return str(error)
    return "; ".join(str(reason) for reasons in gathered.values() for reason in reasons)


def binary(event: BaseCloudEvent) -> HTTPMessage:
    """Headers and body in binary mode."""
    return to_binary_event(event)


def structured(event: BaseCloudEvent) -> HTTPMessage:
    """Headers and body in structured mode."""
    return to_structured_event(event)


def batch(events: Iterable[BaseCloudEvent]) -> HTTPMessage:
    """Headers and body of several events, or none, in one message (CloudEvents JSON batch format)."""
    body = b"[" + b",".join(structured(event).body for event in events) + b"]"
    return HTTPMessage({"content-type": BATCH}, body)
