"""Notifications to `spec.notify.url`: checks the URL, and builds the content and the signature. Pure functions.

The three signature headers are those of Standard Webhooks (https://www.standardwebhooks.com).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from kube.maintenance.objects import (
    FAILED,
    SUCCEEDED,
    Maintenance,
    get_condition,
    get_last_error,
    get_node_name,
    get_phase,
    get_spec,
    get_status,
    has_lost_lease,
    is_deleting,
)
from kube.notifications.announcements import (
    BLOCKED_REASON,
    UNBLOCKED_REASON,
    AnnouncementRecord,
    Blockage,
    RecordLog,
    build_reference,
    describe_blockage,
    describe_blockage_end,
)
from kube.paths import Object
from kube.times import parse_time_or_none

TYPE_PREFIX = "dev.nodemaintenance.drain."
BLOCKED_TYPE, UNBLOCKED_TYPE = f"{TYPE_PREFIX}blocked", f"{TYPE_PREFIX}unblocked"
ENDED_TYPES = {SUCCEEDED: f"{TYPE_PREFIX}succeeded", FAILED: f"{TYPE_PREFIX}failed"}
"""Types of the CloudEvents that are sent to the URL; no broker delivers them."""
MAX_ENDED_AGE = timedelta(minutes=30)
"""Maximum age at which the end of a drain is still sent.

The record that it was sent is a Kubernetes Event, which the API server deletes after an hour by default.
"""
MAX_LISTED_PODS = 20
"""Maximum number of pods that a notification lists."""
URL_PATTERN = re.compile(
    r"(?P<scheme>https?)://(?P<host>[A-Za-z0-9.-]{1,253})(?::(?P<port>[0-9]{1,5}))?"
    r"(?:[/?][-A-Za-z0-9._~!$&()*+,;=:@%/?]*)?"
)
"""Matches permitted URLs: without credentials, and without characters that HTTP libraries interpret differently."""
HOST_PATTERN = re.compile(r"(?:(?P<scheme>http)://)?(?P<host>[A-Za-z0-9.-]{1,253})(?::(?P<port>[0-9]{1,5}))?")
DEFAULT_PORTS = {"https": 443, "http": 80}
KEY_PREFIX = "whsec_"
MIN_KEY_BYTES, MAX_KEY_BYTES = 24, 64
"""Minimum and maximum length of the key according to Standard Webhooks."""


class Origin(NamedTuple):
    """Scheme, host and port of a URL."""

    scheme: str
    host: str
    port: int


class Notification(NamedTuple):
    """A notification to the URL of a maintenance.

    Attributes:
        id: Identifier that is the same whenever the same fact is sent, so that receivers can drop duplicates.
    """

    id: str
    type: str
    maintenance: Maintenance
    data: Object


def parse_permitted_origins(text: str) -> frozenset[Origin]:
    """Parse a comma-separated list of permitted origins: `HOST`, `HOST:PORT` or `http://HOST:PORT`.

    Raises `ValueError` if an origin is malformed.
    """
    origins = set()
    for entry in filter(None, (item.strip() for item in text.split(","))):
        match = HOST_PATTERN.fullmatch(entry)
        if match is None:
            raise ValueError(f"{entry!r} is not a host: write HOST, HOST:PORT, or http://HOST:PORT without TLS")
        origins.add(_build_origin(match, match["scheme"] or "https"))
    return frozenset(origins)


def _build_origin(match: re.Match[str], scheme: str) -> Origin:
    return Origin(scheme, match["host"].lower(), int(match["port"] or DEFAULT_PORTS[scheme]))


def get_url(maintenance: Maintenance) -> str:
    """Return `spec.notify.url`, "" if it is unset."""
    notify = get_spec(maintenance).get("notify")
    return str(notify.get("url") or "") if isinstance(notify, dict) else ""


def find_url_problem(url: str, permitted: Collection[Origin]) -> str:
    """Return why notifications to the URL are not permitted, with the remedy; "" if they are permitted."""
    match = URL_PATTERN.fullmatch(url)
    if match is None:
        return "spec.notify.url is not an http(s) address without credentials: correct or remove the field"
    origin = _build_origin(match, match["scheme"])
    if origin in permitted:
        return ""
    name = f"{origin.scheme}://{origin.host}:{origin.port}"
    return f"spec.notify.url: {name} is not permitted: add it to NOTIFY_HOSTS of notify-owners, or remove the field"


def parse_key(text: str) -> bytes:
    """Parse a signature key in the form `whsec_BASE64`. Raises `ValueError`, which does not quote the key."""
    try:
        key = base64.b64decode(text.removeprefix(KEY_PREFIX), validate=True)
    except binascii.Error:
        key = b""
    if not (text.startswith(KEY_PREFIX) and MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES):
        raise ValueError(
            f"not a key: write {KEY_PREFIX} and the base64 form of {MIN_KEY_BYTES} to {MAX_KEY_BYTES} random bytes"
        )
    return key


def build_signed_headers(key: bytes, notification_id: str, body: bytes, now: datetime) -> dict[str, str]:
    """Return the headers with the notification's id, the time, and the signature of both and of the body."""
    timestamp = str(int(now.timestamp()))
    content = b".".join((notification_id.encode(), timestamp.encode(), body))
    signature = base64.b64encode(hmac.digest(key, content, "sha256")).decode()
    return {"webhook-id": notification_id, "webhook-timestamp": timestamp, "webhook-signature": f"v1,{signature}"}


