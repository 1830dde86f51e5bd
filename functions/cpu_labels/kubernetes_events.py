"""Records a Kubernetes Event for each problem that an administrator must fix; a failed write is only logged."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, MutableMapping
from datetime import datetime, timezone
from weakref import WeakKeyDictionary

from functions.kubernetes_events import record_event
from kube import kubernetes_events
from kube.client.api import Api
from kube.client.sync_client import SyncClient
from kube.cpu.problems import Problem
from kube.paths import Object

MAX_EVENTS_PER_PASS = 20
"""Maximum number of Events that one pass writes; later passes write the remaining ones."""
REPORT_INTERVAL_SECONDS = 600.0
"""Minimum seconds between two identical Events recorded by this process; the API server keeps Events for longer."""
log = logging.getLogger("functions")


class RecentReports:
    """The Events about problems that this process recorded recently, per API client."""

    def __init__(self) -> None:
        self._reported_at: MutableMapping[SyncClient, dict[str, float]] = WeakKeyDictionary()

    def should_report(self, event_name: str, client: SyncClient) -> bool:
        """Return whether the Event `event_name` was not recorded recently, and mark it as recorded."""
        now = time.monotonic()
        recent = {
            reported_name: reported_at
            for reported_name, reported_at in self._reported_at.get(client, {}).items()
            if now - reported_at < REPORT_INTERVAL_SECONDS
        }
        self._reported_at[client] = {event_name: now, **recent}
        return event_name not in recent

    def clear(self) -> None:
        """Forget all recorded Events."""
        self._reported_at.clear()


RECENT_REPORTS = RecentReports()


def record_problems(problems: Iterable[Problem], client: SyncClient) -> None:
    """Record a Warning Event on each problem's object, unless this process did so recently."""
    now = datetime.now(timezone.utc)
    built_events = (_build_event(problem, now) for problem in problems)
    new_events: list[Object] = []
    for event in built_events:
        if len(new_events) < MAX_EVENTS_PER_PASS and RECENT_REPORTS.should_report(event["metadata"]["name"], client):
            log.warning("%s: %s", event["reason"], event["message"], extra={"fields": _build_log_fields(event)})
            new_events.append(event)
    client.gather_all(*(_create_event(client.api, event) for event in new_events))


def _build_event(problem: Problem, now: datetime) -> Object:
    """Build the Event for a problem; its name depends only on the object, the reason and the message."""
    target = problem.involved_object
    name = kubernetes_events.build_event_name(target["name"], target["uid"], problem.reason, problem.message)
    # `kubectl describe node` searches the namespace `default`, and expects the node's name as uid, as kubelets do.
    namespace = target.get("namespace") or "default"
    involved = {**target, "uid": target["name"]} if target["kind"] == "Node" else target
    return kubernetes_events.build_event(
        name, namespace, involved, kubernetes_events.WARNING_TYPE, problem.reason, problem.message, now
    )


async def _create_event(api: Api, event: Object) -> None:
    """Create the Event; an existing Event with the same name counts as created."""
    if error := await record_event(api, event):
        message = f"cannot record Event {event['reason']}: {error.message}"
        log.warning(message, extra={"fields": _build_log_fields(event)})


def _build_log_fields(event: Object) -> dict[str, str]:
    involved = event["involvedObject"]
    return {"reconciler kind": involved["kind"], "name": involved["name"], "namespace": involved.get("namespace", "")}
