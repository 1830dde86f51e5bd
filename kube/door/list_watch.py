"""Follows a collection: lists it, then watches it for ever, reconnecting by itself. Used by the sources and the CLI."""

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
from kube.door.api import Api
from kube.door.api_errors import ApiError, NotFound, Rejected, Unavailable
from kube.door.paging import Listed, pages
from kube.paths import Object
from kube.trimming import whole

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
"""Seconds between attempts to connect, doubling."""
LONGEST_REFUSED = 30.0
"""The same where a server that answers and refuses is borne with: asking more often helps neither side."""
MESSAGES = 8
"""So many different failures in a row are each said once."""
INITIAL_END = "k8s.io/initial-events-end"
"""Annotation of the bookmark behind what was there when a watch began (API concepts, "streaming lists")."""
log = logging.getLogger(__name__)

Kind = Literal["ADDED", "MODIFIED", "DELETED", "SYNCED"]
Watch = AsyncGenerator[tuple[str, Object], None]


@dataclass(frozen=True)
class Change:
    """What happened to an object.

    A DELETED object is as it was last, with the version of its deletion. SYNCED comes once, after the objects that
    were there already; its object has only `metadata.resourceVersion`, the version of the list.
    """

    kind: Kind
    object: Object


class Witness:
    """Is told how a stream fares. Whoever wants to know overrides what it wants to know."""

    def listed(self) -> None:
        """A list was answered, and all its changes were taken: the first one, or one read anew."""

    def opened(self) -> None:
        """A watch was asked for."""

    def closed(self) -> None:
        """It ended."""

    def failed(self, error: ApiError) -> None:
        """A list or a watch was refused, or got no answer; it is tried again."""


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
    """Changes of the collection at `path`, narrowed by field and label selectors.

    First what is there, as ADDED (not with `initial=False`), then SYNCED, then changes without end: a broken watch is
    resumed where it broke; where the server has forgotten that version (410), the list is read anew and compared.
    With `streamed` the watch itself brings what is there, where the server knows how to (KEP-3157): one request less.
    Of each object only what `keep` returns is stored and given: at least uid and version.
    Raises `NotFound` when the collection is not, or no longer, there, and what a list raises but `Unavailable`; with a
    `witness` `NotFound` alone: it is told of every other refusal, which is tried again.
    Close it (`contextlib.aclosing`), else its watch stays open.
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
    """One stream: what it has yielded, the version of that, "" before SYNCED, and whether a list has to tell more."""

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
        """What a fresh list has that was not yielded, or in another state; behind the first one SYNCED.

        However long the server is away; with a witness, however long it refuses.
        """
        listed = await self._list()
        for change in self._known.compare(listed):
            yield change
        first, self._version = not self._version, listed.version
        self.attempts.witness.listed()
        if first:
            yield _synced(self._version)

    async def watched(self) -> AsyncGenerator[Change, None]:
        """The changes of one watch, until it ends; of a stream that has not yielded anything also what is there."""
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
        except (NotFound, Rejected) as error:  # no such version, or none that the server understands
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
    """The changes of all streams as they come, each with the number of its stream; raises what a stream raises.

    The streams end with it.
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
            await stream.aclose()  # one that has a change at hand was not reached by any cancelling


class _Attempts:
    """The pauses of one stream, and what is said of its failures: each once, until something comes."""

    def __init__(self, path: str, witness: Witness | None) -> None:
        self.is_witnessed, self.witness = witness is not None, witness or Witness()
        self._path = path
        self._said: deque[str] = deque(maxlen=MESSAGES)
        self.succeed()

    def succeed(self) -> None:
        """Something came: the next pause is a short one."""
        self._pauses, self._longest = GrowingPauses(FIRST_PAUSE), LONGEST_PAUSE
        self._said.clear()

    def fail(self, error: ApiError) -> None:
        """Count it and say it. How long the pauses may become is up to its kind; they grow on whatever it is."""
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
        """Tell the witness of a watch from its beginning to its end."""
        self.witness.opened()
        try:
            yield
        finally:
            self.witness.closed()


class _Known:
    """What the follower has yielded: uid → version and the packed object, which a deletion that went unseen needs."""

    def __init__(self, keep: Callable[[Object], Object]) -> None:
        self._keep = keep
        self._objects: dict[str, tuple[str, bytes]] = {}

    def take(self, kind: str, changed: Object) -> Iterator[Change]:
        """The change that a watch event stands for; none for a bookmark."""
        if kind == "DELETED":
            self._objects.pop(_uid(changed), None)
            yield Change("DELETED", self._keep(changed))
        elif kind in ("ADDED", "MODIFIED"):
            yield self._put(self._keep(changed))

    def compare(self, listed: Listed) -> Iterator[Change]:
        """The changes from what was yielded to a fresh list; deletions first: a name is free before it comes again."""
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
    """A tenth of what the dict takes: thousands of pods may be followed."""
    return zlib.compress(msgspec.json.encode(item), level=1)


def _unpacked(packed: bytes) -> Object:
    item: Object = msgspec.json.decode(zlib.decompress(packed))
    return item
