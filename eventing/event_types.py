"""Converts event types to and from the short form that users read and type, without the common prefix."""

from __future__ import annotations

from eventing import events

TYPE_PREFIXES = ("dev.nodemaintenance.", "dev.knative.")
RESOURCE_TYPES = (events.RESOURCE_ADDED, events.RESOURCE_UPDATED, events.RESOURCE_DELETED)
REFERENCE_TYPES = (events.REFERENCE_ADDED, events.REFERENCE_UPDATED, events.REFERENCE_DELETED)
KNOWN_TYPES = (*events.TYPE_DESCRIPTIONS, *RESOURCE_TYPES, *REFERENCE_TYPES, events.TICK)
"""Every event type that this project sends through the broker, including those of the Knative sources."""


def shorten_type(event_type: str) -> str:
    """Return the event type without its prefix."""
    for prefix in TYPE_PREFIXES:
        event_type = event_type.removeprefix(prefix)
    return event_type


def expand_type(name: str) -> str:
    """Return the known type that `name` abbreviates, or `name` itself if there is none."""
    return next((known for known in KNOWN_TYPES if known == name or known.endswith(f".{name}")), name)
