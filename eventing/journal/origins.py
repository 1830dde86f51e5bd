"""Reads from recorded NodeMaintenances who started and who ended a maintenance, and why. No I/O.

Only the API server's events contain the object. `docs/admission.md` describes how reliable the annotations are.
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
"""Maximum length of each name and of the reason, in characters; the event itself has the whole text."""


@dataclass(frozen=True)
class Origin:
    """Who started and who ended a maintenance, and why; each is "" if it is unknown."""

    requester: str = ""
    reason: str = ""
    ender: str = ""

    def format(self) -> str:
        """Return a sentence about all that is known, "" if nothing is."""
        texts = (
            self.requester and f"requested by {self.requester}",
            self.reason and f"reason: {self.reason}",
            self.ender and f"ended by {self.ender}",
        )
        text = "; ".join(filter(None, texts))
        return text[:1].upper() + text[1:]


def select_origin_fields(maintenance: Mapping[str, Any]) -> tuple[Object, Object]:
    """Return the fields of a NodeMaintenance's metadata and spec that `read_origin` needs, in bounded length."""
    metadata, spec = _as_mapping(maintenance.get("metadata")), _as_mapping(maintenance.get("spec"))
    names = _select_texts(_as_mapping(metadata.get("annotations")), REQUESTER_ANNOTATION, ENDER_ANNOTATION)
    metadata_fields = {**({"annotations": names} if names else {}), **_select_texts(metadata, "deletionTimestamp")}
    return metadata_fields, _select_texts(spec, "reason")


def find_origin(events: Iterable[BaseCloudEvent]) -> Origin:
    """Return who started and ended the maintenance that these events are about, and why."""
    return reduce(read_origin, events, Origin())


def read_origin(known: Origin, event: BaseCloudEvent) -> Origin:
    """Return what is known, updated with the object in this event, which may be an event of any kind.

    The user who ended a maintenance counts only if the object is deleted: `stop` names the user before the deletion,
    which may fail.
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
    """Return the fields with these names as texts, without empty ones."""
    return {name: truncate(str(fields[name]), MAX_ORIGIN_CHARACTERS) for name in names if fields.get(name)}
