"""Tests for reading the product's requests from the API server's audit log."""

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


def build_audit_line(
    verb: str = "list", user: str = EVICT_USER, stage: str = "ResponseComplete", **object_ref: str
) -> bytes:
    """Return an audit log line of the API server."""
    audit_event: dict[str, Any] = {
        "stage": stage,
        "verb": verb,
        "user": {"username": user},
        "requestURI": "/apis/apps/v1?limit=1",
        "requestReceivedTimestamp": "2026-11-22T09:00:01.500000Z",
    }
    return json.dumps(audit_event | ({"objectRef": object_ref} if object_ref else {})).encode()


def test_parsed_request_has_time_service_account_verb_resource_and_object() -> None:
    requests = list(
        parse_requests(
            [build_audit_line("create", resource="pods", subresource="eviction", namespace="shop", name="web-1")]
        )
    )

    assert requests == [Request(1795338001.5, "evict", "create", "pods/eviction", "shop", "web-1")]
    assert requests[0].operation == "create pods/eviction"


def test_request_without_object_ref_has_path_as_resource() -> None:
    assert [request.resource for request in parse_requests([build_audit_line("get")])] == ["/apis/apps/v1"]


def test_response_404_is_reported_as_not_found() -> None:
    lines_by_code = {
        code: json.loads(build_audit_line("get")) | {"responseStatus": {"code": code}} for code in (200, 404)
    }

    requests = parse_requests(json.dumps(audit_event).encode() for audit_event in lines_by_code.values())

    assert [request.is_not_found for request in requests] == [False, True]


def test_requests_of_other_users_and_incomplete_lines_are_ignored() -> None:
    """Check that requests of other users and incomplete lines are ignored.

    Another user's request may contain the name of one of the product's ServiceAccounts.
    """
    foreign_line = build_audit_line(user="admin", resource="serviceaccounts", name=EVICT_USER)

    assert list(
        parse_requests([build_audit_line(resource="pods")[5:], foreign_line, build_audit_line(resource="pods")])
    ) == [Request(1795338001.5, "evict", "list", "pods")]


def test_watch_is_counted_once_when_it_starts() -> None:
    """Check that a watch is counted once, when it starts; the API server logs its end minutes later."""
    lines = [
        build_audit_line("watch", stage=audit_stage, resource="pods")
        for audit_stage in ("ResponseStarted", "ResponseComplete")
    ]

    assert [request.verb for request in parse_requests(lines)] == ["watch"]


def test_request_counts_exclude_watches() -> None:
    requests = parse_requests(
        [
            build_audit_line(resource="pods"),
            build_audit_line(resource="pods"),
            build_audit_line("get", resource="nodes"),
        ]
    )
    open_watches = parse_requests([build_audit_line("watch", stage="ResponseStarted", resource="pods")])

    assert count_requests([*requests, *open_watches]) == {"list pods": 2, "get nodes": 1}


def test_each_read_of_audit_log_continues_after_previous_read(tmp_path: Path) -> None:
    """Check that each read of the log continues after the previous read, and leaves an incomplete line unread."""
    file = tmp_path / "audit.log"
    file.write_bytes(build_audit_line(resource="secrets") + b"\n")
    log = AuditLog(file)
    line = build_audit_line(resource="pods") + b"\n"
    with file.open("ab") as writer:
        writer.write(line + line[:20])
    assert [request.resource for request in log.read()] == ["pods"]
    with file.open("ab") as writer:
        writer.write(line[20:])

    assert [request.resource for request in log.read()] == ["pods"]
    assert log.read() == []


@pytest.mark.slow
def test_audit_log_yields_only_requests_of_product(idle_cluster: LocalCluster) -> None:
    """Check that the log yields the product's requests, including rejected ones, but no administrator's requests."""
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
