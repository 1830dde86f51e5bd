"""Lists and watches a collection, and retries after failures; used by the event sources and the CLI."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Literal, cast

import msgspec

from kube.backoff import ExponentialBackoff
from kube.client.api import Api
from kube.client.api_errors import ApiError, NotFound, Rejected, Unavailable
from kube.client.paging import ListResult, list_all
from kube.paths import Object
from kube.trimming import return_unchanged

MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.05, 2.0
"""First and longest delay in seconds between attempts to connect; the delay doubles after each attempt."""
MAX_REFUSED_BACKOFF_SECONDS = 30.0
"""Longest delay in seconds after an error response, for a stream with an observer.

More frequent retries would only add load.
"""
MAX_REMEMBERED_MESSAGES = 8
"""Number of recent distinct error messages of a stream to remember, so that each is logged once."""
INITIAL_EVENTS_END = "k8s.io/initial-events-end"
"""Annotation of the bookmark after a watch's initial objects (Kubernetes API concepts, "streaming lists")."""
log = logging.getLogger(__name__)

ChangeType = Literal["ADDED", "MODIFIED", "DELETED", "SYNCED"]
WatchStream = AsyncGenerator[tuple[str, Object], None]


@dataclass(frozen=True)
class Change:
    """A change of one object, or the end of the initial objects (SYNCED).

    A DELETED object is in its last state, with the resourceVersion of its deletion. SYNCED comes once, after the
    initial objects; its object contains only `metadata.resourceVersion`, the version of the list.
    """

    change_type: ChangeType
    object: Object


class StreamObserver:
    """Handles the lists, watches and failures of a stream; subclasses override the methods that they need."""

    def on_listed(self) -> None:
        """Handle a completed list, after the consumer has received all changes in it."""

    def on_watch_opened(self) -> None:
        """Handle the start of a watch."""

    def on_watch_closed(self) -> None:
        """Handle the end of a watch."""

    def on_failed(self, error: ApiError) -> None:
        """Handle a failed list or watch, which the stream will retry."""


async def follow(
    api: Api,
    path: str,
    *,
    field_selector: str = "",
    label_selector: str = "",
    emit_initial: bool = True,
    use_streaming_list: bool = False,
    transform: Callable[[Object], Object] = return_unchanged,
    observer: StreamObserver | None = None,
) -> AsyncGenerator[Change, None]:
    """Yield the changes of the collection at `path`, filtered by field and label selectors.

    First come the existing objects as ADDED (unless `emit_initial=False`), then SYNCED, then all later changes. A
    broken watch resumes after the last received change. If the API server no longer has that version (410), the
    collection is listed again and compared with the known objects.

    With `use_streaming_list`, the existing objects come from the watch itself if the API server supports that
    (KEP-3157), which saves a request. `transform` reduces each object before it is stored and yielded; it must keep at
    least uid and resourceVersion.

    Raises `NotFound` if the collection does not exist or no longer exists. Without an `observer`, raises a list's other
    errors, too, except `Unavailable`. With an `observer`, reports these errors to the observer and retries.

    The caller must close the generator (`contextlib.aclosing`), otherwise its watch stays open.
    """
    selectors = {"field_selector": field_selector, "label_selector": label_selector}
    follower = _Follower(api, path, selectors, transform, observer)
    if not use_streaming_list:
        async with aclosing(follower.list_changes()) as changes:
            async for change in changes:
                if emit_initial or change.change_type == "SYNCED":
                    yield change
    while True:
        async with aclosing(follower.watch_changes()) as changes:
            async for change in changes:
                yield change
        if follower.needs_relist:
            async with aclosing(follower.list_changes()) as changes:
                async for change in changes:
                    yield change
        await follower.retry_state.wait_backoff()


class _Follower:
    """State of one stream: the objects that it has yielded, and their resourceVersion ("" before SYNCED).

    `needs_relist` is true if a watch cannot provide the missing changes, so that the collection must be listed.
    """

    def __init__(
        self,
        api: Api,
        path: str,
        selectors: Mapping[str, str],
        transform: Callable[[Object], Object],
        observer: StreamObserver | None,
    ) -> None:
        self.retry_state, self.needs_relist = _RetryState(path, observer), False
        self._api, self._path, self._selectors, self._transform = api, path, selectors, transform
        self._cache, self._resource_version = _ObjectCache(transform), ""

    async def list_changes(self) -> AsyncGenerator[Change, None]:
        """Yield the differences between the objects yielded so far and a new list; yield SYNCED after the first list.

        The list is retried while the API server is unavailable. If there is an observer, it is also retried after other
        errors except `NotFound`.
        """
        list_result = await self._list_with_retries()
        for change in self._cache.diff_list(list_result):
            yield change
        is_first, self._resource_version = not self._resource_version, list_result.resource_version
        self.retry_state.observer.on_listed()
        if is_first:
            yield _build_synced_change(self._resource_version)

    async def watch_changes(self) -> AsyncGenerator[Change, None]:
        """Yield the changes of one watch until it ends; a new stream yields the existing objects first."""
        self.needs_relist = False
        try:
            watch = self._api.watch(self._path, resource_version=self._resource_version, **self._selectors)
            async with self.retry_state.observe_watch(), aclosing(cast("WatchStream", watch)) as changes:
                async for event_type, changed_object in changes:
                    self.retry_state.record_success()
                    is_initial_end = not self._resource_version and _is_initial_events_end(event_type, changed_object)
                    if self._resource_version or is_initial_end:
                        self._resource_version = _get_resource_version(changed_object)
                    for change in self._cache.apply_event(event_type, changed_object):
                        yield change
                    if is_initial_end:
                        self.retry_state.observer.on_listed()
                        yield _build_synced_change(self._resource_version)
        except (NotFound, Rejected) as error:  # the version is too old, or the server does not support the query
            if self._resource_version and not isinstance(error, NotFound):
                self.retry_state.record_failure(error)
            self.needs_relist = True
        except ApiError as error:
            self.retry_state.record_failure(error)
        self.needs_relist = self.needs_relist or not self._resource_version

    async def _list_with_retries(self) -> ListResult:
        while True:
            try:
                return await list_all(self._api, self._path, transform=self._transform, **self._selectors)
            except NotFound:
                raise
            except ApiError as error:
                if not self.retry_state.is_observed and not isinstance(error, Unavailable):
                    raise
                self.retry_state.record_failure(error)
            await self.retry_state.wait_backoff()


