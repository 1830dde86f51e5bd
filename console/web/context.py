"""What every view of the console uses: the caller, the current state, the journal."""

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
from console.web.live import Live, State
from eventing.journal.store import Journal
from kube.door.access_reviews import Right
from kube.door.api import Api
from kube.door.api_errors import ApiError
from kube.door.sync_client import Cluster
from kube.virtualization import lookup as virtualization

KNOWN_SECONDS = 10.0
"""For so long it is believed whether a kind is installed."""


class Served:
    """Whether the cluster has a kind at all, as `ask` finds out: without, no page names it."""

    def __init__(self, cluster: Cluster, ask: Callable[[Api], Coroutine[Any, Any, bool]]) -> None:
        self._cluster, self._ask, self._lock = cluster, ask, threading.Lock()
        self._known, self._until = False, 0.0

    def __call__(self) -> bool:
        """Ask, unless it was asked a moment ago; who does not answer has what it had."""
        with self._lock:
            if time.monotonic() >= self._until:
                with suppress(ApiError):
                    self._known = self._cluster.run(self._ask(self._cluster.api))
                self._until = time.monotonic() + KNOWN_SECONDS
            return self._known


class Context:
    """Shared by all requests of one console.

    Attributes:
        cluster: the console's own door; only `live` reads through it, and a proxied caller's actions go through it.
        live: what there is now.
        functions: below which URL functions answer by their names; "" where the Triggers say where each is.
        broker: where the broker takes events; "" where the Broker says.
        has_runs, has_machines: whether the cluster has runs of the upgrade mutex, and virtual machines.
    """

    def __init__(
        self, cluster: Cluster, live: Live, identify: Identify, journal: Journal | None, functions: str, broker: str
    ) -> None:
        self.cluster, self.live, self.functions, self.broker = cluster, live, functions, broker
        self._identify, self._journal = identify, journal
        self.has_runs = Served(cluster, upgrade_runs.is_served)
        self.has_machines = Served(cluster, virtualization.is_served)

    def caller(self) -> Caller:
        """Who sent this request; `Denied` when nobody is named."""
        return self._identify(request)

    def viewed(self) -> tuple[State, str]:
        """What there is, and the caller's name; `Denied` unless the caller may see all of it."""
        caller, state = self.caller(), self.live.now()
        _, name = self.cluster.together(caller.require(to_see(state.groups)), caller.name())
        return state, str(name)

    def reader(self, rights: Iterable[Right]) -> tuple[Api, str]:
        """The door by which the caller reads what the console does not follow, and his name; `Denied` without these."""
        caller = self.caller()
        _, name, door = self.cluster.together(caller.require(rights), caller.name(), caller.door())
        return door, str(name)

    @property
    def journal(self) -> Journal:
        """The journal, or a 404 page that says how to have one."""
        if self._journal is None:
            raise NotFound("this console reads no journal: start it with --journal, or set DATABASE_URL")
        return self._journal
