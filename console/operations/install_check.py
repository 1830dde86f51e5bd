"""Checks whether the objects of an install are ready, and returns warnings that explain stalled maintenances."""

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
    NO_NODE_REMEDY,
    POD,
    PRODUCT_SELECTOR,
    Problem,
    find_problems,
    find_unscheduled_pods,
    format_problems,
    has_functions,
)
from kube.client.api import Api, gather_all
from kube.client.api_errors import ApiError, Denied, NotFound
from kube.maintenance.objects import Maintenance, get_status
from kube.paths import Object
from kube.selectors import format_selector


def format_permission(verb: str, resource: str, api_version: str, namespace: str = "") -> str:
    """Return a permission as text, such as `list leases.coordination.k8s.io in medik8s-leases`."""
    group = api_version.rpartition("/")[0]
    permission = f"{verb} {resource}.{group}" if group else f"{verb} {resource}"
    return f"{permission} in {namespace}" if namespace else permission


@dataclass(frozen=True)
class Listing:
    """A list request for objects of one kind, and the archive file for the response.

    Attributes:
        file: Name of the file in a must-gather archive, without `.json`.
        api_version, resource: API version and resource name of the kind, such as `apps/v1` and `deployments`.
        namespace: Namespace to list, "" for all namespaces or for a cluster-scoped kind.
        labels, fields: Label selector and field selector of the request.
    """

    file: str
    api_version: str
    resource: str
    namespace: str = ""
    labels: str = ""
    fields: str = ""

    @property
    def path(self) -> str:
        """Return the API path of the list request."""
        namespace = f"/namespaces/{self.namespace}" if self.namespace else ""
        root = "apis" if "/" in self.api_version else "api"
        return f"/{root}/{self.api_version}{namespace}/{self.resource}"

    @property
    def permission(self) -> str:
        """Return the permission that the request requires, such as `list pods`."""
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
"""List requests for the product's objects; the caller sets the namespace."""
UNSCHEDULED_PODS = Listing("", "v1", "pods", fields="spec.nodeName=")
"""List request for the pods of all namespaces that have no node."""


class InstallReport(NamedTuple):
    """The problems of an install, and a note about failed checks ("" if all checks succeeded)."""

    problems: list[Problem]
    note: str


class _ListResult(NamedTuple):
    """Result of a list request: the objects, or the API error."""

    listing: Listing
    items: list[Object]
    error: ApiError | None = None


async def list_install_warnings(api: Api, namespace: str, stalled: Sequence[Maintenance]) -> list[str]:
    """Return warnings that explain why the `stalled` maintenances are stalled; without any, send no request.

    The note about failed checks is included only if a maintenance has no status. Otherwise the functions have worked,
    and the status explains the delay.
    """
    if not stalled:
        return []
    report = await check_install(api, namespace)
    has_unscheduled_pods = any(problem.kind == POD for problem in report.problems)
    remedies = [f"if no node accepts these pods, {NO_NODE_REMEDY}"] if has_unscheduled_pods else []
    needs_note = report.note and not all(map(get_status, stalled))
    return [*format_problems(report.problems), *remedies, *([report.note] if needs_note else [])]


async def check_install(api: Api, namespace: str) -> InstallReport:
    """Check the install in the namespace, and return its problems; report failed list requests in a note.

    The function lists the product's pods only if a Deployment has no available pod. It omits unscheduled pods that
    explain this, and all unscheduled pods if the user may not list the pods of all namespaces.
    """
    listings = {listing.resource: replace(listing, namespace=namespace) for listing in PRODUCT_LISTINGS}
    results = await gather_all(*(_list_objects(api, listings[resource]) for resource in KIND_BY_RESOURCE))
    objects = {result.listing.resource: result.items for result in results}
    problems = find_problems(objects)
    if any(problem.kind == DEPLOYMENT for problem in problems):
        results.append(await _list_objects(api, listings["pods"]))
        problems = find_problems(objects, results[-1].items)
    unscheduled = await _list_objects(api, UNSCHEDULED_PODS)
    explained = {problem.message for problem in problems}
    problems += [
        problem for problem in find_unscheduled_pods(unscheduled.items, namespace) if problem.message not in explained
    ]
    note = _explain_errors(results, namespace)
    if not note and not has_functions(objects):
        note = (
            f'no functions found in namespace "{namespace}": if they run in another namespace, name it with --namespace'
        )
    return InstallReport(problems, note)


async def _list_objects(api: Api, listing: Listing) -> _ListResult:
    """List the objects of one kind; return no objects if the API group, such as Knative Serving's, is not served."""
    try:
        response = await api.list(listing.path, field_selector=listing.fields, label_selector=listing.labels)
    except NotFound:
        return _ListResult(listing, [])
    except ApiError as error:
        return _ListResult(listing, [], error)
    return _ListResult(listing, response["items"])


def _explain_errors(results: Sequence[_ListResult], namespace: str) -> str:
    """Return a message about missing permissions, or else about another failed request; "" without errors."""
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
async def check_install_if_maintenance_stalls(
    api: Api, namespace: str, select_stalled: Callable[[], Sequence[Maintenance]], warn: Callable[[str], None]
) -> AsyncIterator[None]:
    """Check the install once during the `with` block, as soon as a maintenance is stalled, and print the warnings.

    `namespace` is the product's namespace. `select_stalled` is called every `STALLED_SECONDS` and returns the stalled
    maintenances; it must send no request. `warn` prints a warning.
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
