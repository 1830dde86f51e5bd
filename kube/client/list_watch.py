"""Follows a collection: lists it, then watches it and reconnects as needed. The sources and the CLI use it."""

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

from kube.backoff import GrowingPauses
from kube.client.api import Api
from kube.client.api_errors import ApiError, NotFound, Rejected, Unavailable
from kube.client.paging import Listed, pages
from kube.paths import Object
from kube.trimming import whole

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
"""First and longest backoff in seconds between attempts to connect; it doubles each time."""
LONGEST_REFUSED = 30.0
"""Longest backoff in seconds with a witness, if the API server answers with an error.

More frequent attempts would help neither side.
"""
MESSAGES = 8
"""Number of recent distinct error messages that are remembered, so that each is logged once."""
INITIAL_END = "k8s.io/initial-events-end"
"""Annotation of the bookmark after the initial objects of a watch (API concepts, "streaming lists")."""
log = logging.getLogger(__name__)

Kind = Literal["ADDED", "MODIFIED", "DELETED", "SYNCED"]
Watch = AsyncGenerator[tuple[str, Object], None]


@dataclass(frozen=True)
class Change:
    """A change of one object, or SYNCED.

    A DELETED object has its last state, with the resourceVersion of its deletion. SYNCED comes once, after the initial
    objects; its object contains only `metadata.resourceVersion`, the version of the list.
    """

    kind: Kind
    object: Object


class Witness:
    """Receives notifications about the state of a stream. Subclasses override the methods that they need."""

    def listed(self) -> None:
        """Handle the end of a list, the first or a later one, after the consumer took all its changes."""

    def opened(self) -> None:
        """Handle the start of a watch."""

    def closed(self) -> None:
        """Handle the end of a watch."""

    def failed(self, error: ApiError) -> None:
        """Handle a failed list or watch, which will be retried."""


async def follow(
    api: Api,
    path: str,
    *,
    fields: str = "",
    labels: str = "",
    initial: bool = True,
    streamed: bool = False,
    keep: Callable[[Object], Object] = whole,
    witness: Witness | None = None,
) -> AsyncGenerator[Change, None]:
    """Yield the changes of the collection at `path`, narrowed by field and label selectors.

    First come the existing objects as ADDED (unless `initial=False`), then SYNCED, then changes without end. A broken
    watch resumes where it broke. If the API server no longer has that version (410), the collection is listed again and
    compared.

    With `streamed`, the watch also delivers the existing objects if the API server supports that (KEP-3157), which
    saves a request. Only what `keep` returns of each object is stored and yielded; it must contain at least uid and
    resourceVersion.

    Raises `NotFound` if the collection does not exist, or no longer exists. Without a `witness`, also raises the other
    errors of a list except `Unavailable`. With a `witness`, reports these to it and retries.

    The caller must close the generator (`contextlib.aclosing`), otherwise its watch stays open.
    """
    following = _Following(api, path, {"fields": fields, "labels": labels}, keep, witness)
    if not streamed:
        async with aclosing(following.listed()) as changes:
            async for change in changes:
                if initial or change.kind == "SYNCED":
                    yield change
    while True:
        async with aclosing(following.watched()) as changes:
            async for change in changes:
                yield change
        if following.is_lost:
            async with aclosing(following.listed()) as changes:
                async for change in changes:
                    yield change
        await following.attempts.pause()


class _Following:
    """State of one stream: what it has yielded, and the resourceVersion of that ("" before SYNCED).

    `is_lost` means that only a list can provide the missing changes.
    """

    def __init__(
        self,
        api: Api,
        path: str,
        selectors: Mapping[str, str],
        keep: Callable[[Object], Object],
        witness: Witness | None,
    ) -> None:
        self.attempts, self.is_lost = _Attempts(path, witness), False
        self._api, self._path, self._selectors, self._keep = api, path, selectors, keep
        self._known, self._version = _Known(keep), ""

    async def listed(self) -> AsyncGenerator[Change, None]:
        """Yield what a new list changes compared with the objects yielded so far; SYNCED after the first list.

        The list is retried for as long as the API server is unavailable, and with a witness also while it refuses the
        list.
        """
        listed = await self._list()
        for change in self._known.compare(listed):
            yield change
        first, self._version = not self._version, listed.version
        self.attempts.witness.listed()
        if first:
            yield _synced(self._version)

    async def watched(self) -> AsyncGenerator[Change, None]:
        """Yield the changes of one watch until it ends, in a new stream also the existing objects."""
        self.is_lost = False
        try:
            watch = self._api.watch(self._path, version=self._version, **self._selectors)
            async with self.attempts.watching(), aclosing(cast("Watch", watch)) as changes:
                async for kind, changed in changes:
                    self.attempts.succeed()
                    first = not self._version and _ends_initial(kind, changed)
                    if self._version or first:
                        self._version = _version(changed)
                    for change in self._known.take(kind, changed):
                        yield change
                    if first:
                        self.attempts.witness.listed()
                        yield _synced(self._version)
        except (NotFound, Rejected) as error:  # the version is too old, or the server rejects the query
            if self._version and not isinstance(error, NotFound):
                self.attempts.fail(error)
            self.is_lost = True
        except ApiError as error:
            self.attempts.fail(error)
        self.is_lost = self.is_lost or not self._version

    async def _list(self) -> Listed:
        while True:
            try:
                return await pages(self._api, self._path, keep=self._keep, **self._selectors)
            except NotFound:
                raise
            except ApiError as error:
                if not self.attempts.is_witnessed and not isinstance(error, Unavailable):
                    raise
                self.attempts.fail(error)
            await self.attempts.pause()


