"""Resync: on every tick, emit the event by which each waiting maintenance continues (X-3, X-5, design rule 4).

The observed state of a maintenance determines the event, which can differ from the event that was lost.

A tick is a PingSource event, which arrives every 15 seconds. On each tick, the step lists maintenances, nodes under
maintenance and Leases page by page. In addition, it reads at most `MAX_READS_PER_TICK` single nodes, and the pods on at
most `MAX_READS_PER_TICK` nodes, by round robin. The number of requests is thus limited (design rule 10).

In: a PingSource tick.
Out: `maintenance.pending`, `maintenance.restore_pending`, `node.drifted`, `node.tainted`, `drain.overdue`.
Touches: nodemaintenances list; nodes get, list; pods list; leases get, list, create, patch in medik8s-leases;
events create in medik8s-leases; serviceaccounts get.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timezone

from cloudevents.core.base import BaseCloudEvent

from eventing import events, extensions
from functions.installs import acquire_install_lease
from functions.maintenance.due_events import DueEvent, find_due_event, find_nodes_of_missing_maintenances
from functions.maintenance.event_objects import build_step_failed, log_about
from functions.maintenance.metrics import MAINTENANCE_COLLECTOR, RESYNC_EVENTS
from functions.maintenance.observation import Observation, RequiredRead, ResyncSnapshot
from functions.round_robin import RoundRobin
from functions.steps import step
from functions.work_queue import HintPolicy, WorkKey
from kube.client.api import Api, gather_all, get_or_none
from kube.client.api_errors import ApiError, Unavailable
from kube.client.paging import ListResult, list_all
from kube.client.sync_client import SyncClient
from kube.maintenance import leases
from kube.maintenance import objects as m
from kube.maintenance.escalation import find_due_escalation_step
from kube.maintenance.groups import GROUPS
from kube.maintenance.lookup import collect_group_lists, list_maintenances_of_group, list_pods_on_node, sort_by_age
from kube.nodes import MAINTENANCE_LABEL, NODES_PATH, build_node_path
from kube.paths import MALFORMED_OBJECT_ERRORS, Object
from kube.trimming import trim_node

MAX_READS_PER_TICK, READS_FOR_DRAINED_NODES = 20, 5
"""Maximum number of single nodes, and of nodes' pod lists, that `resync` reads per PingSource event.

