"""The processes that fault injection kills on each engine, by the kind of crash."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from localcluster.engine_product import EngineProduct
from localcluster.knative.planes import Planes as KnativePlanes
from localcluster.processes import Server, await_ready, start_saying
from localcluster.product import Product
from localcluster.rabbitmq.planes import Planes as RabbitPlanes

OURS, PORT = "podsource", "port 8080"
PROBES = "Probes server listening"
"""What Knative's other programs log once they have taken the dispatcher's port, or continue without it."""
TURN_SECONDS = 60.0
"""Timeout in seconds for a process that must start first."""


@dataclass(frozen=True)
class Target:
    """A process to kill: the server or, with `is_child`, its first child, which the server restarts itself.

    Attributes:
        is_child: Whether to kill the server's first child instead.
        lane: Targets of the same lane are killed one after another.
        back: What the log must contain before the next one of the lane is killed; "" for no need to wait.
    """

    server: Server
    is_child: bool = False
    lane: str = ""
    back: str = ""

    def crash(self, seconds: float) -> None:
        """Kill the process to simulate a crash; restart a server after `seconds`, once it may start."""
        if self.is_child:
            _kill_child(self.server)
            return
        self.server.kill()
        time.sleep(seconds)
        await_ready(f"the turn of {self.server.name}", self.server.may_restart, [], TURN_SECONDS)
        if self.back:
            start_saying(self.back, [self.server])
        else:
            self.server.start()


Opened = Product | EngineProduct
"""The product on the local delivery, or on another engine."""
Targets = Mapping[str, Mapping[str, Target]]
"""For each kind of crash, the targets by name."""


def targets(product: Opened, console: Server) -> Targets:
    """Return all targets in a fixed order; `console` is the web console's process."""
    if isinstance(product, EngineProduct):
        return {**_of_engine(product), "kill console": {console.name: Target(console)}}
    return {
        "kill functions": {"functions": Target(product.functions)},
        "kill worker": {"functions": Target(product.functions, is_child=True)},
        "kill delivery": {"delivery": Target(product.delivery)},
        "kill source": {"podsource": Target(product.delivery, is_child=True)},
        "kill console": {console.name: Target(console)},
    }


def ours(product: Opened, console: Server) -> list[Server]:
    """Return the product's own processes, which must never exit unexpectedly, whatever fails around them.

    The RabbitMQ Broker's ingress and dispatchers exit if RabbitMQ is down for some seconds. Knative's processes are not
    checked.
    """
    if isinstance(product, EngineProduct):
        return [*product.functions.values(), product.adapters[OURS], console]
    return [*product.servers, console]


def _of_engine(product: EngineProduct) -> Targets:
    found = {
        "kill functions": {name: Target(server) for name, server in product.functions.items()},
        "kill worker": {name: Target(server, is_child=True) for name, server in product.functions.items()},
        "kill source": {name: Target(server) for name, server in product.adapters.items()},
    }
    planes = product.planes
    if isinstance(planes, KnativePlanes):
        found |= _of_knative(planes, product.adapters)
    elif isinstance(planes, RabbitPlanes):
        found["kill delivery"] = _named([planes.rabbitmq.server, planes.ingress])
        found["kill dispatcher"] = _named(planes.dispatchers.values())
    return found


def _of_knative(planes: KnativePlanes, adapters: Mapping[str, Server]) -> dict[str, dict[str, Target]]:
    """Serialize the crashes of the programs that use port 8080.

    Otherwise another program could take the dispatcher's port while the dispatcher is down.
    """

    def sharing(server: Server) -> Target:
        return Target(server, lane=PORT, back=PROBES)

    parts = {name: Target(server, lane=PORT if name == "dispatcher" else "") for name, server in planes.data.items()}
    sources = {name: Target(server) if name == OURS else sharing(server) for name, server in adapters.items()}
    controllers = {server.name: sharing(server) for server in planes.control.servers}
    return {"kill delivery": parts, "kill controller": controllers, "kill source": sources}


def _named(servers: Iterable[Server]) -> dict[str, Target]:
    return {server.name: Target(server) for server in servers}


def _kill_child(server: Server) -> None:
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children")
    found = children.read_text().split() if children.exists() else []
    for child in found[:1]:
        os.kill(int(child), signal.SIGKILL)
