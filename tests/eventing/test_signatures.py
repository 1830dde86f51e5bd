"""Tests for the signature that proves that a component of this product emitted an event."""

from __future__ import annotations

from typing import Any

import pytest
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.v1.event import CloudEvent

from eventing import events
from eventing.dead_letters import DeadLetter, add_dead_letter_extensions, remove_dead_letter_extensions
from eventing.extensions import add_replay_extensions
from eventing.http_binding import decode_event, encode_binary, encode_structured
from eventing.signatures import (
    KEY_VARIABLE,
    SIGNATURE_EXTENSION,
    InvalidSignature,
    has_valid_signature,
    require_valid_signature,
    sign_event,
)

MAINTENANCE = events.ObjectReference("nodemaintenance.medik8s.io/v1beta1", "nm", "uid-1")


@pytest.fixture(autouse=True)
def signing_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the shared secret with which all components sign events."""
    monkeypatch.setenv(KEY_VARIABLE, "secret")


def build_event(**data: Any) -> BaseCloudEvent:
    return events.build_event(events.PODS_EVICTED, "evict", MAINTENANCE, "node-1", seed="1", data=data)


@pytest.mark.parametrize("encode", [encode_binary, encode_structured])
def test_signature_survives_any_broker(encode: Any) -> None:
    """X-2: a signature stays valid in both content modes, and if brokers, replays or dead letters add extensions."""
    event = sign_event(build_event(blocked=[{"name": "ä€", "healthy": 1}], error=None))
    message = encode(event)
    decoded = decode_event(message.headers, message.body)
    extended = CloudEvent(
        {**decoded.get_attributes(), "knativearrivaltime": "now", "traceparent": "x"}, decoded.get_data()
    )
    dead_letter = add_dead_letter_extensions(extended, DeadLetter("http://status/", 503, "away"))

    assert all(
        map(
            has_valid_signature,
            (
                event,
                decoded,
                extended,
                dead_letter,
                remove_dead_letter_extensions(dead_letter),
                add_replay_extensions(extended, "r", dry_run=True),
            ),
        )
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"id": "other"},
        {"source": events.SOURCE_PREFIX + "cordon"},
        {"type": events.MAINTENANCE_STEP_FAILED},
        {SIGNATURE_EXTENSION: "0" * 64},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_changed_attribute_invalidates_signature(changed: dict[str, str]) -> None:
    """X-2: a change to an event's id, source, type or signature invalidates its signature."""
    event = sign_event(build_event())

    assert not has_valid_signature(CloudEvent({**event.get_attributes(), **changed}, event.get_data()))


def test_changed_data_or_secret_invalidates_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    """X-2: a change to the event's data or to the secret invalidates its signature; an unsigned event is invalid."""
    signed, unsigned = sign_event(build_event()), build_event()
    assert not has_valid_signature(
        CloudEvent(signed.get_attributes(), {**(signed.get_data() or {}), "error": "forged"})  # type: ignore[dict-item]
    )
    with pytest.raises(InvalidSignature):
        require_valid_signature(unsigned)

    monkeypatch.setenv(KEY_VARIABLE, "another")

    assert not has_valid_signature(signed)


def test_every_event_is_accepted_without_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """X-2: without a secret, events are not signed, and every event counts as valid."""
    monkeypatch.delenv(KEY_VARIABLE)

    assert SIGNATURE_EXTENSION not in sign_event(build_event()).get_attributes()
    assert has_valid_signature(build_event())
