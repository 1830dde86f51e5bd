"""Lists and watches MutexRunConfigs, and requests that a halted upgrade run be resumed (MUT-48)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime, timezone
from http import HTTPStatus

from console.operations.errors import OperationError, Refusal
from console.operations.maintenance_actions import collect_watched_objects
from console.operations.run_reports import get_step_label
from kube.client.api import Api, get_or_none
from kube.client.api_errors import NotFound
from kube.client.list_watch import follow
from kube.client.paging import list_all
from kube.mutex.objects import (
    API_PATH,
    PLURALS,
    RETRY_ANNOTATION,
    RUN_KIND,
    build_collection_path,
    build_object_path,
    format_full_name,
)
from kube.mutex.run_record import get_record, is_resume_requested
from kube.paths import Object
from kube.times import format_micro_time

RUNS_PATH = build_collection_path(RUN_KIND)
NOT_SERVED_ERROR = OperationError(
    "the cluster does not serve MutexRunConfigs", 'install the component "mutex" first', HTTPStatus.NOT_FOUND
)


async def list_runs(api: Api) -> list[Object]:
    """Return all MutexRunConfigs, sorted by namespace and name. Raises `OperationError` if the kind is not served."""
    try:
        return sorted((await list_all(api, RUNS_PATH)).items, key=format_full_name)
    except NotFound:
        raise NOT_SERVED_ERROR from None


async def is_run_config_kind_served(api: Api) -> bool:
    """Return whether the cluster serves MutexRunConfigs."""
    api_resources = await get_or_none(api.get(API_PATH))
    return any(resource["name"] == PLURALS[RUN_KIND] for resource in (api_resources or {}).get("resources", []))


def is_run_config_named(run: Object, name: str) -> bool:
    """Return whether `name`, in the format `NAME` or `NAMESPACE/NAME`, is the name of this MutexRunConfig."""
    return name in (run["metadata"]["name"], format_full_name(run))


async def get_run(api: Api, name: str) -> Object:
    """Return the MutexRunConfig with this `NAME` or `NAMESPACE/NAME`. Raises `Refusal` unless exactly one matches."""
    runs = [run for run in await list_runs(api) if is_run_config_named(run, name)]
    if not runs:
        message = f'MutexRunConfig "{name}" not found'
        raise Refusal(HTTPStatus.NOT_FOUND, message, "see kubectl maintenance mutex status")
    if len(runs) > 1:
        names = ", ".join(map(format_full_name, runs))
        raise Refusal(HTTPStatus.CONFLICT, f'several MutexRunConfigs have the name "{name}"', f"name one of {names}")
    return runs[0]


async def request_retry(api: Api, name: str) -> Object:
    """Request that a halted run be resumed, and return the MutexRunConfig.

    Raises `Refusal` if the run is not halted, or if its resumption has already been requested.
    """
    run = await get_run(api, name)
    if not get_record(run).get("failure"):
        message = f"the run of {format_full_name(run)} has not stopped, its step is {get_step_label(run)}"
        remedy = f"to see what it waits for, run kubectl maintenance mutex status {format_full_name(run)}"
        raise Refusal(HTTPStatus.CONFLICT, message, remedy)
    if is_resume_requested(run):
        message = f"a retry of the run of {format_full_name(run)} is already requested"
        raise Refusal(HTTPStatus.CONFLICT, message, "if the run does not resume, check that the functions run")
    patch = {"metadata": {"annotations": {RETRY_ANNOTATION: format_micro_time(datetime.now(timezone.utc))}}}
    return await api.patch(build_object_path(run), patch)


async def watch_runs(api: Api) -> AsyncGenerator[list[Object], None]:
    """Yield all MutexRunConfigs, sorted by namespace and name, after the initial list and after every change."""
    try:
        async with aclosing(collect_watched_objects(follow(api, RUNS_PATH))) as states:
            async for runs in states:
                yield sorted(({"kind": RUN_KIND, **run} for run in runs), key=format_full_name)
    except NotFound:
        raise NOT_SERVED_ERROR from None
