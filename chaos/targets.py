"""The processes that mischief ends on each engine, by the kind of deed that ends them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from localcluster.engine import EngineProduct
from localcluster.knative.planes import Planes as KnativePlanes
from localcluster.processes import Server, await_ready, start_saying
from localcluster.product import Product
from localcluster.rabbitmq.planes import Planes as RabbitPlanes

OURS, PORT = "podsource", "port 8080"
PROBES = "Probes server listening"
"""What other programs of Knative than ours say when they take the dispatcher's port, or go on without it."""
TURN_SECONDS = 60.0
"""What has to be there before a process starts is there by then."""


@dataclass(frozen=True)
class Target:
    """What is ended: the server, or with `is_child` the first process that it started, and starts again by itself.

    Attributes:
        lane: those of one lane are ended one after another.
        back: what its log says when the next one may be; "" for no need to wait.
    """

    server: Server
    is_child: bool = False
    lane: str = ""
    back: str = ""

    def crash(self, seconds: float) -> None:
        """End it as a crash would; a server is started again so many seconds later, when its turn has come."""
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
"""Kind of deed → name → what it ends."""


def targets(product: Opened, console: Server) -> Targets:
    """Give all of them, in an order that is always the same; `console` is that beside the product."""
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
    """Give the programs of ours: none of these ends by itself, whatever is done to them and to others.

    RabbitMQ's ingress and dispatchers do without it, and what Knative brings is not ours to judge.
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
    """Whoever would take the dispatcher's port is not about to start when the dispatcher is ended, and so on."""

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
