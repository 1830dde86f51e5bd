"""Who plays a part of a system that is not here: looks when something changes, takes a step, and rests meanwhile.

All is decided by what is on the cluster, so each may be killed and started again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import ClassVar, TypeVar

from kube.door.api_errors import ApiError, Conflict, NotFound
from kube.door.list_watch import follow
from kube.door.sync_client import Cluster
from kube.paths import Object
from tests.waiting import until_set

REST = 10.0
"""Seconds between two looks where nothing changes: some parts have something to say each minute."""
AGAIN = 1.0
"""Seconds until what was refused is tried again."""
P = TypeVar("P", bound="Player")


class Player:
    """Plays its part for as long as its block lasts.

    In: the least seconds between two looks. A subclass says in `watched` what it looks at, as path → label selector.
    Out: `trouble`, what the API server refused.
    """

    watched: ClassVar[Mapping[str, str]]

    def __init__(self, admin: Cluster, seconds: float = 0.1) -> None:
        self._admin = admin
        self._seconds, self._rest = seconds, 0.0
        self._stopping, self._changed = threading.Event(), threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._work, self._watch)]
        self.trouble: list[str] = []

    def __enter__(self: P) -> P:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._changed.set()
        for thread in self._threads:
            thread.join(timeout=30)

    def look(self) -> None:
        """Bring everything one step on."""
        raise NotImplementedError

    def _work(self) -> None:
        while not self._stopping.is_set():
            self._changed.clear()
            self._rest = REST
            self._tried(self.look)
            if not self._stopping.wait(self._seconds):
                self._changed.wait(self._rest)

    def _tried(self, step: Callable[[], None]) -> None:
        """Do one thing; what somebody else was quicker at is seen by the next look."""
        try:
            step()
        except (Conflict, NotFound):
            self._rest = AGAIN
        except ApiError as error:
            self._rest = AGAIN
            self.trouble.append(error.message)

    def _watch(self) -> None:
        self._admin.run(until_set(self._stopping, *(self._follow(*each) for each in self.watched.items())))

    async def _follow(self, path: str, labels: str) -> None:
        """Have each change be seen; a collection that is not there may come."""
        while True:
            try:
                async with aclosing(follow(self._admin.api, path, labels=labels, keep=_version)) as changes:
                    async for _ in changes:
                        self._changed.set()
            except ApiError:
                await asyncio.sleep(AGAIN)


def _version(item: Object) -> Object:
    """What tells one state of an object from another."""
    return {"metadata": {name: item["metadata"][name] for name in ("uid", "resourceVersion")}}
