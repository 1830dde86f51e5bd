"""Base class of simulated controllers: they reconcile when an object changes, and idle otherwise.

They read their state from the cluster only, so that they can be killed and restarted at any time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import ClassVar, TypeVar

from kube.client.api_errors import ApiError, Conflict, NotFound
from kube.client.list_watch import follow
from kube.client.sync_client import Cluster
from kube.paths import Object
from tests.waiting import until_set

REST = 10.0
"""Maximum seconds between two reconciliations if nothing changes; some controllers write a heartbeat every minute."""
AGAIN = 1.0
"""Seconds until a rejected step is retried."""
P = TypeVar("P", bound="Player")


class Player:
    """A controller that reconciles in a thread while its `with` block runs.

    A subclass sets `watched` to the collections that it watches, as path → label selector.

    Attributes:
        trouble: Messages of the requests that the API server rejected.
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
        """Advance every object by one step."""
        raise NotImplementedError

    def _work(self) -> None:
        while not self._stopping.is_set():
            self._changed.clear()
            self._rest = REST
            self._tried(self.look)
            if not self._stopping.wait(self._seconds):
                self._changed.wait(self._rest)

    def _tried(self, step: Callable[[], None]) -> None:
        """Run one step; after a conflict or a deletion by another client, the next reconciliation retries it."""
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
        """Set `_changed` at each change of the collection; retry while the collection is not served."""
        while True:
            try:
                async with aclosing(follow(self._admin.api, path, labels=labels, keep=_version)) as changes:
                    async for _ in changes:
                        self._changed.set()
            except ApiError:
                await asyncio.sleep(AGAIN)


def _version(item: Object) -> Object:
    """Return the fields that identify a version of an object."""
    return {"metadata": {name: item["metadata"][name] for name in ("uid", "resourceVersion")}}
