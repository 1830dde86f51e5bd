"""Records Kubernetes Events for all components, on a best-effort basis and at a limited rate."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, MutableMapping
from datetime import datetime, timezone
from itertools import islice
from weakref import WeakKeyDictionary

from kube.client.api import Api, gather_all
from kube.client.api_errors import ApiError, Conflict
from kube.kubernetes_events import KubernetesEvent, build_event, build_increment_patch
from kube.paths import Object, build_events_path

MAX_EVENTS_PER_CALL = 20
"""Maximum number of Events that one call of `record` writes; the caller passes the remaining ones again later."""
REPEAT_SECONDS = 600.0
"""Seconds for which this process does not record an identical Event again; the API server keeps Events for longer."""
log = logging.getLogger("functions")


class EventRecorder:
    """Recorder of Kubernetes Events that remembers, per API client, the Events that it recorded recently.

    The recorder logs an API error instead of raising it, because failing to record an Event must not fail the caller.
    """

    def __init__(self) -> None:
        self._reported_at: MutableMapping[Api, dict[str, float]] = WeakKeyDictionary()

    async def record(self, api: Api, kubernetes_events: Iterable[KubernetesEvent]) -> list[KubernetesEvent]:
        """Write the Events concurrently, and return those that were written or already existed.

        An Event without a series is skipped if this process tried to record it recently. Otherwise, Events that hang or
        are rejected would take the time and the quota (`MAX_EVENTS_PER_CALL`) of other Events in each call.
        """
        recent = self._get_recent_reports(api)
        named = {
            f"{kubernetes_event.namespace}/{kubernetes_event.event_name}": kubernetes_event
            for kubernetes_event in kubernetes_events
        }
        new = {
            name: kubernetes_event
            for name, kubernetes_event in named.items()
            if kubernetes_event.series or name not in recent
        }
        selected, now = dict(islice(new.items(), MAX_EVENTS_PER_CALL)), datetime.now(timezone.utc)
        recent.update(
            {name: time.monotonic() for name, kubernetes_event in selected.items() if not kubernetes_event.series}
        )
        are_written = await gather_all(
            *(_try_write_event(api, kubernetes_event, now) for kubernetes_event in selected.values())
        )
        return [
            kubernetes_event
            for kubernetes_event, is_written in zip(selected.values(), are_written, strict=True)
            if is_written
        ]

    def should_report(self, api: Api, key: str) -> bool:
        """Return whether `key` was last reported more than `REPEAT_SECONDS` ago or never, and mark it as reported."""
        recent = self._get_recent_reports(api)
        is_new = key not in recent
        if is_new:
            recent[key] = time.monotonic()
        return is_new

    def _get_recent_reports(self, api: Api) -> dict[str, float]:
        """Remove the entries older than `REPEAT_SECONDS`, and return the remaining ones: report times by key."""
        reported_at, now = self._reported_at.setdefault(api, {}), time.monotonic()
        for key, time_reported in list(reported_at.items()):  # Another thread may change the dictionary concurrently.
            if now - time_reported >= REPEAT_SECONDS:
                reported_at.pop(key, None)
        return reported_at

    def clear(self) -> None:
        """Forget all recorded Events."""
        self._reported_at.clear()


EVENT_RECORDER = EventRecorder()


async def _try_write_event(api: Api, kubernetes_event: KubernetesEvent, now: datetime) -> bool:
    """Write the Event, and return whether the write succeeded; log an API error together with the Event's message."""
    try:
        await _create_or_count_event(api, build_event(kubernetes_event, now), is_counted=bool(kubernetes_event.series))
    except ApiError as error:
        fields = {**kubernetes_event.log_fields, "message": kubernetes_event.message}
        log.warning("cannot record Event %s: %s", kubernetes_event.reason, error.message, extra={"fields": fields})
        return False
    return True


async def _create_or_count_event(api: Api, event: Object, *, is_counted: bool) -> None:
    """Create the Event; if it already exists and `is_counted` is true, increment its count (OSV-12)."""
    name, path = event["metadata"]["name"], build_events_path(event["metadata"]["namespace"])
    try:
        await api.create(path, event)
    except Conflict:
        if not is_counted:
            return
        existing = await api.list(path, field_selector=f"metadata.name={name}")
        for item in existing["items"]:
            await api.patch(f"{path}/{name}", build_increment_patch(item, event))
