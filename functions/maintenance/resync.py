"""Resync: at every tick, emit again the event that a maintenance waits for, and no other (X-3, X-5, design rule 4).

In: a PingSource tick. Out: `maintenance.found`, `maintenance.ended`, `node.drifted`, `node.tainted`.
Touches: nodemaintenances list; nodes get; pods list; leases get in node-maintenance.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timezone

from cloudevents.core.base import BaseCloudEvent

from eventing import events, marks
from functions.maintenance.fleet import FLEET, RESYNCED
from functions.maintenance.looking import LookingAtState
from functions.maintenance.subject import log_about
from kube.door.api import Api, absent_ok
from kube.door.cluster import Cluster
from kube.door.errors import Denied, Rejected
from kube.maintenance import leases
from kube.maintenance import objects as m
from kube.maintenance.lookup import maintenances
from kube.nodes import Node, in_maintenance, node_path
from kube.paths import Object, pods_on
from kube.pods import Pod, is_terminating, sort

UNDER_WAY_SECONDS = 5.0
"""From step to step an event takes milliseconds, on a crowded cluster seconds; until then it counts as under way."""
CONSUMES = (events.TICK,)
EMITS = (events.MAINTENANCE_FOUND, events.MAINTENANCE_ENDED, events.NODE_DRIFTED, events.NODE_TAINTED)
LOOKING = LookingAtState(lambda _tick: "all maintenances")


def resync(event: BaseCloudEvent, cluster: Cluster) -> list[BaseCloudEvent]:
    """The events that would have come if none had been lost, one for each maintenance that waits for one."""
    found = cluster.run(maintenances(cluster.api))
    kinds = cluster.run(_due_all(cluster.api, found))
    if not marks.is_replay(event):
        _count(found, kinds)
    return [
        events.event(kind, "resync", events.Reference.of(item), m.node_name(item), cause=event)
        for item, kind in zip(found, kinds, strict=True)
        if kind
    ]


def _count(found: list[Object], kinds: list[str]) -> None:
    FLEET.update(found)
    for kind in filter(None, kinds):
        RESYNCED.labels(kind).inc()


async def _due_all(api: Api, found: list[Object]) -> list[str]:
    return list(await asyncio.gather(*(_due_if_known(api, item, found) for item in found)))


async def _due_if_known(api: Api, item: Object, all_items: list[Object]) -> str:
    """As `_due`; one maintenance whose objects the server refuses to show must not stop the others."""
    try:
        return await _due(api, item, all_items)
    except (Denied, Rejected) as error:
        log_about("resync cannot look after this maintenance", item, error=error.message)
        return ""


async def _due(api: Api, item: Object, all_items: list[Object]) -> str:
    """The type of the event this maintenance waits for, "" when it waits for none."""
    now = datetime.now(timezone.utc)
    if is_under_way(item, now):
        return ""
    if m.is_deleting(item):
        return events.MAINTENANCE_ENDED if m.has_finalizer(item) else ""
    name = m.node_name(item)
    node, lease, pods = await asyncio.gather(
        absent_ok(api.get(node_path(name))),
        absent_ok(api.get(leases.lease_path(name))),
        api.list(pods_on(name)[0], fields=pods_on(name)[1], version="0"),
    )
    if not m.has_begun(item):
        return events.MAINTENANCE_FOUND if may_begin(item, node, lease, all_items) else ""
    if node is None:
        return ""
    if lease is None or leases.is_due(lease, now):
        return events.MAINTENANCE_FOUND
    return due_on(item, node, pods["items"], now)


def is_under_way(item: m.Maintenance, now: datetime) -> bool:
    """Whether its status was written a moment ago: its events are on their way, and others would double the work.

    Never of one that is new, or being deleted: its first event may be lost, and so it is emitted at once (X-3, X-5).
    """
    written = (item.get("status") or {}).get("lastUpdate")
    if not written or m.is_deleting(item):
        return False
    return 0 <= (now - m.moment(written)).total_seconds() < UNDER_WAY_SECONDS


def may_begin(item: m.Maintenance, node: Node | None, lease: leases.Lease | None, all_items: list[Object]) -> bool:
    """Whether one that has not begun should be tried (again): nobody tried yet, or what was in the way is gone."""
    if not m.phase(item):
        return True  # nobody tried
    if node is None:
        return False
    if lease is None:
        return True
    holder = leases.holder_of(lease)
    if holder is None:  # another tool's
        return leases.is_expired(lease, datetime.now(timezone.utc))
    return holder.uid not in {other["metadata"]["uid"] for other in all_items}  # that one is gone


def due_on(item: m.Maintenance, node: Node, pods: list[Object], now: datetime) -> str:
    """What a begun maintenance waits for: cordon and taints, or the next look at its pods."""
    if not in_maintenance(node, m.group(item).drain_taint):
        return events.NODE_DRIFTED
    leaving = sort(pods).leaving
    if not leaving:
        return "" if m.phase(item) == m.SUCCEEDED else events.NODE_TAINTED
    if all(is_ending(pod, now) for pod in leaving):
        return ""  # nothing to do before one of them is gone, and PodSource emits that
    return events.NODE_TAINTED


def is_ending(pod: Pod, now: datetime) -> bool:
    """Whether it is being deleted and has time left to end; `deletionTimestamp` is the end of that time."""
    return is_terminating(pod) and now < m.moment(pod["metadata"]["deletionTimestamp"])
