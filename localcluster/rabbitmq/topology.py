"""RabbitMQ names, arguments and bindings as the Broker's controller declares them (`pkg/rabbit`). Pure functions."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterable
from typing import Any

from eventing.local.triggers import Trigger
from localcluster.access import NAMESPACE

VHOST = "/"
LONGEST_NAME, HEAD = 63, 31
"""Maximum length of a name, and of its readable prefix if the rest must be a hash (knative.dev/pkg/kmeta)."""
Declaration = dict[str, Any]


def exchange(broker: str) -> str:
    """Return the exchange to which the ingress publishes."""
    return _child(f"b.{NAMESPACE}.{broker}.", _uid("Broker", broker))


def queue(trigger: str, broker: str) -> str:
    """Return the queue of a Trigger's subscriber."""
    return f"{NAMESPACE}.{trigger}.{_uid('Broker', broker)}"


def dead_exchange(trigger: str) -> str:
    """Return the exchange to which a Trigger's dispatcher publishes undeliverable events."""
    return _child(f"t.{NAMESPACE}.{trigger}.dlx.", _uid("Trigger", trigger))


def dead_queue(trigger: str) -> str:
    """Return the queue of a Trigger's dead letter sink."""
    return _child(f"t.{NAMESPACE}.{trigger}.dlq.", _uid("Trigger", trigger))


def definitions(broker: str, triggers: Iterable[Trigger]) -> dict[str, list[Declaration]]:
    """Return all exchanges, queues, bindings and policies, in the format that RabbitMQ imports at startup."""
    triggers = list(triggers)
    dead = [trigger for trigger in triggers if trigger.policy.dead_letters]
    bindings = [_binding(exchange(broker), queue(trigger.name, broker), _filters(trigger)) for trigger in triggers]
    bindings += [_binding(dead_exchange(trigger.name), dead_queue(trigger.name), {}) for trigger in dead]
    return {
        "vhosts": [{"name": VHOST}],
        "exchanges": [_exchange(exchange(broker)), *(_exchange(dead_exchange(trigger.name)) for trigger in dead)],
        "queues": [
            *(_queue(queue(trigger.name, broker)) for trigger in triggers),
            *(_queue(dead_queue(trigger.name)) for trigger in dead),
        ],
        "bindings": bindings,
        "policies": [_policy(trigger.name, broker) for trigger in dead],
    }


def _filters(trigger: Trigger) -> dict[str, str]:
    """Return the filter's attributes and the Trigger's name; RabbitMQ ignores `x-` arguments when it compares."""
    return {**trigger.attributes, "x-knative-trigger": trigger.name}


def _exchange(name: str) -> Declaration:
    fixed = {"vhost": VHOST, "type": "headers", "durable": True, "auto_delete": False, "internal": False}
    return {"name": name, **fixed, "arguments": {}}


def _queue(name: str) -> Declaration:
    return {
        "name": name,
        "vhost": VHOST,
        "durable": True,
        "auto_delete": False,
        "arguments": {"x-queue-type": "quorum"},
    }


def _binding(source: str, destination: str, filters: dict[str, str]) -> Declaration:
    return {
        "source": source,
        "vhost": VHOST,
        "destination": destination,
        "destination_type": "queue",
        "routing_key": "",
        "arguments": {**filters, "x-match": "all"},
    }


def _policy(trigger: str, broker: str) -> Declaration:
    return {
        "vhost": VHOST,
        "name": _child(f"t.{NAMESPACE}.{trigger}.", _uid("Trigger", trigger)),
        "pattern": f"^{re.escape(queue(trigger, broker))}$",
        "apply-to": "queues",
        "definition": {"dead-letter-exchange": dead_exchange(trigger)},
        "priority": 1,
    }


def _uid(kind: str, name: str) -> str:
    """Return a uid for the object that is always the same, so that a restart finds the existing queue."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{kind}/{NAMESPACE}/{name}"))


def _child(parent: str, suffix: str) -> str:
    """Join both parts, or shorten them to a valid Kubernetes name (`kmeta.ChildName`)."""
    if len(parent) + len(suffix) <= LONGEST_NAME:
        return parent + suffix
    digest = hashlib.md5((parent + suffix).encode(), usedforsecurity=False).hexdigest()
    return (parent[:HEAD] + digest + suffix)[:LONGEST_NAME].rstrip("-.")
