"""Generates invalid and unusual CloudEvent requests; the same seed gives the same requests."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any
from urllib.parse import quote

from eventing import events
from eventing.events import KNOWN_TYPES
from kube.maintenance.groups import GROUPS

ATTRIBUTES = (
    *("specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema"),
    *("node", "maintenance", "partitionkey", "cause", "traceparent", "tracestate", "progress", "more", "signature"),
    *("kind", "apiversion", "name", "namespace", "replay", "dryrun", "journaltime"),
    *("knativeerrordest", "knativeerrorcode", "knativeerrordata", "x", "Not-A-Name", "a" * 30),
)
TEXTS = (
    *("", " ", "true", "All", "1.0", "0.3", "0", "-1", "1e999", "9" * 40, "node-1", "*", "a,b=c", "!=", "null"),
    *("a\nb", "a\r\nx: y", "\x00", "\x1b[2J", "\x7f", "\x9f", "\ud800", "\uffff", "ä€😀", "\u202e", "[/]", "<script>"),
    *(
        "../../x",
        "%2e%2e/%00",
        "%",
        "%zz",
        "%0a",
        "a/b?c#d",
        "http://[::1",
        "file:///etc/passwd",
        "x" * 300,
        "x" * 9000,
    ),
    *("00-a\nb", f"00-{'a' * 32}-{'b' * 16}-01-\r", f"00-{'a' * 32}-{'b' * 16}-01", "Node", "NodeMaintenance", "Pod"),
    *("2026-01-01T00:00:00Z", "yesterday", "0000-00-00", "9999-12-31T23:59:59-23:59", "2026-13-45T99:99:99Z"),
    *("application/json", "text/plain", "application/cloudevents+json", "application/cloudevents-batch+json", "//"),
)
INVALID_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1e308, 10**30, 0.1, [], {}, [[]], [None], [{}], {"": ""}, [[[[]]]]),
    *({"namespace": 1, "name": [], "uid": {}}, {"metadata": None}, {"spec": []}, {"status": "x"}, [1, "x", None]),
)
BODIES = (
    *(b"", b"{", b"[", b"null", b"7", b'"x"', b"[1]", b"\xff\xfe", b"\x00" * 40, b"[" * 20000, b'{"a":' * 20000),
    *(b'{"a": NaN}', b'{"a": 1e99999}', b'{"a": ' + b"9" * 5000 + b"}", b'{"a":1,"a":2}', b"\xef\xbb\xbf{}"),
    b'{"a": "\\ud800"}',
)
POD_REFERENCE = {"namespace": "default", "name": "web", "uid": "1"}
BLOCKED_POD = {
    **POD_REFERENCE,
    "reason": "DisruptionBudget",
    "budget": "web",
    "healthy": 1,
    "needed": 1,
    "message": "no",
    "since": "x",
}


@dataclass(frozen=True)
class Request:
    """An HTTP request to a function or the broker."""

    headers: Mapping[str, str]
    body: bytes


class InvalidEventGenerator:
    """Generates invalid requests, half of which have the attributes of an event about a NodeMaintenance.

    This NodeMaintenance need not exist.
    """

    def __init__(self, random: Random, maintenance: events.ObjectReference, node: str) -> None:
        self._random = random
        self._maintenance, self._node = maintenance, node

    def build_request(self, event_types: Sequence[str] = KNOWN_TYPES) -> Request:
        """Return a random request; its event type is one of `event_types`, unless a random value replaces the type."""
        attributes, random = self._build_attributes(event_types), self._random
        body = random.choice(BODIES) if random.random() < 0.1 else json.dumps(self._build_data()).encode()
        if random.random() < 0.3:
            return self._build_structured_request(attributes)
        headers = {f"ce-{name}": quote(value.encode(errors="surrogatepass")) for name, value in attributes.items()}
        content_type = headers.pop("ce-datacontenttype", "application/json")
        return Request({**headers, "content-type": content_type}, body)

    def _build_structured_request(self, attributes: Mapping[str, Any]) -> Request:
        event = {**attributes, "data": self._build_data()}
        if self._random.random() < 0.3:
            event[self._random.choice(ATTRIBUTES)] = self._random.choice(INVALID_VALUES)
        return Request({"content-type": "application/cloudevents+json"}, json.dumps(event).encode())

    def _build_attributes(self, event_types: Sequence[str]) -> dict[str, str]:
        """Return a valid event's attributes after random replacements, additions and removals."""
        random = self._random
        attributes = {
            **{"specversion": "1.0", "id": f"hostile-{random.random()}", "source": "/hostile"},
            **{"type": random.choice(event_types), "datacontenttype": "application/json"},
        }
        for flag in ("progress", "more"):
            if random.random() < 0.3:
                attributes[flag] = "true"
        if random.random() < 0.5:
            attributes |= {"node": self._node, "maintenance": self._maintenance.uid, "partitionkey": self._node}
        for _ in range(random.choice((0, 0, 0, 0, 1, 1, 2, 5))):
            attributes[random.choice(ATTRIBUTES)] = self._choose_text()
        if random.random() < 0.05:
            del attributes[random.choice(list(attributes))]
        return attributes

    def _choose_text(self) -> str:
        random = self._random
        if random.random() < 0.8:
            return random.choice(TEXTS)
        return "".join(chr(random.choice((random.randrange(256), random.randrange(0x11000)))) for _ in range(8))

    def _build_data(self) -> Any:
        """Return a valid event's data after up to four random replacements or removals."""
        data: Any = copy.deepcopy(self._random.choice(self._build_valid_data()))
        for _ in range(self._random.choice((0, 1, 1, 1, 2, 4))):
            data = self._corrupt_value(data)
        return data

    def _corrupt_value(self, value: Any) -> Any:
        """Return a copy of the value with one part replaced or removed."""
        random = self._random
        if isinstance(value, dict) and value and random.random() < 0.85:
            name = random.choice(list(value))
            if random.random() < 0.15:
                return {key: entry for key, entry in value.items() if key != name}
            return {**value, name: self._corrupt_value(value[name])}
        if isinstance(value, list) and value and random.random() < 0.7:
            index = random.randrange(len(value))
            return [*value[:index], self._corrupt_value(value[index]), *value[index + 1 :]]
        return self._choose_text() if random.random() < 0.5 else copy.deepcopy(random.choice(INVALID_VALUES))

    def _build_valid_data(self) -> list[Any]:
        reference_fields = {"maintenance": self._maintenance.as_data(), "node": self._node}
        metadata = {"name": self._maintenance.name, "uid": self._maintenance.uid, "resourceVersion": "1"}
        taints = [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]
        labels = {"nodemaintenance.dev/maintenance": self._maintenance.uid}
        conditions = [{"type": "Cordoned", "status": "True", "reason": "Cordoned", "message": ""}]
        attempt = {"source": "/s", "event": "1", "function": "cordon", "at": "2026-01-01T00:00:00Z", "seconds": 0.1}
        return [
            reference_fields,
            {**reference_fields, "totalpods": 1, "evictionPods": 1},
            {
                **reference_fields,
                "evicted": [POD_REFERENCE],
                "blocked": [BLOCKED_POD],
                "error": "x",
                "podsVersion": "1",
            },
            {**reference_fields, "podsVersion": "1", "budgetsVersion": "1", "budget": "default/web", "again": True},
            {**reference_fields, "step": "restore", "error": "x", "message": "x"},
            {
                **{"apiVersion": self._maintenance.api_version, "kind": "NodeMaintenance", "metadata": metadata},
                **{"spec": {"nodeName": self._node, "reason": "x"}, "status": {"conditions": conditions}},
            },
            {
                **{"apiVersion": "v1", "kind": "Node", "metadata": {**metadata, "name": self._node, "labels": labels}},
                **{"spec": {"unschedulable": True, "taints": taints}, "status": {"conditions": conditions}},
            },
            {"attempts": [{**attempt, "status": 200, "replies": [{"id": "1"}], "error": "", "replay": ""}]},
            {},
        ]


UNKNOWN_MAINTENANCE = events.ObjectReference(next(iter(GROUPS)), "nobody", "no-uid")
"""A reference to a NodeMaintenance that does not exist."""
