"""Notify the owners of a budget and its workloads, and `spec.notify.url`, of a drain that is blocked for a minute.

A blockage is a PodDisruptionBudget or another cause that blocks a drain; its start and its end are announced with
Kubernetes Events. The step reads blockages from the status of the NodeMaintenances, and earlier announcements from its
records, which are Events on the NodeMaintenances. Repeated, late or lost events therefore change nothing.

The start of a blockage is recorded before it is announced: without the record, the next PingSource event would cause
the same announcement again. The end is announced before it is recorded, because this process's own pod may be evicted
at that moment, and the announcement would be lost.

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
from kube.kubernetes_events import KubernetesEvent
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
    describe_blockage_end,
    find_blockages,
    find_ended_blockages,
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
"""Maximum numbers of announcements and of notifications per pass; later passes handle the rest."""
REFUSED_REASON = "NotificationRefused"
"""Reason of the Event on a NodeMaintenance whose `spec.notify.url` is not permitted."""
BLOCKAGE_ROTATION, RECORD_ROTATION, NOTIFICATION_ROTATION = RoundRobin(), RoundRobin(), RoundRobin()
"""Round-robin positions, so that announcements and notifications which fail repeatedly do not starve the others."""
T = TypeVar("T")
log = logging.getLogger("functions")


class AnnouncedBlockageCache:
    """Cache of the uids of maintenances whose last announcement reports a blockage that has not ended.

    With the cache, the step reads the announcement records only if necessary: an unblocked drain causes no request.
    """

    def __init__(self) -> None:
        self._uids: set[str] | None = None

    def may_contain(self, uid: str = "") -> bool:
        """Return whether the maintenance (any maintenance if `uid` is "") may have an announced, ongoing blockage."""
        return not uid if self._uids is None else (uid in self._uids if uid else bool(self._uids))

    def update(self, records: RecordLog, uid: str) -> None:
        """Update the cache from the announcement records of one maintenance, or of all maintenances if `uid` is ""."""
        found = {record.uid for record in records.list_open_announcements()}
        if not uid:
            self._uids = found
        elif self._uids is not None:  # If None, the next PingSource event reads the records of all maintenances.
            self._uids = self._uids - {uid} | found

    def clear(self) -> None:
        """Clear the cache, so that the next PingSource event reads the records of all maintenances."""
        self._uids = None


ANNOUNCED_BLOCKAGES = AnnouncedBlockageCache()


def _build_work_key(event: BaseCloudEvent) -> WorkKey:
    """Return the work queue key: passes that may announce or notify run one after another, to avoid duplicates."""
    if event.get_type() == events.TICK:
        return WorkKey("announcements", "all maintenances")
    uid = str(get_metadata(event).get("uid"))
    is_relevant = _may_need_announcement(require_data(event), Settings.from_environment(os.environ))
    # At most one such event waits in the queue, so that a slow receiver does not block all threads. The next PingSource
    # event handles the maintenances of the coalesced events.
    return WorkKey("announcements", "update") if is_relevant else WorkKey(f"maintenance {uid}")


@step(
    "notify-owners",
    consumes=(events.RESOURCE_UPDATED, events.TICK),
    emits=(),
    kind="NodeMaintenance",
    coalescing=HintPolicy(_build_work_key),
)
def notify_owners(event: BaseCloudEvent, client: SyncClient) -> list[BaseCloudEvent]:
    """Announce new and ended blockages of the event's maintenance, and send the due notifications.

    A PingSource event triggers the same for all maintenances. A replay sends no notification. Raises `Retry` if an
    announcement or a notification failed.
    """
    settings = Settings.from_environment(os.environ)
    if event.get_type() == events.TICK:
        if is_active_install(client):
            _run_pass(client.run(list_maintenances(client.api)), "", event, settings, client)
    elif _may_need_announcement(require_data(event), settings) and is_active_install(client):
        uid, name = get_metadata(event)["uid"], encode_path_segment(get_metadata(event)["name"])
        path = f"{get_group(require_data(event)).path}/{name}"
        current = client.run(get_or_none(client.api.get(path)))
        if current is not None and current["metadata"]["uid"] == uid:  # PingSource events handle deletions.
            _run_pass([current], uid, event, settings, client)
    return []


def _may_need_announcement(maintenance: Maintenance, settings: Settings) -> bool:
    """Return whether the NodeMaintenance in an event may need an announcement or a notification."""
    metadata = maintenance.get("metadata")
    if not isinstance(metadata, dict) or not all(isinstance(metadata.get(name), str) for name in ("name", "uid")):
        return False
    is_known_group = isinstance(maintenance.get("apiVersion"), str) and maintenance["apiVersion"] in GROUPS
    return is_known_group and (
        ANNOUNCED_BLOCKAGES.may_contain(metadata["uid"]) or _needs_announcement(maintenance, settings)
    )


def _needs_announcement(maintenance: Maintenance, settings: Settings) -> bool:
    """Return whether the drain has been blocked long enough to announce it, or has ended recently and must be notified.

    Returns False for a malformed NodeMaintenance.
    """
    now = datetime.now(timezone.utc)
    try:
        has_ended = bool(get_url(maintenance)) and is_recently_ended(maintenance, now)
        return has_ended or any(item.is_overdue(settings.min_blocked, now) for item in find_blockages(maintenance))
    except MALFORMED_OBJECT_ERRORS:
        return False


@dataclass
class NotificationPass:
    """One pass, which announces blockages and sends notifications.

    Attributes:
        records: The records of earlier announcements and notifications.
        errors: Errors of single announcements and notifications, after which the pass continued.
        has_more: Whether more than `MAX_NOTIFICATIONS` notifications were due.
    """

    api: Api
    settings: Settings
    now: datetime
    records: RecordLog
    errors: list[Exception]
    has_more: bool = False

    async def announce_blockages_and_ends(self, blockages: list[Blockage]) -> None:
        """Announce the new and the ended blockages, at most `MAX_ANNOUNCEMENTS` of each."""
        new = [
            item
            for item in blockages
            if item.is_overdue(self.settings.min_blocked, self.now) and self.records.may_announce(item, self.now)
        ]
        over = find_ended_blockages(self.records, blockages)
        chosen = BLOCKAGE_ROTATION.rotate(new, lambda item: f"{item.uid} {item.key}")[:MAX_ANNOUNCEMENTS]
        ended = RECORD_ROTATION.rotate(over, lambda item: " ".join(item.blockage_id))[:MAX_ANNOUNCEMENTS]
        await gather_all(
            *(self._try_action(self._announce_blockage, item) for item in chosen),
            *(self._try_action(self._announce_blockage_end, item) for item in ended),
        )

    async def _try_action(self, action: Callable[[T], Awaitable[None]], item: T) -> None:
        """Call `action` with `item`; log and store its error, so that the pass continues with other items."""
        try:
            await action(item)
        except (ApiError, SendError) as error:
            log.warning("cannot announce a blockage or send a notification: %s", _format_error(error))
            self.errors.append(error)

    async def _announce_blockage(self, blockage: Blockage) -> None:
        """Write the record of a blockage; if no other process has written it before, also write the Events."""
        objects = await find_announcement_objects(self.api, blockage.group)
        record, message = build_blocked_record(blockage, objects), describe_blockage(blockage, self.now)
        if await self._write_announcement_record(record, message):
            await self._create_owner_events(record, message)

    async def _announce_blockage_end(self, record: AnnouncementRecord) -> None:
        """Write the Events about the end of a blockage, and then its record; a retry does not duplicate the Events."""
        message = describe_blockage_end(record)
        await self._create_owner_events(record, message)
        await self._write_announcement_record(record, message)

    async def _create_owner_events(self, record: AnnouncementRecord, message: str) -> None:
        await gather_all(*(self._try_create_event(item) for item in build_owner_events(record, message, self.now)))

    async def _write_announcement_record(self, record: AnnouncementRecord, message: str) -> bool:
        """Write the record of an announcement or notification, and return whether it is new."""
        is_new = True
        try:
            await _create_event(self.api, build_record_event(record, message, self.now))
        except Conflict:
            is_new = False
        self.records.add(record)
        return is_new

    async def _try_create_event(self, event: Object) -> None:
        """Create an Event for a workload's owner unless it exists; an API error is only logged."""
        try:
            await _create_event(self.api, event)
        except Conflict:
            pass  # An earlier pass has written the Event, but not the record.
        except ApiError as error:
            log.warning("cannot record Event %s: %s", event["reason"], error.message)

    async def notify_all(self, maintenances: Iterable[Maintenance], blockages: list[Blockage]) -> None:
        """Send the due notifications, and record each notification that its receiver accepts."""
        due = [item for maintenance in maintenances for item in self._find_due_notifications(maintenance, blockages)]
        chosen = NOTIFICATION_ROTATION.rotate(due, lambda item: item.id)[:MAX_NOTIFICATIONS]
        self.has_more = len(due) > len(chosen)
        problems = [find_url_problem(get_url(item.maintenance), self.settings.origins) for item in chosen]
        refused = [(item, problem) for item, problem in zip(chosen, problems, strict=True) if problem]
        await EVENT_RECORDER.record(self.api, (_build_url_refusal_event(*item) for item in refused))
        permitted = [item for item, problem in zip(chosen, problems, strict=True) if not problem]
        if not permitted:
            return
        async with open_session() as session:
            await gather_all(*(self._try_action(partial(self._send_notification, session), item) for item in permitted))

    def _find_due_notifications(self, maintenance: Maintenance, blockages: list[Blockage]) -> list[Notification]:
        """Return the maintenance's due notifications; for a malformed object, log the error and return []."""
        if not get_url(maintenance):
            return []
        try:
            own = [item for item in blockages if item.uid == maintenance["metadata"]["uid"]]
            return find_notifications(maintenance, own, self.records, self.now)
        except MALFORMED_OBJECT_ERRORS as error:
            log.warning("cannot determine the notifications for a maintenance: %r", error)
            return []

    async def _send_notification(self, session: aiohttp.ClientSession, notification: Notification) -> None:
        """Send a notification, and record it immediately after the response, without waiting for other receivers."""
        await send(session, notification, self.settings)
        maintenance = notification.maintenance
        record = AnnouncementRecord(
            SENT_REASON, build_reference(maintenance), notification.data["node"], notification.id
        )
        await self._write_announcement_record(record, f"sent {notification.type} to the host of spec.notify.url")


