"""Lists the product's objects in its namespace, and returns the warnings about an install that does not work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from console.operations import install_problems
from console.operations.install_problems import (
    DEPLOYMENT,
    KIND_BY_RESOURCE,
    PRODUCT_SELECTOR,
    Problem,
    find_problems,
    format_problems,
    has_functions,
)
from kube.client.api import Api, gather_all
from kube.client.api_errors import ApiError, Denied, NotFound
from kube.maintenance.objects import Maintenance, get_status
from kube.paths import Object
from kube.selectors import format_selector


def format_permission(verb: str, resource: str, api_version: str, namespace: str = "") -> str:
    """Return a permission as `kubectl auth can-i` takes it: `list leases.coordination.k8s.io in medik8s-leases`."""
    group = api_version.rpartition("/")[0]
    permission = f"{verb} {resource}.{group}" if group else f"{verb} {resource}"
    return f"{permission} in {namespace}" if namespace else permission


@dataclass(frozen=True)
class Listing:
    """A list request for one kind, and the file for its result.

    Attributes:
        file: Name in the archive, without `.json`.
        api_version, resource: The kind's API version and resource name, e.g. `apps/v1` and `deployments`.
        namespace: "" for all namespaces, or for a cluster-scoped kind.
        labels, fields: Selectors.
    """

    file: str
    api_version: str
    resource: str
    namespace: str = ""
    labels: str = ""
    fields: str = ""

    @property
    def path(self) -> str:
        """Return the path of the collection."""
        namespace = f"/namespaces/{self.namespace}" if self.namespace else ""
        root = "apis" if "/" in self.api_version else "api"
        return f"/{root}/{self.api_version}{namespace}/{self.resource}"

    @property
    def permission(self) -> str:
        """Return the permission that the request needs, in the form that `kubectl auth can-i` takes."""
        return format_permission("list", self.resource, self.api_version, self.namespace)


PRODUCT_LISTINGS = [
    Listing("product/pods", "v1", "pods", labels=format_selector(PRODUCT_SELECTOR)),
    Listing("product/deployments", "apps/v1", "deployments"),
    Listing("product/services", "serving.knative.dev/v1", "services"),
    *(Listing(f"product/{kind}", "eventing.knative.dev/v1", kind) for kind in ("brokers", "triggers")),
    *(
        Listing(f"product/{kind}", "sources.knative.dev/v1", kind)
        for kind in ("apiserversources", "pingsources", "containersources", "sinkbindings")
    ),
]
"""Objects in the namespace that the product is installed in."""


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
    failed = [(result.listing, result.error) for result in results if result.error]
    denied = [replace(listing, namespace="").permission for listing, error in failed if isinstance(error, Denied)]
    if denied:
        rights = ", ".join(permission.removeprefix("list ") for permission in denied)
        return (
            f'cannot check whether the functions run: you may not list {rights} in namespace "{namespace}": '
            "ask an administrator for this right"
        )
    for listing, error in failed:
        return f"cannot check whether the functions run: cannot {listing.permission}: {error.message}"
    return ""


@asynccontextmanager
async def warn_if_stalled(
    api: Api, namespace: str, select_stalled: Callable[[], Sequence[Maintenance]], warn: Callable[[str], None]
) -> AsyncIterator[None]:
    """Check the install once while the block runs, as soon as a maintenance is stalled, and print the warnings.

    In: the product's namespace; a function that returns the stalled maintenances, which is called every
    `STALLED_SECONDS` and sends no request; a function that prints a warning.
    """

    async def warn_later() -> None:
        stalled: Sequence[Maintenance] = []
        while not stalled:
            await asyncio.sleep(install_problems.STALLED_SECONDS)
            stalled = select_stalled()
        for warning in await list_install_warnings(api, namespace, stalled):
            warn(warning)

    task = asyncio.create_task(warn_later())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
