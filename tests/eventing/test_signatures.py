"""Tests of the signature that proves that a program of this project emitted an event."""

from __future__ import annotations

from typing import Any

import pytest
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.v1.event import CloudEvent

from eventing import events
from eventing.dead_letters import DeadLetter, as_dead_letter, original
from eventing.replay_extensions import marked
from eventing.signatures import EXTENSION, KEY, Forged, is_ours, require_ours, signed
from eventing.http_binding import binary, received, structured

MINE = events.Reference("nodemaintenance.medik8s.io/v1beta1", "nm", "uid-1")


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the secret that the programs share."""
    monkeypatch.setenv(KEY, "secret")


def event(**data: Any) -> BaseCloudEvent:
    return events.event(events.PODS_EVICTED, "evict", MINE, "node-1", seed="1", data=data)


@pytest.mark.parametrize("write", [binary, structured])
def test_what_was_signed_is_known_behind_any_broker(write: Any) -> None:
    """X-2: A signature is valid in both content modes, and with what brokers, replays and dead letters add."""
    sent = signed(event(blocked=[{"name": "ä€", "healthy": 1}], error=None))
    message = write(sent)
    back = received(message.headers, message.body)
    extended = CloudEvent({**back.get_attributes(), "knativearrivaltime": "now", "traceparent": "x"}, back.get_data())
    letter = as_dead_letter(extended, DeadLetter("http://status/", 503, "away"))

    assert all(map(is_ours, (sent, back, extended, letter, original(letter), marked(extended, "r", dry_run=True))))


@pytest.mark.parametrize(
    "changed",
    [{"id": "other"}, {"source": events.SOURCE + "cordon"}, {"type": events.MAINTENANCE_FAILED}, {EXTENSION: "0" * 64}],
    ids=lambda changed: next(iter(changed)),
)
def test_what_was_changed_is_not_ours(changed: dict[str, str]) -> None:
    """X-2: A changed id, source, type or signature makes the signature invalid."""
    sent = signed(event())

    assert not is_ours(CloudEvent({**sent.get_attributes(), **changed}, sent.get_data()))


def test_other_data_another_secret_or_none_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """X-2: Changed data, another secret or a missing signature makes an event invalid."""
    sent, unsigned = signed(event()), event()
    assert not is_ours(CloudEvent(sent.get_attributes(), {**(sent.get_data() or {}), "error": "forged"}))  # type: ignore[dict-item]
    with pytest.raises(Forged):
        require_ours(unsigned)

    monkeypatch.setenv(KEY, "another")

    assert not is_ours(sent)


def test_without_a_secret_the_doors_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """X-2: Without a secret, no event is signed, and every event counts as valid."""
    monkeypatch.delenv(KEY)

    assert EXTENSION not in signed(event()).get_attributes()
    assert is_ours(event())
