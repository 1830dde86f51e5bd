"""Signatures which prove that a component of this install emitted an event, whichever broker is used.

All components share the key in `$SIGNING_KEY`. An event's extension `signature` contains the HMAC of its content.

A broker does not authenticate senders to subscribers. A client that may post to the broker or to a function can
therefore use any event source. Without a key, events are not signed, and every event is accepted. Then only the access
control of brokers and functions determines who may post events.
"""

from __future__ import annotations

import hmac
import json
import os

from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.v1.event import CloudEvent

from eventing.http_binding import BadEvent

KEY_VARIABLE = "SIGNING_KEY"
SIGNATURE_EXTENSION = "signature"


class InvalidSignature(BadEvent):
    """Error for an event that no component of this install emitted, or that was changed afterwards."""

    status = 403


def sign_event(event: BaseCloudEvent) -> BaseCloudEvent:
    """Return the event with its signature; without a key, return it unchanged."""
    key = os.environ.get(KEY_VARIABLE, "")
    if not key:
        return event
    return CloudEvent({**event.get_attributes(), SIGNATURE_EXTENSION: _compute_signature(event, key)}, event.get_data())


def has_valid_signature(event: BaseCloudEvent) -> bool:
    """Return whether a component of this install emitted the event unchanged; without a key, return True."""
    key = os.environ.get(KEY_VARIABLE, "")
    return not key or hmac.compare_digest(
        str(event.get_extension(SIGNATURE_EXTENSION) or "").encode(), _compute_signature(event, key).encode()
    )


def require_valid_signature(event: BaseCloudEvent) -> None:
    """Raise `InvalidSignature` if no component of this install emitted the event unchanged."""
    if not has_valid_signature(event):
        raise InvalidSignature(
            f"{SIGNATURE_EXTENSION} is missing or invalid: "
            f"emit the event from a program of this install with the same {KEY_VARIABLE}"
        )


def _compute_signature(event: BaseCloudEvent, key: str) -> str:
    """Return the HMAC of the event's source, id, type and data.

    Attributes that brokers, replays and dead letters add are not signed, so anyone can remove a replay's extensions.
    The reply to a dry run describes writes that were not stored. Without its extensions, such a reply would be false,
    so it must never be signed.
    """
    content = [event.get_source(), event.get_id(), event.get_type(), event.get_data()]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=str)
    return hmac.new(key.encode(), text.encode(), "sha256").hexdigest()
