"""Carries out planned actions at their times: user actions one after another, and faults concurrently."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from random import Random
from typing import Any

from chaos.plan import NETWORK, RESTART, Action
from chaos.environment import Stage
from chaos.targets import Target
from kube.client.api import JSON_PATCH
from kube.client.api_errors import ApiError, Conflict, NotFound, Unavailable
from kube.maintenance.groups import GROUPS
from kube.nodes import node_path
from kube.paths import Object
from localcluster.processes import await_ready
from localcluster.errors import LocalClusterError
from tests.e2e.fault_proxy import Way
from tests.fault_proxy import RESET, Fault
from tests.receiver import Answer, Received

USER_SECONDS = 30.0
"""Timeout in seconds of a user's retries while the API server is down."""
SPOILED = (Fault(503, "the server is currently unable to handle the request"), Fault(429, "too many", 1), RESET)
PART = 0.3
"""The share of API requests that fail, and of events that are lost, while such a fault lasts."""


class Mischief:
    """Injects faults into an environment.

    Attributes:
        done: The number of completed actions by kind.
        failed: The errors of failed actions by kind.
    """

    def __init__(self, stage: Stage, seed: int) -> None:
        self._stage, self._chance = stage, Random(f"mischief {seed}")
        self.done: Counter[str] = Counter()
        self.failed: defaultdict[str, list[str]] = defaultdict(list)
        self._spoiled_until = self._odd_until = 0.0
        self._way: Way = stage.network.once
        self._users, self._network = ThreadPoolExecutor(1, "users"), ThreadPoolExecutor(1, "network")
        self._crashes: defaultdict[str, ThreadPoolExecutor] = defaultdict(lambda: ThreadPoolExecutor(1, "crashes"))
        stage.faults.spoil(self._spoil)
        stage.network.way = lambda request: (self._way if time.monotonic() < self._odd_until else stage.network.once)(
            request
        )

    def play(self, actions: Iterable[Action], over: threading.Event | None = None) -> None:
        """Run all actions, or those before `over` is set; return when the last one is done and all processes run."""
        started, over = time.monotonic(), over or threading.Event()
        waiting: list[tuple[Action, Future[None]]] = []
        for action in actions:
            if over.wait(max(0.0, started + action.at - time.monotonic())):
                break
            waiting.append((action, self._begin(action)))
        for action, future in waiting:
            try:
                future.result()
                self.done[action.kind] += 1
            except (ApiError, LocalClusterError, OSError) as error:
                self.failed[action.kind].append(f"{action.subject}: {error}")
        self._calm()

    def _calm(self) -> None:
        for pool in (self._users, self._network, *self._crashes.values()):
            pool.shutdown()
        self._odd_until = self._spoiled_until = 0.0
        for server in self._stage.servers:
            if server.may_restart():  # do not wait for the backoff of a server that exited by itself
                server.start()
        self._stage.network.behave()
        self._stage.faults.speak_again()

    def _begin(self, action: Action) -> Future[None]:
        if action.kind in self._stage.targets:
            target = self._stage.targets[action.kind][action.subject]
            return self._crashes[target.lane or target.server.name].submit(target.crash, action.seconds)
        if action.kind == RESTART:
            return self._crashes[RESTART].submit(self._restart_api_server, action.seconds)
        if action.kind in NETWORK:
            return self._network.submit(self._misbehave, action)
        return self._users.submit(self._use, action)

    def _restart_api_server(self, seconds: float) -> None:
        """Restart the API server and the controller manager.

        Otherwise the controller manager's watches take up to a minute to recover, during which no budget allows
        evictions.
        """
        servers = {server.name: server for server in self._stage.cluster.servers}
        server = servers["kube-apiserver"]
        Target(server).crash(seconds)
        await_ready("the API server", lambda: self._stage.cluster.serves("/version"), [server])
        Target(servers["kube-controller-manager"]).crash(0.0)

    def _misbehave(self, action: Action) -> None:
        network, until = self._stage.network, time.monotonic() + action.seconds
        if action.kind == "refuse":
            self._spoiled_until = until
            return
        ways: dict[str, Way] = {"twice": network.twice, "late": network.late, "lose": self._lose}
        self._way = ways.get(action.kind) or network.without(action.subject)
        self._odd_until = until

    def _lose(self, request: Received) -> Answer:
        network = self._stage.network
        return (network.never if self._chance.random() < PART else network.once)(request)

    def _spoil(self, _request: str) -> Fault | None:
        is_spoiled = time.monotonic() < self._spoiled_until and self._chance.random() < PART
        return self._chance.choice(SPOILED) if is_spoiled else None

    def _use(self, action: Action) -> None:
        """Perform a user's action, with retries until the API server has accepted it."""
        deeds: dict[str, Callable[[Action], Any]] = {
            "start": self._create,
            "double": self._create,
            "stop": self._delete,
            "replace": self._replace,
            "uncordon": self._uncordon,
        }
        deadline = time.monotonic() + USER_SECONDS
        while True:
            try:
                deeds[action.kind](action)
                return
            except NotFound:  # the maintenance is gone already
                return
            except (Unavailable, Conflict) as error:
                if "already exists" in error.message:  # the first attempt's response was lost
                    return
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def _create(self, action: Action) -> None:
        self._stage.admin.create(GROUPS[action.group].path, _file(action))

    def _delete(self, action: Action) -> None:
        self._stage.admin.run(self._stage.admin.api.request("DELETE", _path(action)))

    def _replace(self, action: Action) -> None:
        """Replace the object as `kubectl replace` does: fields that are not in the user's file are removed."""
        version = self._stage.admin.get(_path(action))["metadata"]["resourceVersion"]
        body = _file(action)
        body["metadata"]["resourceVersion"] = version
        self._stage.admin.run(self._stage.admin.api.request("PUT", _path(action), body=body))

    def _uncordon(self, action: Action) -> None:
        """Uncordon the node as `kubectl uncordon` does."""
        patch = [{"op": "add", "path": "/spec/unschedulable", "value": False}]
        self._stage.admin.patch(node_path(action.node), patch, JSON_PATCH)


def _path(action: Action) -> str:
    return f"{GROUPS[action.group].path}/{action.subject}"


def _file(action: Action) -> Object:
    spec = {"nodeName": action.node, "reason": "chaos"}
    return {
        "apiVersion": action.group,
        "kind": "NodeMaintenance",
        "metadata": {"name": action.subject},
        "spec": spec,
    }
