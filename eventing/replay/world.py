"""What became of the objects that a recording speaks of: what is gone cannot be drained again. Used by replay."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

from cloudevents.core.base import BaseCloudEvent

from eventing.journal.entries import Entry
from kube.door.api import Api, absent_ok
from kube.maintenance.groups import GROUPS
from kube.maintenance.objects import SUCCEEDED, phase
from kube.nodes import in_maintenance, node_path
from kube.paths import Object, segment
from kube.pods import is_terminating

MAINTENANCE, NODE, POD = "nodemaintenance", "node", "pod"


class Fate(Enum):
    """What happened to an object since; the words follow its name."""

    GONE = "no longer exists"
    ANOTHER = "is another one now"
    ENDING = "is being deleted"
    FINISHED = "has Succeeded since"
    PREPARED = "is cordoned and tainted now"


LOST = (Fate.GONE, Fate.ANOTHER)
"""It is not there to be acted on."""


@dataclass(frozen=True)
class Named:
    """An object that a recording names; `uid` is "" where only the name is told."""

    kind: str
    name: str
    uid: str
    path: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True)
class World:
    """The objects with which something happened since they were recorded, and what."""

    fates: Mapping[Named, Fate]

    def of(self, kind: str, key: str) -> Fate | None:
        """What happened to the object of this kind and uid, a node by its name; None when nothing did."""
        return self._by_key.get((kind, key))

    def lost(self) -> list[str]:
        """A sentence for each object that is gone, in order."""
        return sorted(f"{thing} {fate.value}" for thing, fate in self.fates.items() if fate in LOST)

    @cached_property
    def _by_key(self) -> dict[tuple[str, str], Fate]:
        return {(thing.kind, thing.uid or thing.name): fate for thing, fate in self.fates.items()}


UNMOVED = World({})


def mentioned(entries: Iterable[Entry]) -> set[Named]:
    """What the events, and what was answered to them, name."""
    found: set[Named] = set()
    for entry in entries:
        found.update(_named(_data(entry.event)))
        for attempt in entry.attempts:
            for reply in attempt.replies:
                found.update(_named(_mapping(reply.get("data"))))
    return found


def _data(event: BaseCloudEvent) -> Mapping[str, Any]:
    return _mapping(event.get_data())


def _named(data: Mapping[str, Any]) -> Iterator[Named]:
    """Data of ours names maintenance, node and pods; the API server's is the whole object."""
    metadata, kind = _mapping(data.get("metadata")), data.get("kind")
    if kind == "NodeMaintenance":
        yield from _maintenance({**metadata, "apiVersion": data.get("apiVersion")})
        yield from _node(_mapping(data.get("spec")).get("nodeName"))
    elif kind == "Node":
        yield from _node(metadata.get("name"))
    else:
        yield from _maintenance(_mapping(data.get("maintenance")))
        yield from _node(data.get("node"))
        for pod in pods_in(data):
            path = f"/api/v1/namespaces/{segment(pod['namespace'])}/pods/{segment(pod['name'])}"
            yield Named(POD, f"{pod['namespace']}/{pod['name']}", pod["uid"], path)


def pods_in(data: Mapping[str, Any]) -> list[Mapping[str, str]]:
    """The pods, each with its uid, that an answer of `evict` names."""
    listed = [*_list(data.get("evicted")), *_list(data.get("blocked"))]
    return [pod for pod in listed if all(_mapping(pod).get(key) for key in ("namespace", "name", "uid"))]


def _maintenance(said: Mapping[str, Any]) -> Iterator[Named]:
    group, name, uid = GROUPS.get(str(said.get("apiVersion"))), said.get("name"), said.get("uid")
    if group and name and uid:
        yield Named(MAINTENANCE, str(name), str(uid), f"{group.path}/{segment(str(name))}")


def _node(name: Any) -> Iterator[Named]:
    if name:
        yield Named(NODE, str(name), "", node_path(str(name)))


async def look(api: Api, things: Collection[Named]) -> World:
    """Read each of them once. Raises `ApiError`, e.g. `Denied` where the caller may not read them."""
    found = await asyncio.gather(*(absent_ok(api.get(thing.path)) for thing in things))
    fates = {thing: fate_of(thing, item) for thing, item in zip(things, found, strict=True)}
    return World({thing: fate for thing, fate in fates.items() if fate})


def fate_of(thing: Named, item: Object | None) -> Fate | None:
    """What happened to a thing, given what is found in its place now."""
    if item is None:
        return Fate.GONE
    if thing.uid and item["metadata"]["uid"] != thing.uid:
        return Fate.ANOTHER
    if is_terminating(item):
        return Fate.ENDING
    if thing.kind == MAINTENANCE and phase(item) == SUCCEEDED:
        return Fate.FINISHED
    if thing.kind == NODE and any(in_maintenance(item, group.drain_taint) for group in GROUPS.values()):
        return Fate.PREPARED
    return None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
