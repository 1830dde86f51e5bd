"""Builds the RabbitMQ objects that the Broker's controller would declare (Go package `pkg/rabbit`). Pure functions."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterable
from typing import Any

from eventing.local.manifests import Trigger
from localcluster.access import NAMESPACE

VHOST = "/"
MAX_NAME_LENGTH, NAME_HEAD_LENGTH = 63, 31
"""Maximum length of a name, and the length of a shortened name's readable prefix (knative.dev/pkg/kmeta)."""
Declaration = dict[str, Any]


def get_exchange_name(broker: str) -> str:
    """Return the name of the exchange to which the Broker's ingress publishes."""
    return _make_child_name(f"b.{NAMESPACE}.{broker}.", _compute_uid("Broker", broker))


def get_queue_name(trigger: str, broker: str) -> str:
    """Return the name of the queue for a Trigger's subscriber."""
    return f"{NAMESPACE}.{trigger}.{_compute_uid('Broker', broker)}"


def get_dead_letter_exchange(trigger: str) -> str:
    """Return the name of the exchange to which a Trigger's dispatcher publishes undeliverable events."""
    return _make_child_name(f"t.{NAMESPACE}.{trigger}.dlx.", _compute_uid("Trigger", trigger))


def get_dead_letter_queue(trigger: str) -> str:
    """Return the name of the queue for a Trigger's dead letter sink."""
    return _make_child_name(f"t.{NAMESPACE}.{trigger}.dlq.", _compute_uid("Trigger", trigger))


def build_definitions(broker: str, triggers: Iterable[Trigger]) -> dict[str, list[Declaration]]:
    """Return the exchanges, queues, bindings and policies of a Broker and its Triggers in RabbitMQ's import format."""
    triggers = list(triggers)
    with_dead_letters = [trigger for trigger in triggers if trigger.policy.dead_letter_url]
    bindings = [
        _build_binding(get_exchange_name(broker), get_queue_name(trigger.name, broker), _build_filters(trigger))
        for trigger in triggers
    ]
    bindings += [
        _build_binding(get_dead_letter_exchange(trigger.name), get_dead_letter_queue(trigger.name), {})
        for trigger in with_dead_letters
    ]
    return {
        "vhosts": [{"name": VHOST}],
        "exchanges": [
            _build_exchange(get_exchange_name(broker)),
            *(_build_exchange(get_dead_letter_exchange(trigger.name)) for trigger in with_dead_letters),
        ],
        "queues": [
            *(_build_queue(get_queue_name(trigger.name, broker)) for trigger in triggers),
            *(_build_queue(get_dead_letter_queue(trigger.name)) for trigger in with_dead_letters),
        ],
        "bindings": bindings,
        "policies": [_build_policy(trigger.name, broker) for trigger in with_dead_letters],
    }


def _build_filters(trigger: Trigger) -> dict[str, str]:
    """Return the Trigger's filter attributes and its name; RabbitMQ does not match arguments with the prefix `x-`."""
    return {**trigger.attributes, "x-knative-trigger": trigger.name}


def _build_exchange(name: str) -> Declaration:
    fixed = {"vhost": VHOST, "type": "headers", "durable": True, "auto_delete": False, "internal": False}
    return {"name": name, **fixed, "arguments": {}}


def _build_queue(name: str) -> Declaration:
    return {
        "name": name,
        "vhost": VHOST,
        "durable": True,
        "auto_delete": False,
        "arguments": {"x-queue-type": "quorum"},
    }


def _build_binding(source: str, destination: str, filters: dict[str, str]) -> Declaration:
    return {
        "source": source,
        "vhost": VHOST,
        "destination": destination,
        "destination_type": "queue",
        "routing_key": "",
        "arguments": {**filters, "x-match": "all"},
    }


def _build_policy(trigger: str, broker: str) -> Declaration:
    return {
        "vhost": VHOST,
        "name": _make_child_name(f"t.{NAMESPACE}.{trigger}.", _compute_uid("Trigger", trigger)),
        "pattern": f"^{re.escape(get_queue_name(trigger, broker))}$",
        "apply-to": "queues",
        "definition": {"dead-letter-exchange": get_dead_letter_exchange(trigger)},
        "priority": 1,
    }


def _compute_uid(kind: str, name: str) -> str:
    """Return a uid that is derived from kind and name, so that the queue has the same name after a restart."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{kind}/{NAMESPACE}/{name}"))


def _make_child_name(parent: str, suffix: str) -> str:
    """Join the parts to a Kubernetes name, and shorten it with a hash if it is too long, as `kmeta.ChildName` does."""
    if len(parent) + len(suffix) <= MAX_NAME_LENGTH:
        return parent + suffix
    digest = hashlib.md5((parent + suffix).encode(), usedforsecurity=False).hexdigest()
    return (parent[:NAME_HEAD_LENGTH] + digest + suffix)[:MAX_NAME_LENGTH].rstrip("-.")
