"""Reads a list page by page, so that every response is small, whatever the size of the cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from kube.client.api import JSON, Api
from kube.client.api_errors import NotFound
from kube.paths import Object
from kube.trimming import whole

PAGE = 500
"""Page size; kubectl and client-go use the same."""
EXPIRED = 410
"""HTTP status of an expired page token: the API server keeps the state that the pages show for some minutes."""


class Listed(NamedTuple):
    """All items of a list in one state, reduced by `keep`, and the resourceVersion of that state."""

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
    """Return all items of the list at `path`, each with its kind and reduced by `keep`.

    The other arguments and the errors are those of `Api.list`. If the state expires between two pages, the function
    reads the whole list again in one request.
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
    """Return all items of the list at `path` as `pages` does; empty if the kind is not served."""
    try:
        return (await pages(api, path, labels=labels, version=version, accept=accept)).items
    except NotFound:
        return []


def _of_a_kind(answer: Object) -> Iterator[Object]:
    """Yield the items with their kind, which the items of built-in lists lack."""
    kind = {"apiVersion": answer["apiVersion"], "kind": str(answer["kind"]).removesuffix("List")}
    return ({**kind, **item} for item in answer.get("items") or [])