def _run_pass(
    maintenances: list[Object], uid: str, event: BaseCloudEvent, settings: Settings, client: SyncClient
) -> None:
    """Announce the maintenances' blockages and send their notifications.

    `uid` is the uid of a single maintenance, or "" if `maintenances` contains all maintenances. Raises `Retry` after
    the pass if an announcement or a notification failed.
    """
    if not (ANNOUNCED_BLOCKAGES.may_contain(uid) or any(_needs_announcement(item, settings) for item in maintenances)):
        return
    current = NotificationPass(
        client.api,
        settings,
        datetime.now(timezone.utc),
        RecordLog(client.run(list_records(client.api, uid))),
        [],
    )
    blockages = [blockage for item in maintenances for blockage in _try_find_blockages(item)]
    client.run(current.announce_blockages_and_ends(blockages))
    if not extensions.is_replay(event):
        ANNOUNCED_BLOCKAGES.update(current.records, uid)
        client.run(current.notify_all(maintenances, blockages))
        if current.errors or current.has_more:
            ANNOUNCED_BLOCKAGES.clear()  # The next PingSource event reads the records again, and sends the rest.
    if current.errors:
        raise Retry(_format_error(current.errors[0]))


def _build_url_refusal_event(notification: Notification, problem: str) -> KubernetesEvent:
    """Build the Event which reports that the maintenance's `spec.notify.url` is not permitted."""
    return KubernetesEvent(build_reference(notification.maintenance), REFUSED_REASON, problem)


def _try_find_blockages(maintenance: Maintenance) -> list[Blockage]:
    """Return the blockages of the maintenance's drain; for a malformed object, log the error and return []."""
    try:
        return find_blockages(maintenance)
    except MALFORMED_OBJECT_ERRORS as error:
        log.warning("cannot determine the blockages of a drain: %r", error)
        return []


def _format_error(error: Exception) -> str:
    return error.message if isinstance(error, ApiError) else str(error)


async def _create_event(api: Api, event: Object) -> None:
    await api.create(build_events_path(event["metadata"]["namespace"]), event)