def _synced(version: str) -> Change:
    return Change("SYNCED", {"metadata": {"resourceVersion": version}})


def _ends_initial(kind: str, changed: Object) -> bool:
    return kind == "BOOKMARK" and (changed["metadata"].get("annotations") or {}).get(INITIAL_END) == "true"


async def merged(*streams: AsyncGenerator[Change, None]) -> AsyncGenerator[tuple[int, Change], None]:
    """Yield the changes of all streams as they arrive, each with its stream's number; raise what a stream raises.

    When this generator ends, it closes the streams.
    """
    coming = {asyncio.ensure_future(anext(stream)): number for number, stream in enumerate(streams)}
    try:
        while coming:
            done, _ = await asyncio.wait(coming, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                number = coming.pop(task)
                change = task.result()
                coming[asyncio.ensure_future(anext(streams[number]))] = number
                yield number, change
    finally:
        for task in coming:
            task.cancel()
        await asyncio.gather(*coming, return_exceptions=True)
        for stream in streams:
            await stream.aclose()  # cancelling does not reach a stream whose next change is ready


class _Attempts:
    """Backoff and logging of one stream's failures; each message is logged once until the next success."""

    def __init__(self, path: str, witness: Witness | None) -> None:
        self.is_witnessed, self.witness = witness is not None, witness or Witness()
        self._path = path
        self._said: deque[str] = deque(maxlen=MESSAGES)
        self.succeed()

    def succeed(self) -> None:
        """Reset the backoff and the logged messages after a success."""
        self._pauses, self._longest = GrowingPauses(FIRST_PAUSE), LONGEST_PAUSE
        self._said.clear()

    def fail(self, error: ApiError) -> None:
        """Report a failure to the witness and log it.

        The kind of the failure sets the longest backoff; the delays keep growing across kinds.
        """
        self.witness.failed(error)
        self._longest = LONGEST_REFUSED if self.is_witnessed and error.status else LONGEST_PAUSE
        if error.message not in self._said:
            self._said.append(error.message)
            log.warning("%s; asking again for %s", error.message, self._path)

    async def pause(self) -> None:
        """Wait before the next attempt."""
        await asyncio.sleep(self._pauses.take(self._longest))

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Notify the witness of the start and end of a watch."""
        self.witness.opened()
        try:
            yield
        finally:
            self.witness.closed()


class _Known:
    """The objects that the follower has yielded: uid → resourceVersion and compressed object.

    The object is needed to yield a deletion that no watch reported.
    """

    def __init__(self, keep: Callable[[Object], Object]) -> None:
        self._keep = keep
        self._objects: dict[str, tuple[str, bytes]] = {}

    def take(self, kind: str, changed: Object) -> Iterator[Change]:
        """Yield the change for a watch event; nothing for a bookmark."""
        if kind == "DELETED":
            self._objects.pop(_uid(changed), None)
            yield Change("DELETED", self._keep(changed))
        elif kind in ("ADDED", "MODIFIED"):
            yield self._put(self._keep(changed))

    def compare(self, listed: Listed) -> Iterator[Change]:
        """Yield the changes from the objects yielded so far to a new list.

        Deletions come first, so that a name is free before it is added again.
        """
        there = {_uid(item) for item in listed.items}
        for uid in [uid for uid in self._objects if uid not in there]:
            gone = _unpacked(self._objects.pop(uid)[1])
            gone["metadata"]["resourceVersion"] = listed.version
            yield Change("DELETED", gone)
        for item in listed.items:
            known = self._objects.get(_uid(item))
            if known is None or known[0] != _version(item):
                yield self._put(item)

    def _put(self, item: Object) -> Change:
        kind: Kind = "MODIFIED" if _uid(item) in self._objects else "ADDED"
        self._objects[_uid(item)] = (_version(item), _packed(item))
        return Change(kind, item)


def _uid(item: Object) -> str:
    return str(item["metadata"]["uid"])


def _version(item: Object) -> str:
    return str(item["metadata"]["resourceVersion"])


def _packed(item: Object) -> bytes:
    """Compress an object to a tenth of the dict's size, because thousands of pods may be followed."""
    return zlib.compress(msgspec.json.encode(item), level=1)


def _unpacked(packed: bytes) -> Object:
    item: Object = msgspec.json.decode(zlib.decompress(packed))
    return item
