"""ApiServerSource for the local delivery: emits changes in the cluster as Knative's own source does."""

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
from eventing.local import envelope
from eventing.local.manifests import Document
from eventing.local.source_sink import Outlet
from eventing.local.triggers import broker_sink
from eventing.logs import log
from kube import selectors
from kube.backoff import pauses
from kube.client import discovery
from kube.client.api import Api
from kube.client.api_errors import ApiError, NotFound, Unavailable
from kube.client.discovery import Resource
from kube.client.list_watch import Witness, follow
from kube.paths import Object
from kube.trimming import whole

FIRST_LOOK, LONGEST_LOOK = 2.0, 30.0
"""Initial and maximum seconds between checks for a kind that is not served or may not be listed, doubling."""
RESOURCE, REFERENCE = "Resource", "Reference"
TYPES = {
    RESOURCE: {"ADDED": RESOURCE_ADDED, "MODIFIED": RESOURCE_UPDATED, "DELETED": RESOURCE_DELETED},
    REFERENCE: {"ADDED": REFERENCE_ADDED, "MODIFIED": REFERENCE_UPDATED, "DELETED": REFERENCE_DELETED},
}
"""Mode of a source → kind of change → event type.

In mode Reference the source keeps and sends only what identifies an object.
"""


@dataclass(frozen=True)
class Watched:
    """One entry of `spec.resources`, with the namespace ("" for all) and the mode of its source."""

    api_version: str
    kind: str
    labels: str
    namespace: str
    mode: str


class _Waits(Witness):
    """Stream observer that logs why the source waits.

    A stream with an observer keeps its state and retries if a list is rejected: see `follow`.
    """

    def __init__(self, source: str) -> None:
        self._source = source

    def failed(self, error: ApiError) -> None:
        """Log the error, unless the server is unavailable, which `follow` logs itself."""
        if not isinstance(error, Unavailable):
            self.say(error)

    def say(self, error: ApiError) -> None:
        """Log any error."""
        log("source waits", logging.WARNING, source=self._source, error=error.message)


class ApiServerSource:
    """Watches one kind and emits its changes.

    As on Knative, it emits nothing for objects that exist when it starts. If the kind is served only later, it emits an
    event for each object found then, because those objects are new. `kubeconfig` is the source's identity, None for the
    one in `$KUBECONFIG`.
    """

    def __init__(self, name: str, watched: Watched, kubeconfig: str | None = None) -> None:
        self.name = f"{name} ({watched.kind} of {watched.api_version})"
        self.ready, self._waits = False, _Waits(self.name)
        self._watched, self._kubeconfig = watched, kubeconfig
        self._initial = False

    async def run(self, outlet: Outlet) -> None:
        """Watch the kind until cancelled."""
        api = await Api.connect(self._kubeconfig)
        try:
            for pause in pauses(FIRST_LOOK, LONGEST_LOOK):
                await self._follow(api, outlet)
                await asyncio.sleep(pause)
        finally:
            await api.close()

    async def _follow(self, api: Api, outlet: Outlet) -> None:
        """Watch the kind and emit its changes; return if the kind is not served, or on an API error."""
        watched = self._watched
        try:
            served = await discovery.resource(api, watched.api_version, watched.kind)
            path = served.path(watched.namespace)
            keep = named if watched.mode == REFERENCE else whole
            initial, labels = self._initial, watched.labels
            following = follow(api, path, labels=labels, initial=initial, keep=keep, witness=self._waits)
            async with aclosing(following) as changes:
                async for change in changes:
                    if change.kind == "SYNCED":
                        self.ready = True
                    else:
                        kind = TYPES[watched.mode][change.kind]
                        about = event(discovery.server(api), served, kind, change.object)
                        outlet.emit(envelope.sealed(about))
        except NotFound:
            self.ready = self._initial = True
        except ApiError as error:
            self._waits.say(error)


def named(item: Object) -> Object:
    """Reduce an object to what mode Reference needs: its identity, and the version to detect changes."""
    metadata = {key: item["metadata"].get(key) for key in ("name", "namespace", "uid", "resourceVersion")}
    known = {key: value for key, value in metadata.items() if value}
    return {"apiVersion": item["apiVersion"], "kind": item["kind"], "metadata": known}


def event(server: str, served: Resource, kind: str, body: Object) -> CloudEvent:
    """Build the event as Knative's source does (`makeEvent` in its apiserver adapter).

    The subject always contains `namespaces`, and the core group v1 is also under /apis. The data is the object, or an
    ObjectReference for the event types of mode Reference.
    """
    metadata = body["metadata"]
    namespace = metadata.get("namespace", "")
    attributes: dict[str, Any] = {
        "id": str(uuid.uuid4()),
        "source": server,
        "type": kind,
        "subject": f"/apis/{served.api_version}/namespaces/{namespace}/{served.plural}/{metadata['name']}",
        "time": datetime.now(timezone.utc),
        "datacontenttype": "application/json",
        "kind": body["kind"],
        "apiversion": body["apiVersion"],
        "name": metadata["name"],
    }
    if namespace:
        attributes["namespace"] = namespace
    is_reference = kind in TYPES[REFERENCE].values()
    return CloudEvent(attributes, _reference(body) if is_reference else body)


def _reference(body: Object) -> Object:
    metadata = body["metadata"]
    namespace = {"namespace": metadata["namespace"]} if metadata.get("namespace") else {}
    return {"kind": body["kind"], "apiVersion": body["apiVersion"], **namespace, "name": metadata["name"]}


def read(document: Document) -> list[ApiServerSource]:
    """Build one source for each kind in the manifest.

    A source uses its service account's kubeconfig if the environment names one: for `certificate-sources` the variable
    is `$CERTIFICATE_SOURCES_KUBECONFIG`.
    """
    document.only("spec", {"mode", "serviceAccountName", "resources", "sink", "namespaceSelector"})
    broker_sink(document)
    mode = document.need("spec.mode", str)
    if mode not in TYPES:
        raise document.wrong("spec.mode", f"must be {' or '.join(TYPES)}")
    namespace = document.namespace
    if document.get("spec.namespaceSelector", dict) is not None:
        if document.get("spec.namespaceSelector", dict):
            raise document.wrong("spec.namespaceSelector", "must be {} (all namespaces) or absent (its own)")
        namespace = ""
    entries = document.need("spec.resources", list)
    watched = [_watched(document, place, entry, namespace, mode) for place, entry in enumerate(entries)]
    account = document.get("spec.serviceAccountName", str) or "default"
    kubeconfig = os.environ.get(f"{account.upper().replace('-', '_')}_KUBECONFIG") or None
    return [ApiServerSource(document.name, one, kubeconfig) for one in watched]


def _watched(document: Document, place: int, entry: Any, namespace: str, mode: str) -> Watched:
    field = f"spec.resources[{place}]"
    if not isinstance(entry, dict) or not all(isinstance(entry.get(name), str) for name in ("apiVersion", "kind")):
        raise document.wrong(field, "must have apiVersion and kind, both strings")
    if entry.keys() - {"apiVersion", "kind", "selector"}:
        raise document.wrong(field, "may have apiVersion, kind and selector only")
    try:
        labels = selectors.text(entry.get("selector") or {})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise document.wrong(f"{field}.selector", f"is no label selector: {error or type(error).__name__}") from None
    return Watched(entry["apiVersion"], entry["kind"], labels, namespace, mode)
