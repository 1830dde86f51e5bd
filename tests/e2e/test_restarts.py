"""Test that killed processes on real Knative are restarted automatically, and that drains in progress succeed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial

import pytest

from localcluster.functions import SERVED
from localcluster.knative.planes import PROBE
from localcluster.knative.product import KnativeProduct
from localcluster.processes import Server, await_ready
from localcluster.readiness import answers, is_ready
from localcluster.up.restarter import Keeper
from tests.e2e.environment import Stage
from tests.machine_speed import is_below

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.parametrize("stage", ["knative"], indirect=True),
    pytest.mark.usefixtures("whole_again"),
]
BACK = 3.0
"""Maximum seconds from the first crash until the readiness endpoint responds again."""
PATIENCE = 30.0
"""Timeout in seconds, longer than the limit, so that a duration above the limit can be reported."""
DATA_PLANE = ("ingress", "dispatcher")


def test_what_is_killed_amid_drains_is_back_in_time(stage: Stage) -> None:
    """Functions, ingress and dispatcher, each killed once during drains, are ready again within `BACK` seconds."""
    product = stage.product
    assert isinstance(product, KnativeProduct)
    planes = product.planes
    parts: list[tuple[Server, Callable[[], bool]]] = [
        *((product.functions[name], partial(is_ready, product.function_url(name))) for name in SERVED),
        *((planes.data[name], partial(answers, planes.page(name), headers=PROBE)) for name in DATA_PLANE),
    ]
    drains = stage.drains("5s", nodes=stage.nodes[:3])
    with Keeper() as keeper:
        keeper.keep(product.servers)
        drains.begin()
        stage.histogram.note()
        took = {server.name: _seconds_away(server, ready) for server, ready in parts}
        drains.await_succeeded()

    print(", ".join(f"{name} {seconds:.2f} s" for name, seconds in took.items()))
    drains.check()
    drains.end()
    assert {name: seconds for name, seconds in took.items() if not is_below(seconds, BACK)} == {}


def _seconds_away(server: Server, ready: Callable[[], bool]) -> float:
    """Kill the server's process; return the seconds until a new one is ready."""
    killed = server.pid
    os.kill(killed, signal.SIGKILL)
    started = time.monotonic()
    await_ready(server.name, lambda: server.pid != killed and ready(), [], PATIENCE)
    return time.monotonic() - started
