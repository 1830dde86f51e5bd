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
from console.web.callers import Caller, Identify, to_see
from console.web.cluster_state import Live, State
from eventing.journal.store import Journal
from kube.client.access_reviews import Right
from kube.client.api import Api
from kube.client.api_errors import ApiError
from kube.client.sync_client import Cluster
from kube.virtualization import lookup as virtualization

KNOWN_SECONDS = 10.0
"""How long the console caches whether a kind is installed."""


class Served:
    """The cached answer of `ask`, whether the cluster serves a kind; pages omit kinds that are not served."""

    def __init__(self, cluster: Cluster, ask: Callable[[Api], Coroutine[Any, Any, bool]]) -> None:
        self._cluster, self._ask, self._lock = cluster, ask, threading.Lock()
        self._known, self._until = False, 0.0

    def __call__(self) -> bool:
        """Return whether the kind is served, from the cache if it is recent; after an error, keep the last answer."""
        with self._lock:
            if time.monotonic() >= self._until:
                with suppress(ApiError):
                    self._known = self._cluster.run(self._ask(self._cluster.api))
                self._until = time.monotonic() + KNOWN_SECONDS
            return self._known


class Context:
    """The objects that all requests of one console share.

    Attributes:
        cluster: The console's own API client; it also acts for callers whom a proxy names and who are not impersonated.
        live: The current nodes and maintenances.
        functions: URL under which functions are found by name, "" to use the Triggers' addresses.
        broker: URL of the broker, "" to read it from the Broker.
        has_runs, has_machines: Whether the cluster serves upgrade runs, and virtual machines.
    """

    def __init__(
        self, cluster: Cluster, live: Live, identify: Identify, journal: Journal | None, functions: str, broker: str
    ) -> None:
        self.cluster, self.live, self.functions, self.broker = cluster, live, functions, broker
        self._identify, self._journal = identify, journal
        self.has_runs = Served(cluster, upgrade_runs.is_served)
        self.has_machines = Served(cluster, virtualization.is_served)

    def caller(self) -> Caller:
        """Return the caller of this request. Raises `Denied` if the request identifies no user."""
        return self._identify(request)

    def viewed(self) -> tuple[State, str]:
        """Return the current state and the caller's name. Raises `Denied` unless the caller may see all of it."""
        caller, state = self.caller(), self.live.now()
        _, name = self.cluster.together(caller.require(to_see(state.groups)), caller.name())
        return state, str(name)

    def reader(self, rights: Iterable[Right]) -> tuple[Api, str]:
        """Return the API client that reads for the caller, and the caller's name.

        Views use it for objects that the console does not watch. Raises `Denied` if the caller lacks one of the
        permissions.
        """
        caller = self.caller()
        _, name, door = self.cluster.together(caller.require(rights), caller.name(), caller.door())
        return door, str(name)

    @property
    def journal(self) -> Journal:
        """Return the journal. Raises `NotFound`, with instructions to configure one, if the console has none."""
        if self._journal is None:
            raise NotFound("this console reads no journal: start it with --journal, or set DATABASE_URL")
        return self._journal
