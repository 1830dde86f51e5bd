"""Reads a list page by page, so that every response is small, regardless of the size of the cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from kube.client.api import JSON, Api
from kube.client.api_errors import NotFound
from kube.paths import Object
from kube.trimming import return_unchanged

PAGE_SIZE = 500
"""Number of items per page, as in kubectl and client-go."""
EXPIRED_STATUS = 410
"""HTTP status for an expired continue token: the API server keeps a paged list's state only for a few minutes."""


class ListResult(NamedTuple):
    """All items of a list at one resourceVersion, each reduced by the `transform` of `list_all`."""

    items: list[Object]
    resource_version: str


async def list_all(
    api: Api,
    path: str,
    *,
    field_selector: str = "",
    label_selector: str = "",
    resource_version: str | None = None,
    transform: Callable[[Object], Object] = return_unchanged,
    accept: str = JSON,
) -> ListResult:
    """Return all items of the list at `path`, each with its kind and reduced by `transform`.

    The other arguments and the errors are those of `Api.list`. If the continue token expires between two pages, the
    function reads the whole list again in one request.
    """
    items: list[Object] = []
    continue_token = ""
    while True:
        try:
            page = await api.list(
                path,
                field_selector=field_selector,
                label_selector=label_selector,
                resource_version=resource_version,
                limit=PAGE_SIZE,
                continue_token=continue_token,
                accept=accept,
            )
        except NotFound as error:
            if not continue_token or error.status != EXPIRED_STATUS:
                raise
            items = []
            page = await api.list(
                path,
                field_selector=field_selector,
                label_selector=label_selector,
                resource_version=resource_version,
                accept=accept,
            )
        items.extend(map(transform, _add_kinds(page)))
        continue_token = page["metadata"].get("continue") or ""
        if not continue_token:
            return ListResult(items, str(page["metadata"]["resourceVersion"]))


async def list_or_empty(
    api: Api, path: str, *, label_selector: str = "", resource_version: str | None = None, accept: str = JSON
) -> list[Object]:
    """Return all items of the list at `path`, as `list_all` does; [] if the API server does not serve the kind."""
    try:
        return (
            await list_all(api, path, label_selector=label_selector, resource_version=resource_version, accept=accept)
        ).items
    except NotFound:
        return []


def _add_kinds(page: Object) -> Iterator[Object]:
    """Yield the list's items with their apiVersion and kind, which the items of built-in lists lack."""
    type_meta = {"apiVersion": page["apiVersion"], "kind": str(page["kind"]).removesuffix("List")}
    return ({**type_meta, **item} for item in page.get("items") or [])
