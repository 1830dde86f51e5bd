"""Reads the MutexRule, MutexTarget or MutexRunConfig of an event, and writes its status and Events (X-2, X-6)."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable
from datetime import datetime, timezone

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from eventing.events import ObjectReference
from eventing.extensions import EXTENSION_OF_KIND
from eventing.http_binding import BadEvent
from functions.event_data import is_nonempty_string, require_data
from functions.event_recorder import EVENT_RECORDER
from kube.client.api import get_or_none
from kube.client.api_errors import Denied, NotFound, Rejected
from kube.client.sync_client import SyncClient
from kube.kubernetes_events import KubernetesEvent
from kube.mutex.objects import (
    API_VERSION,
    RUN_KIND,
    Condition,
    build_object_path,
    build_path,
    build_status_patch,
    get_condition,
    has_finalizer,
    is_deleting,
)
from kube.mutex.validation import is_current_generation_validated
from kube.paths import Object

Replies = list[BaseCloudEvent]
Step = Callable[[BaseCloudEvent, SyncClient], Replies]
log = logging.getLogger("functions")


def utc_now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(timezone.utc)


def parse_reference(event: BaseCloudEvent, kind: str) -> ObjectReference:
    """Return a reference to the event's object of this kind.

    The event's data is either the object itself or contains a reference to it. Raises a `BadEvent` that names the
    missing field.
    """
    data = require_data(event)
    is_object = data.get("kind") == kind
    names = data.get("metadata") if is_object else data.get(EXTENSION_OF_KIND[kind])
    typed = data if is_object else names
    if not isinstance(names, dict) or not isinstance(typed, dict):
        raise BadEvent(f"data.{EXTENSION_OF_KIND[kind]} is missing: {{apiVersion, namespace, name, uid}} of a {kind}")
    fields = {name: names.get(name) for name in ("name", "uid", "namespace")}
    for field, value in fields.items():
        if not is_nonempty_string(value):
            raise BadEvent(f"the {field} of the {kind} is missing in data")
    if typed.get("apiVersion") != API_VERSION:
        raise BadEvent(f"the apiVersion of the {kind} is not {API_VERSION}")
    return ObjectReference(API_VERSION, names["name"], names["uid"], names["namespace"], kind)


def read_object(event: BaseCloudEvent, client: SyncClient, kind: str) -> Object | None:
    """Read the event's object of this kind; return None if it was deleted, or recreated with the same name."""
    return read_reference(parse_reference(event, kind), client)


def read_reference(reference: ObjectReference, client: SyncClient) -> Object | None:
    """Read the referenced object; return None if it was deleted, or recreated with the same name.

    After reading a MutexRunConfig with `skipTLSVerify`, the function disables the API client's verification of server
    certificates (MUT-52). The read itself is verified. Otherwise a forged event could make a function send its token to
    a server that poses as the API server.
    """
    path = build_path(reference.kind, reference.namespace, reference.name)
    item = client.run(get_or_none(client.api.get(path)))
    if item is None or item["metadata"]["uid"] != reference.uid:
        return None
    if reference.kind == RUN_KIND and item["spec"].get("skipTLSVerify"):
        client.disable_verification()
    return item


def is_about_kind(event: BaseCloudEvent, kind: str) -> bool:
    """Return whether the event's `kind` attribute is `kind` or missing; events that steps emit have no `kind`."""
    return event.get_extension("kind") in (None, kind)


def is_update_after_validation(event: BaseCloudEvent) -> bool:
    """Return whether the event reports an update of an object whose current generation is already validated.

    The status write of `check-rule` or `check-target` causes such an event, which that step must ignore.
    """
    data = require_data(event)
    has_status = isinstance(data.get("metadata"), dict) and isinstance(data.get("status"), dict)
    return event.get_type() == events.RESOURCE_UPDATED and has_status and is_current_generation_validated(data)


def write_status(
    obj: Object, client: SyncClient, changes: Object, conditions: Iterable[Condition] = ()
) -> Object | None:
    """Write the changes and conditions into the object's status; return the object, or None if it was up to date.

    Raises `Conflict` if another client has changed the object since it was read.
    """
    patch = build_status_patch(obj, changes, conditions, utc_now())
    return client.patch(f"{build_object_path(obj)}/status", patch) if patch else None


def report_refusals(condition_type: str, reason: str) -> Callable[[Step], Step]:
    """Build a decorator that reports a step's rejected API request in a condition of the run (MUT-1).

    `resync-runs` triggers the step again later. Each call of the step gets its own copy of the API client, because a
    run may disable TLS verification.
    """

    def decorate(step: Step) -> Step:
        @functools.wraps(step)
        def wrapper(event: BaseCloudEvent, client: SyncClient) -> Replies:
            view = client.copy_for_caller()
            try:
                return step(event, view)
            except (Denied, Rejected, NotFound) as error:
                _report_refusal(event, view, Condition(condition_type, False, reason, error.message))
                return []

        return wrapper

    return decorate


def _report_refusal(event: BaseCloudEvent, client: SyncClient, condition: Condition) -> None:
    log.error("cannot continue an upgrade run: %s", condition.message, extra={"fields": {"event": event.get_id()}})
    data = require_data(event)
    if not ("run" in data or data.get("kind") == RUN_KIND):
        return
    run = read_object(event, client, RUN_KIND)
    if run is not None and (not is_deleting(run) or _is_unreported_deletion(run, condition)):
        write_status(run, client, {}, [condition])


def _is_unreported_deletion(run: Object, condition: Condition) -> bool:
    """Return whether the run is being deleted and the condition does not report yet why the deletion is stuck.

    The reason must be reported only once, because each status write triggers another event.
    """
    return has_finalizer(run) and get_condition(run, condition.condition_type).get("status") != "False"


def log_about(message: str, obj: Object, **fields: object) -> None:
    """Log a message about a MutexRule, MutexTarget or MutexRunConfig, with its kind, name and namespace."""
    metadata = obj["metadata"]
    names = {"reconciler kind": obj["kind"], "name": metadata["name"], "namespace": metadata["namespace"]}
    log.info(message, extra={"fields": {**names, **fields}})


def record_warning(run: Object, reason: str, message: str, client: SyncClient) -> None:
    """Record a Warning Event on a MutexRunConfig; an API error is only logged, so that it does not halt the run."""
    kubernetes_event = KubernetesEvent.from_object(run, run["apiVersion"], run["kind"], reason, message)
    client.run(EVENT_RECORDER.record(client.api, [kubernetes_event]))


def log_failure(step: str, event: BaseCloudEvent, error: str) -> Replies:
    """Log the error of a step that cannot process an event, and return no reply; `resync-runs` retries."""
    log.error("%s cannot process an event: %s", step, error, extra={"fields": {"event": event.get_id()}})
    return []
