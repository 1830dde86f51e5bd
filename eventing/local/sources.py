"""Creates the event sources that the manifests describe. Used by `broker`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from eventing.local import api_server_source, container_source, ping_source
from eventing.local.manifests import Document
from eventing.local.source_sink import Outlet


class Source(Protocol):
    """A source that emits events until it is cancelled; `ready` is true once it is active."""

    name: str
    ready: bool

    async def run(self, outlet: Outlet) -> None:
        """Emit events to `outlet` until cancelled."""


def read(documents: Iterable[Document], kubeconfig: str | None) -> list[Source]:
    """Build the sources among `documents`; `kubeconfig` is the identity of those that run as child processes."""
    sources: list[Source] = []
    for document in documents:
        if document.kind == "ApiServerSource":
            sources += api_server_source.read(document)
        elif document.kind == "PingSource":
            sources.append(ping_source.read(document))
        elif document.kind == "ContainerSource":
            sources.append(container_source.read(document, kubeconfig))
    return sources
