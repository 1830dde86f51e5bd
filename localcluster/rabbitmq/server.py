"""Runs RabbitMQ as a process with its own node name, ports, data and log, separate from the system's RabbitMQ."""

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
from localcluster.errors import LocalClusterError
from localcluster.processes import Server, is_listening, reserve_port, wait_until_ready
from localcluster.rabbitmq.topology import VHOST
from localcluster.servers import LOOPBACK

CONFIG_TEMPLATE = Path(__file__).with_name("rabbitmq.conf")
PROGRAM_DIRS = ("/usr/lib/rabbitmq/bin", "/usr/local/lib/rabbitmq/bin", "/opt/rabbitmq/sbin")
"""Directories of RabbitMQ's binaries. The wrapper scripts on PATH would require the service's user and directories."""
PROGRAMS = ("rabbitmq-server", "rabbitmqctl", "epmd")
TIMEOUT_SECONDS = 180
ERLANG_FLAGS = (
    "+sbwt none +sbwtdcpu none +sbwtdio none"  # Idle scheduler threads must not spin.
    " -kernel inet_dist_use_interface {127,0,0,1}"
)


@dataclass(frozen=True)
class Login:
    """Name and password of the only RabbitMQ user."""

    name: str = "nodemaintenance"
    password: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    def hash_password(self) -> str:
        """Return the password hash in RabbitMQ's format: the salt, then the SHA-256 hash of salt and password."""
        salt = secrets.token_bytes(4)
        return base64.b64encode(salt + hashlib.sha256(salt + self.password.encode()).digest()).decode()


class RabbitServer:
    """A RabbitMQ node that declares `definitions` (exchanges, queues, users) before it accepts connections."""

    def __init__(self, directory: Path, definitions: Mapping[str, Any]) -> None:
        self._programs = {name: find_program(name) for name in PROGRAMS}
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._port = reserve_port()
        login = Login()
        self.url = f"amqp://{login.name}:{login.password}@{LOOPBACK}:{self._port}"
        _write_config(directory, self._port, {**definitions, **_build_users(login)})
        # Without this epmd process, RabbitMQ would start a host-wide one, which would outlive this process.
        epmd_variables = {"ERL_EPMD_PORT": str(reserve_port()), "ERL_EPMD_ADDRESS": LOOPBACK}
        self.epmd = Server("epmd", [self._programs["epmd"]], directory / "epmd.log", epmd_variables)
        self._environment = {**epmd_variables, **_build_environment(directory)}
        command = [self._programs["rabbitmq-server"]]
        self.server = Server("rabbitmq", command, directory / "rabbitmq.log", self._environment)

    def start(self) -> None:
        """Start RabbitMQ; return when it has declared its definitions and accepts connections."""
        self.epmd.start()
        self.server.start()
        wait_until_ready("RabbitMQ", lambda: is_listening(self._port), [self.server], TIMEOUT_SECONDS)

    def import_definitions(self, definitions: Mapping[str, Any]) -> None:
        """Import additional definitions while RabbitMQ runs; RabbitMQ keeps them across restarts."""
        file = self._directory / "more.json"
        file.write_text(json.dumps(definitions))
        command: list[str | Path] = [self._programs["rabbitmqctl"], "import_definitions", file]
        environment = {**os.environ, **self._environment}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LocalClusterError(
                f"cannot import RabbitMQ definitions from {file}: {done.stderr.strip() or done.stdout.strip()}"
            )


def check_programs() -> None:
    """Raise `LocalClusterError` if a binary of RabbitMQ or Erlang is missing."""
    for program in PROGRAMS:
        find_program(program)


def find_program(program: str) -> Path:
    """Return the path of a binary of RabbitMQ or Erlang. Raises `LocalClusterError` if it is missing."""
    file = next((path for folder in PROGRAM_DIRS if (path := Path(folder) / program).is_file()), None)
    file = file or (Path(on_path) if (on_path := shutil.which(program)) else None)
    if file is None:
        raise LocalClusterError(
            f"DELIVERY=rabbitmq needs {program}, which is missing; run as root: apt-get install -y rabbitmq-server"
        )
    return file


def _build_users(login: Login) -> dict[str, list[dict[str, str]]]:
    full_access = {"configure": ".*", "write": ".*", "read": ".*"}
    return {
        "users": [{"name": login.name, "password_hash": login.hash_password(), "tags": ""}],
        "permissions": [{"user": login.name, "vhost": VHOST, **full_access}],
    }


def _write_config(directory: Path, port: int, definitions: Mapping[str, Any]) -> None:
    access.write_secret(directory / "definitions.json", json.dumps(definitions, indent=1))
    config = Template(CONFIG_TEMPLATE.read_text()).substitute(address=f"{LOOPBACK}:{port}", directory=directory)
    (directory / "rabbitmq.conf").write_text(config)
    (directory / "enabled_plugins").write_text("[].\n")
    (directory / "environment.conf").touch()


def _build_environment(directory: Path) -> dict[str, str]:
    """Return the variables that replace RabbitMQ's default paths in /etc and /var."""
    return {
        "HOME": str(directory),  # This directory contains the Erlang cookie.
        "RABBITMQ_NODENAME": "nodemaintenance@localhost",
        "RABBITMQ_DIST_PORT": str(reserve_port()),
        "RABBITMQ_CONF_ENV_FILE": str(directory / "environment.conf"),
        "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(directory / "data"),
        "RABBITMQ_LOG_BASE": str(directory),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": ERLANG_FLAGS,
        "RUNNING_UNDER_SYSTEMD": "true",  # This makes the script exec the server, so that SIGKILL reaches the server.
    }
