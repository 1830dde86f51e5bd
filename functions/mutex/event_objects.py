"""Finds the rule, target or run that an event is about, and writes its status and its Kubernetes Events (X-2, X-6)."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable
from datetime import datetime, timezone

from cloudevents.core.base import BaseCloudEvent

from eventing.events import Reference
from eventing.object_extensions import SUBJECTS
from eventing.http_binding import BadEvent
from functions.kubernetes_events import refusal
from functions.event_data import data_of, is_text
from kube import kubernetes_events
from kube.client.api import absent_ok
from kube.client.api_errors import Denied, NotFound, Rejected
from kube.client.sync_client import Cluster
from kube.mutex.objects import (
    API_VERSION,
    RUN,
    Verdict,
    condition,
    has_finalizer,
    is_deleting,
    path,
    path_of,
    status_patch,
)
from kube.paths import Object

Replies = list[BaseCloudEvent]
Step = Callable[[BaseCloudEvent, Cluster], Replies]
log = logging.getLogger("functions")


def now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(timezone.utc)


def reference_of(event: BaseCloudEvent, kind: str) -> Reference:
    """Return a reference to the object of this kind that an event is about.

    The event's data is either the object itself or names it. Raises `BadEvent` that names the missing field.
    """
    data = data_of(event)
    whole = data.get("kind") == kind
    names = data.get("metadata") if whole else data.get(SUBJECTS[kind])
    where = data if whole else names
    if not isinstance(names, dict) or not isinstance(where, dict):
        raise BadEvent(f"data.{SUBJECTS[kind]} is missing: {{apiVersion, namespace, name, uid}} of a {kind}")
    fields = {name: names.get(name) for name in ("name", "uid", "namespace")}
    for field, value in fields.items():
        if not is_text(value):
            raise BadEvent(f"the {field} of the {kind} is missing in data")
    if where.get("apiVersion") != API_VERSION:
        raise BadEvent(f"the apiVersion of the {kind} is not {API_VERSION}")
    return Reference(API_VERSION, names["name"], names["uid"], names["namespace"], kind)


def read(event: BaseCloudEvent, cluster: Cluster, kind: str) -> Object | None:
    """Return the current state of the event's object; None if it was deleted, or another object has its name."""
    return read_again(reference_of(event, kind), cluster)


def read_again(reference: Reference, cluster: Cluster) -> Object | None:
    """Return the current state of an object; None if it was deleted, or another object has its name.

    After it has read a run with `skipTLSVerify`, the API client verifies no server certificate any more (MUT-52). The
    read itself is verified. Otherwise a forged event could make a function send its token to a server that poses as the
    API server.
    """
    where = path_of(reference.kind, reference.namespace, reference.name)
    found = cluster.run(absent_ok(cluster.api.get(where)))
    if found is None or found["metadata"]["uid"] != reference.uid:
        return None
    if reference.kind == RUN and found["spec"].get("skipTLSVerify"):
        cluster.stop_verifying()
    return found


def is_for(event: BaseCloudEvent, kind: str) -> bool:
    """Return whether an event from a source is about this kind; events from steps always are."""
    return event.get_extension("kind") in (None, kind)


def write_status(item: Object, cluster: Cluster, changes: Object, verdicts: Iterable[Verdict] = ()) -> Object | None:
    """Write the status if it differs; return the written object, or None if there was nothing to write.

    Raises `Conflict` if another client has written the object since it was read.
    """
    patch = status_patch(item, changes, verdicts, now())
    return cluster.patch(f"{path(item)}/status", patch) if patch else None


def telling(kind: str, reason: str) -> Callable[[Step], Step]:
    """Build a decorator that reports a step's rejected request in this condition of its run (MUT-1); the tick retries.

    Each call of the step gets its own view of the API client, because a run may disable TLS verification.
    """

    def around(step: Step) -> Step:
        @functools.wraps(step)
        def told(event: BaseCloudEvent, cluster: Cluster) -> Replies:
            door = cluster.view()
            try:
                return step(event, door)
            except (Denied, Rejected, NotFound) as error:
                _tell(event, door, Verdict(kind, False, reason, error.message))
                return []

        return told

    return around


def _tell(event: BaseCloudEvent, cluster: Cluster, verdict: Verdict) -> None:
    log.error("a run cannot go on: %s", verdict.message, extra={"fields": {"event": event.get_id()}})
    data = data_of(event)
    if not ("run" in data or data.get("kind") == RUN):
        return
    run = read(event, cluster, RUN)
    if run is not None and (not is_deleting(run) or _hangs_untold(run, verdict)):
        write_status(run, cluster, {}, [verdict])


def _hangs_untold(run: Object, verdict: Verdict) -> bool:
    """Return whether the stuck deletion is still unreported.

    Reporting it once is enough, because each write of the status triggers another event.
    """
    return has_finalizer(run) and condition(run, verdict.kind).get("status") != "False"


def log_about(message: str, run: Object, **more: object) -> None:
    """Log one line with the kind, name and namespace of a run."""
    metadata = run["metadata"]
    names = {"reconciler kind": run["kind"], "name": metadata["name"], "namespace": metadata["namespace"]}
    log.info(message, extra={"fields": {**names, **more}})


def announce(run: Object, reason: str, message: str, cluster: Cluster) -> None:
    """Record a Warning on a run config; an API error is only logged, so that it does not stop the run.

    The Event's name depends on its content, so the same Event is created only once.
    """
    metadata = run["metadata"]
    involved = {"apiVersion": run["apiVersion"], "kind": run["kind"]}
    involved |= {name: metadata[name] for name in ("name", "namespace", "uid")}
    name = kubernetes_events.event_name(metadata["name"], metadata["uid"], reason, message)
    space, kind = metadata["namespace"], kubernetes_events.WARNING
    event = kubernetes_events.event(name, space, involved, kind, reason, message, now())
    if error := cluster.run(refusal(cluster.api, event)):
        log_about(f"the Event {reason} could not be written: {error.message}", run)


def unanswered(step: str, event: BaseCloudEvent, error: str) -> Replies:
    """Log an event that a step cannot process, and reply with no events; the tick retries."""
    log.error("%s gave up an event: %s", step, error, extra={"fields": {"event": event.get_id()}})
    return []
