"""The RabbitMQ Broker's data plane: RabbitMQ, the ingress, a dispatcher per Trigger and per dead letter queue."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from eventing.local.triggers import Trigger
from localcluster.processes import Server, await_ready, listens, start_saying
from localcluster.programs import build
from localcluster.rabbitmq import environment, topology
from localcluster.rabbitmq.server import RabbitServer
from localcluster.servers import DIRECT, LOOPBACK

SECONDS = 60
CONSUMING = "starting to process messages"
"""What a dispatcher logs once it consumes its queue."""


class Planes:
    """The data plane of one Broker and its Triggers.

    Args:
        directory: The directory for logs and RabbitMQ's data.
        broker: The Broker's name.
        port: The port of the ingress.
    """

    parts: tuple[str, ...] = ("rabbitmq", "ingress", "dispatchers")

    def __init__(self, directory: Path, broker: str, port: int, triggers: Iterable[Trigger]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory, self._broker, self._port = directory, broker, port
        self._programs = build.servers(build.RABBITMQ)
        triggers = list(triggers)
        self.rabbitmq = RabbitServer(directory / "rabbitmq", topology.definitions(broker, triggers))
        self.ingress = self._server("ingress", environment.ingress(broker, self.rabbitmq.url, port), "ingress")
        self.dispatchers: dict[str, Server] = {}
        self._add(triggers)

    @property
    def servers(self) -> list[Server]:
        """Return all processes."""
        return [self.rabbitmq.mapper, self.rabbitmq.server, self.ingress, *self.dispatchers.values()]

    def start_part(self, name: str) -> None:
        """Start one of `parts`; return when it is ready."""
        starts = {"rabbitmq": self.rabbitmq.start, "ingress": self._start_ingress}
        starts.get(name, self._start_dispatchers)()

    def kill_part(self, name: str) -> None:
        """Kill one of `parts` to simulate a crash."""
        alone: dict[str, list[Server]] = {"rabbitmq": [self.rabbitmq.server], "ingress": [self.ingress]}
        for server in alone.get(name) or self.dispatchers.values():
            server.kill()

    def add(self, trigger: Trigger) -> None:
        """Serve one more Trigger, as the controller would after its creation."""
        self.rabbitmq.declare(topology.definitions(self._broker, [trigger]))
        self._add([trigger])
        self._start_dispatchers()

    def route(self, triggers: Iterable[Trigger]) -> None:
        """Make the dispatchers call these Triggers' addresses, as the controller would when Triggers change."""
        for trigger in triggers:
            server = self.dispatchers[environment.dispatcher_name(trigger)]
            server.kill()
            server.env["SUBSCRIBER"] = trigger.url
        self._start_dispatchers()

    def _start_ingress(self) -> None:
        self.ingress.start()
        await_ready("ingress", lambda: listens(self._port), [self.ingress], SECONDS)

    def _start_dispatchers(self) -> None:
        start_saying(CONSUMING, self.dispatchers.values())

    def _add(self, triggers: Iterable[Trigger]) -> None:
        addresses = (self.rabbitmq.url, f"http://{LOOPBACK}:{self._port}")
        for trigger in triggers:
            self._add_dispatcher(environment.dispatcher(trigger, self._broker, *addresses))
            sink = trigger.policy.dead_letters
            if sink:
                self._add_dispatcher(environment.dead_letter_dispatcher(trigger, sink, *addresses))

    def _add_dispatcher(self, found: dict[str, str]) -> None:
        name = found["POD_NAME"]
        self.dispatchers[name] = self._server("dispatcher", found, name)

    def _server(self, program: str, found: dict[str, str], name: str) -> Server:
        return Server(name, [self._programs / program], self._directory / f"{name}.log", {**DIRECT, **found})
