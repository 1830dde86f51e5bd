"""The product's requests in the API server's audit log."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from bench.api_requests import AuditLog, Request, counted, requests
from kube.client.api_errors import ApiError
from localcluster.access import service_account
from localcluster.cluster import LocalCluster

EVICT = "system:serviceaccount:node-maintenance:evict"


def line(verb: str = "list", user: str = EVICT, stage: str = "ResponseComplete", **about: str) -> bytes:
    """Return an audit log line of the API server."""
    entry: dict[str, Any] = {
        "stage": stage,
        "verb": verb,
        "user": {"username": user},
        "requestURI": "/apis/apps/v1?limit=1",
        "requestReceivedTimestamp": "2026-11-22T09:00:01.500000Z",
    }
    return json.dumps(entry | ({"objectRef": about} if about else {})).encode()


def test_a_request_is_told_by_moment_account_verb_resource_and_object() -> None:
    found = list(requests([line("create", resource="pods", subresource="eviction", namespace="shop", name="web-1")]))

    assert found == [Request(1795338001.5, "evict", "create", "pods/eviction", "shop", "web-1")]
    assert found[0].what == "create pods/eviction"


def test_what_is_about_no_object_is_told_by_its_path() -> None:
    assert [request.resource for request in requests([line("get")])] == ["/apis/apps/v1"]


def test_what_was_not_there_is_told() -> None:
    answered = {code: json.loads(line("get")) | {"responseStatus": {"code": code}} for code in (200, 404)}

    found = requests(json.dumps(entry).encode() for entry in answered.values())

    assert [each.is_missing for each in found] == [False, True]


def test_others_and_half_lines_do_not_count() -> None:
    """Check that requests of other users and incomplete lines are ignored.

    Another user's request may contain the name of a product's account.
    """
    strangers = line(user="admin", resource="serviceaccounts", name=EVICT)

    assert list(requests([line(resource="pods")[5:], strangers, line(resource="pods")])) == [
        Request(1795338001.5, "evict", "list", "pods")
    ]


def test_a_watch_counts_once_when_it_begins() -> None:
    """Check that a watch counts once, at its start; its end is logged minutes later."""
    lines = [line("watch", stage=stage, resource="pods") for stage in ("ResponseStarted", "ResponseComplete")]

    assert [request.verb for request in requests(lines)] == ["watch"]


def test_requests_are_counted_by_verb_and_resource_and_watches_are_left_out() -> None:
    found = requests([line(resource="pods"), line(resource="pods"), line("get", resource="nodes")])
    begun = requests([line("watch", stage="ResponseStarted", resource="pods")])

    assert counted([*found, *begun]) == {"list pods": 2, "get nodes": 1}


def test_each_reading_goes_on_where_the_one_before_ended(tmp_path: Path) -> None:
    """Check that each read continues after the previous one, and leaves an incomplete line to the next one."""
    file = tmp_path / "audit.log"
    file.write_bytes(line(resource="secrets") + b"\n")
    log = AuditLog(file)
    whole = line(resource="pods") + b"\n"
    with file.open("ab") as writer:
        writer.write(whole + whole[:20])
    assert [request.resource for request in log.read()] == ["pods"]
    with file.open("ab") as writer:
        writer.write(whole[20:])

    assert [request.resource for request in log.read()] == ["pods"]
    assert log.read() == []


def test_the_api_server_logs_our_reads(quiet: LocalCluster) -> None:
    """Check that the product's requests are logged, including rejected ones, and the administrator's are ignored."""
    log = AuditLog(quiet.audit_log)

    with pytest.raises(ApiError):
        quiet.door(service_account("cordon")).get("/api/v1/namespaces/default/secrets/any")
    quiet.door().list("/api/v1/nodes")

    (found,) = log.read()
    assert (found.account, found.what, found.namespace, found.name) == ("cordon", "get secrets", "default", "any")
    assert abs(found.at - time.time()) < 60
