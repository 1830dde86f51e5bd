"""Notify the owners of a budget and its workloads, and `spec.notify.url`, of a drain that is blocked for a minute.

The step derives everything from the status of the NodeMaintenances, and from the Events that record what it announced
before. So a repeated, late or lost event changes nothing. A blockage is recorded before it is announced: if the record
cannot be written, nothing is announced, since the next tick would otherwise announce the same again. Its end is
recorded afterwards, because the drain may evict the pod of this process at that moment.

In: an updated NodeMaintenance; a PingSource tick. Out: nothing.
Touches: nodemaintenances get, list; namespaces get; pods get; poddisruptionbudgets get; replicasets get; events create;
events list in default; leases get in medik8s-leases.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from typing import TypeVar

import aiohttp
from cloudevents.core.base import BaseCloudEvent

from eventing import events, extensions
from functions.event_data import get_metadata, require_data
from functions.event_recorder import EVENT_RECORDER
from functions.failures import Retry
from functions.installs import is_active_install
from functions.notifications.sender import SendError, open_session, send
from functions.notifications.settings import Settings
from functions.round_robin import RoundRobin
from functions.steps import step
from functions.work_queue import HintPolicy, WorkKey
from kube.client.api import Api, gather_all, get_or_none
from kube.client.api_errors import ApiError, Conflict
from kube.client.sync_client import SyncClient
from kube.kubernetes_events import EventNotice
from kube.maintenance.groups import GROUPS
from kube.maintenance.lookup import list_maintenances
from kube.maintenance.objects import Maintenance, get_group
from kube.notifications.announcements import (
    SENT_REASON,
    AnnouncementRecord,
    Blockage,
    RecordLog,
    build_blocked_record,
    build_owner_events,
    build_record_event,
    build_reference,
    describe_blockage,
    describe_end,
    find_blockages,
    find_over,
)
from kube.notifications.lookup import find_announcement_objects, list_records
from kube.notifications.webhooks import (
    Notification,
    find_notifications,
    find_url_problem,
    get_url,
    is_recently_ended,
)
from kube.paths import MALFORMED_OBJECT_ERRORS, Object, build_events_path, encode_path_segment

MAX_ANNOUNCEMENTS, MAX_NOTIFICATIONS = 10, 20
"""Maximum number of announcements of a pass, and of notifications that it sends. Later passes do the rest."""
REFUSED_REASON = "NotificationRefused"
"""Reason of the Event on a NodeMaintenance whose `spec.notify.url` may not be used."""
BLOCKAGE_ROTATION, RECORD_ROTATION, NOTIFICATION_ROTATION = RoundRobin(), RoundRobin(), RoundRobin()
"""Rotations, so that what fails repeatedly does not take the places of all others."""
T = TypeVar("T")
log = logging.getLogger("functions")


class OpenAnnouncements:
    """The maintenances with announced blockages that are not over, as far as this process knows.

    The records are read only if they may matter, so that a drain without obstacles causes no request.
    """

    def __init__(self) -> None:
        self._uids: set[str] | None = None

    def may_contain(self, uid: str = "") -> bool:
        """Return whether the maintenance, or any maintenance, may have an open announcement."""
        return not uid if self._uids is None else (uid in self._uids if uid else bool(self._uids))

    def update(self, records: RecordLog, uid: str) -> None:
        """Store what the records of one or all maintenances show."""
        found = {record.uid for record in records.list_open()}
        if not uid:
            self._uids = found
        elif self._uids is not None:  # Otherwise the next tick reads the records of all maintenances.
            self._uids = self._uids - {uid} | found

    def clear(self) -> None:
        """Forget everything, as in a new process."""
        self._uids = None


OPEN_ANNOUNCEMENTS = OpenAnnouncements()


def _build_work_key(event: BaseCloudEvent) -> WorkKey:
    """Return the key of the pass; passes that may write run one after another, so that none repeats another's work."""
    if event.get_type() == events.TICK:
        return WorkKey("announcements", "all maintenances")
    uid = str(get_metadata(event).get("uid"))
    is_relevant = _is_relevant(require_data(event), Settings.from_environment(os.environ))
    # At most one such hint waits for its turn, so that a slow receiver holds no threads; the tick handles the others.
    return WorkKey("announcements", "update") if is_relevant else WorkKey(f"maintenance {uid}")


