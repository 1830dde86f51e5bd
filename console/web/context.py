"""The context that all views of the console share: callers, the current state, the journal, and optional features."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any

from flask import request
from werkzeug.exceptions import NotFound

from console.operations import upgrade_runs
from console.operations.components import may_component_be_installed
from console.web.callers import ActionDenials, Caller, IdentifyCaller, list_view_rights
from console.web.cluster_state import ClusterState, ClusterWatcher
from eventing.journal.store import Journal
from kube.client.access_reviews import Permission
from kube.client.api import Api
from kube.client.api_errors import ApiError
from kube.client.sync_client import SyncClient
from kube.paths import DEFAULT_NAMESPACE
from kube.virtualization import lookup as virtualization

AVAILABILITY_TTL_SECONDS = 10.0
"""Seconds for which the console caches whether an optional kind or component is installed."""
AVAILABILITY_WAIT_SECONDS = 1.0
"""Seconds for which a page waits for new check results; after that, it uses the previous ones."""
AvailabilityCheck = Callable[[Api], Coroutine[Any, Any, bool]]
"""Function that returns whether an optional kind or component is installed."""


class Availability:
    """Cache of the results of availability checks, by name; the checks run concurrently.

    Until a check has succeeded, its result is True, so that a slow API server does not hide a page or a warning.
    """

    def __init__(self, client: SyncClient, checks: Mapping[str, AvailabilityCheck]) -> None:
        self._client, self._checks, self._lock = client, checks, threading.Lock()
        self._results, self._expires_at = dict.fromkeys(checks, True), 0.0
        self._tasks: list[asyncio.Task[None]] = []

    def is_available(self, name: str) -> bool:
        """Return the cached result of a check; if the cache has expired, run all checks first.

        If a check gets no response, its previous result is kept.
        """
        with self._lock:
            if time.monotonic() >= self._expires_at:
                self._client.run(self._refresh_results())
                self._expires_at = time.monotonic() + AVAILABILITY_TTL_SECONDS
            return self._results[name]

    async def _refresh_results(self) -> None:
        """Start the checks unless earlier ones are still running; wait for them at most `AVAILABILITY_WAIT_SECONDS`."""
        running = [task for task in self._tasks if not task.done()]
        self._tasks = running or [asyncio.create_task(self._run_check(name)) for name in self._checks]
        await asyncio.wait(self._tasks, timeout=AVAILABILITY_WAIT_SECONDS)

    async def _run_check(self, name: str) -> None:
        with suppress(ApiError):
            self._results[name] = await self._checks[name](self._client.api)


RUNS, VMS = "runs", "vms"
AVAILABILITY_CHECKS: Mapping[str, AvailabilityCheck] = {
    RUNS: upgrade_runs.is_run_config_kind_served,
    VMS: virtualization.is_vmi_kind_served,
    "certificates": lambda api: may_component_be_installed(api, DEFAULT_NAMESPACE, "renew-certificates"),
    "cpu_labels": lambda api: may_component_be_installed(api, DEFAULT_NAMESPACE, "label-cpu"),
}
"""Map from an optional page's Flask endpoint, or `VMS`, to the check whether its kind or component is installed."""
EVENT_PAGES = ("events", "dead_letters")
"""Flask endpoints of the pages that require a journal."""


class ConsoleContext:
    """Context that all views and requests of the console share.

    Attributes:
        client: The console's own API client; it also acts for the proxy's users if they are not impersonated.
        watcher: The watcher that provides the current nodes and maintenances.
        functions_url: The functions' base URL, or "" to use the URLs in the Triggers.
        broker_url: URL of the broker, or "" to read it from the Broker object.
    """

    def __init__(
        self,
        client: SyncClient,
        watcher: ClusterWatcher,
        identify: IdentifyCaller,
        journal: Journal | None,
        functions_url: str,
        broker_url: str,
    ) -> None:
        self.client, self.watcher, self.functions_url, self.broker_url = client, watcher, functions_url, broker_url
        self._identify, self._journal = identify, journal
        self._availability = Availability(client, AVAILABILITY_CHECKS)

    def is_shown(self, page: str) -> bool:
        """Return whether the navigation contains the page with this Flask endpoint.

        The navigation omits the pages of components that are not installed, and, without a journal, the pages about
        events.
        """
        if page in EVENT_PAGES:
            return self.has_journal
        return page not in AVAILABILITY_CHECKS or self._availability.is_available(page)

    def has_runs(self) -> bool:
        """Return whether the cluster serves MutexRunConfigs."""
        return self._availability.is_available(RUNS)

    def has_vms(self) -> bool:
        """Return whether the cluster serves VirtualMachineInstances."""
        return self._availability.is_available(VMS)

    def get_caller(self) -> Caller:
        """Return the caller of the current request. Raises `Denied` if the request identifies no user."""
        return self._identify(request)

    def read_state(self) -> tuple[ClusterState, str]:
        """Return the current state and the caller's user name. Raises `Denied` unless the caller may view all of it."""
        caller, state = self.get_caller(), self.watcher.get_state()
        _, name = self.client.gather_all(caller.require(list_view_rights(state.groups)), caller.get_name())
        return state, str(name)

    def read_action_denials(self, state: ClusterState) -> ActionDenials:
        """Return which actions on maintenances the caller may not use, so that the page disables them."""
        return self.client.run(self.get_caller().explain_action_denials(state.groups))

    def explain_denial(self, rights: Iterable[Permission]) -> str:
        """Return the title of an action that requires these permissions, "" if the caller has all of them."""
        return self.client.run(self.get_caller().explain_denial(rights))

    def require(self, rights: Iterable[Permission]) -> None:
        """Raise `Denied` if the caller lacks one of the permissions."""
        self.client.run(self.get_caller().require(rights))

    def get_api_and_user_name(self, rights: Iterable[Permission]) -> tuple[Api, str]:
        """Return an API client that acts for the caller, and the caller's user name.

        Views use this client to read objects that the console does not watch. Raises `Denied` if the caller lacks one
        of the permissions.
        """
        caller = self.get_caller()
        _, name, api = self.client.gather_all(caller.require(rights), caller.get_name(), caller.get_api())
        return api, str(name)

    @property
    def has_journal(self) -> bool:
        """Return whether a journal is configured."""
        return self._journal is not None

    @property
    def journal(self) -> Journal:
        """Return the journal. Raises a `NotFound` that states how to configure a journal if the console has none."""
        if self._journal is None:
            raise NotFound("the console has no journal: start it with --journal, or set DATABASE_URL")
        return self._journal
