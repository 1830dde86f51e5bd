"""Event types in the short form that users read and type: without the common prefix."""

from __future__ import annotations

from eventing import events

PREFIXES = ("dev.nodemaintenance.", "dev.knative.")
CHANGES = (events.RESOURCE_ADDED, events.RESOURCE_UPDATED, events.RESOURCE_DELETED)
REFERENCES = (events.REFERENCE_ADDED, events.REFERENCE_UPDATED, events.REFERENCE_DELETED)
KNOWN = (*events.MEANINGS, *CHANGES, *REFERENCES, events.TICK)
"""Every event type that this project sends through the broker, including those of the Knative sources."""


def short(kind: str) -> str:
    """Return the event type without its prefix."""
    for prefix in PREFIXES:
        kind = kind.removeprefix(prefix)
    return kind


def whole(kind: str) -> str:
    """Return the known type that `kind` abbreviates, or `kind` itself if there is none."""
    return next((known for known in KNOWN if known == kind or known.endswith(f".{kind}")), kind)
