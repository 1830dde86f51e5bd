"""The same client for code that does not await, such as the functions: one loop thread, one warm connection pool."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, TypeVar

from kube.door.api import MERGE_PATCH, Api
from kube.door.concurrent_requests import together
from kube.paths import Object

T = TypeVar("T")


class Cluster:
    """Blocking requests to one API server; safe to share between threads.

    `api` is the asynchronous door behind it: hand several of its calls to `concurrent_requests` and they run
    side by side.
    """

    def __init__(
        self,
        kubeconfig: str | None = None,
        context: str | None = None,
        as_user: str = "",
        as_groups: Sequence[str] = (),
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kube-api", daemon=True)
        self._thread.start()
        try:
            self.api = self.run(Api.connect(kubeconfig, context, as_user, as_groups))
        except BaseException:
            self._stop()
            raise

    def dry_run(self) -> Cluster:
        """See `Api.dry_run`; closing is up to the door that this one was made of."""
        view = copy.copy(self)
        view.api = self.api.dry_run()
        return view

    def view(self) -> Cluster:
        """The same door for one caller, whom alone `stop_verifying` concerns."""
        return copy.copy(self)

    def stop_verifying(self) -> None:
        """Verify the server's certificate in no request from now on: of a `view`, at its owner's wish."""
        self.api = self.run(self.api.unverified())

    def close(self) -> None:
        """Cancel what is still at work, close the connections and end the thread."""
        self.run(_cancelled_others())
        self.run(self.api.close())
        self._stop()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """The result of one coroutine, run on the loop thread; raises what it raises."""
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    def together(self, *calls: Awaitable[Any]) -> list[Any]:
        """See `concurrent_requests.together`."""
        return self.run(together(*calls))

    def get(self, path: str) -> Object:
        """See `Api.get`."""
        return self.run(self.api.get(path))

    def list(self, path: str, *, fields: str = "", labels: str = "", version: str | None = None) -> Object:
        """See `Api.list`."""
        return self.run(self.api.list(path, fields=fields, labels=labels, version=version))

    def create(self, path: str, body: Object) -> Object:
        """See `Api.create`."""
        return self.run(self.api.create(path, body))

    def patch(self, path: str, body: Any, content_type: str = MERGE_PATCH) -> Object:
        """See `Api.patch`."""
        return self.run(self.api.patch(path, body, content_type))

    def delete(self, path: str, *, uid: str, version: str = "") -> Object:
        """See `Api.delete`."""
        return self.run(self.api.delete(path, uid=uid, version=version))


async def _cancelled_others() -> None:
    """End the other tasks of the loop: an eviction that a slow webhook still looks at, whose look has ended."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
