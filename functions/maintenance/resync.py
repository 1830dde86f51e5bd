"""Resync: at every tick, emit again the event that a maintenance waits for, and no other (X-3, X-5, design rule 4).

The step lists maintenances, nodes under maintenance and leases page by page. In addition, it reads at most `LOOKS`
single nodes, and the pods of at most `LOOKS` nodes, by round robin. So a drained maintenance does not cost a request of
its own at each tick (design rule 10).

In: a PingSource tick. Out: `maintenance.found`, `maintenance.ended`, `node.drifted`, `node.tainted`.
Touches: nodemaintenances list; nodes get, list; pods list; leases get, list, create, patch in medik8s-leases;
events create in medik8s-leases; serviceaccounts get.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime, timezone

from cloudevents.core.base import BaseCloudEvent

from eventing import events, replay_extensions
from functions.pass_strategies import LookingForChanges
from functions.installs import claims
from functions.maintenance.due_events import Due, Known, Look, due, due_by, due_on, strays
from functions.maintenance.metrics import FLEET, RESYNCED
from functions.maintenance.event_objects import log_about
from functions.round_robin import Turns
from kube.client.api import Api, absent_ok
from kube.client.api_errors import ApiError, Unavailable
from kube.client.concurrent_requests import together
from kube.client.paging import Listed, pages
from kube.client.sync_client import Cluster
from kube.maintenance import leases
from kube.maintenance import objects as m
from kube.maintenance.groups import GROUPS
from kube.maintenance.lookup import answered, by_age, of_group, pods_on_node
from kube.nodes import LABEL, NODES, node_path
from kube.paths import MALFORMED, Object
from kube.trimming import trimmed_node

CONSUMES = (events.TICK,)
EMITS = (events.MAINTENANCE_FOUND, events.MAINTENANCE_ENDED, events.NODE_DRIFTED, events.NODE_TAINTED)
LOOKING = LookingForChanges(lambda _tick: "all maintenances")
LOOKS, LOOKS_AT_RESTING = 20, 5
"""Maximum requests per tick for single nodes, and for the pods of nodes.

