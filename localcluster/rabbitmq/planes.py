"""The RabbitMQ Broker's data plane: RabbitMQ, the ingress, a dispatcher per Trigger and per dead letter queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from eventing.triggers import Trigger
from localcluster import build
from localcluster.processes import Server, await_ready, listens
from localcluster.product import DIRECT
from localcluster.rabbitmq import environment, topology
from localcluster.rabbitmq.keeper import Kept
from localcluster.rabbitmq.server import RabbitServer
from localcluster.servers import LOOPBACK

SECONDS = 60
CONSUMING = "starting to process messages"
"""What a dispatcher says in its log when it is at work."""


class Planes:
    """One Broker and its Triggers.

    In: a folder for logs and RabbitMQ's data, the Broker's name, the port of its ingress, and the Triggers.
    """

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
        """Give every process."""
        return [self.rabbitmq.mapper, self.rabbitmq.server, self.ingress, *self.dispatchers.values()]

    def start(self, name: str) -> None:
        """Start `rabbitmq`, `ingress` or the `dispatchers`; return when it is ready."""
        starts = {"rabbitmq": self.rabbitmq.start, "ingress": self._start_ingress}
        starts.get(name, self._start_dispatchers)()

    def kill(self, name: str) -> None:
        """End `rabbitmq`, `ingress` or the `dispatchers` as a crash would."""
        alone: dict[str, list[Server]] = {"rabbitmq": [self.rabbitmq.server], "ingress": [self.ingress]}
        for server in alone.get(name) or self.dispatchers.values():
            server.kill()

    def add(self, trigger: Trigger) -> None:
        """Serve one more Trigger, as the controller would once it is created."""
        self.rabbitmq.declare(topology.definitions(self._broker, [trigger]))
        self._add([trigger])
        self._start_dispatchers()

    def route(self, address: Callable[[str], str]) -> None:
        """Have the dispatchers call other addresses, as the controller would when Triggers change."""
        for server in self.dispatchers.values():
            if server.env.get("DLX"):
                continue
            server.kill()
            server.env["SUBSCRIBER"] = address(server.env["SUBSCRIBER"])
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
        return Kept(name, [self._programs / program], self._directory / f"{name}.log", {**DIRECT, **found})


def start_saying(text: str, servers: Iterable[Server]) -> None:
    """Start those that are down; return when each of them has said so in its log."""
    down = [(server, _size(server.log)) for server in servers if not server.alive]
    for server, _ in down:
        server.start()
    for server, size in down:
        await_ready(server.name, Said(text, server.log, size), [], SECONDS)


class Said:
    """Tells whether a log has said something since it was so long."""

    def __init__(self, text: str, log: Path, position: int) -> None:
        self._text, self._log, self._position = text.encode(), log, position

    def __call__(self) -> bool:
        """Look into the log."""
        with self._log.open("rb") as log:
            log.seek(self._position)
            return self._text in log.read()


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
