"""Test that killed processes on a real engine are restarted automatically, and that drains in progress succeed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial

import pytest

from localcluster.functions import DEFAULT_FUNCTIONS
from localcluster.knative.planes import PROBE_HEADERS
from localcluster.knative.product import KnativeProduct
from localcluster.processes import Server, wait_until_ready
from localcluster.readiness import is_ready, is_responding
from localcluster.up.restarter import Restarter
from tests.e2e.environment import E2eEnvironment
from tests.machine_speed import is_below_scaled_limit

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.parametrize("environment", ["knative"], indirect=True),
    pytest.mark.usefixtures("restore_product"),
]
MAX_RESTART_SECONDS = 3.0
"""Maximum seconds from the first kill until the readiness endpoint responds again."""
RESTART_TIMEOUT_SECONDS = 30.0
"""Timeout of the wait for a restart; longer than the limit, so that the test can report how long the restart took."""
DATA_PLANE_NAMES = ("ingress", "dispatcher")


def test_killed_processes_restart_within_limit(environment: E2eEnvironment) -> None:
    """Check that functions, ingress and dispatcher are ready within `MAX_RESTART_SECONDS` after they were killed."""
    product = environment.product
    assert isinstance(product, KnativeProduct)
    planes = product.planes
    servers_and_readiness_checks: list[tuple[Server, Callable[[], bool]]] = [
        *((product.functions[name], partial(is_ready, product.get_function_url(name))) for name in DEFAULT_FUNCTIONS),
        *(
            (planes.data_plane[name], partial(is_responding, planes.get_readiness_url(name), headers=PROBE_HEADERS))
            for name in DATA_PLANE_NAMES
        ),
    ]
    drains = environment.prepare_drains("5s", nodes=environment.nodes[:3])
    with Restarter() as restarter:
        restarter.add_servers(product.servers)
        drains.create_maintenances()
        environment.histogram.record()
        seconds_by_server = {
            server.name: _measure_restart_seconds(server, is_server_ready)
            for server, is_server_ready in servers_and_readiness_checks
        }
        drains.wait_until_succeeded()

    print(", ".join(f"{name} {seconds:.2f} s" for name, seconds in seconds_by_server.items()))
    drains.assert_each_pod_evicted_once()
    drains.end_maintenances()
    assert {
        name: seconds
        for name, seconds in seconds_by_server.items()
        if not is_below_scaled_limit(seconds, MAX_RESTART_SECONDS)
    } == {}


def _measure_restart_seconds(server: Server, is_server_ready: Callable[[], bool]) -> float:
    """Kill the server's process, and return the seconds until a new process is ready."""
    killed_pid = server.pid
    os.kill(killed_pid, signal.SIGKILL)
    started = time.monotonic()
    wait_until_ready(server.name, lambda: server.pid != killed_pid and is_server_ready(), [], RESTART_TIMEOUT_SECONDS)
    return time.monotonic() - started
