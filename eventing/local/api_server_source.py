"""ApiServerSource for the local delivery: emits events for changes of API objects, as Knative's own source does."""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from cloudevents.core.v1.event import CloudEvent

from eventing.events import (
    REFERENCE_ADDED,
    REFERENCE_DELETED,
    REFERENCE_UPDATED,
    RESOURCE_ADDED,
    RESOURCE_DELETED,
    RESOURCE_UPDATED,
)
from eventing.local.envelope import EmitEvent, encode_envelope
from eventing.local.manifests import Document, require_broker_sink
from eventing.logs import log
from kube import selectors
from kube.backoff import generate_delays
from kube.client import discovery
from kube.client.api import Api
from kube.client.api_errors import ApiError, NotFound, Unavailable
from kube.client.discovery import ApiResource
from kube.client.list_watch import StreamObserver, follow
from kube.paths import Object
from kube.trimming import return_unchanged

MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 2.0, 30.0
"""Initial and maximum seconds between checks for a kind that is not served or not accessible; each delay doubles."""
RESOURCE_MODE, REFERENCE_MODE = "Resource", "Reference"
EVENT_TYPES = {
    RESOURCE_MODE: {"ADDED": RESOURCE_ADDED, "MODIFIED": RESOURCE_UPDATED, "DELETED": RESOURCE_DELETED},
    REFERENCE_MODE: {"ADDED": REFERENCE_ADDED, "MODIFIED": REFERENCE_UPDATED, "DELETED": REFERENCE_DELETED},
}
"""Event type by the mode of a source and the kind of change.

In mode Reference, the source stores and sends only the fields that identify an object.
"""


@dataclass(frozen=True)
class WatchedResource:
    """One entry of `spec.resources`, with the namespace ("" for all) and the mode of its source."""

    api_version: str
    kind: str
    labels: str
    namespace: str
    mode: str


class _ErrorLogObserver(StreamObserver):
    """Stream observer that logs why the source waits.

    With an observer, a stream keeps its state and retries even if a list is rejected: see `follow`.
    """

    def __init__(self, source: str) -> None:
        self._source = source

    def on_failed(self, error: ApiError) -> None:
        """Log the error, unless the API server is unavailable, because `follow` logs that itself."""
        if not isinstance(error, Unavailable):
            self.log_error(error)

    def log_error(self, error: ApiError) -> None:
        """Log the error for which the source waits."""
        log("source failed, retrying", logging.WARNING, source=self._source, error=error.message)


class ApiServerSource:
    """Watches one kind and emits an event for each change.

    As on Knative, the source emits no events for objects that exist when it starts. If the API server serves the kind
    only later, the source emits an event for each object found then, because these objects are new. `kubeconfig`
    determines the source's identity; None means `$KUBECONFIG`.
    """

    def __init__(self, name: str, resource: WatchedResource, kubeconfig: str | None = None) -> None:
        self.name = f"{name} ({resource.kind} of {resource.api_version})"
        self.is_ready, self._observer = False, _ErrorLogObserver(self.name)
        self._resource, self._kubeconfig = resource, kubeconfig
        self._emits_existing = False

    async def run(self, emit: EmitEvent, sink_url: str) -> None:
        """Watch the kind until this task is cancelled."""
        api = await Api.connect(self._kubeconfig)
        try:
            for pause in generate_delays(MIN_RETRY_SECONDS, MAX_RETRY_SECONDS):
                await self._follow_resource(api, emit)
                await asyncio.sleep(pause)
        finally:
            await api.close()

    async def _follow_resource(self, api: Api, emit: EmitEvent) -> None:
        """Watch the kind and emit its changes; return if the kind is not served or an API error occurs."""
        resource = self._resource
        try:
            api_resource = await discovery.discover_resource(api, resource.api_version, resource.kind)
            path = api_resource.build_path(resource.namespace)
            transform = trim_to_reference if resource.mode == REFERENCE_MODE else return_unchanged
            initial, labels = self._emits_existing, resource.labels
            stream = follow(
                api, path, label_selector=labels, emit_initial=initial, transform=transform, observer=self._observer
            )
            async with aclosing(stream) as changes:
                async for change in changes:
                    if change.change_type == "SYNCED":
                        self.is_ready = True
                    else:
                        event_type = EVENT_TYPES[resource.mode][change.change_type]
                        event = build_event(discovery.get_server_url(api), api_resource, event_type, change.object)
                        emit(encode_envelope(event))
        except NotFound:
            self.is_ready = self._emits_existing = True
        except ApiError as error:
            self._observer.log_error(error)