def is_recently_ended(maintenance: Maintenance, now: datetime) -> bool:
    """Return whether the drain succeeded or failed less than `MAX_ENDED_AGE` ago."""
    updated = parse_time_or_none(get_status(maintenance).get("lastUpdate"))
    is_ended = get_phase(maintenance) in ENDED_TYPES and not is_deleting(maintenance)
    return is_ended and updated is not None and now - updated < MAX_ENDED_AGE


def find_notifications(
    maintenance: Maintenance, blockages: Iterable[Blockage], log: RecordLog, now: datetime
) -> list[Notification]:
    """Return the notifications that must still be sent about a maintenance with a URL.

    An announced blockage is sent while it lasts; its end is sent only if the blockage itself was sent.
    """
    uid = maintenance["metadata"]["uid"]
    current = {item.key: item for item in blockages}
    found = []
    for record in log.list_open_announcements():
        if record.uid == uid and record.key in current:
            found.append(_build_blocked_notification(current[record.key], record, now))
    for record in log.select(UNBLOCKED_REASON, uid):
        if log.is_notification_sent(_build_notification_id(uid, BLOCKED_REASON, record.key, record.since)):
            found.append(_build_unblocked_notification(maintenance, record))
    if is_recently_ended(maintenance, now):
        found.append(_build_drain_end_notification(maintenance))
    return [item for item in found if not log.is_notification_sent(item.id)]


def _build_notification_id(*parts: str) -> str:
    return f"msg_{hashlib.sha256('|'.join(parts).encode(errors='backslashreplace')).hexdigest()[:32]}"


def _build_blocked_notification(blockage: Blockage, record: AnnouncementRecord, now: datetime) -> Notification:
    group = blockage.group
    data = {
        "reason": group.reason,
        "budget": group.budget_key,
        "since": record.since,
        "podCount": len(group.pods),
        "pods": list(group.pods[:MAX_LISTED_PODS]),
        "message": describe_blockage(blockage, now),
        "remedies": [remedy._asdict() for remedy in group.advice],
    }
    return _build_notification(
        _build_notification_id(record.uid, BLOCKED_REASON, record.key, record.since),
        BLOCKED_TYPE,
        blockage.maintenance,
        data,
    )


def _build_unblocked_notification(maintenance: Maintenance, record: AnnouncementRecord) -> Notification:
    reason, _, budget = record.key.partition(" ")
    data = {"reason": reason, "budget": budget, "since": record.since, "message": describe_blockage_end(record)}
    notification_id = _build_notification_id(record.uid, UNBLOCKED_REASON, record.key, record.since)
    return _build_notification(notification_id, UNBLOCKED_TYPE, maintenance, data)


def _build_drain_end_notification(maintenance: Maintenance) -> Notification:
    phase, condition = get_phase(maintenance), get_condition(maintenance, "Drained")
    since = str(condition.get("lastTransitionTime") or "")
    message = get_last_error(maintenance) or str(condition.get("message") or "")
    data = {"since": since, "message": message}
    # A rejected maintenance that starts later and then loses its Lease fails twice, with one transition of Drained.
    failure = ("Lease",) if has_lost_lease(maintenance) else ()
    notification_id = _build_notification_id(maintenance["metadata"]["uid"], phase, since, *failure)
    return _build_notification(notification_id, ENDED_TYPES[phase], maintenance, data)


def _build_notification(notification_id: str, event_type: str, maintenance: Maintenance, data: Object) -> Notification:
    subject = {"maintenance": dict(build_reference(maintenance)), "node": get_node_name(maintenance)}
    return Notification(notification_id, event_type, maintenance, {**subject, **data})