`LOOKS_AT_RESTING` of the latter are reserved for drained nodes, to which a pod may have come late.
"""
log = logging.getLogger("functions")


class Rounds:
    """The round-robin positions: one each for maintenances with an unlabelled node, draining ones and drained ones."""

    def __init__(self) -> None:
        self.unlabelled, self.draining, self.resting = Turns(), Turns(), Turns()


ROUNDS = Rounds()
"""The positions of this process; a replay uses its own."""


def resync(event: BaseCloudEvent, cluster: Cluster) -> list[BaseCloudEvent]:
    """Return a replacement for each lost event: one for each maintenance that waits for an event.

    Also returns one for each orphaned node, which a maintenance that is gone left cordoned, tainted or leased. The next
    tick checks what this one has no time for. Raises `ApiError` if no maintenances could be listed.
    """
    if not claims(cluster):
        return []
    known = cluster.run(_read(cluster.api))
    replay = replay_extensions.is_replay(event)
    rounds = Rounds() if replay else ROUNDS
    waiting = cluster.run(_waiting(cluster.api, known, rounds, datetime.now(timezone.utc)))
    found = [(events.Reference.of(item), m.node_name(item), kind, _begun(item, kind)) for item, kind in waiting]
    found += [(reference, node, events.MAINTENANCE_ENDED, {}) for reference, node in strays(known)]
    if not replay:
        FLEET.update(known.items)
        for _, _, kind, _ in found:
            RESYNCED.labels(kind).inc()
    return [events.event(kind, "resync", about, node, cause=event, data=data) for about, node, kind, data in found]


def _begun(item: Object, kind: str) -> Object:
    """Return the data of `maintenance.found`: `begun` for a maintenance that has begun.

    If `begin` fails for such a maintenance, the error concerns the renewal of its lease.
    """
    return {"begun": True} if kind == events.MAINTENANCE_FOUND and m.has_begun(item) else {}


async def _read(api: Api) -> Known:
    """Read all lists concurrently; if the API server rejects one of them, the others are still used.

    Raises `Unavailable` if a list got no answer. The broker then redelivers the tick, so that no step acts on a partial
    list.
    """
    groups, (nodes, held) = await asyncio.gather(
        asyncio.gather(*(of_group(api, group) for group in GROUPS.values()), return_exceptions=True),
        asyncio.gather(
            pages(api, NODES, labels=LABEL, keep=trimmed_node), pages(api, leases.LEASES), return_exceptions=True
        ),
    )
    unanswered = next((answer for answer in (*groups, nodes, held) if isinstance(answer, Unavailable)), None)
    if unanswered:
        raise unanswered
    found = answered(groups)
    items = by_age(item for items in found for item in items or [])
    return Known(items, _by(_name, nodes), _by(leases.node_of, held), whole=all(items is not None for items in found))


def _by(node_of: Callable[[Object], str], answer: Listed | BaseException) -> dict[str, Object] | None:
    """Return the items of a list by node name; if the answer is an API error, log it and return None."""
    if isinstance(answer, ApiError):
        log.warning("resync could not list all: %s", answer.message)
        return None
    if isinstance(answer, BaseException):
        raise answer
    return {name: item for item in answer.items if (name := node_of(item))}


def _name(node: Object) -> str:
    return str(node["metadata"]["name"])


async def _waiting(api: Api, known: Known, rounds: Rounds, now: datetime) -> list[tuple[Object, str]]:
    """Return the maintenances that wait for an event, each with the event's type."""
    dues = [(item, _due(item, known, now)) for item in known.items]
    unlabelled = [item for item, what in dues if what is Look.NODE]
    looks = [_looked(item, _due_of_node(api, item, known, now)) for item in rounds.unlabelled.take(unlabelled, LOOKS)]
    inspected = _inspected([item for item, what in dues if what is Look.PODS], rounds)
    looks += [_looked(item, _due_of_pods(api, item, now)) for item in inspected]
    outcomes = await together(*looks)
    left = [item for item, what in [*dues, *outcomes] if what is Look.LATER]
    if left:
        log.warning("resync ran out of time", extra={"fields": {"left": len(left)}})
    return [(item, what) for item, what in [*dues, *outcomes] if what and isinstance(what, str)]


def _inspected(items: list[Object], rounds: Rounds) -> list[Object]:
    """Return the maintenances whose pods this tick reads: active drains first, then drained ones, up to `LOOKS`."""
    resting = [item for item in items if m.phase(item) == m.SUCCEEDED]
    draining = [item for item in items if m.phase(item) != m.SUCCEEDED]
    chosen = rounds.draining.take(draining, LOOKS - min(len(resting), LOOKS_AT_RESTING))
    return chosen + rounds.resting.take(resting, LOOKS - len(chosen))


async def _due_of_node(api: Api, item: Object, known: Known, now: datetime) -> Due:
    name = m.node_name(item)
    node = await absent_ok(api.get(node_path(name)))
    return due_on(item, node, (known.leases or {}).get(name), now)


async def _due_of_pods(api: Api, item: Object, now: datetime) -> Due:
    return due_by(item, (await pods_on_node(api, m.node_name(item), "0")).items, now)


async def _looked(item: Object, look: Awaitable[Due]) -> tuple[Object, Due]:
    """Await one read and return its outcome; a rejected or malformed one must not stop the others."""
    try:
        return item, await look
    except Unavailable:
        return item, Look.LATER
    except ApiError as error:
        return item, _skipped(item, error.message)
    except MALFORMED as error:
        return item, _skipped(item, repr(error))


def _due(item: Object, known: Known, now: datetime) -> Due:
    try:
        return due(item, known, now)
    except MALFORMED as error:
        return _skipped(item, repr(error))


def _skipped(item: Object, error: str) -> str:
    log_about("resync cannot look after this maintenance", item, error=error)
    return ""
