"""PingSource for the local delivery: emits an event at each time of a cron schedule."""

from __future__ import annotations

import asyncio
import base64
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cloudevents.core.v1.event import CloudEvent
from croniter import CroniterBadDateError, croniter

from eventing.events import TICK
from eventing.local.envelope import CONTENT_TYPE, EmitEvent, Envelope, encode_envelope
from eventing.local.manifests import Document, require_broker_sink

MAX_EARLY_WAKEUP = timedelta(seconds=1)
"""Maximum time by which the source may wake up before a scheduled time."""


@dataclass(frozen=True)
class Schedule:
    """A cron expression in a time zone; its first field may be for seconds."""

    expression: str
    zone: tzinfo

    def get_next_time(self, after: datetime) -> datetime:
        """Return the first scheduled time after `after`."""
        times = croniter(self.expression, after.astimezone(self.zone), second_at_beginning=True)
        upcoming: datetime = times.get_next(datetime)
        return upcoming

    def get_next_tick(self, last_tick: datetime, now: datetime) -> datetime:
        """Return the next scheduled time; `last_tick` is the scheduled time of the previous event.

        A sleep may end slightly early and must not repeat the previous event. If the clock has been set back,
        `last_tick` is ignored.
        """
        return self.get_next_time(max(now, last_tick) if last_tick - now < MAX_EARLY_WAKEUP else now)


class PingSource:
    """Emits the same data at each scheduled time; times that pass while the machine is suspended are skipped."""

    def __init__(self, name: str, source: str, schedule: Schedule, payload: Envelope) -> None:
        self.name = name
        self.is_ready = False
        self._source, self._schedule, self._payload = source, schedule, payload

    async def run(self, emit: EmitEvent, sink_url: str) -> None:
        """Emit an event at each scheduled time until cancelled."""
        self.is_ready = True
        last = datetime.now(timezone.utc)
        while True:
            now = datetime.now(timezone.utc)
            last = self._schedule.get_next_tick(last, now)
            await asyncio.sleep((last - now).total_seconds())
            emit(self._build_tick())

    def _build_tick(self) -> Envelope:
        attributes = {"id": str(uuid.uuid4()), "source": self._source, "type": TICK}
        tick = encode_envelope(CloudEvent({**attributes, "time": datetime.now(timezone.utc)}))
        return Envelope({**tick.headers, **self._payload.headers}, self._payload.body)


def parse_source(document: Document) -> PingSource:
    """Build the source from a PingSource manifest."""
    document.refuse_unknown_fields("spec", {"schedule", "timezone", "contentType", "data", "dataBase64", "sink"})
    require_broker_sink(document)
    source = f"/apis/v1/namespaces/{document.namespace}/pingsources/{document.name}"
    return PingSource(document.name, source, _parse_schedule(document), _parse_payload(document))


def _parse_schedule(document: Document) -> Schedule:
    expression = document.require("spec.schedule", str)
    if len(expression.split()) not in (5, 6) or not croniter.is_valid(expression, second_at_beginning=True):
        raise document.build_error("spec.schedule", f"is not a cron expression of 5 or 6 fields: {expression!r}")
    zone = document.get("spec.timezone", str) or "UTC"
    try:
        schedule = Schedule(expression, ZoneInfo(zone))
    except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError is raised if the name is a directory of time zones
        raise document.build_error("spec.timezone", f"is not a known time zone: {zone!r}") from None
    try:
        schedule.get_next_time(datetime.now(timezone.utc))
    except CroniterBadDateError:
        raise document.build_error("spec.schedule", f"matches no time: {expression!r}") from None
    return schedule


def _parse_payload(document: Document) -> Envelope:
    """Return the content type and body of every event, as Knative's ping adapter sets them."""
    content_type = document.get("spec.contentType", str) or "application/json"
    encoded = document.get("spec.dataBase64", str)
    try:
        body = base64.b64decode(encoded, validate=True) if encoded else (document.get("spec.data", str) or "").encode()
    except ValueError:
        raise document.build_error("spec.dataBase64", "is not base64") from None
    return Envelope({CONTENT_TYPE: content_type}, body)
