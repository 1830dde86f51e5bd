"""Event types as a person reads and writes them: without the prefix that all have in common."""

from __future__ import annotations

from eventing import events

PREFIXES = ("dev.nodemaintenance.", "dev.knative.")
CHANGES = (events.RESOURCE_ADDED, events.RESOURCE_UPDATED, events.RESOURCE_DELETED)
REFERENCES = (events.REFERENCE_ADDED, events.REFERENCE_UPDATED, events.REFERENCE_DELETED)
KNOWN = (*events.MEANINGS, *CHANGES, *REFERENCES, events.TICK)
"""All types that the functions consume or emit."""


def short(kind: str) -> str:
    """An event's type without the prefix."""
    for prefix in PREFIXES:
        kind = kind.removeprefix(prefix)
    return kind


def whole(kind: str) -> str:
    """The known type that ends with `kind`; any other name as it is."""
    return next((known for known in KNOWN if known == kind or known.endswith(f".{kind}")), kind)
