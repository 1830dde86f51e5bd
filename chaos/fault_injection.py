"""Performs planned actions at their times: users' actions one after another, and faults concurrently."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, TypeVar

from chaos.api_fault_proxy import CONNECTION_RESET, Fault
from chaos.environment import NAMESPACE, ChaosEnvironment
from chaos.event_fault_proxy import Handler
from chaos.plan import NETWORK_WEIGHTS, RESTART_API_SERVER, Action
from chaos.targets import CrashTarget
from kube.client.api import JSON_PATCH
from kube.client.api_errors import ApiError, Conflict, NotFound, Unavailable
from kube.maintenance.groups import GROUPS
from kube.nodes import build_node_path
from kube.paths import Object, build_node_name_selector
from kube.pods import is_terminating
from localcluster.errors import LocalClusterError
from localcluster.http_receiver import ReceivedRequest, Response
from localcluster.processes import wait_until_ready

T = TypeVar("T")
USER_RETRY_SECONDS = 30.0
"""Seconds for which a user's action is retried while the API server is unavailable."""
RESPONSE_FAULTS = (
    Fault(503, "the server is currently unable to handle the request"),
    Fault(429, "too many", 1),
    CONNECTION_RESET,
)
FAULT_PROBABILITY = 0.3
"""Probability that an API request fails, or that an event is lost, while such a fault is active."""


