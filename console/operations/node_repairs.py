"""Reads whether the product has cordoned a node again, because another client had uncordoned it.

The Kubernetes Event in which `guard` counts these repairs is their only record; the status does not contain them.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from console.operations.descriptions import format_age
from kube.client.api import Api, gather_all
from kube.client.api_errors import ApiError
from kube.maintenance.blocked_groups import Remedy
from kube.maintenance.kubernetes_events import build_cordoned_again_event_path
from kube.maintenance.objects import Maintenance, get_node_name, is_deleting
from kube.paths import Object


async def read_repair_notes(api: Api, maintenances: Iterable[Maintenance], now: datetime) -> dict[str, Remedy]:
    """Return a note for each maintenance that has cordoned its node again, by the uid of the maintenance.

    The function omits the maintenances that are being deleted, and those whose Event the user may not read.
    """
    undeleted = [maintenance for maintenance in maintenances if not is_deleting(maintenance)]
    notes = await gather_all(*(_read_note(api, maintenance, now) for maintenance in undeleted))
    return {item["metadata"]["uid"]: note for item, note in zip(undeleted, notes, strict=True) if note}


async def _read_note(api: Api, maintenance: Maintenance, now: datetime) -> Remedy | None:
    """Return the note, or None if the Event cannot be read: the API server deletes Events after an hour by default."""
    try:
        event: Object = await api.get(build_cordoned_again_event_path(maintenance))
    except ApiError:
        return None
    count = f" ({event['count']} times in total)" if event["count"] > 1 else ""
    text = (
        f"Cordoned again {format_age(event['lastTimestamp'], now)} ago{count}: another client had removed the node's "
        "cordon, taint or label. To end the maintenance and uncordon the node"
    )
    return Remedy(text, f"kubectl maintenance stop {get_node_name(maintenance)}")
