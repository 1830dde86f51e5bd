"""Tests that requests are parsed from an audit log, even if a crash of the API server has truncated a line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from chaos.audit_requests import DeletionRequest, EvictionRequest, parse_requests
from localcluster.access import make_username

OWN_USER = make_username("functions")


def build_audit_line(user: str = OWN_USER, code: int = 201, uri: str = "", subresource: str = "eviction") -> str:
    entry: dict[str, Any] = {
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "requestURI": uri or "/api/v1/namespaces/a/pods/p/eviction",
        "verb": "create",
        "user": {"username": user},
        "objectRef": {"resource": "pods", "namespace": "a", "name": "p", "subresource": subresource},
        "responseStatus": {"code": code},
        "requestObject": {"deleteOptions": {"preconditions": {"uid": "u"}}},
        "requestReceivedTimestamp": "2023-11-14T22:13:20.500000Z",
    }
    return json.dumps(entry, separators=(",", ":")) + "\n"


GRANTED_EVICTION, REJECTED_EVICTION = (
    EvictionRequest(1_700_000_000.5, "a/p", "u", is_granted) for is_granted in (True, False)
)


@pytest.mark.parametrize(
    ("audit_log", "expected"),
    [
        (build_audit_line(), [GRANTED_EVICTION]),
        (build_audit_line(code=429), [REJECTED_EVICTION]),
        (build_audit_line()[:150] + build_audit_line(), [GRANTED_EVICTION]),
        (build_audit_line() + build_audit_line(code=429), [GRANTED_EVICTION, REJECTED_EVICTION]),
        (build_audit_line(code=404), []),
        (build_audit_line(code=500), []),
        (build_audit_line(user="admin"), []),
        (build_audit_line(uri="/api/v1/namespaces/a/pods/p/eviction?dryRun=All"), []),
        (build_audit_line(subresource="status"), []),
        ("", []),
    ],
)
def test_evictions_by_product_are_parsed(audit_log: str, expected: list[EvictionRequest]) -> None:
    assert list(parse_requests(audit_log)) == expected


def build_deletion_line(resource: str = "pods", code: int = 200, **options: Any) -> str:
    entry = json.loads(build_audit_line(code=code))
    entry |= {"verb": "delete", "requestObject": {"preconditions": {"uid": "u", "resourceVersion": "7"}, **options}}
    entry["objectRef"] = {"resource": resource, "namespace": "a", "name": "p"}
    return json.dumps(entry, separators=(",", ":")) + "\n"


@pytest.mark.parametrize(
    ("audit_log", "expected"),
    [
        (build_deletion_line(), [DeletionRequest(1_700_000_000.5, "a/p", "u", 7)]),
        (build_deletion_line(preconditions={}), [DeletionRequest(1_700_000_000.5, "a/p", "", 0)]),
        (build_deletion_line(code=409), []),
        (build_deletion_line(dryRun=["All"]), []),
        (build_deletion_line("leases"), []),
    ],
)
def test_granted_deletions_of_pods_by_product_are_parsed(audit_log: str, expected: list[DeletionRequest]) -> None:
    assert list(parse_requests(audit_log)) == expected