class FaultInjector:
    """Performs the actions of a plan in an environment.

    Attributes:
        completed_action_counts: The number of completed actions by kind.
        failures: The errors of failed actions by kind.
    """

    def __init__(self, environment: ChaosEnvironment, seed: int) -> None:
        self._environment, self._rng = environment, Random(f"faults {seed}")
        self.completed_action_counts: Counter[str] = Counter()
        self.failures: defaultdict[str, list[str]] = defaultdict(list)
        self._faults_until = self._network_faults_until = 0.0
        self._network_mode: Handler = environment.network.forward
        self._user_pool, self._network_pool = ThreadPoolExecutor(1, "users"), ThreadPoolExecutor(1, "network")
        self._pod_pool = ThreadPoolExecutor(1, "pods")
        self._crash_pools: defaultdict[str, ThreadPoolExecutor] = defaultdict(lambda: ThreadPoolExecutor(1, "crashes"))
        environment.faults.inject(self._choose_fault)
        environment.network.handler = self._forward_event

    def _forward_event(self, request: ReceivedRequest) -> Response:
        """Forward an event with the current fault, except to `record`, because the run checks the journal."""
        is_disturbed = time.monotonic() < self._network_faults_until and request.path.strip("/") != "record"
        return (self._network_mode if is_disturbed else self._environment.network.forward)(request)

    def run_actions(self, actions: Iterable[Action], stop: threading.Event | None = None) -> None:
        """Perform the actions until `stop` is set; return when the started ones are done and all processes run."""
        started_at, stop = time.monotonic(), stop or threading.Event()
        submitted: list[tuple[Action, Future[None]]] = []
        for action in actions:
            if stop.wait(max(0.0, started_at + action.start_seconds - time.monotonic())):
                break
            submitted.append((action, self._submit_action(action)))
        for action, future in submitted:
            try:
                future.result()
                self.completed_action_counts[action.kind] += 1
            except (ApiError, LocalClusterError, OSError) as error:
                self.failures[action.kind].append(f"{action.target}: {error}")
        self._end_faults()

    def _end_faults(self) -> None:
        for pool in (self._user_pool, self._network_pool, self._pod_pool, *self._crash_pools.values()):
            pool.shutdown()
        self._network_faults_until = self._faults_until = 0.0
        for server in self._environment.servers:
            if server.may_restart():  # A crashed server starts without waiting for its backoff.
                server.start()
        self._environment.network.stop_faults()
        self._environment.faults.stop_faults()

    def _submit_action(self, action: Action) -> Future[None]:
        if action.kind in self._environment.targets:
            target = self._environment.targets[action.kind][action.target]
            return self._crash_pools[target.serial_group or target.server.name].submit(
                target.crash, action.duration_seconds
            )
        if action.kind == RESTART_API_SERVER:
            return self._crash_pools[RESTART_API_SERVER].submit(self._restart_api_server, action.duration_seconds)
        if action.kind in NETWORK_WEIGHTS:
            return self._network_pool.submit(self._inject_network_fault, action)
        if action.kind == "unready":
            return self._pod_pool.submit(self._make_pod_unready, action)
        return self._user_pool.submit(self._perform_user_action, action)

    def _restart_api_server(self, downtime_seconds: float) -> None:
        """Restart the API server, and then the controller manager.

        Otherwise, the controller manager's watches would take up to a minute to recover, and the PDBs would allow no
        evictions during this time.
        """
        servers = {server.name: server for server in self._environment.cluster.servers}
        server = servers["kube-apiserver"]
        CrashTarget(server).crash(downtime_seconds)
        wait_until_ready("the API server", lambda: self._environment.cluster.is_served("/version"), [server])
        CrashTarget(servers["kube-controller-manager"]).crash(0.0)

    def _inject_network_fault(self, action: Action) -> None:
        network, until = self._environment.network, time.monotonic() + action.duration_seconds
        if action.kind == "refuse":
            self._faults_until = until
            return
        handlers: dict[str, Handler] = {
            "twice": network.forward_twice,
            "late": network.forward_delayed,
            "lose": self._drop_randomly,
        }
        self._network_mode = handlers.get(action.kind) or network.build_rejecting_handler(action.target)
        self._network_faults_until = until

    def _drop_randomly(self, request: ReceivedRequest) -> Response:
        network = self._environment.network
        return (network.drop if self._rng.random() < FAULT_PROBABILITY else network.forward)(request)

    def _choose_fault(self, _request: str) -> Fault | None:
        fails = time.monotonic() < self._faults_until and self._rng.random() < FAULT_PROBABILITY
        return self._rng.choice(RESPONSE_FAULTS) if fails else None

    def _perform_user_action(self, action: Action) -> None:
        """Perform a user's action; do nothing if its maintenance no longer exists."""
        actions: dict[str, Callable[[Action], Any]] = {
            "start": self._create_maintenance,
            "double": self._create_maintenance,
            "stop": self._delete_maintenance,
            "replace": self._replace_maintenance,
            "uncordon": self._uncordon_node,
        }
        with suppress(NotFound):
            _retry_request(partial(actions[action.kind], action))

    def _make_pod_unready(self, action: Action) -> None:
        """Make one of the node's pods unready for a while, as a failing readiness probe would."""
        client, path = self._environment.client, f"/api/v1/namespaces/{NAMESPACE}/pods"
        query = partial(client.list, path, field_selector=build_node_name_selector(action.node))
        names = [pod["metadata"]["name"] for pod in _retry_request(query)["items"] if not is_terminating(pod)]
        if not names:
            return
        set_ready = partial(self._set_ready_condition, f"{path}/{self._rng.choice(names)}/status")
        with suppress(NotFound):  # The pod may have been evicted in the meantime.
            _retry_request(partial(set_ready, "False"))
            time.sleep(action.duration_seconds)
            _retry_request(partial(set_ready, "True"))

    def _set_ready_condition(self, status_path: str, status: str) -> None:
        conditions = [{"type": "Ready", "status": status}]
        self._environment.client.patch(status_path, {"status": {"conditions": conditions}})

    def _create_maintenance(self, action: Action) -> None:
        try:
            self._environment.client.create(GROUPS[action.api_version].path, _build_manifest(action))
        except Conflict as error:
            if "already exists" not in error.message:  # Otherwise, an earlier attempt succeeded.
                raise

    def _delete_maintenance(self, action: Action) -> None:
        self._environment.client.run(self._environment.client.api.request("DELETE", _get_maintenance_path(action)))

    def _replace_maintenance(self, action: Action) -> None:
        """Replace the maintenance as `kubectl replace` would, which removes fields that the user's manifest lacks."""
        version = self._environment.client.get(_get_maintenance_path(action))["metadata"]["resourceVersion"]
        body = _build_manifest(action)
        body["metadata"]["resourceVersion"] = version
        self._environment.client.run(
            self._environment.client.api.request("PUT", _get_maintenance_path(action), body=body)
        )

    def _uncordon_node(self, action: Action) -> None:
        """Uncordon the node as `kubectl uncordon` does."""
        patch = [{"op": "add", "path": "/spec/unschedulable", "value": False}]
        self._environment.client.patch(build_node_path(action.node), patch, JSON_PATCH)


def _retry_request(send_request: Callable[[], T]) -> T:
    """Send a request; retry it while the API server is unavailable, or while it conflicts with another client."""
    deadline = time.monotonic() + USER_RETRY_SECONDS
    while True:
        try:
            return send_request()
        except (Unavailable, Conflict):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _get_maintenance_path(action: Action) -> str:
    return f"{GROUPS[action.api_version].path}/{action.target}"


def _build_manifest(action: Action) -> Object:
    spec: Object = {"nodeName": action.node, "reason": "chaos"}
    if action.escalation:
        spec["drain"] = {"escalation": [{"after": after, "action": step} for after, step in action.escalation]}
    return {
        "apiVersion": action.api_version,
        "kind": "NodeMaintenance",
        "metadata": {"name": action.target},
        "spec": spec,
    }
