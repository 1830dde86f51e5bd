"""Creates the event sources that the manifests describe. Used by `broker`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from eventing.local import api_server_source, container_source, ping_source
from eventing.local.manifests import Document
from eventing.local.source_sink import SourceSink


class EventSource(Protocol):
    """A source that emits events until it is cancelled; `is_ready` is true once it is active."""

    name: str
    is_ready: bool

    async def run(self, sink: SourceSink) -> None:
        """Emit events to `sink` until cancelled."""


def parse_sources(documents: Iterable[Document], kubeconfig: str | None) -> list[EventSource]:
    """Build the sources among `documents`; `kubeconfig` is the identity of sources that run as child processes."""
    sources: list[EventSource] = []
    for document in documents:
        if document.kind == "ApiServerSource":
            sources += api_server_source.parse_sources(document)
        elif document.kind == "PingSource":
            sources.append(ping_source.parse_source(document))
        elif document.kind == "ContainerSource":
            sources.append(container_source.parse_source(document, kubeconfig))
    return sources
