"""RabbitMQ as a plain process with its own node name, ports, data and log, independent of the system's service."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

from localcluster import access
from localcluster.processes import Server, await_ready, free_port, listens
from localcluster.rabbitmq.topology import VHOST
from localcluster.servers import LOOPBACK
from localcluster.errors import LocalClusterError

CONFIG = Path(__file__).with_name("rabbitmq.conf")
PLACES = ("/usr/lib/rabbitmq/bin", "/usr/local/lib/rabbitmq/bin", "/opt/rabbitmq/sbin")
"""Where packages put the programs; the wrappers that they put on PATH require the service's user and directories."""
PROGRAMS = ("rabbitmq-server", "rabbitmqctl", "epmd")
SECONDS = 60
ERLANG = (
    "+sbwt none +sbwtdcpu none +sbwtdio none"  # idle scheduler threads must not spin
    " -kernel inet_dist_use_interface {127,0,0,1}"
)


@dataclass(frozen=True)
class Login:
    """The only RabbitMQ user."""

    name: str = "nodemaintenance"
    password: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    def hashed(self) -> str:
        """Return the password as RabbitMQ stores it: a salt, then the SHA-256 of salt and password."""
        salt = secrets.token_bytes(4)
        return base64.b64encode(salt + hashlib.sha256(salt + self.password.encode()).digest()).decode()


class RabbitServer:
    """One RabbitMQ node that declares `definitions` before it accepts its first connection."""

    def __init__(self, directory: Path, definitions: Mapping[str, Any]) -> None:
        self._programs = {name: find(name) for name in PROGRAMS}
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._port = free_port()
        login = Login()
        self.url = f"amqp://{login.name}:{login.password}@{LOOPBACK}:{self._port}"
        _write(directory, self._port, {**definitions, **_users(login)})
        # Otherwise RabbitMQ would start Erlang's port mapper itself, one per host, and it would outlive this process.
        mapper = {"ERL_EPMD_PORT": str(free_port()), "ERL_EPMD_ADDRESS": LOOPBACK}
        self.mapper = Server("epmd", [self._programs["epmd"]], directory / "epmd.log", mapper)
        self._environment = {**mapper, **_environment(directory)}
        command = [self._programs["rabbitmq-server"]]
        self.server = Server("rabbitmq", command, directory / "rabbitmq.log", self._environment)

    def start(self) -> None:
        """Start RabbitMQ; return when it accepts connections and has thus declared everything."""
        self.mapper.start()
        self.server.start()
        await_ready("RabbitMQ", lambda: listens(self._port), [self.server], SECONDS)

    def declare(self, definitions: Mapping[str, Any]) -> None:
        """Declare more definitions at run time; they survive a restart."""
        file = self._directory / "more.json"
        file.write_text(json.dumps(definitions))
        command: list[str | Path] = [self._programs["rabbitmqctl"], "import_definitions", file]
        environment = {**os.environ, **self._environment}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LocalClusterError(f"RabbitMQ did not declare {file}: {done.stderr.strip() or done.stdout.strip()}")


def check() -> None:
    """Raise `LocalClusterError` if a program is missing, before anything is built or started."""
    for program in PROGRAMS:
        find(program)


def find(program: str) -> Path:
    """Return the path of a program of RabbitMQ or Erlang."""
    found = next((path for place in PLACES if (path := Path(place) / program).is_file()), None)
    found = found or (Path(named) if (named := shutil.which(program)) else None)
    if found is None:
        raise LocalClusterError(
            f"DELIVERY=rabbitmq needs RabbitMQ, and {program} is not there: apt-get install -y rabbitmq-server"
        )
    return found


def _users(login: Login) -> dict[str, list[dict[str, str]]]:
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    return {
        "users": [{"name": login.name, "password_hash": login.hashed(), "tags": ""}],
        "permissions": [{"user": login.name, "vhost": VHOST, **everything}],
    }


def _write(directory: Path, port: int, definitions: Mapping[str, Any]) -> None:
    access.write_secret(directory / "definitions.json", json.dumps(definitions, indent=1))
    config = Template(CONFIG.read_text()).substitute(address=f"{LOOPBACK}:{port}", directory=directory)
    (directory / "rabbitmq.conf").write_text(config)
    (directory / "enabled_plugins").write_text("[].\n")
    (directory / "environment.conf").touch()


def _environment(directory: Path) -> dict[str, str]:
    """Return variables that replace all paths below /etc and /var that RabbitMQ would use."""
    return {
        "HOME": str(directory),  # for the Erlang cookie
        "RABBITMQ_NODENAME": "nodemaintenance@localhost",
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_CONF_ENV_FILE": str(directory / "environment.conf"),
        "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(directory / "data"),
        "RABBITMQ_LOG_BASE": str(directory),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": ERLANG,
        "RUNNING_UNDER_SYSTEMD": "true",  # makes its script exec the server, so that SIGKILL reaches it
    }
