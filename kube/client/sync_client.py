"""Blocking API client for synchronous code, such as the functions: one event loop thread, one connection pool."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, TypeVar

from kube.client.api import MERGE_PATCH, Api, gather_all
from kube.paths import Object

T = TypeVar("T")


class SyncClient:
    """Sends blocking requests to one API server; may be shared between threads.

    `api` is the underlying asynchronous client. Pass several of its calls to `gather_all` to run them concurrently.
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
            self._stop_loop()
            raise

    def with_dry_run(self) -> SyncClient:
        """Return a client whose writes are dry runs (see `Api.with_dry_run`); close only the original client."""
        other = copy.copy(self)
        other.api = self.api.with_dry_run()
        return other

    def copy_for_caller(self) -> SyncClient:
        """Return a client on the same connections; `disable_verification` then affects only that client."""
        return copy.copy(self)

    def disable_verification(self) -> None:
        """Stop verifying the server's certificate in all later requests.

        Call this only on a client from `copy_for_caller`, and only if the user requested it.
        """
        self.api = self.run(self.api.without_verification())

    def close(self) -> None:
        """Cancel all running requests, close the connections and stop the event loop thread."""
        self.run(_cancel_other_tasks())
        self.run(self.api.close())
        self._stop_loop()

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the event loop thread, and return its result or raise its error."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def gather_all(self, *awaitables: Awaitable[Any]) -> list[Any]:
        """Run `api.gather_all`, and return its result."""
        return self.run(gather_all(*awaitables))

    def get(self, path: str) -> Object:
        """Run `Api.get`, and return its result."""
        return self.run(self.api.get(path))

    def list(
        self, path: str, *, field_selector: str = "", label_selector: str = "", resource_version: str | None = None
    ) -> Object:
        """Run `Api.list`, and return its result."""
        return self.run(
            self.api.list(
                path, field_selector=field_selector, label_selector=label_selector, resource_version=resource_version
            )
        )

    def create(self, path: str, body: Object) -> Object:
        """Run `Api.create`, and return its result."""
        return self.run(self.api.create(path, body))

    def patch(self, path: str, body: Any, content_type: str = MERGE_PATCH) -> Object:
        """Run `Api.patch`, and return its result."""
        return self.run(self.api.patch(path, body, content_type))

    def delete(self, path: str, *, uid: str, resource_version: str = "") -> Object:
        """Run `Api.delete`, and return its result."""
        return self.run(self.api.delete(path, uid=uid, resource_version=resource_version))


async def _cancel_other_tasks() -> None:
    """Cancel the event loop's other tasks, and wait for their end.

    Such a task can be an eviction that waits for a slow webhook after its function has returned.
    """
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
