"""Lists and watches MutexRunConfigs, and requests that a stopped run resume (MUT-48)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime, timezone
from http import HTTPStatus

from console.operations.errors import OperationError, Refusal
from console.operations.run_reports import step_word
from kube.client.api import Api, absent_ok
from kube.client.api_errors import NotFound
from kube.client.list_watch import follow
from kube.client.paging import pages
from kube.mutex.objects import PLURALS, RETRY, ROOT, RUN, collection, full_name, path
from kube.mutex.run_record import is_resumed, record_of
from kube.paths import Object
from kube.times import microtime

RUNS = collection(RUN)
NOT_SERVED = OperationError(
    "this cluster has no MutexRunConfig kind", "install the component mutex first", HTTPStatus.NOT_FOUND
)


async def runs(api: Api) -> list[Object]:
    """Return all run configs by namespace and name. Raises `OperationError` if the kind is not installed."""
    try:
        return in_order((await pages(api, RUNS)).items)
    except NotFound:
        raise NOT_SERVED from None


async def is_served(api: Api) -> bool:
    """Return whether the kind is installed."""
    answer = await absent_ok(api.get(ROOT))
    return any(each["name"] == PLURALS[RUN] for each in (answer or {}).get("resources", []))


def in_order(items: list[Object]) -> list[Object]:
    """Return the run configs sorted by namespace and name."""
    return sorted(items, key=full_name)


def is_named(run: Object, name: str) -> bool:
    """Return whether `NAME` or `NAMESPACE/NAME` refers to this run config."""
    return name in (run["metadata"]["name"], full_name(run))


async def named(api: Api, name: str) -> Object:
    """Return the run config that `NAME` or `NAMESPACE/NAME` refers to. Raises `Refusal` for none, and for several."""
    found = [run for run in await runs(api) if is_named(run, name)]
    if not found:
        raise unknown(name)
    if len(found) > 1:
        places = ", ".join(map(full_name, found))
        raise Refusal(HTTPStatus.CONFLICT, f"there are several MutexRunConfigs {name}", f"name one of {places}")
    return found[0]


def unknown(name: str) -> Refusal:
    """Build the refusal for a run config that does not exist."""
    message = f"there is no MutexRunConfig {name}"
    return Refusal(HTTPStatus.NOT_FOUND, message, "see kubectl maintenance mutex status")


async def retry(api: Api, name: str) -> Object:
    """Request that the run resume where it stopped, and return the run config.

    Raises `Refusal` if the run has not stopped, or if its resumption is already requested.
    """
    run = await named(api, name)
    if not record_of(run).get("failure"):
        message = f"the run of {full_name(run)} has not stopped, it is {step_word(run)}"
        remedy = f"kubectl maintenance mutex status {full_name(run)} says what it waits for"
        raise Refusal(HTTPStatus.CONFLICT, message, remedy)
    if is_resumed(run):
        message = f"the run of {full_name(run)} is about to be resumed: somebody asked for it already"
        raise Refusal(HTTPStatus.CONFLICT, message, "do the functions run?")
    asked = {"metadata": {"annotations": {RETRY: microtime(datetime.now(timezone.utc))}}}
    return await api.patch(path(run), asked)


async def watched(api: Api) -> AsyncGenerator[list[Object], None]:
    """Yield all run configs: once after the initial list, then after every change."""
    known: dict[str, Object] = {}
    is_read = False
    try:
        async with aclosing(follow(api, RUNS)) as changes:
            async for change in changes:
                if change.kind == "SYNCED":
                    is_read = True
                elif change.kind == "DELETED":
                    known.pop(change.object["metadata"]["uid"], None)
                else:
                    known[change.object["metadata"]["uid"]] = {"kind": RUN, **change.object}
                if is_read:
                    yield in_order(list(known.values()))
    except NotFound:
        raise NOT_SERVED from None
