"""The product's requests in the API server's audit log."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from bench.api_requests import AuditLog, Request, count_requests, parse_requests
from kube.client.api_errors import ApiError
from localcluster.access import make_username
from localcluster.cluster import LocalCluster

EVICT_USER = "system:serviceaccount:node-maintenance:evict"


def build_line(verb: str = "list", user: str = EVICT_USER, stage: str = "ResponseComplete", **object_ref: str) -> bytes:
    """Return an audit log line of the API server."""
    entry: dict[str, Any] = {
        "stage": stage,
        "verb": verb,
        "user": {"username": user},
        "requestURI": "/apis/apps/v1?limit=1",
        "requestReceivedTimestamp": "2026-11-22T09:00:01.500000Z",
    }
    return json.dumps(entry | ({"objectRef": object_ref} if object_ref else {})).encode()


def test_request_has_time_account_verb_resource_and_object() -> None:
    requests = list(
        parse_requests([build_line("create", resource="pods", subresource="eviction", namespace="shop", name="web-1")])
    )

    assert requests == [Request(1795338001.5, "evict", "create", "pods/eviction", "shop", "web-1")]
    assert requests[0].operation == "create pods/eviction"


def test_request_without_object_has_its_path() -> None:
    assert [request.resource for request in parse_requests([build_line("get")])] == ["/apis/apps/v1"]


def test_not_found_is_recognized() -> None:
    lines_by_code = {code: json.loads(build_line("get")) | {"responseStatus": {"code": code}} for code in (200, 404)}

    requests = parse_requests(json.dumps(entry).encode() for entry in lines_by_code.values())

    assert [request.is_not_found for request in requests] == [False, True]


def test_other_users_and_incomplete_lines_are_ignored() -> None:
    """Check that requests of other users and incomplete lines are ignored.

    Another user's request may contain the name of a product's account.
    """
    foreign_line = build_line(user="admin", resource="serviceaccounts", name=EVICT_USER)

    assert list(parse_requests([build_line(resource="pods")[5:], foreign_line, build_line(resource="pods")])) == [
        Request(1795338001.5, "evict", "list", "pods")
    ]


def test_watch_counts_once_at_its_start() -> None:
    """Check that a watch counts once, at its start; its end is logged minutes later."""
    lines = [
        build_line("watch", stage=audit_stage, resource="pods")
        for audit_stage in ("ResponseStarted", "ResponseComplete")
    ]

    assert [request.verb for request in parse_requests(lines)] == ["watch"]


def test_requests_are_counted_without_watches() -> None:
    requests = parse_requests(
        [build_line(resource="pods"), build_line(resource="pods"), build_line("get", resource="nodes")]
    )
    open_watches = parse_requests([build_line("watch", stage="ResponseStarted", resource="pods")])

    assert count_requests([*requests, *open_watches]) == {"list pods": 2, "get nodes": 1}


def test_each_read_continues_after_the_previous_one(tmp_path: Path) -> None:
    """Check that each read continues after the previous one, and leaves an incomplete line to the next one."""
    file = tmp_path / "audit.log"
    file.write_bytes(build_line(resource="secrets") + b"\n")
    log = AuditLog(file)
    line = build_line(resource="pods") + b"\n"
    with file.open("ab") as writer:
        writer.write(line + line[:20])
    assert [request.resource for request in log.read()] == ["pods"]
    with file.open("ab") as writer:
        writer.write(line[20:])

    assert [request.resource for request in log.read()] == ["pods"]
    assert log.read() == []


def test_audit_log_contains_reads_of_product(idle_cluster: LocalCluster) -> None:
    """Check that the product's requests are logged, including rejected ones, and the administrator's are ignored."""
    log = AuditLog(idle_cluster.audit_log)

    with pytest.raises(ApiError):
        idle_cluster.get_client(make_username("cordon")).get("/api/v1/namespaces/default/secrets/any")
    idle_cluster.get_client().list("/api/v1/nodes")

    (request,) = log.read()
    assert (request.account, request.operation, request.namespace, request.name) == (
        "cordon",
        "get secrets",
        "default",
        "any",
    )
    assert abs(request.received_at - time.time()) < 60