def trim_to_reference(obj: Object) -> Object:
    """Reduce an object to what mode Reference needs: its identity, and its resourceVersion, which reveals changes."""
    metadata = {key: obj["metadata"].get(key) for key in ("name", "namespace", "uid", "resourceVersion")}
    present = {key: value for key, value in metadata.items() if value}
    return {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "metadata": present}


def build_event(source: str, resource: ApiResource, event_type: str, body: Object) -> CloudEvent:
    """Build the event as Knative's source does (`makeEvent` in its package apiserver).

    The subject always contains `namespaces`, and the core group v1 is also below /apis. The data is the object, or an
    ObjectReference for the event types of mode Reference.
    """
    metadata = body["metadata"]
    namespace = metadata.get("namespace", "")
    attributes: dict[str, Any] = {
        "id": str(uuid.uuid4()),
        "source": source,
        "type": event_type,
        "subject": f"/apis/{resource.api_version}/namespaces/{namespace}/{resource.plural}/{metadata['name']}",
        "time": datetime.now(timezone.utc),
        "datacontenttype": "application/json",
        "kind": body["kind"],
        "apiversion": body["apiVersion"],
        "name": metadata["name"],
    }
    if namespace:
        attributes["namespace"] = namespace
    is_reference = event_type in EVENT_TYPES[REFERENCE_MODE].values()
    return CloudEvent(attributes, _build_reference(body) if is_reference else body)


def _build_reference(body: Object) -> Object:
    metadata = body["metadata"]
    namespace = {"namespace": metadata["namespace"]} if metadata.get("namespace") else {}
    return {"kind": body["kind"], "apiVersion": body["apiVersion"], **namespace, "name": metadata["name"]}


def parse_sources(document: Document) -> list[ApiServerSource]:
    """Build one source for each kind in an ApiServerSource manifest.

    If the environment contains a kubeconfig for the source's ServiceAccount, the source uses it:
    `$CERTIFICATE_SOURCES_KUBECONFIG` for the ServiceAccount `certificate-sources`.
    """
    document.refuse_unknown_fields("spec", {"mode", "serviceAccountName", "resources", "sink", "namespaceSelector"})
    require_broker_sink(document)
    mode = document.require("spec.mode", str)
    if mode not in EVENT_TYPES:
        raise document.build_error("spec.mode", f"must be {' or '.join(EVENT_TYPES)}")
    namespace = document.namespace
    if document.get("spec.namespaceSelector", dict) is not None:
        if document.get("spec.namespaceSelector", dict):
            raise document.build_error(
                "spec.namespaceSelector", "must be {} (all namespaces) or absent (the source's namespace)"
            )
        namespace = ""
    entries = document.require("spec.resources", list)
    watched = [_parse_resource(document, index, entry, namespace, mode) for index, entry in enumerate(entries)]
    account = document.get("spec.serviceAccountName", str) or "default"
    kubeconfig = os.environ.get(f"{account.upper().replace('-', '_')}_KUBECONFIG") or None
    return [ApiServerSource(document.name, resource, kubeconfig) for resource in watched]


def _parse_resource(document: Document, index: int, entry: Any, namespace: str, mode: str) -> WatchedResource:
    field = f"spec.resources[{index}]"
    if not isinstance(entry, dict) or not all(isinstance(entry.get(name), str) for name in ("apiVersion", "kind")):
        raise document.build_error(field, "must have apiVersion and kind, both strings")
    if entry.keys() - {"apiVersion", "kind", "selector"}:
        raise document.build_error(field, "may have only apiVersion, kind and selector")
    try:
        labels = selectors.format_selector(entry.get("selector") or {})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise document.build_error(
            f"{field}.selector", f"is not a label selector: {error or type(error).__name__}"
        ) from None
    return WatchedResource(entry["apiVersion"], entry["kind"], labels, namespace, mode)