def _build_synced_change(resource_version: str) -> Change:
    return Change("SYNCED", {"metadata": {"resourceVersion": resource_version}})


def _is_initial_events_end(event_type: str, changed_object: Object) -> bool:
    return (
        event_type == "BOOKMARK"
        and (changed_object["metadata"].get("annotations") or {}).get(INITIAL_EVENTS_END) == "true"
    )


async def merge_streams(*streams: AsyncGenerator[Change, None]) -> AsyncGenerator[tuple[int, Change], None]:
    """Yield the changes of all streams as they arrive, each with its stream's index; re-raise the first error.

    At its end, this generator closes the streams.
    """
    pending = {asyncio.ensure_future(anext(stream)): number for number, stream in enumerate(streams)}
    try:
        while pending:
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                number = pending.pop(task)
                change = task.result()
                pending[asyncio.ensure_future(anext(streams[number]))] = number
                yield number, change
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        for stream in streams:
            await stream.aclose()  # needed because cancelling does not stop a stream whose next change is ready


class _RetryState:
    """Backoff and logging of one stream's failures; each distinct message is logged once until the next success."""

    def __init__(self, path: str, observer: StreamObserver | None) -> None:
        self.is_observed, self.observer = observer is not None, observer or StreamObserver()
        self._path = path
        self._logged_messages: deque[str] = deque(maxlen=MAX_REMEMBERED_MESSAGES)
        self.record_success()

    def record_success(self) -> None:
        """Reset the backoff and forget the logged messages."""
        self._backoff, self._max_seconds = ExponentialBackoff(MIN_BACKOFF_SECONDS), MAX_BACKOFF_SECONDS
        self._logged_messages.clear()

    def record_failure(self, error: ApiError) -> None:
        """Report a failure to the observer and log it.

        The kind of failure determines the longest delay. A failure of a different kind does not reset the current
        delay.
        """
        self.observer.on_failed(error)
        self._max_seconds = MAX_REFUSED_BACKOFF_SECONDS if self.is_observed and error.status else MAX_BACKOFF_SECONDS
        if error.message not in self._logged_messages:
            self._logged_messages.append(error.message)
            log.warning("%s; retrying the list or watch of %s", error.message, self._path)

    async def wait_backoff(self) -> None:
        """Sleep for the current delay before the next attempt."""
        await asyncio.sleep(self._backoff.get_next_delay(self._max_seconds))

    @asynccontextmanager
    async def observe_watch(self) -> AsyncIterator[None]:
        """Notify the observer of the start and the end of a watch."""
        self.observer.on_watch_opened()
        try:
            yield
        finally:
            self.observer.on_watch_closed()


class _ObjectCache:
    """The objects that the stream has yielded: a resourceVersion and a compressed object by uid.

    The object is needed to yield its deletion if no watch reported the deletion.
    """

    def __init__(self, transform: Callable[[Object], Object]) -> None:
        self._transform = transform
        self._objects: dict[str, tuple[str, bytes]] = {}

    def apply_event(self, event_type: str, changed_object: Object) -> Iterator[Change]:
        """Yield the change that a watch event describes; yield nothing for a bookmark."""
        if event_type == "DELETED":
            self._objects.pop(_get_uid(changed_object), None)
            yield Change("DELETED", self._transform(changed_object))
        elif event_type in ("ADDED", "MODIFIED"):
            yield self._store_object(self._transform(changed_object))

    def diff_list(self, list_result: ListResult) -> Iterator[Change]:
        """Yield the differences between the objects yielded so far and a new list.

        Deletions come first, so that an object can follow a deleted one of the same name.
        """
        listed_uids = {_get_uid(item) for item in list_result.items}
        for uid in [uid for uid in self._objects if uid not in listed_uids]:
            deleted = _decompress_object(self._objects.pop(uid)[1])
            deleted["metadata"]["resourceVersion"] = list_result.resource_version
            yield Change("DELETED", deleted)
        for item in list_result.items:
            cached = self._objects.get(_get_uid(item))
            if cached is None or cached[0] != _get_resource_version(item):
                yield self._store_object(item)

    def _store_object(self, obj: Object) -> Change:
        change_type: ChangeType = "MODIFIED" if _get_uid(obj) in self._objects else "ADDED"
        self._objects[_get_uid(obj)] = (_get_resource_version(obj), _compress_object(obj))
        return Change(change_type, obj)


def _get_uid(obj: Object) -> str:
    return str(obj["metadata"]["uid"])


def _get_resource_version(obj: Object) -> str:
    return str(obj["metadata"]["resourceVersion"])


def _compress_object(obj: Object) -> bytes:
    """Compress an object to a tenth of the dict's size, because a stream may store thousands of pods."""
    return zlib.compress(msgspec.json.encode(obj), level=1)


def _decompress_object(packed: bytes) -> Object:
    obj: Object = msgspec.json.decode(zlib.decompress(packed))
    return obj
