"""RabbitMQ's server as an image, of Debian's package: laid out as the cluster operator expects those published."""

from __future__ import annotations

import hashlib
from pathlib import Path

from localcluster.nodes import buildah
from localcluster.nodes.buildah import Buildah
from localcluster.programs import build

IMAGE = "localhost/rabbitmq/server:local"
USER = 999
"""Whom the cluster operator has the server run as."""
HOME = "/var/lib/rabbitmq"
# No service is started, since nothing starts any here. The cookie is each cluster's own: the operator brings it.
INSTALL = f"""
groupadd --system --gid {USER} rabbitmq
useradd --system --uid {USER} --gid rabbitmq --home-dir {HOME} rabbitmq
apt-get -q -o APT::Sandbox::User=root update
DEBIAN_FRONTEND=noninteractive apt-get -q -y -o APT::Sandbox::User=root install --no-install-recommends rabbitmq-server
rm -rf /var/lib/apt/lists/* {HOME}/.erlang.cookie /etc/rabbitmq/rabbitmq-env.conf
mkdir -p /etc/rabbitmq/conf.d
"""
BIN = "/usr/lib/rabbitmq/bin"
"""The programs themselves; those on PATH insist on folders of the service."""
ENVIRONMENT = {
    "PATH": f"{BIN}:{buildah.PATH}",
    "HOME": HOME,
    "LANG": "C.UTF-8",
    "RABBITMQ_LOGS": "-",
    "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none",  # none spins with nothing to do
    "RUNNING_UNDER_SYSTEMD": "true",  # its script becomes the server, which takes the kubelet's signal itself
}


def archive() -> Path:
    """Give the archive of it, like one of `docker save`; a minute's work where there is none yet."""
    made_of = hashlib.sha256(f"{INSTALL}{ENVIRONMENT}".encode()).hexdigest()[:12]
    return buildah.kept(build.cache() / f"rabbitmq-{made_of}.tar", _build)


def _build(engine: Buildah) -> str:
    container = engine.run("from", engine.base).strip()
    engine.run("run", "--network", "host", container, "--", "sh", "-ec", INSTALL)
    told = [word for name, value in ENVIRONMENT.items() for word in ("--env", f"{name}={value}")]
    engine.run("config", *told, "--user", str(USER), "--cmd", f"{BIN}/rabbitmq-server", container)
    engine.run("commit", "--rm", container, IMAGE)
    return IMAGE
