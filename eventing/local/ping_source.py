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
from eventing.local import envelope
from eventing.local.envelope import Envelope
from eventing.local.manifests import Document
from eventing.local.source_sink import Outlet
from eventing.local.triggers import broker_sink

EARLY = timedelta(seconds=1)
"""Maximum time by which a sleep may end early."""


@dataclass(frozen=True)
class Schedule:
    """A cron expression, with or without a first field for seconds, in a time zone."""

    expression: str
    zone: tzinfo

    def after(self, moment: datetime) -> datetime:
        """Return the next scheduled time after `moment`."""
        times = croniter(self.expression, moment.astimezone(self.zone), second_at_beginning=True)
        upcoming: datetime = times.get_next(datetime)
        return upcoming

    def behind(self, last: datetime, now: datetime) -> datetime:
        """Return the scheduled time that follows `last`, the target of the previous sleep.

        A sleep may end slightly early; this must not repeat a tick. If the clock was set back, `last` is ignored.
        """
        return self.after(max(now, last) if last - now < EARLY else now)


class PingSource:
    """Emits the same data at each scheduled time; times that pass while the machine sleeps are skipped."""

    def __init__(self, name: str, source: str, schedule: Schedule, data: Envelope) -> None:
        self.name = name
        self.ready = False
        self._source, self._schedule, self._data = source, schedule, data

    async def run(self, outlet: Outlet) -> None:
        """Emit ticks until cancelled."""
        self.ready = True
        last = datetime.now(timezone.utc)
        while True:
            now = datetime.now(timezone.utc)
            last = self._schedule.behind(last, now)
            await asyncio.sleep((last - now).total_seconds())
            outlet.emit(self._tick())

    def _tick(self) -> Envelope:
        attributes = {"id": str(uuid.uuid4()), "source": self._source, "type": TICK}
        ticked = envelope.sealed(CloudEvent({**attributes, "time": datetime.now(timezone.utc)}))
        return Envelope({**ticked.headers, **self._data.headers}, self._data.body)


def read(document: Document) -> PingSource:
    """Build the source from a manifest."""
    document.only("spec", {"schedule", "timezone", "contentType", "data", "dataBase64", "sink"})
    broker_sink(document)
    source = f"/apis/v1/namespaces/{document.namespace}/pingsources/{document.name}"
    return PingSource(document.name, source, _schedule(document), _data(document))


def _schedule(document: Document) -> Schedule:
    expression = document.need("spec.schedule", str)
    if len(expression.split()) not in (5, 6) or not croniter.is_valid(expression, second_at_beginning=True):
        raise document.wrong("spec.schedule", f"is no cron expression of 5 or 6 fields: {expression!r}")
    zone = document.get("spec.timezone", str) or "UTC"
    try:
        schedule = Schedule(expression, ZoneInfo(zone))
    except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError: for example, the name is a directory of zones
        raise document.wrong("spec.timezone", f"is no time zone known here: {zone!r}") from None
    try:
        schedule.after(datetime.now(timezone.utc))
    except CroniterBadDateError:
        raise document.wrong("spec.schedule", f"names a time that never comes: {expression!r}") from None
    return schedule


def _data(document: Document) -> Envelope:
    """Return content type and body of every tick, as Knative's ping adapter sets them."""
    content_type = document.get("spec.contentType", str) or "application/json"
    encoded = document.get("spec.dataBase64", str)
    try:
        body = base64.b64decode(encoded, validate=True) if encoded else (document.get("spec.data", str) or "").encode()
    except ValueError:
        raise document.wrong("spec.dataBase64", "is not base64") from None
    return Envelope({envelope.CONTENT_TYPE: content_type}, body)
