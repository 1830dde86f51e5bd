"""The objects that every view of the console uses: the caller, the current state, the journal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any

from flask import request
from werkzeug.exceptions import NotFound

from console.operations import upgrade_runs
from console.operations.components import may_be_installed
from console.web.callers import Caller, IdentifyCaller, list_view_rights
from console.web.cluster_state import ClusterState, ClusterWatcher
from eventing.journal.store import Journal
from kube.client.access_reviews import Permission
from kube.client.api import Api
from kube.client.api_errors import ApiError
from kube.client.sync_client import SyncClient
from kube.paths import DEFAULT_NAMESPACE
from kube.virtualization import lookup as virtualization

AVAILABILITY_TTL_SECONDS = 10.0
"""How long the console caches whether a kind or a component is installed."""


class Availability:
    """The cached result of `check`, such as whether the cluster serves a kind. Pages omit what is not available."""

    def __init__(self, client: SyncClient, check: Callable[[Api], Coroutine[Any, Any, bool]]) -> None:
        self._client, self._check, self._lock = client, check, threading.Lock()
        self._is_available, self._expires_at = False, 0.0

    def __call__(self) -> bool:
        """Return the result, from the cache if it is recent; after an error, keep the last result."""
        with self._lock:
            if time.monotonic() >= self._expires_at:
                with suppress(ApiError):
                    self._is_available = self._client.run(self._check(self._client.api))
                self._expires_at = time.monotonic() + AVAILABILITY_TTL_SECONDS
            return self._is_available


class ConsoleContext:
    """The objects that all requests of one console share.

    Attributes:
        client: The console's own API client; it also acts for a proxy's users if they are not impersonated.
        watcher: The current nodes and maintenances.
        functions_url: The functions' base URL, or "" to use the addresses in the Triggers.
        broker_url: URL of the broker, or "" to read it from the Broker object.
        has_runs, has_vms: Whether the cluster serves upgrade runs, and virtual machines.
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
        self.has_runs = Availability(client, upgrade_runs.are_runs_served)
        self.has_vms = Availability(client, virtualization.are_vmis_served)
        self._page_conditions: dict[str, Callable[[], bool]] = {
            "runs": self.has_runs,
            "events": lambda: journal is not None,
            "dead_letters": lambda: journal is not None,
            "certificates": _build_component_check(client, "renew-certificates"),
            "cpu_labels": _build_component_check(client, "label-cpu"),
        }

    def is_shown(self, page: str) -> bool:
        """Return whether the navigation contains the page with this endpoint.

        The pages of a component that is not installed, and without a journal the pages about events, are left out.
        """
        return self._page_conditions.get(page, lambda: True)()

    def get_caller(self) -> Caller:
        """Return the caller of this request. Raises `Denied` if the request identifies no user."""
        return self._identify(request)

    def read_state(self) -> tuple[ClusterState, str]:
        """Return the current state and the caller's name. Raises `Denied` unless the caller may see the whole state."""
        caller, state = self.get_caller(), self.watcher.get_state()
        _, name = self.client.gather_all(caller.require(list_view_rights(state.groups)), caller.get_name())
        return state, str(name)

    def require(self, rights: Iterable[Permission]) -> None:
        """Raise `Denied` if the caller lacks one of the permissions."""
        self.client.run(self.get_caller().require(rights))

    def get_api_and_user_name(self, rights: Iterable[Permission]) -> tuple[Api, str]:
        """Return the API client that reads for the caller, and the caller's name.

        Views use this client for objects that the console does not watch. Raises `Denied` if the caller lacks one of
        the permissions.
        """
        caller = self.get_caller()
        _, name, api = self.client.gather_all(caller.require(rights), caller.get_name(), caller.get_api())
        return api, str(name)

    @property
    def has_journal(self) -> bool:
        """Return whether the console has a journal."""
        return self._journal is not None

    @property
    def journal(self) -> Journal:
        """Return the journal. Raises `NotFound`, with instructions to configure one, if the console has none."""
        if self._journal is None:
            raise NotFound("the console has no journal: start it with --journal, or set DATABASE_URL")
        return self._journal


def _build_component_check(client: SyncClient, function: str) -> Availability:
    """Build the check whether the component with this function may be installed."""
    return Availability(client, lambda api: may_be_installed(api, DEFAULT_NAMESPACE, function))
