"""Base class of simulated controllers, which reconcile when a watched object changes, and are otherwise idle.

The controllers keep no state outside the cluster, so they can be killed and restarted at any time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import ClassVar, TypeVar

from kube.client.api_errors import ApiError, Conflict, NotFound
from kube.client.list_watch import follow
from kube.client.sync_client import SyncClient
from kube.paths import Object
from localcluster.waiting import run_until_set

MAX_IDLE_SECONDS = 10.0
"""Maximum time between reconciliations without a change; fake-virt-handler must write a heartbeat every minute."""
RETRY_SECONDS = 1.0
"""Seconds after which the controller reconciles again if a step has failed."""
P = TypeVar("P", bound="FakeController")


class FakeController:
    """A controller that reconciles in a thread during the `with` block.

    A subclass sets `watched`, which maps the path of each watched collection to a label selector.

    Attributes:
        errors: The messages of rejected requests.
    """

    watched: ClassVar[Mapping[str, str]]

    def __init__(self, client: SyncClient, min_interval_seconds: float = 0.1) -> None:
        self._admin = client
        self._min_interval_seconds, self._idle_seconds = min_interval_seconds, 0.0
        self._stopping, self._changed = threading.Event(), threading.Event()
        self._threads = [
            threading.Thread(target=target, daemon=True) for target in (self._run, self._watch_collections)
        ]
        self.errors: list[str] = []

    def __enter__(self: P) -> P:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._changed.set()
        for thread in self._threads:
            thread.join(timeout=30)

    def reconcile(self) -> None:
        """Advance the state of every object by one step."""
        raise NotImplementedError

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._changed.clear()
            self._idle_seconds = MAX_IDLE_SECONDS
            self._try_reconcile_step(self.reconcile)
            if not self._stopping.wait(self._min_interval_seconds):
                self._changed.wait(self._idle_seconds)

    def _try_reconcile_step(self, step: Callable[[], None]) -> None:
        """Call `step`, a part of a reconciliation; if the API server rejects a request, retry after `RETRY_SECONDS`.

        Conflicts, and objects that other clients have deleted, are not recorded as errors.
        """
        try:
            step()
        except (Conflict, NotFound):
            self._idle_seconds = RETRY_SECONDS
        except ApiError as error:
            self._idle_seconds = RETRY_SECONDS
            self.errors.append(error.message)

    def _watch_collections(self) -> None:
        self._admin.run(
            run_until_set(self._stopping, *(self._watch_collection(*collection) for collection in self.watched.items()))
        )

    async def _watch_collection(self, path: str, labels: str) -> None:
        """Set `_changed` after each change in the collection; retry while the API server does not serve the kind."""
        while True:
            try:
                async with aclosing(
                    follow(self._admin.api, path, label_selector=labels, transform=_extract_version_fields)
                ) as changes:
                    async for _ in changes:
                        self._changed.set()
            except ApiError:
                await asyncio.sleep(RETRY_SECONDS)


def _extract_version_fields(obj: Object) -> Object:
    """Return the fields that identify one version of an object."""
    return {"metadata": {name: obj["metadata"][name] for name in ("uid", "resourceVersion")}}
