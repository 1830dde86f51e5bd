"""Evictions are parsed from an audit log, even if the API server was killed while it wrote a line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from chaos.observations import Eviction, evictions
from localcluster.access import service_account

OURS = service_account("functions")


def line(user: str = OURS, code: int = 201, uri: str = "", subresource: str = "eviction") -> str:
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


GRANTED, REFUSED = (Eviction(1_700_000_000.5, "a/p", "u", granted) for granted in (True, False))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (line(), [GRANTED]),
        (line(code=429), [REFUSED]),
        (line()[:150] + line(), [GRANTED]),
        (line() + line(code=429), [GRANTED, REFUSED]),
        (line(code=404), []),
        (line(code=500), []),
        (line(user="admin"), []),
        (line(uri="/api/v1/namespaces/a/pods/p/eviction?dryRun=All"), []),
        (line(subresource="status"), []),
        ("", []),
    ],
)
def test_evictions_of_ours_are_found(text: str, found: list[Eviction]) -> None:
    assert list(evictions(text)) == found
