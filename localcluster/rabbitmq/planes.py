"""The RabbitMQ Broker's data plane: RabbitMQ, the ingress, and a dispatcher per Trigger and per dead letter queue."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from eventing.local.manifests import Trigger
from localcluster.processes import Server, is_listening, start_and_wait_for_log, wait_until_ready
from localcluster.programs import build
from localcluster.rabbitmq import environment, topology
from localcluster.rabbitmq.server import RabbitServer
from localcluster.servers import LOOPBACK, NO_PROXY_LOCAL_ENV

TIMEOUT_SECONDS = 180
CONSUMING_LOG_LINE = "starting to process messages"
"""The message that a dispatcher logs once it consumes its queue."""


class RabbitPlanes:
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
        self._programs = build.ensure_programs(build.RABBITMQ)
        triggers = list(triggers)
        self.rabbitmq = RabbitServer(directory / "rabbitmq", topology.build_definitions(broker, triggers))
        self.ingress = self._build_server(
            "ingress", environment.build_ingress_env(broker, self.rabbitmq.url, port), "ingress"
        )
        self.dispatchers: dict[str, Server] = {}
        self._add_dispatchers(triggers)

    @property
    def servers(self) -> list[Server]:
        """Return the processes of RabbitMQ, the ingress and the dispatchers."""
        return [self.rabbitmq.epmd, self.rabbitmq.server, self.ingress, *self.dispatchers.values()]

    def start_part(self, name: str) -> None:
        """Start one of `parts`; return when it is ready."""
        start_functions = {"rabbitmq": self.rabbitmq.start, "ingress": self._start_ingress}
        start_functions.get(name, self._start_dispatchers)()

    def kill_part(self, name: str) -> None:
        """Kill one of `parts` to simulate a crash."""
        servers_by_part: dict[str, list[Server]] = {"rabbitmq": [self.rabbitmq.server], "ingress": [self.ingress]}
        for server in servers_by_part.get(name) or self.dispatchers.values():
            server.kill()

    def add_trigger(self, trigger: Trigger) -> None:
        """Start delivering events to a new Trigger, as the controller would after the Trigger's creation."""
        self.rabbitmq.import_definitions(topology.build_definitions(self._broker, [trigger]))
        self._add_dispatchers([trigger])
        self._start_dispatchers()

    def route_triggers(self, triggers: Iterable[Trigger]) -> None:
        """Make the dispatchers call the Triggers' new URLs, as the controller would after a change of the Triggers."""
        for trigger in triggers:
            server = self.dispatchers[environment.get_dispatcher_name(trigger)]
            server.kill()
            server.env["SUBSCRIBER"] = trigger.subscriber_url
        self._start_dispatchers()

    def _start_ingress(self) -> None:
        self.ingress.start()
        wait_until_ready("ingress", lambda: is_listening(self._port), [self.ingress], TIMEOUT_SECONDS)

    def _start_dispatchers(self) -> None:
        start_and_wait_for_log(CONSUMING_LOG_LINE, self.dispatchers.values())

    def _add_dispatchers(self, triggers: Iterable[Trigger]) -> None:
        addresses = (self.rabbitmq.url, f"http://{LOOPBACK}:{self._port}")
        for trigger in triggers:
            self._add_dispatcher(environment.build_dispatcher_env(trigger, self._broker, *addresses))
            sink = trigger.policy.dead_letter_url
            if sink:
                self._add_dispatcher(environment.build_dead_letter_env(trigger, sink, *addresses))

    def _add_dispatcher(self, variables: dict[str, str]) -> None:
        name = variables["POD_NAME"]
        self.dispatchers[name] = self._build_server("dispatcher", variables, name)

    def _build_server(self, program: str, variables: dict[str, str], name: str) -> Server:
        return Server(
            name, [self._programs / program], self._directory / f"{name}.log", {**NO_PROXY_LOCAL_ENV, **variables}
        )
