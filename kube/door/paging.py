"""Reads a list page by page, so that no answer is large, whatever the size of the cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from kube.door.api import JSON, Api
from kube.door.api_errors import NotFound
from kube.paths import Object
from kube.trimming import whole

PAGE = 500
"""As kubectl and the sources of Kubernetes page."""
EXPIRED = 410
"""The server keeps the state that the pages show for some minutes only."""


class Listed(NamedTuple):
    """What `keep` kept of all items of a list, as in one state, and the version of that state."""

    items: list[Object]
    version: str


async def pages(
    api: Api,
    path: str,
    *,
    fields: str = "",
    labels: str = "",
    version: str | None = None,
    keep: Callable[[Object], Object] = whole,
    accept: str = JSON,
) -> Listed:
    """The list at `path`; of its items, with their kind, only what `keep` keeps. The rest as in `Api.list`.

    Raises as `Api.list` does. Where the state is forgotten between two pages, the list is read anew and whole.
    """
    items: list[Object] = []
    token = ""
    while True:
        try:
            answer = await api.list(
                path, fields=fields, labels=labels, version=version, limit=PAGE, token=token, accept=accept
            )
        except NotFound as error:
            if not token or error.status != EXPIRED:
                raise
            items = []
            answer = await api.list(path, fields=fields, labels=labels, version=version, accept=accept)
        items.extend(map(keep, _of_a_kind(answer)))
        token = answer["metadata"].get("continue") or ""
        if not token:
            return Listed(items, str(answer["metadata"]["resourceVersion"]))


async def listed(
    api: Api, path: str, *, labels: str = "", version: str | None = None, accept: str = JSON
) -> list[Object]:
    """All items of the list at `path`, as `pages` reads it; none where the kind is not served."""
    try:
        return (await pages(api, path, labels=labels, version=version, accept=accept)).items
    except NotFound:
        return []


def _of_a_kind(answer: Object) -> Iterator[Object]:
    """The items with the kind that the items of a built-in list do not carry."""
    kind = {"apiVersion": answer["apiVersion"], "kind": str(answer["kind"]).removesuffix("List")}
    return ({**kind, **item} for item in answer.get("items") or [])