@step(
    "notify-owners",
    consumes=(events.RESOURCE_UPDATED, events.TICK),
    emits=(),
    kind="NodeMaintenance",
    coalescing=HintPolicy(_build_work_key),
)
def notify_owners(event: BaseCloudEvent, client: SyncClient) -> list[BaseCloudEvent]:
    """Announce new and ended blockages of the event's maintenance, or at a tick of all maintenances, and send both.

    A replay sends nothing. Raises `Retry` if an announcement or a notification failed. The drain does not depend on
    this step, and the next tick tries again, too.
    """
    settings = Settings.from_environment(os.environ)
    if event.get_type() == events.TICK:
        if is_active_install(client):
            _run_pass(client.run(list_maintenances(client.api)), "", event, settings, client)
    elif _is_relevant(require_data(event), settings) and is_active_install(client):
        uid, name = get_metadata(event)["uid"], encode_path_segment(get_metadata(event)["name"])
        path = f"{get_group(require_data(event)).path}/{name}"
        current = client.run(get_or_none(client.api.get(path)))
        if current is not None and current["metadata"]["uid"] == uid:  # The tick finds a maintenance that is gone.
            _run_pass([current], uid, event, settings, client)
    return []


def _is_relevant(maintenance: Maintenance, settings: Settings) -> bool:
    """Return whether the maintenance in an event may need an announcement or a notification."""
    metadata = maintenance.get("metadata")
    if not isinstance(metadata, dict) or not all(isinstance(metadata.get(name), str) for name in ("name", "uid")):
        return False
    is_known_group = isinstance(maintenance.get("apiVersion"), str) and maintenance["apiVersion"] in GROUPS
    return is_known_group and (OPEN_ANNOUNCEMENTS.may_contain(metadata["uid"]) or _needs_records(maintenance, settings))


def _needs_records(maintenance: Maintenance, settings: Settings) -> bool:
    """Return whether the drain is blocked for long enough, or has a URL and has ended; False for a malformed object."""
    now = datetime.now(timezone.utc)
    try:
        has_ended = bool(get_url(maintenance)) and is_recently_ended(maintenance, now)
        return has_ended or any(item.is_overdue(settings.min_blocked, now) for item in find_blockages(maintenance))
    except MALFORMED_OBJECT_ERRORS:
        return False


