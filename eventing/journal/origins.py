"""Reads from recorded events who started and who ended a maintenance, and why. No I/O.

Only the API server's events contain the NodeMaintenance. `docs/admission.md` describes how reliable the annotations
are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

from cloudevents.core.base import BaseCloudEvent

from eventing.events import RESOURCE_DELETED
from kube.maintenance.objects import ENDER_ANNOTATION, REQUESTER_ANNOTATION
from kube.paths import Object
from kube.text_limits import truncate

MAX_ORIGIN_CHARACTERS = 300
"""Maximum length, in characters, of each user name and of the reason; the event itself contains them in full."""


@dataclass(frozen=True)
class Origin:
    """The users who started and ended a maintenance, and the reason; a field is "" if it is unknown."""

    requester: str = ""
    reason: str = ""
    ender: str = ""

    def format(self) -> str:
        """Format everything that is known as one sentence, "" if nothing is known."""
        texts = (
            self.requester and f"requested by {self.requester}",
            self.reason and f"reason: {self.reason}",
            self.ender and f"ended by {self.ender}",
        )
        text = "; ".join(filter(None, texts))
        return text[:1].upper() + text[1:]


def select_origin_fields(maintenance: Mapping[str, Any]) -> tuple[Object, Object]:
    """Return the fields of a NodeMaintenance's metadata and spec that `read_origin` needs, each truncated."""
    metadata, spec = _as_mapping(maintenance.get("metadata")), _as_mapping(maintenance.get("spec"))
    names = _select_texts(_as_mapping(metadata.get("annotations")), REQUESTER_ANNOTATION, ENDER_ANNOTATION)
    metadata_fields = {**({"annotations": names} if names else {}), **_select_texts(metadata, "deletionTimestamp")}
    return metadata_fields, _select_texts(spec, "reason")


def find_origin(events: Iterable[BaseCloudEvent]) -> Origin:
    """Return who started and ended the maintenance that these events are about, and why."""
    return reduce(read_origin, events, Origin())


def read_origin(known: Origin, event: BaseCloudEvent) -> Origin:
    """Return the known origin, updated with the NodeMaintenance in this event if it contains one.

    The user who ended the maintenance counts only if the object is deleted. `stop` sets the annotation before the
    deletion, which may fail.
    """
    if event.get_extension("kind") != "NodeMaintenance":
        return known
    metadata, spec = select_origin_fields(_as_mapping(event.get_data()))
    annotations = metadata.get("annotations", {})
    is_deleted = event.get_type() == RESOURCE_DELETED or "deletionTimestamp" in metadata
    return Origin(
        annotations.get(REQUESTER_ANNOTATION, known.requester),
        spec.get("reason", known.reason),
        annotations.get(ENDER_ANNOTATION, known.ender) if is_deleted else known.ender,
    )


def _as_mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _select_texts(fields: Mapping[str, Any], *names: str) -> dict[str, str]:
    """Return those of the named fields that are not empty, as truncated strings."""
    return {name: truncate(str(fields[name]), MAX_ORIGIN_CHARACTERS) for name in names if fields.get(name)}
