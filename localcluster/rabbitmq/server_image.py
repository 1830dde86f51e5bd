"""An image of RabbitMQ's server from Debian's package, with the layout that the cluster operator expects."""

from __future__ import annotations

import hashlib
from pathlib import Path

from localcluster.nodes import buildah
from localcluster.nodes.buildah import Buildah
from localcluster.programs import build

IMAGE = "localhost/rabbitmq/server:local"
USER = 999
"""The user id with which the cluster operator runs the server."""
HOME = "/var/lib/rabbitmq"
# Installing starts no service, since an image build runs no init system. The Erlang cookie must differ per cluster; the
# operator provides it.
INSTALL = f"""
groupadd --system --gid {USER} rabbitmq
useradd --system --uid {USER} --gid rabbitmq --home-dir {HOME} rabbitmq
apt-get -q -o APT::Sandbox::User=root update
DEBIAN_FRONTEND=noninteractive apt-get -q -y -o APT::Sandbox::User=root install --no-install-recommends rabbitmq-server
rm -rf /var/lib/apt/lists/* {HOME}/.erlang.cookie /etc/rabbitmq/rabbitmq-env.conf
mkdir -p /etc/rabbitmq/conf.d
"""
BIN = "/usr/lib/rabbitmq/bin"
"""The programs themselves; the wrappers on PATH require the service's directories."""
ENVIRONMENT = {
    "PATH": f"{BIN}:{buildah.PATH}",
    "HOME": HOME,
    "LANG": "C.UTF-8",
    "RABBITMQ_LOGS": "-",
    "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none",  # idle schedulers must not spin
    "RUNNING_UNDER_SYSTEMD": "true",  # makes its script exec the server, which then gets SIGTERM
}


def archive() -> Path:
    """Return the image's archive in the format of `docker save`; building a new one takes a minute."""
    made_of = hashlib.sha256(f"{INSTALL}{ENVIRONMENT}".encode()).hexdigest()[:12]
    return buildah.kept(build.cache() / f"rabbitmq-{made_of}.tar", _build)


def _build(engine: Buildah) -> str:
    container = engine.run("from", engine.base).strip()
    engine.run("run", "--network", "host", container, "--", "sh", "-ec", INSTALL)
    told = [word for name, value in ENVIRONMENT.items() for word in ("--env", f"{name}={value}")]
    engine.run("config", *told, "--user", str(USER), "--cmd", f"{BIN}/rabbitmq-server", container)
    engine.run("commit", "--rm", container, IMAGE)
    return IMAGE
