"""Tests for notifications: permitted URLs, signatures, and which notifications are due."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from kube.maintenance.objects import FAILED, MAX_LEASE_ERRORS, RUNNING, SUCCEEDED
from kube.notifications.announcements import (
    SENT_REASON,
    AnnouncementRecord,
    RecordLog,
    build_blocked_record,
    build_reference,
    find_blockages,
    find_ended_blockages,
)
from kube.notifications.webhooks import (
    BLOCKED_TYPE,
    ENDED_TYPES,
    MAX_ENDED_AGE,
    MAX_LISTED_PODS,
    UNBLOCKED_TYPE,
    Notification,
    build_signed_headers,
    find_notifications,
    find_url_problem,
    get_url,
    parse_key,
    parse_permitted_origins,
)
from kube.paths import Object
from kube.times import format_time
from tests.kube.notifications.test_announcements import ENTRY, NOW, make_blocked_maintenance
from tests.kube.samples import make_maintenance

PERMITTED = parse_permitted_origins(
    "hooks.example.com, other.example:8443, http://receiver.chat.svc:8080, http://plain"
)


@pytest.mark.parametrize(
    ("url", "is_permitted"),
    [
        ("https://hooks.example.com", True),
        ("https://HOOKS.example.com:443/services/T0/B0?x=1", True),
        ("https://other.example:8443/", True),
        ("http://receiver.chat.svc:8080/drains", True),
        ("http://plain/a", True),
        ("http://hooks.example.com/", False),
        ("https://hooks.example.com:8443/", False),
        ("https://receiver.chat.svc:8080/", False),
        ("https://example.com/", False),
        ("https://hooks.example.com.evil.example/", False),
        ("https://hooks.example.com@evil.example/", False),
        ("https://user:password@hooks.example.com/", False),
        ("https://evil.example\\@hooks.example.com/", False),
        ("https://hooks.example.com/a b", False),
        ("https://hooks.example.com/\n", False),
        ("https://hooks.example.com/#fragment", False),
        ("ftp://hooks.example.com/", False),
        ("//hooks.example.com/", False),
        ("https://", False),
    ],
)
def test_only_permitted_notification_urls_are_used(url: str, is_permitted: bool) -> None:
    """Check that a URL is used only if its scheme, host and port are permitted and it is not ambiguous."""
    problem = find_url_problem(url, PERMITTED)

    assert (problem == "") is is_permitted
    if not is_permitted:
        assert problem.startswith("spec.notify.url")
        assert "remove the field" in problem


def test_no_notification_url_is_permitted_by_default() -> None:
    assert parse_permitted_origins("") == parse_permitted_origins(" , ") == frozenset()
    assert find_url_problem("https://hooks.example.com/secret", parse_permitted_origins("")) == (
        "spec.notify.url: https://hooks.example.com:443 is not permitted: add it to NOTIFY_HOSTS of notify-owners, "
        "or remove the field"
    )


@pytest.mark.parametrize("text", ["https://a", "a/b", "*.example.com", "a:b", "a b", "ftp://a", "a:123456"])
def test_error_names_malformed_permitted_host(text: str) -> None:
    with pytest.raises(ValueError, match="is not a host: write HOST, HOST:PORT, or http://HOST:PORT"):
        parse_permitted_origins(f"good.example,{text}")


def test_notification_signature_equals_published_example() -> None:
    """Check that the signature equals the example in the libraries of Standard Webhooks."""
    key = parse_key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    now = datetime.fromtimestamp(1614265330, timezone.utc)

    assert build_signed_headers(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}', now) == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


@pytest.mark.parametrize(
    "text", ["MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_", "whsec_AAAA", "whsec_!", f"whsec_{'A' * 88}"]
)
def test_error_about_invalid_key_does_not_quote_key(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"not a key: write whsec_ and the base64 form of 24 to 64 random bytes"
    ) as error:
        parse_key(text)
    assert text.removeprefix("whsec_") in ("", "!") or text not in str(error.value)


@pytest.mark.parametrize(
    ("notify", "url"),
    [({"url": "https://a"}, "https://a"), ({}, ""), (None, ""), ("https://a", ""), ({"url": None}, "")],
)
def test_notification_url_is_read_from_spec(notify: object, url: str) -> None:
    maintenance = make_maintenance()
    maintenance["spec"]["notify"] = notify

    assert get_url(maintenance) == url


def make_sent(notification: Notification) -> AnnouncementRecord:
    """Return the record that states that this notification was sent."""
    return AnnouncementRecord(SENT_REASON, build_reference(notification.maintenance), "node-1", notification.id)


def find(maintenance: Object, log: RecordLog, now: datetime = NOW) -> list[Notification]:
    return find_notifications(maintenance, find_blockages(maintenance), log, now)


def test_beginning_and_end_of_blockage_are_notified_once() -> None:
    """Check that the beginning and the end of a blockage are each notified once, with different ids."""
    blocked_maintenance = make_blocked_maintenance(*({**ENTRY, "name": f"web-{number}"} for number in range(30)))
    log = RecordLog()
    assert find(blocked_maintenance, log) == []

    log.add(build_blocked_record(find_blockages(blocked_maintenance)[0]))
    (blocked,) = find(blocked_maintenance, log)
    assert (blocked.type, blocked.data["budget"], blocked.data["podCount"]) == (BLOCKED_TYPE, "shop/web", 30)
    assert len(blocked.data["pods"]) == MAX_LISTED_PODS
    assert blocked.data["remedies"][1]["command"].startswith("kubectl -n shop patch pdb web ")
    assert blocked.data["maintenance"]["name"] == "nm"
    log.add(make_sent(blocked))
    assert find(blocked_maintenance, log) == []

    maintenance = make_maintenance({"phase": RUNNING})
    (over,) = find_ended_blockages(log, [])
    log.add(over)
    (unblocked,) = find(maintenance, log)
    assert (unblocked.type, unblocked.data["node"], unblocked.data["budget"]) == (UNBLOCKED_TYPE, "node-1", "shop/web")
    assert unblocked.id != blocked.id
    log.add(make_sent(unblocked))
    assert find(maintenance, log) == []


def test_end_of_blockage_is_not_notified_without_beginning() -> None:
    """Check that the end of a blockage is not notified if the receiver got no notification of its beginning."""
    log = RecordLog([build_blocked_record(find_blockages(make_blocked_maintenance())[0])])
    log.add(find_ended_blockages(log, [])[0])

    assert find(make_maintenance({"phase": RUNNING}), log) == []


@pytest.mark.parametrize("phase", [SUCCEEDED, FAILED])
def test_end_of_drain_is_notified_once_and_only_while_recent(phase: str) -> None:
    maintenance = make_ended_maintenance(phase)
    (ended,) = find(maintenance, RecordLog())

    assert (ended.type, ended.data["message"]) == (ENDED_TYPES[phase], "no pod is left to evict")
    assert find(maintenance, RecordLog([make_sent(ended)])) == []
    assert find(maintenance, RecordLog(), NOW + MAX_ENDED_AGE) == []
    deleted = {**maintenance, "metadata": {**maintenance["metadata"], "deletionTimestamp": format_time(NOW)}}
    assert find(deleted, RecordLog()) == []


def make_ended_maintenance(phase: str, **condition: Any) -> Object:
    drained = {
        "type": "Drained",
        "status": "True",
        "lastTransitionTime": format_time(NOW),
        "message": "no pod is left to evict",
        **condition,
    }
    return make_maintenance({"phase": phase, "lastUpdate": format_time(NOW), "conditions": [drained]})


def test_notification_of_second_end_of_drain_has_another_id() -> None:
    """Check that a drain that ends again, after a pod was added, causes a notification with another id."""
    later = format_time(NOW + timedelta(minutes=1))
    first, second = (
        find(make_ended_maintenance(SUCCEEDED, lastTransitionTime=time), RecordLog())[0].id
        for time in (format_time(NOW), later)
    )

    assert first != second


def test_notification_of_second_failure_has_another_id() -> None:
    """Check that the loss of the Lease after an earlier rejection causes a notification with another id."""
    rejected = make_ended_maintenance(FAILED, status="False")
    lease_lost = {**rejected, "status": {**rejected["status"], "errorOnLeaseCount": MAX_LEASE_ERRORS + 1}}
    (first,), (second,) = (find(maintenance, RecordLog()) for maintenance in (rejected, lease_lost))

    assert first.id != second.id
    assert find(lease_lost, RecordLog([make_sent(first)])) == [second]