@dataclass
class NotificationPass:
    """One pass: what it has read, and the errors after which it continued.

    Attributes:
        errors: Errors that a later delivery may not have.
        has_more: Whether more notifications are due than one pass sends.
    """

    api: Api
    settings: Settings
    now: datetime
    records: RecordLog
    errors: list[Exception]
    has_more: bool = False

    async def announce_all(self, blockages: list[Blockage]) -> None:
        """Announce the new blockages and the ended ones."""
        new = [
            item
            for item in blockages
            if item.is_overdue(self.settings.min_blocked, self.now) and self.records.may_announce(item, self.now)
        ]
        over = find_over(self.records, blockages)
        chosen = BLOCKAGE_ROTATION.rotate(new, lambda item: f"{item.uid} {item.key}")[:MAX_ANNOUNCEMENTS]
        ended = RECORD_ROTATION.rotate(over, lambda item: " ".join(item.blockage_id))[:MAX_ANNOUNCEMENTS]
        await gather_all(
            *(self._try(self._announce_blockage, item) for item in chosen),
            *(self._try(self._announce_end, item) for item in ended),
        )

    async def _try(self, action: Callable[[T], Awaitable[None]], item: T) -> None:
        """Perform an action whose error must not stop the others."""
        try:
            await action(item)
        except (ApiError, SendError) as error:
            log.warning("an announcement failed: %s", _format_error(error))
            self.errors.append(error)

    async def _announce_blockage(self, blockage: Blockage) -> None:
        """Write the record, and after it the Events for the owners, unless another process has written the record."""
        objects = await find_announcement_objects(self.api, blockage.group)
        record, message = build_blocked_record(blockage, objects), describe_blockage(blockage, self.now)
        if await self._write_record(record, message):
            await self._create_owner_events(record, message)

    async def _announce_end(self, record: AnnouncementRecord) -> None:
        """Write the Events for the owners, and after them the record; a repetition writes Events of the same names."""
        message = describe_end(record)
        await self._create_owner_events(record, message)
        await self._write_record(record, message)

    async def _create_owner_events(self, record: AnnouncementRecord, message: str) -> None:
        await gather_all(*(self._try_create(item) for item in build_owner_events(record, message, self.now)))

    async def _write_record(self, record: AnnouncementRecord, message: str) -> bool:
        """Write the record, and return whether it did not exist before."""
        is_new = True
        try:
            await _create_event(self.api, build_record_event(record, message, self.now))
        except Conflict:
            is_new = False
        self.records.add(record)
        return is_new

    async def _try_create(self, event: Object) -> None:
        """Create an Event for an owner, unless it exists; an error is only logged, and does not stop the others."""
        try:
            await _create_event(self.api, event)
        except Conflict:
            pass  # An earlier pass wrote the Event, but not the record.
        except ApiError as error:
            log.warning("cannot record Event %s: %s", event["reason"], error.message)

    async def notify_all(self, maintenances: Iterable[Maintenance], blockages: list[Blockage]) -> None:
        """Send what was not sent yet, and record each notification that its receiver accepts."""
        due = [item for maintenance in maintenances for item in self._find_due(maintenance, blockages)]
        chosen = NOTIFICATION_ROTATION.rotate(due, lambda item: item.id)[:MAX_NOTIFICATIONS]
        self.has_more = len(due) > len(chosen)
        problems = [find_url_problem(get_url(item.maintenance), self.settings.origins) for item in chosen]
        refused = [(item, problem) for item, problem in zip(chosen, problems, strict=True) if problem]
        await EVENT_RECORDER.record(self.api, (_build_refusal(*item) for item in refused))
        permitted = [item for item, problem in zip(chosen, problems, strict=True) if not problem]
        if not permitted:
            return
        async with open_session() as session:
            await gather_all(*(self._try(partial(self._send, session), item) for item in permitted))

    def _find_due(self, maintenance: Maintenance, blockages: list[Blockage]) -> list[Notification]:
        """Return what must be sent about a maintenance; a malformed object must not stop the pass."""
        if not get_url(maintenance):
            return []
        try:
            own = [item for item in blockages if item.uid == maintenance["metadata"]["uid"]]
            return find_notifications(maintenance, own, self.records, self.now)
        except MALFORMED_OBJECT_ERRORS as error:
            log.warning("cannot derive the notifications of a maintenance: %r", error)
            return []

    async def _send(self, session: aiohttp.ClientSession, notification: Notification) -> None:
        """Send a notification, and record it at once, while other receivers may not have responded yet."""
        await send(session, notification, self.settings)
        maintenance = notification.maintenance
        record = AnnouncementRecord(
            SENT_REASON, build_reference(maintenance), notification.data["node"], notification.id
        )
        await self._write_record(record, f"sent {notification.type} to the host of spec.notify.url")


def _run_pass(
    maintenances: list[Object], uid: str, event: BaseCloudEvent, settings: Settings, client: SyncClient
) -> None:
    """Announce and send what the maintenances need; `uid` is the uid of the only one, "" if these are all.

    Raises `Retry` if something failed, after everything else was done.
    """
    if not (OPEN_ANNOUNCEMENTS.may_contain(uid) or any(_needs_records(item, settings) for item in maintenances)):
        return
    current = NotificationPass(
        client.api,
        settings,
        datetime.now(timezone.utc),
        RecordLog(client.run(list_records(client.api, uid))),
        [],
    )
    blockages = [blockage for item in maintenances for blockage in _try_find_blockages(item)]
    client.run(current.announce_all(blockages))
    if not extensions.is_replay(event):
        OPEN_ANNOUNCEMENTS.update(current.records, uid)
        client.run(current.notify_all(maintenances, blockages))
        if current.errors or current.has_more:
            OPEN_ANNOUNCEMENTS.clear()  # The next tick reads the records again, and sends the rest.
    if current.errors:
        raise Retry(_format_error(current.errors[0]))


def _build_refusal(notification: Notification, problem: str) -> EventNotice:
    """Build the notice that the URL of a maintenance may not be used."""
    return EventNotice(build_reference(notification.maintenance), REFUSED_REASON, problem)


def _try_find_blockages(maintenance: Maintenance) -> list[Blockage]:
    """Return what blocks the drain; a malformed object must not stop the pass."""
    try:
        return find_blockages(maintenance)
    except MALFORMED_OBJECT_ERRORS as error:
        log.warning("cannot derive what blocks a drain: %r", error)
        return []


def _format_error(error: Exception) -> str:
    return error.message if isinstance(error, ApiError) else str(error)


async def _create_event(api: Api, event: Object) -> None:
    await api.create(build_events_path(event["metadata"]["namespace"]), event)