`READS_FOR_DRAINED_NODES` of the pod lists are reserved for drained nodes, on which a pod may have been created late.
"""
log = logging.getLogger("functions")


class ReadRotations:
    """Round-robin positions for maintenances with an unlabelled node, for running drains, and for drained nodes."""

    def __init__(self) -> None:
        self.unlabelled, self.draining, self.succeeded = RoundRobin(), RoundRobin(), RoundRobin()


READ_ROTATIONS = ReadRotations()
"""Round-robin positions of this process; a replay uses separate positions, so that it does not change these."""


@step(
    "resync",
    consumes=(events.TICK,),
    emits=(
        *(events.MAINTENANCE_PENDING, events.MAINTENANCE_RESTORE_PENDING),
        *(events.NODE_DRIFTED, events.NODE_TAINTED, events.DRAIN_OVERDUE),
    ),
    on_failure=build_step_failed,
    coalescing=HintPolicy(lambda _tick: WorkKey("all maintenances")),
)
def resync(event: BaseCloudEvent, client: SyncClient) -> list[BaseCloudEvent]:
    """Return the event that each maintenance waits for, because the original event may have been lost.

    Also returns an event for each orphaned node, whose maintenance no longer exists. The next resync checks the
    maintenances that this one does not reach. Raises `ApiError` if the maintenances of no API group could be listed.
    """
    if not acquire_install_lease(client):
        return []
    snapshot = client.run(_read_snapshot(client.api))
    is_replay = extensions.is_replay(event)
    rotations = ReadRotations() if is_replay else READ_ROTATIONS
    now = datetime.now(timezone.utc)
    waiting = client.run(_find_waiting_maintenances(client.api, snapshot, rotations, now))
    replies: list[BaseCloudEvent] = [_build_reply(event, item, event_type, now) for item, event_type in waiting]
    replies += [
        events.build_event(events.MAINTENANCE_RESTORE_PENDING, "resync", reference, node, cause=event)
        for reference, node in find_nodes_of_missing_maintenances(snapshot)
    ]
    if not is_replay:
        MAINTENANCE_COLLECTOR.update(snapshot.maintenances)
        for reply in replies:
            RESYNC_EVENTS.labels(reply.get_type()).inc()
    return replies


def _build_reply(event: BaseCloudEvent, maintenance: Object, event_type: str, now: datetime) -> BaseCloudEvent:
    """Build the event that a maintenance waits for.

    `maintenance.pending` contains `begun` if the maintenance has begun; an error of `begin` then means that the renewal
    of the Lease failed. `drain.overdue` contains the due escalation step, so that the journal contains the step before
    `evict` performs it.
    """
    data: Object = {}
    if event_type == events.MAINTENANCE_PENDING and m.has_begun(maintenance):
        data = {"begun": True}
    elif event_type == events.DRAIN_OVERDUE and (due_step := find_due_escalation_step(maintenance, now)):
        data = {**due_step.as_data()}
    return events.build_event(
        event_type,
        "resync",
        events.ObjectReference.from_object(maintenance),
        m.get_node_name(maintenance),
        cause=event,
        data=data,
    )


async def _read_snapshot(api: Api) -> ResyncSnapshot:
    """Read all lists concurrently; if the API server rejects one list request, still use the other lists.

    Raises `Unavailable` if a list request got no response. The broker then redelivers the event.
    """
    groups, (nodes, leases_or_error) = await asyncio.gather(
        asyncio.gather(*(list_maintenances_of_group(api, group) for group in GROUPS.values()), return_exceptions=True),
        asyncio.gather(
            list_all(api, NODES_PATH, label_selector=MAINTENANCE_LABEL, transform=trim_node),
            list_all(api, leases.LEASES_PATH),
            return_exceptions=True,
        ),
    )
    unavailable = next(
        (result for result in (*groups, nodes, leases_or_error) if isinstance(result, Unavailable)), None
    )
    if unavailable:
        raise unavailable
    maintenances_by_group = collect_group_lists(groups)
    items = sort_by_age(item for items in maintenances_by_group for item in items or [])
    return ResyncSnapshot(
        items,
        _index_by_node(_get_object_name, nodes),
        _index_by_node(leases.parse_node_name, leases_or_error),
        is_complete=all(items is not None for items in maintenances_by_group),
    )


def _index_by_node(
    get_node_name: Callable[[Object], str], result: ListResult | BaseException
) -> dict[str, Object] | None:
    """Return the objects of a list by node name; if the list request failed, log the API error and return None."""
    if isinstance(result, ApiError):
        log.warning("resync cannot list all objects: %s", result.message)
        return None
    if isinstance(result, BaseException):
        raise result
    return {name: item for item in result.items if (name := get_node_name(item))}


def _get_object_name(node: Object) -> str:
    return str(node["metadata"]["name"])


async def _find_waiting_maintenances(
    api: Api, snapshot: ResyncSnapshot, rotations: ReadRotations, now: datetime
) -> list[tuple[Object, str]]:
    """Return the maintenances that wait for an event, each with the event's type."""
    dues = [(item, _try_find_due_event(Observation(item, snapshot, now))) for item in snapshot.maintenances]
    unlabelled = [item for item, due in dues if due is RequiredRead.NODE]
    closed = [item for item, due in dues if due is RequiredRead.PODS]
    reads = [
        _read_and_find_due_event(_read_node, Observation(item, snapshot, now), api)
        for item in rotations.unlabelled.take(unlabelled, MAX_READS_PER_TICK)
    ]
    reads += [
        _read_and_find_due_event(_read_pods, Observation(item, snapshot, now), api)
        for item in _select_maintenances_for_pod_read(closed, rotations)
    ]
    outcomes = await gather_all(*reads)
    unread = [item for item, due in [*dues, *outcomes] if due is RequiredRead.UNAVAILABLE]
    if unread:
        log.warning("resync ran out of time", extra={"fields": {"left": len(unread)}})
    return [(item, due) for item, due in [*dues, *outcomes] if due and isinstance(due, str)]


def _select_maintenances_for_pod_read(maintenances: list[Object], rotations: ReadRotations) -> list[Object]:
    """Select at most `MAX_READS_PER_TICK` maintenances whose pods to list: running drains first, then drained nodes."""
    drained = [item for item in maintenances if m.get_phase(item) == m.SUCCEEDED]
    draining = [item for item in maintenances if m.get_phase(item) != m.SUCCEEDED]
    chosen = rotations.draining.take(draining, MAX_READS_PER_TICK - min(len(drained), READS_FOR_DRAINED_NODES))
    return chosen + rotations.succeeded.take(drained, MAX_READS_PER_TICK - len(chosen))


async def _read_node(observation: Observation, api: Api) -> Observation:
    path = build_node_path(m.get_node_name(observation.maintenance))
    return replace(observation, read_node=await get_or_none(api.get(path)))


async def _read_pods(observation: Observation, api: Api) -> Observation:
    return replace(
        observation, pods=(await list_pods_on_node(api, m.get_node_name(observation.maintenance), "0")).items
    )


async def _read_and_find_due_event(
    read: Callable[[Observation, Api], Awaitable[Observation]], observation: Observation, api: Api
) -> tuple[Object, DueEvent]:
    """Call `read`, and return the maintenance with its due event; an error must not stop the other reads."""
    try:
        return observation.maintenance, _try_find_due_event(await read(observation, api))
    except Unavailable:
        return observation.maintenance, RequiredRead.UNAVAILABLE
    except ApiError as error:
        return observation.maintenance, _log_skipped_maintenance(observation.maintenance, error.message)
    except MALFORMED_OBJECT_ERRORS as error:
        return observation.maintenance, _log_skipped_maintenance(observation.maintenance, repr(error))


def _try_find_due_event(observation: Observation) -> DueEvent:
    """Return the event that a maintenance waits for, or "" for a malformed object, which must not stop `resync`."""
    try:
        return find_due_event(observation)
    except MALFORMED_OBJECT_ERRORS as error:
        return _log_skipped_maintenance(observation.maintenance, repr(error))


def _log_skipped_maintenance(maintenance: Object, error: str) -> str:
    log_about("resync skipped this maintenance", maintenance, error=error)
    return ""
