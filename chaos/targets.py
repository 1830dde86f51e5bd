"""Selects the processes that the fault injection kills, for each engine and kind of crash."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from localcluster.engine_product import EngineProduct
from localcluster.knative.planes import KnativePlanes
from localcluster.processes import Server, start_and_wait_for_log, wait_until_ready
from localcluster.product import Product
from localcluster.rabbitmq.planes import RabbitPlanes

PODSOURCE, SHARED_PORT = "podsource", "port 8080"
PROBES_LOG_LINE = "Probes server listening"
"""The message that a Knative process logs after it has bound the dispatcher's port, or continues without this port."""
RESTART_TIMEOUT_SECONDS = 60.0
"""Timeout until `may_restart` allows the restart of a killed process."""


@dataclass(frozen=True)
class CrashTarget:
    """A process to kill: a server, or, with `kills_child`, its first child process, which the server itself restarts.

    Attributes:
        server: The server.
        kills_child: Whether to kill the server's first child process instead of the server.
        serial_group: The group of targets of which only one may be down at a time; "" for no group.
        ready_log_line: The text that the log must contain before the group's next target is killed; "" for none.
    """

    server: Server
    kills_child: bool = False
    serial_group: str = ""
    ready_log_line: str = ""

    def crash(self, downtime_seconds: float) -> None:
        """Kill the process; start a killed server again after `downtime_seconds`, once `may_restart` allows it."""
        if self.kills_child:
            _kill_first_child(self.server)
            return
        self.server.kill()
        time.sleep(downtime_seconds)
        wait_until_ready(f"the restart of {self.server.name}", self.server.may_restart, [], RESTART_TIMEOUT_SECONDS)
        if self.ready_log_line:
            start_and_wait_for_log(self.ready_log_line, [self.server])
        else:
            self.server.start()


LocalOrEngineProduct = Product | EngineProduct
"""The product with local delivery, or with another engine."""
Targets = Mapping[str, Mapping[str, CrashTarget]]
"""The targets of each kind of crash, by name."""


def build_targets(product: LocalOrEngineProduct, console: Server) -> Targets:
    """Return the product's targets in a fixed order; `console` is the web console's process."""
    if isinstance(product, EngineProduct):
        return {**_build_engine_targets(product), "kill console": {console.name: CrashTarget(console)}}
    return {
        "kill functions": {"functions": CrashTarget(product.functions)},
        "kill worker": {"functions": CrashTarget(product.functions, kills_child=True)},
        "kill delivery": {"delivery": CrashTarget(product.delivery)},
        "kill source": {"podsource": CrashTarget(product.delivery, kills_child=True)},
        "kill console": {console.name: CrashTarget(console)},
    }


def list_product_servers(product: LocalOrEngineProduct, console: Server) -> list[Server]:
    """Return the product's own processes, which must never exit unexpectedly, whatever other processes do.

    The RabbitMQ Broker's ingress and dispatchers are not in the list, because they exit if RabbitMQ is down for several
    seconds. Knative's processes are not in the list, either.
    """
    if isinstance(product, EngineProduct):
        return [*product.functions.values(), product.adapters[PODSOURCE], console]
    return [*product.servers, console]


def _build_engine_targets(product: EngineProduct) -> Targets:
    targets = {
        "kill functions": {name: CrashTarget(server) for name, server in product.functions.items()},
        "kill worker": {name: CrashTarget(server, kills_child=True) for name, server in product.functions.items()},
        "kill source": {name: CrashTarget(server) for name, server in product.adapters.items()},
    }
    planes = product.planes
    if isinstance(planes, KnativePlanes):
        targets |= _build_knative_targets(planes, product.adapters)
    elif isinstance(planes, RabbitPlanes):
        targets["kill delivery"] = _build_targets_by_name([planes.rabbitmq.server, planes.ingress])
        targets["kill dispatcher"] = _build_targets_by_name(planes.dispatchers.values())
    return targets


def _build_knative_targets(planes: KnativePlanes, adapters: Mapping[str, Server]) -> dict[str, dict[str, CrashTarget]]:
    """Return Knative's targets; processes that use port 8080 are killed one at a time.

    If several of these processes were down at once, one of them could take the dispatcher's port when it restarts.
    """

    def build_serial_target(server: Server) -> CrashTarget:
        return CrashTarget(server, serial_group=SHARED_PORT, ready_log_line=PROBES_LOG_LINE)

    data_plane = {
        name: CrashTarget(server, serial_group=SHARED_PORT if name == "dispatcher" else "")
        for name, server in planes.data_plane.items()
    }
    sources = {
        name: CrashTarget(server) if name == PODSOURCE else build_serial_target(server)
        for name, server in adapters.items()
    }
    controllers = {server.name: build_serial_target(server) for server in planes.control_plane.servers}
    return {"kill delivery": data_plane, "kill controller": controllers, "kill source": sources}


def _build_targets_by_name(servers: Iterable[Server]) -> dict[str, CrashTarget]:
    return {server.name: CrashTarget(server) for server in servers}


def _kill_first_child(server: Server) -> None:
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children")
    child_pids = children.read_text().split() if children.exists() else []
    for child_pid in child_pids[:1]:
        os.kill(int(child_pid), signal.SIGKILL)
