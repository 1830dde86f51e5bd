"""Reads a list page by page, so that no answer is large, whatever the size of the cluster."""

from __future__ import annotations

from collections.abc import Callable

from kube.door.api import Api
from kube.door.errors import NotFound
from kube.paths import Object
from kube.trimming import whole

PAGE = 500
"""As kubectl and the sources of Kubernetes page."""
EXPIRED = 410
"""The server keeps the state that the pages show for some minutes only."""


async def all_items(
    api: Api,
    path: str,
    *,
    fields: str = "",
    labels: str = "",
    version: str | None = None,
    keep: Callable[[Object], Object] = whole,
) -> list[Object]:
    """What `keep` keeps of all items of the list at `path`, as in one state; the rest as in `Api.list`.

    Raises as `Api.list` does. Where the state is forgotten between two pages, the list is read anew and whole.
    """
    items: list[Object] = []
    token = ""
    while True:
        try:
            answer = await api.list(path, fields=fields, labels=labels, version=version, limit=PAGE, token=token)
        except NotFound as error:
            if not token or error.status != EXPIRED:
                raise
            answer = await api.list(path, fields=fields, labels=labels, version=version)
            return [keep(item) for item in answer["items"]]
        items += map(keep, answer["items"])
        token = answer["metadata"].get("continue") or ""
        if not token:
            return items
