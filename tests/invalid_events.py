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
from eventing.event_types import KNOWN
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
JUNK: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1e308, 10**30, 0.1, [], {}, [[]], [None], [{}], {"": ""}, [[[[]]]]),
    *({"namespace": 1, "name": [], "uid": {}}, {"metadata": None}, {"spec": []}, {"status": "x"}, [1, "x", None]),
)
BODIES = (
    *(b"", b"{", b"[", b"null", b"7", b'"x"', b"[1]", b"\xff\xfe", b"\x00" * 40, b"[" * 20000, b'{"a":' * 20000),
    *(b'{"a": NaN}', b'{"a": 1e99999}', b'{"a": ' + b"9" * 5000 + b"}", b'{"a":1,"a":2}', b"\xef\xbb\xbf{}"),
    b'{"a": "\\ud800"}',
)
POD = {"namespace": "default", "name": "web", "uid": "1"}
BLOCKED = {
    **POD,
    "reason": "DisruptionBudget",
    "budget": "web",
    "healthy": 1,
    "needed": 1,
    "message": "no",
    "since": "x",
}


@dataclass(frozen=True)
class Request:
    """One HTTP request to a function or the broker."""

    headers: Mapping[str, str]
    body: bytes


class Hostile:
    """A generator of requests about one NodeMaintenance, which may exist or not; half of them carry its attributes."""

    def __init__(self, chance: Random, maintenance: events.Reference, node: str) -> None:
        self._chance = chance
        self._maintenance, self._node = maintenance, node

    def request(self, kinds: Sequence[str] = KNOWN) -> Request:
        """Return the next request; its event type is one of `kinds` unless it was replaced."""
        attributes, chance = self._attributes(kinds), self._chance
        body = chance.choice(BODIES) if chance.random() < 0.1 else json.dumps(self._data()).encode()
        if chance.random() < 0.3:
            return self._structured(attributes)
        headers = {f"ce-{name}": quote(value.encode(errors="surrogatepass")) for name, value in attributes.items()}
        kind = headers.pop("ce-datacontenttype", "application/json")
        return Request({**headers, "content-type": kind}, body)

    def _structured(self, attributes: Mapping[str, Any]) -> Request:
        whole = {**attributes, "data": self._data()}
        if self._chance.random() < 0.3:
            whole[self._chance.choice(ATTRIBUTES)] = self._chance.choice(JUNK)
        return Request({"content-type": "application/cloudevents+json"}, json.dumps(whole).encode())

    def _attributes(self, kinds: Sequence[str]) -> dict[str, str]:
        """Return the attributes of a valid event, with some of them replaced, added or removed."""
        chance = self._chance
        found = {
            **{"specversion": "1.0", "id": f"hostile-{chance.random()}", "source": "/hostile"},
            **{"type": chance.choice(kinds), "datacontenttype": "application/json"},
        }
        for flag in ("progress", "more"):
            if chance.random() < 0.3:
                found[flag] = "true"
        if chance.random() < 0.5:
            found |= {"node": self._node, "maintenance": self._maintenance.uid, "partitionkey": self._node}
        for _ in range(chance.choice((0, 0, 0, 0, 1, 1, 2, 5))):
            found[chance.choice(ATTRIBUTES)] = self._text()
        if chance.random() < 0.05:
            del found[chance.choice(list(found))]
        return found

    def _text(self) -> str:
        chance = self._chance
        if chance.random() < 0.8:
            return chance.choice(TEXTS)
        return "".join(chr(chance.choice((chance.randrange(256), chance.randrange(0x11000)))) for _ in range(8))

    def _data(self) -> Any:
        """Return the data of a valid event, with some values replaced."""
        data: Any = copy.deepcopy(self._chance.choice(self._honest()))
        for _ in range(self._chance.choice((0, 1, 1, 1, 2, 4))):
            data = self._spoiled(data)
        return data

    def _spoiled(self, value: Any) -> Any:
        """Return a copy of the value in which one part is replaced or removed."""
        chance = self._chance
        if isinstance(value, dict) and value and chance.random() < 0.85:
            name = chance.choice(list(value))
            if chance.random() < 0.15:
                return {key: item for key, item in value.items() if key != name}
            return {**value, name: self._spoiled(value[name])}
        if isinstance(value, list) and value and chance.random() < 0.7:
            place = chance.randrange(len(value))
            return [*value[:place], self._spoiled(value[place]), *value[place + 1 :]]
        return self._text() if chance.random() < 0.5 else copy.deepcopy(chance.choice(JUNK))

    def _honest(self) -> list[Any]:
        named = {"maintenance": self._maintenance.as_data(), "node": self._node}
        metadata = {"name": self._maintenance.name, "uid": self._maintenance.uid, "resourceVersion": "1"}
        taints = [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]
        labels = {"nodemaintenance.dev/maintenance": self._maintenance.uid}
        conditions = [{"type": "Cordoned", "status": "True", "reason": "Cordoned", "message": ""}]
        attempt = {"source": "/s", "event": "1", "function": "cordon", "at": "2026-01-01T00:00:00Z", "seconds": 0.1}
        return [
            named,
            {**named, "totalpods": 1, "evictionPods": 1},
            {**named, "evicted": [POD], "blocked": [BLOCKED], "error": "x", "podsVersion": "1"},
            {**named, "podsVersion": "1", "budgetsVersion": "1", "budget": "default/web", "again": True},
            {**named, "step": "restore", "error": "x", "message": "x"},
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


UNKNOWN = events.Reference(next(iter(GROUPS)), "nobody", "no-uid")
"""A reference to a NodeMaintenance that does not exist."""
