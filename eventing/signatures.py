"""Signatures: what proves that one of our own programs emitted an event, whichever broker carried it.

All of them share the secret in `$SIGNING_KEY`; an event carries the HMAC of what it says in the extension `signature`.
A broker proves no sender to a subscriber, and whoever may post to it, or to the function itself, can name any source.
Without a secret nothing is signed, and every event passes: then the doors alone decide who may post.
"""

from __future__ import annotations

import hmac
import json
import os

from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.v1.event import CloudEvent

from eventing.wire import BadEvent

KEY = "SIGNING_KEY"
EXTENSION = "signature"


class Forged(BadEvent):
    """The event is not as one of our programs emitted it."""

    status = 403


def signed(event: BaseCloudEvent) -> BaseCloudEvent:
    """The event with its signature; as it is where there is no secret."""
    key = os.environ.get(KEY, "")
    if not key:
        return event
    return CloudEvent({**event.get_attributes(), EXTENSION: _signature(event, key)}, event.get_data())


def is_ours(event: BaseCloudEvent) -> bool:
    """Whether one of our programs emitted it, as it is; of every event, where there is no secret."""
    key = os.environ.get(KEY, "")
    return not key or hmac.compare_digest(
        str(event.get_extension(EXTENSION) or "").encode(), _signature(event, key).encode()
    )


def require_ours(event: BaseCloudEvent) -> None:
    """Raises `Forged` when it is not."""
    if not is_ours(event):
        raise Forged(
            f"its {EXTENSION} is missing or another's: it was not emitted by a program of this installation, or by one "
            f"that has another {KEY}"
        )


def _signature(event: BaseCloudEvent, key: str) -> str:
    """Of what the event is and says. What brokers, replays and dead letters add to it is none of that.

    So the marks of a replay can be taken off: what is true with them alone, the answer to a dry run, is never signed.
    """
    said = [event.get_source(), event.get_id(), event.get_type(), event.get_data()]
    text = json.dumps(said, sort_keys=True, separators=(",", ":"), default=str)
    return hmac.new(key.encode(), text.encode(), "sha256").hexdigest()
