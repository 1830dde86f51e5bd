"""Shell completion of the names of nodes and maintenances.

If the cluster cannot be read, the functions return no names, because a completion must not print errors.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from kube.client.api import Api


def complete_nodes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of the nodes that start with `incomplete`, without those already on the command line."""
    return _complete_names(ctx, param, incomplete, _list_nodes)


def complete_names_of_nodes_in_maintenance(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of the nodes in maintenance that start with `incomplete`, without those on the command line."""
    return _complete_names(ctx, param, incomplete, _list_names_of_nodes_in_maintenance)


def complete_maintenances(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of the NodeMaintenances that start with `incomplete`."""
    return _complete_names(ctx, param, incomplete, _list_maintenance_names)


def _complete_names(
    ctx: click.Context, param: click.Parameter, incomplete: str, list_names: Callable[[Api], Awaitable[Iterable[str]]]
) -> list[str]:
    from console.operations.errors import OperationError  # These imports are slow, because of the API client.
    from console.terminal.connection import run_with_api
    from kube.client.api_errors import ApiError

    prefix = "node/" if incomplete.startswith("node/") else ""
    try:
        with ctx.scope(cleanup=False):
            names = run_with_api(list_names)
    except (click.ClickException, OperationError, ApiError):
        return []
    given = ctx.params.get(str(param.name))
    named = given if isinstance(given, tuple) else ()
    candidates = (f"{prefix}{name}" for name in sorted(set(names)) if name not in named)
    return [candidate for candidate in candidates if candidate.startswith(incomplete)]


async def _list_nodes(api: Api) -> Iterable[str]:
    from kube.client.api import METADATA_ONLY
    from kube.nodes import NODES_PATH

    nodes = (await api.list(NODES_PATH, resource_version="0", accept=METADATA_ONLY))["items"] or []
    return [node["metadata"]["name"] for node in nodes]


async def _list_names_of_nodes_in_maintenance(api: Api) -> Iterable[str]:
    from console.operations.maintenance_actions import list_served_maintenances
    from kube.maintenance.objects import get_node_name, select_unreleased

    return [get_node_name(maintenance) for maintenance in select_unreleased(await list_served_maintenances(api))]


async def _list_maintenance_names(api: Api) -> Iterable[str]:
    from console.operations.maintenance_actions import list_served_maintenances

    return [maintenance["metadata"]["name"] for maintenance in await list_served_maintenances(api)]
