"""Reads the product's objects in its namespace, and returns the warnings about an install that does not work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from console.operations.install.listings import PRODUCT_LISTINGS, Listing
from console.operations.install.problems import (
    DEPLOYMENT,
    KIND_BY_RESOURCE,
    Problem,
    find_problems,
    format_problems,
    has_functions,
)
from kube.client.api import Api, gather_all
from kube.client.api_errors import ApiError, Denied, NotFound
from kube.maintenance.objects import Maintenance, get_status
from kube.paths import Object


class InstallReport(NamedTuple):
    """The problems of an install, and a note on what could not be checked, or "" if all was checked."""

    problems: list[Problem]
    note: str


class _ListResult(NamedTuple):
    """The listed objects, or the error of the request."""

    listing: Listing
    items: list[Object]
    error: ApiError | None = None


async def list_install_warnings(api: Api, namespace: str, stalled: Sequence[Maintenance]) -> list[str]:
    """Return the warnings that explain why these maintenances are stalled; without maintenances, send no request.

    The note on what could not be checked is only included if a maintenance has no status: otherwise the functions have
    worked, and the status explains the wait.
    """
    if not stalled:
        return []
    report = await read_install(api, namespace)
    needs_note = report.note and not all(map(get_status, stalled))
    return [*format_problems(report.problems), *([report.note] if needs_note else [])]


async def read_install(api: Api, namespace: str) -> InstallReport:
    """Return the problems of the install in the namespace; a failed read becomes a note.

    Pods are only listed if a Deployment has no available pod.
    """
    listings = {listing.resource: replace(listing, namespace=namespace) for listing in PRODUCT_LISTINGS}
    results = await gather_all(*(_list_objects(api, listings[resource]) for resource in KIND_BY_RESOURCE))
    objects = {result.listing.resource: result.items for result in results}
    problems = find_problems(objects)
    if any(problem.kind == DEPLOYMENT for problem in problems):
        results.append(await _list_objects(api, listings["pods"]))
        problems = find_problems(objects, results[-1].items)
    note = _explain_errors(results, namespace)
    if not note and not has_functions(objects):
        note = (
            f'no functions found in namespace "{namespace}": if they run in another namespace, name it with --namespace'
        )
    return InstallReport(problems, note)


async def _list_objects(api: Api, listing: Listing) -> _ListResult:
    """List the objects; there are none if the API group is not served, such as that of Knative Serving."""
    try:
        response = await api.list(listing.path, label_selector=listing.labels)
    except NotFound:
        return _ListResult(listing, [])
    except ApiError as error:
        return _ListResult(listing, [], error)
    return _ListResult(listing, response["items"])


def _explain_errors(results: Sequence[_ListResult], namespace: str) -> str:
    """Return which permissions are missing, or why another request failed; "" if there were no errors."""
    denied = [
        replace(result.listing, namespace="").permission for result in results if isinstance(result.error, Denied)
    ]
    if denied:
        rights = ", ".join(permission.removeprefix("list ") for permission in denied)
        return (
            f'cannot check whether the functions run: you may not list {rights} in namespace "{namespace}": '
            "ask an administrator for this right"
        )
    failed = next((result for result in results if result.error), None)
    return (
        f"cannot check whether the functions run: cannot {failed.listing.permission}: {failed.error.message}"
        if failed and failed.error
        else ""
    )
