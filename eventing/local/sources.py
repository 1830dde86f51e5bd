"""Creates the event sources that the manifests describe. Used by `broker`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from eventing.local import apisource, containersource, pingsource
from eventing.local.manifests import Document
from eventing.local.outlet import Outlet


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
            sources += apisource.read(document)
        elif document.kind == "PingSource":
            sources.append(pingsource.read(document))
        elif document.kind == "ContainerSource":
            sources.append(containersource.read(document, kubeconfig))
    return sources
